"""Whole jobs whose changes of state are stored all along, over real sockets, each slot a thread."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures import upgrade_job
from tests.scenarios.test_incremental_heap import incremental
from tests.scenarios.test_over_sockets import (
    ALIGNED,
    SWITCHING,
    UNALIGNED,
    FailsOnce,
    committed,
    folder,
    golden,
    job,
    run,
    slow,
)
from tests.scenarios.test_state_in_rocksdb import local_folder, retained, stop_after
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.restart import FixedDelay
from tidegate.state import changelog, rows_ahead
from tidegate.state.contract import LocalFile
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import open_store
from tidegate.worker import stored_ahead
from tidegate.worker.stored_ahead import StoredAhead

__all__ = ["folder", "local_folder"]

logged: Callable[..., Coordinator] = partial(job, inline_below_bytes=0, changelog_image_interval_ms=60)
BACKENDS = ["heap", "rocksdb"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run of a second has many."""
    monkeypatch.setattr(changelog, "BATCH_MS", 5.0)


def state_files(manifest: Manifest) -> set[str]:
    return {file.path for slot in manifest.slots for file in slot.shared if not file.path.endswith(".channels")}


def files_in(location: Path) -> set[str]:
    return {path for path in open_store(str(location)).list(layout.SHARED) if not path.endswith(".channels")}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED, SWITCHING])
def test_every_row_counts_once_through_an_error_and_nothing_is_left(
    folder: Path, local_folder: Path, backend: str, switch_after_ms: float | None
) -> None:
    coordinator = logged(
        folder,
        state_backend=backend,
        switch_after_ms=switch_after_ms,
        before_row=FailsOnce(1000),
        restart=FixedDelay(3, delay_ms=10),
    )
    run(coordinator)
    assert (coordinator.view().state, coordinator.view().generation) == ("finished", 2)
    assert committed(folder) == golden()
    assert list(local_folder.iterdir()) == []
    needed = [state_files(manifest) for manifest in retained(folder)]
    assert files_in(folder / "chk") == set().union(*needed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("slots", [(2, 2, 2), (1, 3, 2), (3, 2, 1)])
def test_a_stopped_job_goes_on_with_any_number_of_slots(
    folder: Path, backend: str, slots: tuple[int, int, int]
) -> None:
    for number in slots[:2]:
        stop_after(logged(folder, state_backend=backend, slots=number, before_row=slow(0.001)), 3)
    run(logged(folder, state_backend=backend, slots=slots[2]))
    assert committed(folder) == golden()


@pytest.mark.parametrize("backend", BACKENDS)
def test_files_that_no_checkpoint_needs_do_not_pile_up(folder: Path, backend: str) -> None:
    coordinator = logged(folder, state_backend=backend, interval_ms=20, before_row=slow(0.001))
    run(coordinator)
    older, newer = map(state_files, retained(folder))
    assert files_in(folder / "chk") == older | newer != set()
    assert committed(folder) == golden()


def test_the_log_is_turned_on_and_off_over_the_same_state(folder: Path) -> None:
    stop_after(incremental(folder, before_row=slow(0.001)), 2)
    stop_after(logged(folder, before_row=slow(0.001)), 2)
    stop_after(incremental(folder, slots=3, before_row=slow(0.001)), 2)
    run(logged(folder, state_backend="rocksdb"))
    assert committed(folder) == golden()


def test_the_heap_refuses_images_of_rocksdb(folder: Path) -> None:
    for _ in range(2):  # a run that goes on begins with an image
        stop_after(logged(folder, state_backend="rocksdb", before_row=slow(0.001)), 2)
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        logged(folder).start()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_that_wait_for_their_changes_to_be_stored_go_on(
    folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 10)
    run(logged(folder, state_backend=backend))
    assert committed(folder) == golden()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_savepoint_that_was_moved_starts_a_job_elsewhere_whatever_became_of_its_own(
    folder: Path, backend: str
) -> None:
    first = logged(folder, state_backend=backend, before_row=slow(0.001))
    first.start()
    while first.view().committed_checkpoints < 3:
        assert not first.wait(0.01), "it ended before it could be stopped"
    wish = first.savepoint(str(folder / "saved"), alignment=SavepointAlignment.UNALIGNED, afterwards=Afterwards.SUSPEND)
    saved = Path(wish.result(20))
    assert first.wait(60)
    shutil.rmtree(folder / "chk")
    moved = saved.rename(folder / "moved")
    manifest = decode_manifest(open_store(str(moved)).read(layout.savepoint_manifest()), name="the savepoint")
    assert state_files(manifest) == files_in(moved) != set()
    run(logged(folder, state_backend=backend, slots=3, location="elsewhere", restore_from=str(moved)))
    assert committed(folder) == golden()


@pytest.mark.parametrize("kept", ["heap-logs", "rocksdb-logs"])
def test_rows_of_a_join_and_an_aggregation_are_stored_ahead_and_each_counts_once(
    tmp_path: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_ahead, "LOOK_MS", 5.0)
    monkeypatch.setattr(rows_ahead, "WAIT_MS", 10.0)
    ahead, store_changes = list[str](), StoredAhead.store_changes

    def noted(stored: StoredAhead, file: LocalFile) -> None:
        ahead.append(file.name)
        store_changes(stored, file)

    monkeypatch.setattr(StoredAhead, "store_changes", noted)
    first = upgrade_job.job(tmp_path, kept=kept, before_row=slow(0.002))
    first.start()
    while first.view().committed_checkpoints < 3 or not any(name.endswith(".rows") for name in ahead):
        assert not first.wait(0.01), "it ended before rows were stored ahead"
    first.stop()
    assert first.wait(60)
    run(upgrade_job.job(tmp_path, kept=kept, slots=upgrade_job.KEPT[kept].slots + 1))
    assert upgrade_job.totals_in(tmp_path) == upgrade_job.expected_totals()
