"""state.localRecovery: a slot that comes back on the same machine reads its own disk, if what is there is right."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.numbered_rows import ALIGNED, ROWS, UNALIGNED, NumberedRows, golden
from tidegate.coordinator.views import RestoreView
from tidegate.model.errors import Missing
from tidegate.protocol.restart import FixedDelay
from tidegate.storage.manifests import Manifest
from tidegate.worker.local_copies import LocalRecovery

BACKENDS = ["heap", "rocksdb"]
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The executor's own, as Spark tells its workers."""
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    return local


class FailsOnce:
    """At the given row; `first` is done just before."""

    def __init__(self, row: int, error: type[BaseException], first: Callable[[], None] = lambda: None) -> None:
        self._row = row
        self._error = error
        self._first = first
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        time.sleep(0.0002)
        with self._lock:
            self._seen += 1
            if self._seen == self._row:
                self._first()
                raise self._error("an odd row")


def numbered(folder: Path, backend: str = "heap", **settings: Any) -> NumberedRows:
    kept = {"local_recovery": LocalRecovery.ALWAYS, "inline_below_bytes": 0, "state_backend": backend}
    return NumberedRows(folder, settings=kept | settings)


def run_through(rows: NumberedRows, failure: FailsOnce) -> RestoreView:
    ended = rows.finish(before_row=failure, restart=FixedDelay(3, delay_ms=10))
    view = ended.view()
    assert view.state == "finished" and view.generation >= 2, ended.failure()
    assert [(key, id) for key, id, _ in rows.output()] == golden()
    assert view.restore is not None
    return view.restore


def files_of(manifest: Manifest) -> set[str]:
    return {slot.path for slot in manifest.slots} | {file.path for slot in manifest.slots for file in slot.shared}


def copies_below(folder: Path) -> list[Path]:
    """Of all slots. Folders may go while it looks."""
    found = sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return [path for path in found if path.relative_to(folder).parts[0].startswith("tidegate-copies-")]


def copies_in(folder: Path) -> set[str]:
    """By their paths below a slot's folder; two slots may have one each."""
    return {"/".join(path.relative_to(folder).parts[2:]) for path in copies_below(folder)}


# Nobody catches the second one: the slot is gone as if its process were.
ERRORS = {"in place": ValueError, "by a new launch": KeyboardInterrupt}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restart_reads_the_slots_own_disks_alone_and_the_end_leaves_nothing(
    tmp_path: Path, local_folder: Path, backend: str, switch_after_ms: float | None, error: type[BaseException]
) -> None:
    rows = numbered(tmp_path, backend)
    rows.switch_after_ms = switch_after_ms
    restore = run_through(rows, FailsOnce(ROWS // 2, error))
    assert (restore.remote_bytes, restore.damaged_copies) == (0, 0)
    assert restore.local_bytes > 0
    assert list(local_folder.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_damaged_copy_is_replaced_by_what_is_stored_and_counted(
    tmp_path: Path, local_folder: Path, backend: str
) -> None:
    rows = numbered(tmp_path, backend)
    completed = 0

    def damage() -> None:
        nonlocal completed
        completed = rows.newest_checkpoint()
        for number, file in enumerate(copies_below(local_folder)):
            # What is outdated may go meanwhile, and its folder with it.
            with suppress(FileNotFoundError):
                # Not in place: files of RocksDB's own may be the same ones.
                data = bytearray(file.read_bytes())
                file.unlink()
                data[len(data) // 2] ^= 1
                file.write_bytes(data[: len(data) - number % 2])

    restore = run_through(rows, FailsOnce(ROWS // 2, ValueError, damage))
    assert restore.damaged_copies > 0 and restore.remote_bytes > 0
    # The other slot may have gone on for a moment: files of a later checkpoint are whole.
    assert restore.local_bytes == 0 or restore.checkpoint > completed
    assert list(local_folder.iterdir()) == []


def test_copies_are_of_the_newest_completed_checkpoint_or_the_one_before_until_it_is_heard_of(
    tmp_path: Path, local_folder: Path
) -> None:
    rows = numbered(tmp_path)
    missing, outdated = {"nobody has looked"}, {"nobody has looked"}

    def look() -> None:
        nonlocal missing, outdated
        deadline_s = time.monotonic() + PATIENCE_S
        # What is being stored, and pruned, comes to its end: this slot hears of nothing newer.
        while (missing or outdated) and time.monotonic() < deadline_s:
            # What is removed between two looks at it is looked for again.
            with suppress(Missing, FileNotFoundError):
                before, newest = rows.retained()[-2:]
                copies = copies_in(local_folder)
                missing = files_of(newest) - copies
                others = copies - files_of(newest) - files_of(before)
                outdated = {name for name in others if int(name.split("/")[1].split("-")[0]) <= newest.checkpoint}
            time.sleep(0.02)

    run_through(rows, FailsOnce(ROWS // 2, ValueError, look))
    assert (missing, outdated) == (set(), set())


@pytest.mark.parametrize(
    ("settings", "reads_files"),
    [({"local_recovery": LocalRecovery.OFF}, True), ({"inline_below_bytes": 1 << 20}, False)],
    ids=["off", "small files, which the manifest holds"],
)
def test_without_the_option_and_for_small_files_nothing_is_kept(
    tmp_path: Path, local_folder: Path, settings: dict[str, Any], reads_files: bool
) -> None:
    seen: list[Path] = []
    failure = FailsOnce(ROWS // 2, ValueError, lambda: seen.extend(local_folder.glob("tidegate-copies-*")))
    restore = run_through(numbered(tmp_path, **settings), failure)
    assert seen == [] and restore.local_bytes == 0 and (restore.remote_bytes > 0) is reads_files


def test_a_disk_that_takes_nothing_ends_the_copying_and_no_checkpoint(tmp_path: Path, local_folder: Path) -> None:
    local_folder.rmdir()
    local_folder.write_bytes(b"no folder can be made here")
    restore = run_through(numbered(tmp_path), FailsOnce(ROWS // 2, ValueError))
    assert restore.local_bytes == 0
