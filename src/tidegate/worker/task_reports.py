"""What a task tells others: its snapshots, its counters, its end; and whom it tells."""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.connectors.contract import Prepared
from tidegate.model.ids import CheckpointId, TaskId
from tidegate.protocol.kinds import CheckpointKind
from tidegate.state.contract import Section
from tidegate.worker.gate import ClosedCapture
from tidegate.worker.stored_task import StoredTask


@dataclass(slots=True)
class TaskSnapshot:
    """The synchronous part of one task's snapshot; `sections` are encoded afterwards."""

    task: TaskId
    checkpoint: CheckpointId
    kind: CheckpointKind
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    sections: list[tuple[int, Section]]
    source_state: bytes | None
    progress: StoredTask
    prepared: Prepared | None
    state_bytes: int
    has_ended: bool = False
    position: bytes | None = None


@dataclass(slots=True)
class TaskCounters:
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0
    unstored_ms: float = 0.0  # of that: for changes of state to be stored


@dataclass(frozen=True, slots=True)
class TaskListener:
    """Whom a task tells: of a snapshot once its synchronous part is done, of its input's capture, of its own end."""

    on_snapshot: Callable[[TaskSnapshot], None]
    on_closed: Callable[[TaskId, ClosedCapture], None]
    on_finished: Callable[[TaskId], None]
