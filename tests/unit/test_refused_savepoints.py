"""Savepoints that are not written from rows: what is refused, and what attempts that failed leave."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import plan_of
from tests.unit.test_checkpoint_tables import (
    INPUT,
)
from tests.unit.test_written_savepoints import SECOND, START, in_flight_of, job_plan, new, write
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import (
    new_savepoint,
    regrouped_savepoint,
)
from tidegate.model.errors import OptionError, StorageFailure
from tidegate.plan.nodes import DeclaredState, StateShape
from tidegate.plan.physical import TransformWithStateSpec


def test_a_key_or_a_place_below_it_can_be_given_once_only(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Two rows have the same place in state 'count' of operator v1.op0"):
        write(new(tmp_path / "values"), ("a", 1, None), ("a", 2, None))
    now = START + SECOND
    with pytest.raises(OptionError, match="Two rows have the same place"):
        write(new(tmp_path / "lists", "seen"), ("a", 1, now, now), ("a", 1, now, now))


def test_elements_need_an_index_and_states_with_a_ttl_an_expiration(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="without an index"):
        write(new(tmp_path / "one", "seen"), ("a", None, START, START))
    with pytest.raises(OptionError, match="has no expiration"):
        write(new(tmp_path / "two", "seen"), ("a", 0, START, None))


def test_a_folder_with_a_savepoint_is_not_written_to(tmp_path: Path) -> None:
    write(new(tmp_path / "new"), ("a", 1, None))
    with pytest.raises(OptionError, match="There is a savepoint in .* already"):
        new(tmp_path / "new")


@pytest.mark.parametrize("name", ["backup/checkpoints/7-g1", "new/manifest.json"])
def test_a_folder_by_whose_name_its_files_are_looked_for_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match="is named like a checkpoint"):
        new(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_savepoint_without_all_its_slots_does_not_come_to_exist(tmp_path: Path) -> None:
    target = new(tmp_path / "new")
    with pytest.raises(StorageFailure, match=r"Of the 2 slots .* \[0\] were written"):
        target.finish([target.write_slot(0, [], token="a")])
    assert not (tmp_path / "new" / "manifest.json").exists()


def test_savepoints_in_folders_below_are_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "new" / "savepoint-9-g1" / "0.state", tmp_path / "new" / "0.state"]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"somebody else's")
    write(new(tmp_path / "new"), ("a", 1, None))
    assert all(other.exists() for other in others)


def test_files_of_attempts_that_failed_are_removed(tmp_path: Path) -> None:
    target = new(tmp_path / "new")
    target.write_slot(0, [], token="failed")
    write(target, ("a", 1, None))
    assert sorted(file.name for file in (tmp_path / "new").glob("*.state")) == ["0-try0.state", "1-try1.state"]


def test_broadcast_state_is_not_written_from_rows(tmp_path: Path) -> None:
    declared = DeclaredState(
        "rules", StateShape.BROADCAST, pa.schema([("v", pa.int64())]), pa.schema([("k", pa.int64())])
    )
    spec = TransformWithStateSpec(1, b"", INPUT, INPUT, states=(declared,))
    with pytest.raises(OptionError, match="State 'rules' .* cannot be written from rows, because broadcast state has"):
        new_savepoint(str(tmp_path), plan_of(spec, schema=INPUT), [], operator=None, state=None, now_ms=0)


def test_another_max_parallelism_is_refused_out_of_bounds(tmp_path: Path) -> None:
    captured = find_checkpoint(in_flight_of(job_plan(), tmp_path / "captured"))
    wrong: list[Any] = [0, -1, 40_000, "64", 6.4]
    for number in wrong:
        with pytest.raises(
            OptionError, match=f"max_parallelism is {number!r}: it must be a number between 1 and 32768"
        ):
            regrouped_savepoint(str(tmp_path / "x"), captured, max_parallelism=number, now_ms=0)
    assert not (tmp_path / "x").exists()
