"""What a running job removes: a savepoint that failed, with uploads that come late; a checkpoint that is damaged."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.numbered_rows import NumberedRows, golden
from tidegate.model.errors import JobFailure
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.requests import SavepointAlignment
from tidegate.storage import layout
from tidegate.storage.access import StoreAccess
from tidegate.storage.job_log import CheckpointRetired, CheckpointSkipped, JobLog, retained_checkpoints
from tidegate.storage.store import Data, LocalFiles, Store, local_path, pieces_of
from tidegate.worker import main

PATIENCE_S = 60.0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.02)


@pytest.mark.parametrize("folder", ["backups", f"chk/{layout.SAVEPOINTS}"])
def test_an_upload_of_a_failed_savepoint_that_comes_late_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    let_go, has_come = threading.Event(), threading.Event()

    class SlowForOneSlot(LocalFiles):
        """Slot 1 has handed all over and waits for the answer: nothing can call it back."""

        def put(self, path: str, data: Data) -> None:
            if path == "1.state":
                data = b"".join(bytes(piece) for piece in pieces_of(data))
                assert let_go.wait(PATIENCE_S)
            LocalFiles.put(self, path, data)
            if path == "1.state":
                has_come.set()

    def open_place(location: str, _: StoreAccess) -> Store:
        root = local_path(location)
        assert root is not None
        return SlowForOneSlot(root)

    monkeypatch.setattr(main, "open_place", open_place)
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "notes.txt").write_text("the user's")
    rows = NumberedRows(tmp_path)
    settings = CheckpointSettings(
        interval_ms=50, timeout_ms=1_000, min_pause_ms=0, max_concurrent=1, tolerable_failures=1_000
    )
    job = rows.job(before_row=lambda: time.sleep(0.01), checkpoints=settings, run="5f2c9a1b")
    job.start()
    try:
        wait_for(lambda: job.view().committed_checkpoints >= 1)
        asked = job.savepoint(str(tmp_path / folder), alignment=SavepointAlignment.UNALIGNED)
        with pytest.raises(JobFailure, match="expired"):
            asked.result(PATIENCE_S)
        (left,) = (tmp_path / folder).glob("savepoint-*")
        assert left.name.endswith("-5f2c9a1b") and (left / "0.state").exists(), "one slot had written its part"
        committed = job.view().committed_checkpoints
        let_go.set()
        assert has_come.wait(PATIENCE_S)
        wait_for(lambda: not left.exists())
        assert job.view().committed_checkpoints > committed and job.view().state == "running"
    finally:
        let_go.set()
        job.stop()
        assert job.wait(PATIENCE_S)
    assert (tmp_path / "backups" / "notes.txt").exists()
    assert rows.finish().view().state == "finished"
    assert [(key, id) for key, id, _ in rows.output()] == golden()


@pytest.mark.parametrize("damaged", ["its manifest", "its state"])
def test_a_damaged_checkpoint_that_was_passed_over_goes_in_its_turn(tmp_path: Path, damaged: str) -> None:
    rows = NumberedRows(tmp_path, settings={"inline_below_bytes": 0})
    rows.stop_after(3, keep=10)
    newest = rows.retained()[-1]
    folder = tmp_path / "chk" / f"checkpoints/{newest.checkpoint}-g{newest.generation}"
    (folder / ("manifest.json" if damaged == "its manifest" else "0.state")).write_bytes(b"damaged")
    rows.stop_after(4, keep=2)
    entries = JobLog(rows.store, driver="a reader").read()
    assert [entry.checkpoint for entry in entries if isinstance(entry, CheckpointSkipped)] == [newest.checkpoint]
    assert CheckpointRetired(checkpoint=newest.checkpoint) in entries
    retained = {f"checkpoints/{each.checkpoint}-g{each.generation}" for each in retained_checkpoints(entries)}
    assert {path.rpartition("/")[0] for path in rows.store.list(layout.CHECKPOINTS)} == retained
    named = {file.path for manifest in rows.retained() for slot in manifest.slots for file in slot.shared}
    assert set(rows.store.list(layout.SHARED)) == named
    assert rows.finish().view().state == "finished"
    assert [(key, id) for key, id, _ in rows.output()] == golden()
