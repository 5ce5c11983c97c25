"""What `lastProgress` and `recentProgress` say of a query, shaped like PySpark's as far as it applies."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.coordinator.views import CheckpointView, DroppedView, JobView, TaskCheckpointView, TaskView
from tidegate.spark.ingest import IngestProgress

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def progress_of(
    checkpoint: CheckpointView | None, view: JobView, ingested: Sequence[IngestProgress] = ()
) -> dict[str, Any]:
    """A checkpoint with the counts of this moment; `ingested` is what Spark does for the query, if anything."""
    sources = [task for task in view.tasks if task.is_source]
    shown: dict[str, Any] = {
        "timestamp": None if checkpoint is None else checkpoint.triggered_at.isoformat(),
        "batchId": None if checkpoint is None else checkpoint.id,
        "durationMs": {} if checkpoint is None else {"checkpoint": checkpoint.duration_ms},
        "generation": view.generation,
        "numInputRows": sum(task.rows_in for task in sources),
        "inputRowsPerSecond": sum(task.rates.rows_in_per_s for task in sources),
        "processedRowsPerSecond": sum(task.rates.rows_out_per_s for task in sources),
        "stateOperators": _state_operators(view.tasks),
        "sources": [_source(task) for task in sources],
        "slots": [{"slot": slot, "pid": pid} for slot, pid in enumerate(view.slot_pids)],
        "tasks": [_task(task) for task in view.tasks],
        "tidegate": {
            "checkpoint": None if checkpoint is None else _checkpoint(checkpoint),
            "checkpoints": _checkpoints(view),
            "tasks": [_metrics(task) for task in view.tasks],
        },
    }
    if view.warnings:
        shown["tidegate"]["warnings"] = list(view.warnings)
    if (restore := view.restore) is not None:
        shown["tidegate"]["restore"] = {
            "checkpoint": restore.checkpoint,
            "localBytes": restore.local_bytes,
            "remoteBytes": restore.remote_bytes,
            "damagedCopies": restore.damaged_copies,
        }
    if view.dropped is not None:
        shown["tidegate"]["droppedInFlight"] = _dropped(view.dropped)
    if ingested:
        shown["ingest"] = [_ingest(one) for one in ingested]
    return shown


def _checkpoint(checkpoint: CheckpointView) -> dict[str, Any]:
    """What `query.checkpoints` has of it; when it was triggered and how long it took stand where Spark has them."""
    return {
        "kind": checkpoint.kind,
        "stateBytes": checkpoint.state_bytes,
        "newStateBytes": checkpoint.new_state_bytes,
        "inflightBytes": checkpoint.inflight_bytes,
        "newInflightBytes": checkpoint.new_inflight_bytes,
        "processedBytes": checkpoint.processed_bytes,
        "tasks": [_part(task) for task in checkpoint.tasks],
    }


def _part(task: TaskCheckpointView) -> dict[str, Any]:
    return {
        "task": task.task,
        "name": task.name,
        "startDelayMs": round(task.start_delay_ms, 1),
        "alignmentMs": round(task.alignment_ms, 1),
        "syncMs": round(task.sync_ms, 1),
        "asyncMs": round(task.async_ms, 1),
        "stateBytes": task.state_bytes,
        "inflightBytes": task.inflight_bytes,
        "newInflightBytes": task.new_inflight_bytes,
        "processedBytes": task.processed_bytes,
    }


def _checkpoints(view: JobView) -> dict[str, Any]:
    """How many there were since the query began, how they ended, and how long the last completed ones took."""
    statistics = view.statistics
    if statistics is None:
        return {}
    duration = statistics.duration_ms
    failed = next((one for one in view.checkpoints if one.status == "failed"), None)
    return {
        "triggered": statistics.triggered,
        "completed": statistics.completed,
        "failed": statistics.failed,
        "inProgress": statistics.in_progress,
        "failedBy": {reason.value: count for reason, count in statistics.by_reason.items()},
        "lastFailure": None if failed is None else f"checkpoint {failed.id}: {failed.failure_reason}",
        "durationMs": None if duration is None else {"p50": duration.p50, "p95": duration.p95, "max": duration.max},
    }


def _dropped(dropped: DroppedView) -> dict[str, Any]:
    """The rows that checkpoint.recoverWithoutChannelState has lost."""
    edges = [
        {"edge": one.edge, "rows": one.rows, "bytes": one.size_bytes, "unreadBytes": one.unread_bytes}
        for one in dropped.edges
    ]
    return {"checkpoint": dropped.checkpoint, "rows": dropped.rows, "bytes": dropped.size_bytes, "edges": edges}


def _metrics(task: TaskView) -> dict[str, Any]:
    """What it does just now, over the last second or so, beside what it did since the generation began."""
    rates = task.rates
    return {
        "task": str(task.task),
        "name": task.name,
        "busyMsPerSecond": round(rates.busy_ms_per_s, 1),
        "backpressuredMsPerSecond": round(rates.backpressured_ms_per_s, 1),
        "idleMsPerSecond": round(rates.idle_ms_per_s, 1),
        "rowsInPerSecond": round(rates.rows_in_per_s, 1),
        "rowsOutPerSecond": round(rates.rows_out_per_s, 1),
        "bytesIn": task.bytes_in,
        "bytesOut": task.bytes_out,
        "queuedBytes": task.queued_bytes,
        "windowBytes": task.window_bytes,
        "unstoredBytes": task.unstored_bytes,
        "pausedMs": round(task.paused_ms),
        "lagMs": None if task.lag_ms is None else round(task.lag_ms),
        "lateRows": task.late_rows,
    }


def _ingest(ingested: IngestProgress) -> dict[str, Any]:
    return {
        "name": ingested.name,
        "stagedBytes": ingested.staged_bytes,
        "pausedMs": round(ingested.paused_ms),
    }


def _source(task: TaskView) -> dict[str, Any]:
    return {
        "description": task.name,
        "task": str(task.task),
        "numInputRows": task.rows_in,
        "pausedMs": round(task.paused_ms),
    }


def _state_operators(tasks: Sequence[TaskView]) -> list[dict[str, Any]]:
    """One entry for each stateful step, over its tasks. Rows are counted one by one, also before they are grouped."""
    late: dict[tuple[int, str], int] = {}
    for task in tasks:
        if task.state_operator is not None:
            step = (task.task.vertex, task.state_operator)
            late[step] = late.get(step, 0) + task.late_rows
    return [{"operatorName": name, "numRowsDroppedByWatermark": rows} for (_, name), rows in sorted(late.items())]


def _task(task: TaskView) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "task": str(task.task),
        "name": task.name,
        "rowsIn": task.rows_in,
        "rowsOut": task.rows_out,
        "queuedBytes": task.queued_bytes,
    }
    if task.watermark_ms is not None:
        shown["watermark"] = _instant(task.watermark_ms)
    return shown


def _instant(at_ms: int) -> str:
    """As Spark writes it. What no calendar has is the end of event time: nothing is awaited any more."""
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return "end"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
