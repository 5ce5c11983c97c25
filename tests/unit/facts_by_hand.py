"""The facts of one checkpoint, written by hand: a source feeds a keyed task with a sink, in each of the slots."""

from typing import Any

from tidegate.model.ids import ChannelId, EdgeId, TaskId, VertexId
from tidegate.protocol.checkpoint_facts import BarrierFacts, CheckpointFacts, Outcome, SlotFacts, TaskFacts
from tidegate.protocol.checkpoints import FailureReason


def task_id(vertex: int, subtask: int = 0) -> TaskId:
    return TaskId(VertexId(vertex), subtask)


def barrier(sender: TaskId, receiver: int, at_ms: float) -> BarrierFacts:
    return BarrierFacts(ChannelId(EdgeId(0), sender.subtask, receiver), sender, at_ms)


def source(subtask: int = 0, *, snapshot_ms: float | None = 1.0, sync_ms: float = 1.0) -> TaskFacts:
    return TaskFacts(
        task=task_id(0, subtask),
        name="Source[rate]",
        is_source=True,
        kind="aligned",
        snapshot_ms=snapshot_ms,
        sync_ms=sync_ms,
    )


def keyed(subtask: int = 0, *, barrier_ms: float = 3.0, snapshot_ms: float | None = 4.0, **more: Any) -> TaskFacts:
    seen = barrier(task_id(0, subtask), subtask, barrier_ms)
    fields: dict[str, Any] = {
        "task": task_id(1, subtask),
        "name": "Aggregate(count(*)) -> Sink[noop]",
        "kind": None if snapshot_ms is None else "aligned",
        "first": seen,
        "last": seen,
        "snapshot_ms": snapshot_ms,
        "sync_ms": 1.0,
        **more,
    }
    return TaskFacts(**fields)


def slot(number: int = 0, *, from_ms: float = 5.0, storing_ms: float = 4.0, **more: Any) -> SlotFacts:
    """Its tasks were ready at `from_ms`; then it encodes for a millisecond and stores."""
    fields: dict[str, Any] = {
        "slot": number,
        "triggered_ms": 1.0,
        "encoding_ms": from_ms,
        "queued_ms": from_ms + 1,
        "uploading_ms": from_ms + 1,
        "storing_ms": storing_ms,
        "stored_bytes": 100,
        "acknowledged_ms": from_ms + 1 + storing_ms,
        "last_word_ms": from_ms + 1 + storing_ms,
        **more,
    }
    return SlotFacts(**fields)


def facts(*tasks: TaskFacts, slots: tuple[SlotFacts, ...], duration_ms: float, **more: Any) -> CheckpointFacts:
    fields: dict[str, Any] = {
        "checkpoint": 7,
        "generation": 1,
        "outcome": Outcome.COMPLETED,
        "kind": "aligned",
        "is_savepoint": False,
        "triggered_at_ms": 0,
        "duration_ms": duration_ms,
        "interval_ms": 10_000.0,
        "timeout_ms": 60_000.0,
        "completing_ms": duration_ms - 2 if "outcome" not in more else None,
        "tasks": tasks,
        "slots": slots,
        "edges": ((0, 1),),
        **more,
    }
    return CheckpointFacts(**fields)


def expired(*tasks: TaskFacts, slots: tuple[SlotFacts, ...], **more: Any) -> CheckpointFacts:
    given: dict[str, Any] = {"outcome": Outcome.FAILED, "failure": FailureReason.EXPIRED.value, **more}
    return facts(*tasks, slots=slots, duration_ms=60_000.0, **given)
