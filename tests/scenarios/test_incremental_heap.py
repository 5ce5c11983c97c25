"""Whole jobs whose state in memory is stored by what changed, over real sockets, each slot a thread."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

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
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.restart import FixedDelay
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import open_store
from tidegate.worker.settings import HeapSnapshots

__all__ = ["folder", "local_folder"]

incremental: Callable[..., Coordinator] = partial(job, inline_below_bytes=0)
whole: Callable[..., Coordinator] = partial(job, inline_below_bytes=0, heap_snapshots=HeapSnapshots.WHOLE)
in_rocksdb: Callable[..., Coordinator] = partial(job, inline_below_bytes=0, state_backend="rocksdb")


def state_files(manifest: Manifest) -> set[str]:
    return {file.path for slot in manifest.slots for file in slot.shared if file.path.endswith(".entries")}


def files_in(location: Path) -> set[str]:
    return {path for path in open_store(str(location)).list(layout.SHARED) if path.endswith(".entries")}


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED, SWITCHING])
def test_every_row_counts_once_through_an_error_and_no_folder_is_left(
    folder: Path, local_folder: Path, switch_after_ms: float | None
) -> None:
    coordinator = incremental(
        folder, switch_after_ms=switch_after_ms, before_row=FailsOnce(1000), restart=FixedDelay(3, delay_ms=10)
    )
    run(coordinator)
    view = coordinator.view()
    assert (view.state, view.generation) == ("finished", 2)
    assert committed(folder) == golden()
    assert list(local_folder.iterdir()) == []


@pytest.mark.parametrize("slots", [(2, 2, 2), (1, 3, 2), (3, 2, 1)])
def test_a_stopped_job_goes_on_with_any_number_of_slots(folder: Path, slots: tuple[int, int, int]) -> None:
    for number in slots[:2]:
        stop_after(incremental(folder, slots=number, before_row=slow(0.001)), 2)
    run(incremental(folder, slots=slots[2]))
    assert committed(folder) == golden()


def test_checkpoints_share_files_and_none_is_kept_that_no_checkpoint_needs(folder: Path) -> None:
    run(incremental(folder, interval_ms=20, before_row=slow(0.0005)))
    older, newer = map(state_files, retained(folder))
    assert older | newer
    assert files_in(folder / "chk") == older | newer


def test_a_job_goes_on_with_the_files_of_the_run_before_it(folder: Path) -> None:
    stop_after(incremental(folder, before_row=slow(0.001)), 2)
    before = retained(folder)[-1]
    stop_after(incremental(folder, interval_ms=10, before_row=slow(0.002)), 1)
    first = min((m for m in retained(folder) if m.generation == 2), key=lambda manifest: manifest.checkpoint)
    assert state_files(first) & state_files(before)


def test_small_state_is_in_the_state_files_alone(folder: Path, local_folder: Path) -> None:
    coordinator = job(folder, switch_after_ms=ALIGNED)
    run(coordinator)
    assert [state_files(manifest) for manifest in retained(folder)] == [set()] * len(retained(folder))
    assert committed(folder) == golden()


@pytest.mark.parametrize("others", [(whole, incremental), (incremental, whole), (incremental, in_rocksdb)])
def test_a_job_goes_on_however_its_state_was_stored(
    folder: Path, others: tuple[Callable[..., Coordinator], Callable[..., Coordinator]]
) -> None:
    for start in others:
        stop_after(start(folder, before_row=slow(0.001)), 2)
    run(others[-1](folder, slots=3))
    assert committed(folder) == golden()


def test_a_savepoint_that_was_moved_starts_a_job_elsewhere_whatever_became_of_its_own(folder: Path) -> None:
    first = incremental(folder, before_row=slow(0.001))
    first.start()
    while first.view().committed_checkpoints < 2:
        assert not first.wait(0.01), "it ended before it could be stopped"
    wish = first.savepoint(str(folder / "saved"), alignment=SavepointAlignment.UNALIGNED, afterwards=Afterwards.SUSPEND)
    saved = Path(wish.result(20))
    assert first.wait(60)
    shutil.rmtree(folder / "chk")
    moved = saved.rename(folder / "moved")
    manifest = decode_manifest(open_store(str(moved)).read(layout.savepoint_manifest()), name="the savepoint")
    assert state_files(manifest) == files_in(moved) != set()
    second = incremental(folder, slots=3, location="elsewhere", restore_from=str(moved), before_row=slow(0.0005))
    stop_after(second, 1)
    shutil.rmtree(moved)
    run(incremental(folder, slots=1, location="elsewhere"))
    assert committed(folder) == golden()
