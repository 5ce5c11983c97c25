"""Whole jobs with state in RocksDB, over real sockets, each slot a thread."""

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
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.restart import FixedDelay
from tidegate.storage import layout
from tidegate.storage.job_log import JobLog, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import open_store

__all__ = ["folder"]

in_rocksdb: Callable[..., Coordinator] = partial(job, state_backend="rocksdb", inline_below_bytes=0)


@pytest.fixture(autouse=True)
def local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where slots keep their state, as Spark tells its workers."""
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},/nowhere/else")
    return local


def stop_after(coordinator: Coordinator, checkpoints: int) -> None:
    coordinator.start()
    while coordinator.view().committed_checkpoints < checkpoints:
        assert not coordinator.wait(0.01), "it ended before it could be stopped"
    coordinator.stop()
    assert coordinator.wait(60)
    assert coordinator.view().state == "stopped"


def retained(folder: Path) -> list[Manifest]:
    store = open_store(str(folder / "chk"))
    completed = retained_checkpoints(JobLog(store, driver="a reader").read())
    return [decode_manifest(store.read(each.manifest), name=each.manifest) for each in completed]


def state_files(manifest: Manifest) -> set[str]:
    return {file.path for slot in manifest.slots for file in slot.shared if file.path.endswith(".sst")}


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED, SWITCHING])
def test_every_row_counts_once_through_an_error_and_no_folder_is_left(
    folder: Path, local_folder: Path, switch_after_ms: float | None
) -> None:
    coordinator = in_rocksdb(
        folder, switch_after_ms=switch_after_ms, before_row=FailsOnce(1000), restart=FixedDelay(3, delay_ms=10)
    )
    run(coordinator)
    view = coordinator.view()
    assert (view.state, view.generation) == ("finished", 2)
    assert committed(folder) == golden()
    assert list(local_folder.iterdir()) == []


@pytest.mark.parametrize("slots", [(2, 2, 2), (1, 3, 2), (3, 2, 1)])
@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED])
def test_a_stopped_job_goes_on_with_any_number_of_slots(
    folder: Path, slots: tuple[int, int, int], switch_after_ms: float | None
) -> None:
    for number in slots[:2]:
        stop_after(in_rocksdb(folder, slots=number, switch_after_ms=switch_after_ms, before_row=slow(0.001)), 2)
    run(in_rocksdb(folder, slots=slots[2], switch_after_ms=switch_after_ms))
    assert committed(folder) == golden()


def test_checkpoints_share_files_and_none_is_kept_that_no_checkpoint_needs(folder: Path) -> None:
    coordinator = in_rocksdb(folder, interval_ms=20, before_row=slow(0.0005))
    run(coordinator)
    manifests = retained(folder)
    assert len(manifests) == 2
    older, newer = map(state_files, manifests)
    assert older & newer, "what did not change between them is stored once"
    stored = {path for path in open_store(str(folder / "chk")).list(layout.SHARED) if path.endswith(".sst")}
    assert stored == older | newer


def test_small_state_is_in_the_state_files_alone(folder: Path) -> None:
    run(job(folder, state_backend="rocksdb", switch_after_ms=ALIGNED))
    assert [state_files(manifest) for manifest in retained(folder)] == [set()] * len(retained(folder))
    assert committed(folder) == golden()


def test_a_job_goes_on_with_the_files_of_the_run_before_it(folder: Path) -> None:
    stop_after(in_rocksdb(folder, before_row=slow(0.001)), 2)
    before = retained(folder)[-1]
    stop_after(in_rocksdb(folder, interval_ms=10, before_row=slow(0.002)), 1)
    first = min((m for m in retained(folder) if m.generation == 2), key=lambda manifest: manifest.checkpoint)
    assert state_files(first) & state_files(before)


def test_a_job_that_kept_its_state_on_the_heap_goes_on_in_rocksdb_and_not_the_other_way(folder: Path) -> None:
    stop_after(job(folder, before_row=slow(0.001)), 2)
    stop_after(in_rocksdb(folder, before_row=slow(0.001)), 2)
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        job(folder).start()
    run(in_rocksdb(folder))
    assert committed(folder) == golden()


def test_a_savepoint_that_was_moved_starts_a_job_elsewhere_whatever_became_of_its_own(folder: Path) -> None:
    first = in_rocksdb(folder, before_row=slow(0.001))
    first.start()
    while first.view().committed_checkpoints < 2:
        assert not first.wait(0.01), "it ended before it could be stopped"
    wish = first.savepoint(str(folder / "saved"), alignment=SavepointAlignment.UNALIGNED, afterwards=Afterwards.SUSPEND)
    saved = Path(wish.result(20))
    assert first.wait(60)
    shutil.rmtree(folder / "chk")
    moved = saved.rename(folder / "moved")
    store = open_store(str(moved))
    manifest = decode_manifest(store.read(layout.savepoint_manifest()), name="the savepoint")
    assert state_files(manifest) == {path for path in store.list(layout.SHARED) if path.endswith(".sst")} != set()
    second = in_rocksdb(folder, slots=3, location="elsewhere", restore_from=str(moved), before_row=slow(0.0005))
    stop_after(second, 1)
    shutil.rmtree(moved)
    run(in_rocksdb(folder, slots=1, location="elsewhere"))
    assert committed(folder) == golden()
