"""Checkpoints and savepoints that an earlier version has left go on in this one, at any parallelism."""

import shutil
from pathlib import Path

import pytest

from tests.fixtures.upgrade_job import (
    BACKENDS,
    CHECKPOINT,
    KEYS,
    SAVEPOINT,
    UPGRADES,
    expected_totals,
    job,
    plan,
    totals_in,
)
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.ids import SlotIndex, TaskId, range_of
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.state.timer_entries import Timer, decode_timer
from tidegate.state.timers import timers_over
from tidegate.storage import layout
from tidegate.storage.job_log import JobLog, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import open_backends

# All of it is in every clone of the repository.
_MOST_FIXTURE_BYTES = 300 << 10
NAME = "timers/event"


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(coordinator: Coordinator) -> None:
    coordinator.start()
    assert coordinator.wait(60)
    assert coordinator.view().state == "finished", coordinator.failure()


@pytest.mark.parametrize("slots", [2, 3])
def test_a_query_goes_on_from_a_kept_checkpoint(tmp_path: Path, backend: str, slots: int) -> None:
    shutil.copytree(UPGRADES / backend / CHECKPOINT, tmp_path / CHECKPOINT)
    (tmp_path / "out").mkdir()
    coordinator = job(tmp_path, backend=backend, slots=slots)
    run(coordinator)
    restore = coordinator.view().restore
    assert restore is not None and restore.recovered_bytes > 0
    assert totals_in(tmp_path) == expected_totals()


@pytest.mark.parametrize("slots", [2, 1])
def test_a_query_starts_from_a_kept_savepoint(tmp_path: Path, backend: str, slots: int) -> None:
    saved = tmp_path / "moved"
    shutil.copytree(UPGRADES / backend / SAVEPOINT, saved)
    run(job(tmp_path, backend=backend, slots=slots, restore_from=saved))
    assert totals_in(tmp_path) == expected_totals()


def test_the_job_gives_the_same_without_a_stop(tmp_path: Path, backend: str) -> None:
    run(job(tmp_path, backend=backend))
    assert totals_in(tmp_path) == expected_totals()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_timers_of_a_kept_savepoint_are_found_by_key_and_by_time_in_rocksdb(
    tmp_path: Path, backend: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were stored without an index of their keys."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    job_plan = plan(tmp_path, slots=slots)
    ((vertex, position),) = [
        (vertex.id, position)
        for vertex in job_plan.vertices
        for position, spec in enumerate(vertex.operators)
        if isinstance(spec, TransformWithStateSpec)
    ]
    backends = open_backends("rocksdb")
    seen: set[Timer] = set()
    for slot in range(slots):
        restored = restore_slot(LocalFiles(UPGRADES / backend / SAVEPOINT), "manifest.json", job_plan, SlotIndex(slot))
        own = range_of(slot, parallelism=slots, max_parallelism=job_plan.max_parallelism)
        state = backends.open(own)
        state.restore(restored.tasks[TaskId(vertex, slot)].sections[position])
        entries = [(group, entry) for group in range(own.first, own.last) for entry, _ in state.keyed(NAME).scan(group)]
        stored = [Timer(decode_timer(entry)[0], group, decode_timer(entry)[1]) for group, entry in entries]
        timers = timers_over(state, NAME, own)
        for _, group, key in stored:
            assert timers.of(group, key) == sorted(each.at_ms for each in stored if each[1:] == (group, key))
        assert [timers.pop_due(MAX_WATERMARK_MS) for _ in range(len(stored) + 1)] == [*sorted(stored), None]
        seen.update(stored)
    backends.close()
    assert len({timer.key for timer in seen}) == KEYS


def manifests(folder: Path) -> list[Manifest]:
    store = LocalFiles(folder / CHECKPOINT)
    paths = [completed.manifest for completed in retained_checkpoints(JobLog(store, driver="a reader").read())]
    found = [decode_manifest(store.read(path), name=path) for path in paths if path.startswith(layout.CHECKPOINTS)]
    saved = (folder / SAVEPOINT / layout.savepoint_manifest()).read_bytes()
    return [*found, decode_manifest(saved, name="the savepoint")]


def test_what_is_kept_has_every_kind_of_file_and_is_small(backend: str) -> None:
    folder = UPGRADES / backend
    found = manifests(folder)
    assert [manifest.is_savepoint for manifest in found] == [False, True]
    for manifest in found:
        assert any(stored.first < stored.n for stored in manifest.channels), "rows are in flight"
    suffixes = {file.suffix for file in folder.rglob("*") if file.is_file()}
    assert suffixes >= {".json", ".state", ".channels"} | ({".sst"} if backend == "rocksdb" else set())
    everything = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"/tmp" not in everything, "it names no place of the machine that made it"
    size_bytes = sum(file.stat().st_size for file in UPGRADES.rglob("*") if file.is_file())
    assert size_bytes < _MOST_FIXTURE_BYTES
