"""Checkpoints and savepoints that an earlier version has left go on in this one, at any parallelism."""

import shutil
from pathlib import Path

import pytest

from tests.fixtures.upgrade_job import (
    CHECKPOINT,
    KEPT,
    KEYS,
    SAVEPOINT,
    UPGRADES,
    expected_totals,
    job,
    manifest_of_savepoint,
    newest_manifest,
    plan,
    suffixes_in,
    totals_in,
)
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.ids import SlotIndex, TaskId, VertexId, range_of
from tidegate.plan.physical import AggregateSpec, JobPlan, TransformWithStateSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.state.contract import ROW_LOG_SECTION
from tidegate.state.timer_entries import Timer, decode_timer
from tidegate.state.timers import timers_over
from tidegate.storage import layout
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import open_backends

# All of it is in every clone of the repository.
_MOST_FIXTURE_BYTES = 640 << 10
NAME = "timers/event"
WITH_SAVEPOINT = [name for name, kept in KEPT.items() if SAVEPOINT in kept.folders]


def run(coordinator: Coordinator) -> None:
    coordinator.start()
    assert coordinator.wait(60)
    assert coordinator.view().state == "finished", coordinator.failure()


@pytest.mark.parametrize("more_slots", [0, 1])
@pytest.mark.parametrize("kept", KEPT)
def test_a_query_goes_on_from_a_kept_checkpoint(tmp_path: Path, kept: str, more_slots: int) -> None:
    shutil.copytree(UPGRADES / kept / CHECKPOINT, tmp_path / CHECKPOINT)
    (tmp_path / "out").mkdir()
    coordinator = job(tmp_path, kept=kept, slots=KEPT[kept].slots + more_slots)
    run(coordinator)
    restore = coordinator.view().restore
    assert restore is not None and restore.recovered_bytes > 0
    assert totals_in(tmp_path) == expected_totals()


@pytest.mark.parametrize("kept", WITH_SAVEPOINT)
@pytest.mark.parametrize("slots", [2, 1])
def test_a_query_starts_from_a_kept_savepoint(tmp_path: Path, kept: str, slots: int) -> None:
    saved = tmp_path / "moved"
    shutil.copytree(UPGRADES / kept / SAVEPOINT, saved)
    run(job(tmp_path, kept=kept, slots=slots, restore_from=saved))
    assert totals_in(tmp_path) == expected_totals()


@pytest.mark.parametrize("kept", WITH_SAVEPOINT)
def test_the_job_gives_the_same_without_a_stop(tmp_path: Path, kept: str) -> None:
    run(job(tmp_path, kept=kept))
    assert totals_in(tmp_path) == expected_totals()


@pytest.mark.parametrize("kept", WITH_SAVEPOINT)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_timers_of_a_kept_savepoint_are_found_by_key_and_by_time_in_rocksdb(
    tmp_path: Path, kept: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older ones were stored without an index of their keys."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    job_plan = plan(tmp_path, slots=slots)
    vertex, position = place_of(TransformWithStateSpec, job_plan)
    backends = open_backends("rocksdb")
    seen: set[Timer] = set()
    for slot in range(slots):
        restored = restore_slot(LocalFiles(UPGRADES / kept / SAVEPOINT), "manifest.json", job_plan, SlotIndex(slot))
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


def place_of(kind: type, job_plan: JobPlan) -> tuple[VertexId, int]:
    """The vertex of the only operator of that kind, and its position there."""
    ((vertex, position),) = [
        (vertex.id, position)
        for vertex in job_plan.vertices
        for position, spec in enumerate(vertex.operators)
        if isinstance(spec, kind)
    ]
    return vertex, position


@pytest.mark.parametrize("kept", ["heap-logs", "rocksdb-logs"])
def test_what_is_kept_has_a_log_of_the_groups_of_the_aggregation(tmp_path: Path, kept: str) -> None:
    job_plan = plan(tmp_path, slots=1)
    vertex, position = place_of(AggregateSpec, job_plan)
    newest = newest_manifest(UPGRADES / kept / CHECKPOINT)
    path = layout.manifest(layout.CheckpointFolder(newest.checkpoint, newest.generation))
    restored = restore_slot(LocalFiles(UPGRADES / kept / CHECKPOINT), path, job_plan, SlotIndex(0))
    sections = restored.tasks[TaskId(vertex, 0)].sections[position]
    assert any(section.name == ROW_LOG_SECTION and section.files for section in sections)


@pytest.mark.parametrize("kept", KEPT)
def test_what_is_kept_has_every_kind_of_file_and_is_small(kept: str) -> None:
    folder = UPGRADES / kept
    found = [newest_manifest(folder / CHECKPOINT)]
    if kept in WITH_SAVEPOINT:
        found.append(manifest_of_savepoint(folder / SAVEPOINT))
    assert [manifest.is_savepoint for manifest in found] == [False, True][: len(found)]
    for manifest in found:
        assert any(stored.first < stored.n for stored in manifest.channels), "rows are in flight"
    assert suffixes_in(folder) >= KEPT[kept].suffixes
    is_in_manifest = [slot.content is not None for slot in found[0].slots]
    assert is_in_manifest == [kept == "in-manifest"] * KEPT[kept].slots
    everything = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"/tmp" not in everything, "it names no place of the machine that made it"
    size_bytes = sum(file.stat().st_size for file in UPGRADES.rglob("*") if file.is_file())
    assert size_bytes < _MOST_FIXTURE_BYTES
