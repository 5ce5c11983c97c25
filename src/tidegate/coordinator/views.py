"""What users read about a job: frozen values, replaced as a whole, so that any thread may look at any time."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate.model.ids import TaskId


@dataclass(frozen=True, slots=True)
class TaskCheckpointView:
    task: str
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    inflight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """`status`: completed, failed or in_progress. `kind`: aligned, unaligned or switched."""

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
    failure_reason: str | None = None
    path: str | None = None
    tasks: tuple[TaskCheckpointView, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskView:
    task: TaskId
    name: str
    rows_in: int
    rows_out: int
    queued_bytes: int
    busy_ms: float
    backpressured_ms: float


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

    @property
    def source_rows(self) -> int:
        """Rows that the sources have read in this generation."""
        return sum(task.rows_in for task in self.tasks if task.task.vertex == 0)
