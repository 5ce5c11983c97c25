"""The views of checkpoints that are stored: what a running query would have told of them, read from a location."""

from collections.abc import Iterator
from datetime import UTC, datetime

from tidegate.coordinator.history import failed_with_facts, new_state_bytes, with_facts
from tidegate.coordinator.views import CheckpointView, TaskCheckpointView
from tidegate.model.errors import Damaged
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.job_log import CheckpointCompleted, JobLog, known_durations_ms, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.statistics import read_failed, stored_duration_ms
from tidegate.storage.store import Store, open_existing, open_place

# In place of completed: its files are not what they should be.
DAMAGED = "damaged"


def stored_task_views(manifest: Manifest) -> tuple[TaskCheckpointView, ...]:
    acknowledged = tuple(
        TaskCheckpointView(
            task=task,
            start_delay_ms=numbers["start_delay_ms"],
            alignment_ms=numbers["alignment_ms"],
            sync_ms=numbers["sync_ms"],
            async_ms=numbers["async_ms"],
            state_bytes=int(numbers["state_bytes"]),
            inflight_bytes=int(numbers["inflight_bytes"]),
            new_inflight_bytes=_new_inflight_bytes(manifest.statistics, task),
        )
        for task, numbers in manifest.tasks.items()
    )
    return with_facts(acknowledged, manifest.statistics)


def stored_views(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> Iterator[CheckpointView]:
    """Of the retained checkpoints and savepoints and of those that failed last, newest first."""
    store = open_existing(location, access)
    entries = JobLog(store, driver="a reader").read()
    known_ms = known_durations_ms(entries)
    found = [
        _completed(
            store if entry.location is None else open_place(entry.location, access),
            location,
            entry,
            known_ms.get(entry.checkpoint),
        )
        for entry in retained_checkpoints(entries)
    ]
    found += [_failed(facts) for facts in read_failed(store)]
    return iter(sorted(found, key=lambda view: (view.triggered_at, view.id), reverse=True))


def _completed(store: Store, location: str, completed: CheckpointCompleted, known_ms: float | None) -> CheckpointView:
    root = location if completed.location is None else completed.location
    path = f"{root}/{completed.manifest}".removesuffix("/manifest.json")
    try:
        manifest = decode_manifest(store.read(completed.manifest), name=f"{root}/{completed.manifest}")
    except Damaged as error:
        return CheckpointView(
            id=completed.checkpoint,
            status=DAMAGED,
            kind="",
            is_savepoint=completed.is_savepoint,
            triggered_at=_datetime(completed.completed_at_ms),
            duration_ms=0.0,
            failure_reason=str(error),
            path=path,
        )
    tasks = stored_task_views(manifest)
    by_slot: dict[int, int] = {}
    for task in tasks:
        slot = int(task.task.rpartition(".")[2])
        by_slot[slot] = by_slot.get(slot, 0) + task.new_inflight_bytes
    return CheckpointView(
        id=manifest.checkpoint,
        status="completed",
        kind=manifest.kind,
        is_savepoint=manifest.is_savepoint,
        triggered_at=_datetime(manifest.triggered_at_ms),
        duration_ms=stored_duration_ms(completed, manifest.triggered_at_ms, manifest.duration_ms, known_ms),
        state_bytes=sum(task.state_bytes for task in tasks),
        new_state_bytes=sum(
            new_state_bytes(
                manifest.checkpoint,
                file_bytes=slot.length_bytes,
                shared=slot.shared,
                new_inflight_bytes=by_slot.get(slot.slot, 0),
            )
            for slot in manifest.slots
        ),
        inflight_bytes=sum(task.inflight_bytes for task in tasks),
        new_inflight_bytes=sum(task.new_inflight_bytes for task in tasks),
        processed_bytes=sum(task.processed_bytes for task in tasks),
        path=path,
        tasks=tasks,
    )


def _failed(facts: CheckpointFacts) -> CheckpointView:
    view = CheckpointView(
        id=facts.checkpoint,
        status=facts.outcome.value,
        kind=facts.kind,
        is_savepoint=facts.is_savepoint,
        triggered_at=_datetime(facts.triggered_at_ms),
        duration_ms=facts.duration_ms,
        failure_reason=facts.failure if facts.detail is None else f"{facts.failure}: {facts.detail}",
    )
    return failed_with_facts(view, facts)


def _new_inflight_bytes(facts: CheckpointFacts | None, task: str) -> int:
    tasks = () if facts is None else facts.tasks
    return next((found.new_inflight_bytes for found in tasks if str(found.task) == task), 0)


def _datetime(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)
