"""Whole jobs whose joins have a log of their rows, with room for next to none or for all of them in memory."""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios.test_groups_on_disk import INT64, ROWS, STATES, coordinator_of, counted, log_files, run, scanned
from tests.scenarios.test_over_sockets import UNALIGNED, folder, slow
from tests.scenarios.test_state_in_rocksdb import local_folder
from tidegate.coordinator.coordinator import Coordinator
from tidegate.operators import runs_on_disk
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import JoinEventTime, JoinInput, JoinType, StreamJoin

__all__ = ["folder", "local_folder"]


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_on_disk, "_LEAST_WRITTEN_BYTES", 64)


def joined(folder: Path) -> StreamJoin:
    """The n-th row of each key with the n-th row of all."""
    left = JoinInput(counted(folder), (Column(1, "n", INT64),), None, None, None)
    right = JoinInput(scanned(folder), (Column(1, "v", INT64),), None, None, None)
    schema = pa.schema([(name, INT64) for name in ("k", "n", "k_of_all", "v")])
    return StreamJoin(JoinType.INNER, left, right, None, schema, JoinEventTime.OF_ONE_SIDE)


def golden() -> Counter[tuple[int, int, int, int]]:
    counted = [(v % 37, v // 37 + 1) for v in range(ROWS)]
    return Counter((k, n, n % 37, n) for k, n in counted)


def found(folder: Path) -> Counter[tuple[int, int, int, int]]:
    return Counter((row["k"], row["n"], row["k_of_all"], row["v"]) for row in pq.read_table(folder / "out").to_pylist())


def stop_after(coordinator: Coordinator, checkpoints: int, local_folder: Path) -> set[str]:
    """What kinds of files its slots had on disk meanwhile."""
    suffixes: set[str] = set()
    coordinator.start()
    while coordinator.view().committed_checkpoints < checkpoints:
        assert not coordinator.wait(0.01), "it ended before it could be stopped"
        # Folders may go while it is looked at them: this passes over those.
        suffixes |= {Path(name).suffix for _, _, names in os.walk(local_folder) for name in names}
    coordinator.stop()
    assert coordinator.wait(60)
    return suffixes


@pytest.mark.parametrize("state", STATES)
def test_a_stopped_join_goes_on_with_any_number_of_slots(folder: Path, local_folder: Path, state: str) -> None:
    """Its rows are in logs that checkpoints refer to, and those that do not fit are in files of the slot's own."""
    for slots in (1, 3):
        how = {"before_row": slow(0.004), "switch_after_ms": UNALIGNED, **STATES[state]}
        on_disk = stop_after(coordinator_of(joined(folder), folder, slots=slots, **how), 2, local_folder)
        assert (".scratch" in on_disk) == (state == "mostly on disk")
        assert log_files(folder)
    run(coordinator_of(joined(folder), folder, slots=2, **STATES[state]))
    assert found(folder) == golden()
