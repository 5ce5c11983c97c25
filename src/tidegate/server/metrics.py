"""A query's numbers as OpenMetrics. Made from one view when somebody asks; nothing is counted here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from tidegate.coordinator.views import CheckpointView, JobView, TaskCheckpointView, TaskView

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LAST_CALENDAR_MS = 253_402_300_799_000  # the end of the year 9999: later ones mean the end of event time


class Ingested(Protocol):
    """A part of a query that Spark ingests. `staged_bytes`: no checkpoint covers them. `paused_ms`: in all."""

    @property
    def name(self) -> str: ...
    @property
    def staged_bytes(self) -> int: ...
    @property
    def paused_ms(self) -> float: ...


def open_metrics(query: str, view: JobView, ingested: Sequence[Ingested] = ()) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(query, view, ingested))
    generate: Callable[[CollectorRegistry], bytes] = generate_latest
    return generate(registry)


# The registry keeps its collectors by identity.
@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    query: str
    view: JobView
    ingested: Sequence[Ingested]

    def collect(self) -> Iterable[Metric]:
        yield from self._job()
        yield from self._checkpoints()
        yield from self._tasks()
        yield from self._ingest()

    def _job(self) -> Iterator[Metric]:
        view = self.view
        info = GaugeMetricFamily("tidegate_query", "1; the state is a label.", labels=["query", "state"])
        info.add_metric([self.query, view.state], 1)
        yield info
        yield self._gauge("tidegate_query_generation", "How often the job was started.", view.generation)
        yield self._gauge("tidegate_query_slots", "Slots that are connected.", len(view.slot_pids))
        yield self._gauge("tidegate_query_warnings", "Sentences in the query's progress.", len(view.warnings))
        if view.heap_state_share is not None:
            help = "State in memory, as stored, of a slot's memory; of the fullest slot."
            yield self._gauge("tidegate_heap_state_ratio", help, view.heap_state_share)
        if (restore := view.restore) is not None:
            newest = "By the newest generation."
            yield self._gauge(
                "tidegate_restore_checkpoint", "What the newest generation stands on.", restore.checkpoint
            )
            yield self._gauge("tidegate_restore_local_bytes", newest, restore.local_bytes)
            yield self._gauge("tidegate_restore_remote_bytes", newest, restore.remote_bytes)
            yield self._gauge("tidegate_restore_damaged_copies", newest, restore.damaged_copies)
        if (dropped := view.dropped) is not None:
            lost = "Lost by checkpoint.recoverWithoutChannelState."
            rows = CounterMetricFamily("tidegate_dropped_inflight_rows", lost, labels=["query", "edge"])
            size = CounterMetricFamily("tidegate_dropped_inflight_bytes", lost, labels=["query", "edge"])
            for edge in dropped.edges:
                rows.add_metric([self.query, edge.edge], edge.rows)
                size.add_metric([self.query, edge.edge], edge.size_bytes + edge.unread_bytes)
            yield rows
            yield size

    def _checkpoints(self) -> Iterator[Metric]:
        statistics = self.view.statistics
        if statistics is None:
            return
        yield self._counter("tidegate_checkpoints_triggered", "Checkpoints and savepoints.", statistics.triggered)
        yield self._counter("tidegate_checkpoints_completed", "Checkpoints and savepoints.", statistics.completed)
        failed = CounterMetricFamily("tidegate_checkpoints_failed", "By reason.", labels=["query", "reason"])
        for reason, count in sorted(statistics.by_reason.items(), key=lambda item: item[0].value):
            failed.add_metric([self.query, reason.value], count)
        yield failed
        yield self._gauge("tidegate_checkpoints_in_progress", "Under way.", statistics.in_progress)
        if (duration := statistics.duration_ms) is not None:
            quantiles = GaugeMetricFamily(
                "tidegate_checkpoint_duration_quantile_seconds",
                "Of the last completed ones, from the trigger to the log entry.",
                labels=["query", "quantile"],
            )
            parts = {"0.5": duration.p50, "0.95": duration.p95, "0.99": duration.p99, "1": duration.max}
            for quantile, value_ms in parts.items():
                quantiles.add_metric([self.query, quantile], value_ms / 1000)
            yield quantiles
        last = next((one for one in self.view.checkpoints if one.status == "completed"), None)
        if last is not None:
            yield from self._newest(last)

    def _newest(self, last: CheckpointView) -> Iterator[Metric]:
        prefix = "tidegate_checkpoint_last"
        kind = GaugeMetricFamily(f"{prefix}_kind", "1; how it was taken is a label.", labels=["query", "kind"])
        kind.add_metric([self.query, last.kind], 1)
        yield kind
        yield self._gauge(f"{prefix}_id", "Of the newest completed one.", last.id)
        yield self._gauge(f"{prefix}_duration_seconds", "Of the newest completed one.", last.duration_ms / 1000)
        yield self._gauge(f"{prefix}_state_bytes", "Of the newest completed one.", last.state_bytes)
        yield self._gauge(f"{prefix}_new_state_bytes", "What it wrote.", last.new_state_bytes)
        yield self._gauge(f"{prefix}_inflight_bytes", "Captured rows.", last.inflight_bytes)
        yield self._gauge(f"{prefix}_new_inflight_bytes", "What of them it wrote.", last.new_inflight_bytes)
        at_s = last.triggered_at.timestamp()
        yield self._gauge(f"{prefix}_triggered_timestamp_seconds", "Since 1970.", at_s)
        yield self._gauge(f"{prefix}_processed_bytes", "Between first barriers and snapshots.", last.processed_bytes)
        parts: Iterable[tuple[str, str, Callable[[TaskCheckpointView], float]]] = (
            ("start_delay_seconds", "From the trigger to the first barrier.", lambda t: t.start_delay_ms / 1000),
            ("alignment_seconds", "From the first barrier to the last.", lambda t: t.alignment_ms / 1000),
            ("sync_seconds", "While the task took its snapshot.", lambda t: t.sync_ms / 1000),
            ("async_seconds", "Until it was stored.", lambda t: t.async_ms / 1000),
            ("state_bytes", "What the task stores.", lambda t: t.state_bytes),
            ("inflight_bytes", "Rows captured for the task.", lambda t: t.inflight_bytes),
            ("new_inflight_bytes", "What of them it wrote.", lambda t: t.new_inflight_bytes),
            ("processed_bytes", "Between its first barrier and its snapshot.", lambda t: t.processed_bytes),
        )
        for name, help, value in parts:
            family = GaugeMetricFamily(f"tidegate_task_checkpoint_{name}", help, labels=_TASK_LABELS)
            for task in last.tasks:
                family.add_metric([self.query, task.task, task.name], value(task))
            yield family

    def _tasks(self) -> Iterator[Metric]:
        tasks = self.view.tasks
        since = "Since the generation began."
        now = "Over the last second or so."
        yield self._per_task_counter("rows_in", since, ((t, t.rows_in) for t in tasks))
        yield self._per_task_counter("rows_out", since, ((t, t.rows_out) for t in tasks))
        yield self._per_task_counter("bytes_in", since, ((t, t.bytes_in) for t in tasks))
        yield self._per_task_counter("bytes_out", since, ((t, t.bytes_out) for t in tasks))
        yield self._per_task_counter("busy_seconds", since, ((t, t.busy_ms / 1000) for t in tasks))
        yield self._per_task_counter("backpressured_seconds", since, ((t, t.backpressured_ms / 1000) for t in tasks))
        yield self._per_task_counter(
            "paused_seconds", "Sources that waited for a checkpoint.", ((t, t.paused_ms / 1000) for t in tasks)
        )
        yield self._per_task_counter("late_rows", "Dropped by the watermark.", ((t, t.late_rows) for t in tasks))
        yield self._per_task("busy_ratio", now, ((t, t.rates.busy_ms_per_s / 1000) for t in tasks))
        yield self._per_task("backpressured_ratio", now, ((t, t.rates.backpressured_ms_per_s / 1000) for t in tasks))
        yield self._per_task("idle_ratio", now, ((t, t.rates.idle_ms_per_s / 1000) for t in tasks))
        yield self._per_task("queued_bytes", "In the task's input.", ((t, t.queued_bytes) for t in tasks))
        yield self._per_task("window_bytes", "What may be in flight to it.", ((t, t.window_bytes) for t in tasks))
        yield self._per_task(
            "unstored_bytes", "Changes of its state that are not stored yet.", ((t, t.unstored_bytes) for t in tasks)
        )
        lags = ((t, t.lag_ms) for t in tasks if t.lag_ms is not None)
        yield self._per_task(
            "source_lag_seconds", "Age of what is read next.", ((t, lag_ms / 1000) for t, lag_ms in lags)
        )
        known = [
            (t, t.watermark_ms) for t in tasks if t.watermark_ms is not None and t.watermark_ms < _LAST_CALENDAR_MS
        ]
        yield self._per_task(
            "watermark_timestamp_seconds", "Event time behind the task.", ((t, at_ms / 1000) for t, at_ms in known)
        )

    def _ingest(self) -> Iterator[Metric]:
        if not self.ingested:
            return
        labels = ["query", "name"]
        help = "Ingested by Spark, and in no committed checkpoint."
        staged = GaugeMetricFamily("tidegate_ingest_staged_bytes", help, labels=labels)
        help = "While Spark waited for a checkpoint, with a batch that it had ready."
        paused = CounterMetricFamily("tidegate_ingest_paused_seconds", help, labels=labels)
        for part in self.ingested:
            staged.add_metric([self.query, part.name], part.staged_bytes)
            paused.add_metric([self.query, part.name], part.paused_ms / 1000)
        yield staged
        yield paused

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help, labels=["query"])
        family.add_metric([self.query], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help, labels=["query"])
        family.add_metric([self.query], value)
        return family

    def _per_task(self, name: str, help: str, values: Iterable[tuple[TaskView, float]]) -> Metric:
        family = GaugeMetricFamily(f"tidegate_task_{name}", help, labels=_TASK_LABELS)
        for task, value in values:
            family.add_metric([self.query, str(task.task), task.name], value)
        return family

    def _per_task_counter(self, name: str, help: str, values: Iterable[tuple[TaskView, float]]) -> Metric:
        family = CounterMetricFamily(f"tidegate_task_{name}", help, labels=_TASK_LABELS)
        for task, value in values:
            family.add_metric([self.query, str(task.task), task.name], value)
        return family


_TASK_LABELS = ["query", "task", "name"]
