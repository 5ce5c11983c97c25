"""Any single file of the newest checkpoint is lost or damaged: it is named, and no row is lost or comes out twice."""

import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.numbered_rows import ALIGNED, ROWS, UNALIGNED, NumberedRows, golden
from tidegate.connectors.memory import read_memory_table
from tidegate.coordinator import durable
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import Damaged
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.restart import FixedDelay
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, CheckpointSkipped, JobLog, RolledBack
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import missing
from tidegate.worker import session


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


DAMAGES: list[Callable[[Path], None]] = [delete, truncate, flip]
BACKENDS = {
    "heap": {"inline_below_bytes": 0},
    "inline": {},
    "rocksdb": {"state_backend": "rocksdb", "inline_below_bytes": 0},
}


def manifest_path(manifest: Manifest) -> str:
    return layout.manifest(layout.CheckpointFolder(manifest.checkpoint, manifest.generation))


def files_of(manifest: Manifest) -> set[str]:
    shared = {file.path for slot in manifest.slots for file in slot.shared}
    # What is small is in the manifest itself.
    return {manifest_path(manifest), *(slot.path for slot in manifest.slots if slot.content is None), *shared}


@dataclass(slots=True)
class Stopped:
    """A job that was stopped with several checkpoints; `again` puts everything back as it was then."""

    rows: NumberedRows
    manifests: list[Manifest]

    @classmethod
    def after_some_checkpoints(cls, rows: NumberedRows) -> "Stopped":
        # The first holds nothing in flight, so that it needs none of the files of captured rows.
        rows.switch_after_ms = ALIGNED
        rows.stop_after(1, keep=10)
        rows.switch_after_ms = UNALIGNED
        rows.stop_after(3, keep=10)
        rows.interval_ms = 500  # From here on runs are to be short.
        shutil.copytree(rows.folder / "chk", rows.folder / "chk.kept")
        if (rows.folder / "out").exists():
            shutil.copytree(rows.folder / "out", rows.folder / "out.kept")
        return cls(rows, rows.retained())

    @property
    def newest(self) -> Manifest:
        return self.manifests[-1]

    def again(self) -> None:
        for name in ("chk", "out"):
            if (self.rows.folder / f"{name}.kept").exists():
                shutil.rmtree(self.rows.folder / name)
                shutil.copytree(self.rows.folder / f"{name}.kept", self.rows.folder / name)

    def usable_without(self, path: str) -> Manifest | None:
        return next((m for m in reversed(self.manifests) if path not in files_of(m)), None)

    def entries(self, kind: type) -> list[int]:
        log = JobLog(self.rows.store, driver="a reader").read()
        return [entry.checkpoint for entry in log if isinstance(entry, kind)]  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=BACKENDS)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    rows = NumberedRows(tmp_path_factory.mktemp("stopped"), settings=BACKENDS[request.param])
    found = Stopped.after_some_checkpoints(rows)
    kinds = {Path(path).suffix for path in files_of(found.newest)}
    wanted = {"heap": {".json", ".state", ".channels", ".entries"}, "inline": {".json"}}
    assert kinds == wanted.get(request.param, {".json", ".state", ".channels", ".sst"}), "each kind of file is tried"
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_file_sink_goes_back_to_the_checkpoint_before_and_ends_with_golden_rows(
    stopped: Stopped, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    went_back = set()
    for path in sorted(files_of(stopped.newest)):
        stopped.again()
        damage(stopped.rows.folder / "chk" / path)
        usable = stopped.usable_without(path)
        if usable is None:
            assert f"{path} " in refused(stopped.rows.job().start), "every retained checkpoint needs this file"
            continue
        went_back.add(Path(path).suffix)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            ended = stopped.rows.finish()
        assert ended.view().state == "finished", path
        assert [(key, id) for key, id, _ in stopped.rows.output()] == golden(), path
        # Numbered without a gap: nothing of the state was lost or applied twice.
        per_key = Counter(key for key, _, _ in stopped.rows.output())
        assert {(key, n) for key, _, n in stopped.rows.output()} == {
            (key, n) for key, count in per_key.items() for n in range(1, count + 1)
        }
        assert path in caplog.text, "the file is named"
        skipped = [manifest.checkpoint for manifest in stopped.manifests if manifest.checkpoint > usable.checkpoint]
        assert stopped.entries(CheckpointSkipped) == stopped.entries(RolledBack) == skipped
    assert went_back == {Path(path).suffix for path in files_of(stopped.newest)}, "each kind of file was tried"


def test_a_file_that_only_a_slot_cannot_find_is_no_damage(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may have lost the way to the store: the driver, which finds the file, takes nothing back."""
    stopped.again()
    failures = iter([True])

    def restore_for(*args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise missing(stopped.newest.slots[0].path)
        return session.restore_for(*args, **kwargs)

    monkeypatch.setattr("tidegate.worker.main.restore_for", restore_for)
    ended = stopped.rows.finish(restart=FixedDelay(attempts=3, delay_ms=10))
    assert ended.view().state == "finished"
    assert next(failures, None) is None, "it has failed"
    assert [(key, id) for key, id, _ in stopped.rows.output()] == golden()
    assert stopped.entries(CheckpointSkipped) == []


def test_damage_that_only_slots_find_makes_the_query_go_back_as_well(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As if the checkpoint were too large for the driver to read all of it.
    monkeypatch.setattr(durable, "_READ_TO_CHECK_BYTES", 0)
    for path in sorted(files_of(stopped.newest) - {manifest_path(stopped.newest)}):
        stopped.again()
        flip(stopped.rows.folder / "chk" / path)
        usable = stopped.usable_without(path)
        if usable is None:
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            ended = stopped.rows.finish()
        assert ended.view().state == "finished", ended.failure()
        assert [(key, id) for key, id, _ in stopped.rows.output()] == golden(), path
        # A state file may have a byte flipped that nobody reads; every byte of the others is read.
        if path in caplog.text or not path.endswith(".state"):
            assert path in caplog.text
            assert stopped.newest.checkpoint in stopped.entries(RolledBack)
            assert ended.view().generation >= stopped.newest.generation + 2


def refused(start: Callable[[], object]) -> str:
    with pytest.raises(Damaged) as caught:
        start()
    return str(caught.value)


def everything_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_that_a_reader_took_away_cannot_be_taken_back(stopped: Stopped) -> None:
    stopped.again()
    own_folder = f"checkpoints/{stopped.newest.checkpoint}-"
    lost = min(path for path in files_of(stopped.newest) if path.startswith(own_folder))
    (stopped.rows.folder / "chk" / lost).unlink()
    newest_output = max((stopped.rows.folder / "out").glob("part-*"))
    newest_output.unlink()
    before = everything_below(stopped.rows.folder)
    message = refused(stopped.rows.job().start)
    assert lost in message and f"{newest_output} is gone" in message
    assert everything_below(stopped.rows.folder) == before, "a refusal changes nothing"
    stopped.rows.finish(rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert {id for _, id, _ in stopped.rows.output()} == set(range(ROWS))
    assert len(stopped.rows.output()) > ROWS


# -- a sink that cannot roll back


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    rows = NumberedRows(
        tmp_path_factory.mktemp("memory"),
        sink="memory",
        sink_options={"queryName": "corrupted"},
        settings={"inline_below_bytes": 0},
    )
    return Stopped.after_some_checkpoints(rows)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_sink_that_cannot_take_back_makes_the_query_refuse_with_the_name_of_the_file(
    in_memory: Stopped, damage: Callable[[Path], None]
) -> None:
    goes_back = []
    for path in sorted(files_of(in_memory.newest)):
        in_memory.again()
        damage(in_memory.rows.folder / "chk" / path)
        before = everything_below(in_memory.rows.folder)
        message = refused(in_memory.rows.job().start)
        assert re.search(rf"\[.*{re.escape(path)} .*\]", message), message
        # An image of state may be in every checkpoint that is retained: then there is none to go back to.
        goes_back.append(in_memory.usable_without(path) is not None)
        assert (".option('restore.allowDuplicates', 'true')" in message) == goes_back[-1]
        assert everything_below(in_memory.rows.folder) == before
    assert any(goes_back)


def test_who_accepts_duplicates_gets_the_skipped_epochs_twice_and_nothing_else(in_memory: Stopped) -> None:
    in_memory.again()
    damaged = in_memory.newest.slots[0].path
    (in_memory.rows.folder / "chk" / damaged).unlink()
    committed = Counter(row["v"] for row in read_memory_table("corrupted").to_pylist())
    ended: Coordinator = in_memory.rows.finish(rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert ended.view().state == "finished"
    found = Counter(row["v"] for row in read_memory_table("corrupted").to_pylist())
    twice = {id for id, count in found.items() if count > 1}
    assert set(found) == set(range(ROWS)) and max(found.values()) == 2
    assert twice and twice <= set(committed), "only what was out already"
    assert in_memory.entries(CheckpointSkipped) == [in_memory.newest.checkpoint]
    assert in_memory.entries(RolledBack) == []
    assert in_memory.entries(CheckpointCompleted)[-1] > in_memory.newest.checkpoint
