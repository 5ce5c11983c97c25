"""What users read about a job: frozen values, replaced as a whole, so that any thread may look at any time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate.coordinator.rates import UNKNOWN, Rates, TaskRates
from tidegate.model.ids import SlotIndex, TaskId
from tidegate.network.messages import Progress
from tidegate.plan.lower import operator_name
from tidegate.plan.physical import (
    AggregateSpec,
    ConnectSpec,
    DeduplicateSpec,
    JobPlan,
    StreamJoinSpec,
    TransformWithStateSpec,
    Vertex,
)
from tidegate.protocol.statistics import StatisticsView


@dataclass(frozen=True, slots=True)
class TaskCheckpointView:
    task: str
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    inflight_bytes: int
    new_inflight_bytes: int = 0
    processed_bytes: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """`status`: completed, failed or in_progress. `kind`: aligned, unaligned or switched.

    Of one that failed: `tasks` are those that had taken their snapshot, `unreported` the others.
    """

    id: int
    status: str
    kind: str
    is_savepoint: bool = False
    triggered_at: datetime
    duration_ms: float
    state_bytes: int = 0
    new_state_bytes: int = 0
    inflight_bytes: int = 0
    new_inflight_bytes: int = 0
    processed_bytes: int = 0
    failure_reason: str | None = None
    path: str | None = None
    tasks: tuple[TaskCheckpointView, ...] = ()
    unreported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskView:
    task: TaskId
    name: str
    is_source: bool
    rows_in: int
    rows_out: int
    queued_bytes: int
    busy_ms: float
    backpressured_ms: float
    paused_ms: float = 0.0
    watermark_ms: int | None = None
    late_rows: int = 0
    state_operator: str | None = None  # the first operator of the task that keeps state, if any does
    bytes_in: int = 0
    bytes_out: int = 0
    window_bytes: int = 0
    lag_ms: float | None = None
    rates: Rates = UNKNOWN
    unstored_bytes: int = 0  # of changes that state.changelog is to store


def task_views(
    plan: JobPlan, reports: Mapping[SlotIndex, Progress], rates: TaskRates | None = None
) -> tuple[TaskView, ...]:
    """What the slots reported last, slot by slot."""
    vertices = {vertex.id: vertex for vertex in plan.vertices}
    return tuple(
        TaskView(
            task=report.task,
            name=vertices[report.task.vertex].name,
            is_source=vertices[report.task.vertex].source is not None,
            rows_in=report.rows_in,
            rows_out=report.rows_out,
            queued_bytes=report.queued_bytes,
            busy_ms=report.busy_ms,
            backpressured_ms=report.backpressured_ms,
            paused_ms=report.paused_ms,
            watermark_ms=report.watermark_ms,
            late_rows=report.late_rows,
            state_operator=_state_operator(vertices[report.task.vertex]),
            bytes_in=report.bytes_in,
            bytes_out=report.bytes_out,
            window_bytes=report.window_bytes,
            lag_ms=report.lag_ms,
            rates=UNKNOWN if rates is None else rates.of(report.task),
            unstored_bytes=report.unstored_bytes,
        )
        for _, progress in sorted(reports.items())
        for report in progress.tasks
    )


_KEEPING_STATE = (AggregateSpec, TransformWithStateSpec, ConnectSpec, DeduplicateSpec, StreamJoinSpec)


def _state_operator(vertex: Vertex) -> str | None:
    keeping = (operator for operator in vertex.operators if isinstance(operator, _KEEPING_STATE))
    return next(map(operator_name, keeping), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreView:
    """What the running generation stands on, and from where the slots read it: copies on their machines, or the store.

    `damaged_copies` were found and replaced by what is stored.
    """

    checkpoint: int
    recovered_bytes: int
    local_bytes: int = 0
    remote_bytes: int = 0
    damaged_copies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedEdgeView:
    """Captured rows that `checkpoint.recoverWithoutChannelState` dropped on the way from one step to another.

    `unread_bytes`: stored ones that could not even be read.
    """

    edge: str
    rows: int
    size_bytes: int
    unread_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedView:
    checkpoint: int
    edges: tuple[DroppedEdgeView, ...]

    @property
    def rows(self) -> int:
        return sum(edge.rows for edge in self.edges)

    @property
    def size_bytes(self) -> int:
        return sum(edge.size_bytes for edge in self.edges)

    @property
    def unread_bytes(self) -> int:
        return sum(edge.unread_bytes for edge in self.edges)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    state: str
    generation: int
    checkpoints: tuple[CheckpointView, ...] = ()  # newest first
    tasks: tuple[TaskView, ...] = ()
    last_failure: str | None = None
    committed_checkpoints: int = 0
    slot_pids: tuple[int, ...] = ()
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    first_row_after_ms: float | None = None
    statistics: StatisticsView | None = None
    restore: RestoreView | None = None  # of the newest generation that restored anything
    dropped: DroppedView | None = None
    warnings: tuple[str, ...] = ()
    heap_state_share: float | None = None  # of a slot's memory, what the state takes in it; of the fullest
