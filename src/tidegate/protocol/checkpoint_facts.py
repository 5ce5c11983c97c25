"""What is known of one checkpoint, in one piece: what `why` reads, and what is stored with it.

Times are in milliseconds since it was triggered, by the driver's clock; those of slots were put onto it by the
coordinator, and are true to about the time that a message takes. Only values, no behaviour beyond looking things up.
"""

from dataclasses import dataclass
from enum import Enum

from tidegate.model.ids import ChannelId, TaskId
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.switching import StorageSpeed


class Outcome(Enum):
    COMPLETED = "completed"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"


@dataclass(frozen=True, slots=True)
class BarrierFacts:
    """A barrier that a task heard of: from whom, on which channel, when."""

    channel: ChannelId
    sender: TaskId
    at_ms: float


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step of a task that took far longer than a slice should."""

    task: TaskId
    started_ms: float
    duration_ms: float
    rows: int

    @property
    def ended_ms(self) -> float:
        return self.started_ms + self.duration_ms


@dataclass(frozen=True, slots=True)
class InputBefore:
    """A task's input as the checkpoints before leave it: `waiting_bytes` stood in front of the last one's barrier when
    it took its snapshot, and `came_bytes` is what had come of late, the older the less of it.
    """

    waiting_bytes: int
    came_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """`snapshot_ms`: when it began its snapshot; None if it had not. `missing`: some of those without barrier.

    `queued_bytes` stood in its input at its first barrier and `left_bytes` at the end; from the first barrier to the
    snapshot it processed `processed_bytes`, worked for `busy_ms` and had no room for `backpressured_ms`: in its output,
    or for `unstored_ms` of it for more changes of state, until those before were stored.
    `epoch_rows` and `epoch_bytes` are what it took in since the snapshot before this one. `paused_ms`: of a source, up
    to the last report of its slot before the end.
    """

    task: TaskId
    name: str
    is_source: bool = False
    first: BarrierFacts | None = None
    last: BarrierFacts | None = None
    missing: tuple[TaskId, ...] = ()
    kind: str | None = None
    snapshot_ms: float | None = None
    sync_ms: float = 0.0
    async_ms: float | None = None
    state_bytes: int = 0
    inflight_bytes: int = 0
    new_inflight_bytes: int = 0
    queued_bytes: int = 0
    left_bytes: int = 0
    processed_bytes: int = 0
    drain_bytes_per_ms: float | None = None
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0
    epoch_rows: int = 0
    epoch_bytes: int = 0
    paused_ms: float = 0.0
    unstored_ms: float = 0.0
    before: InputBefore | None = None

    @property
    def start_delay_ms(self) -> float | None:
        """How old the checkpoint was when its first barrier came here, or the trigger to a source."""
        return self.snapshot_ms if self.first is None else self.first.at_ms

    @property
    def alignment_ms(self) -> float:
        """From the first barrier to the snapshot."""
        if self.first is None or self.snapshot_ms is None:
            return 0.0
        return max(0.0, self.snapshot_ms - self.first.at_ms)

    @property
    def snapshot_end_ms(self) -> float | None:
        return None if self.snapshot_ms is None else self.snapshot_ms + self.sync_ms

    @property
    def waiting_bytes(self) -> int:
        """What stood in front of its barrier and was not processed: when it took its snapshot, else now."""
        if self.kind is None or self.kind == "aligned":
            return self.left_bytes
        queued_bytes = max(0, self.queued_bytes - self.processed_bytes)
        # A queue has a batch in work as a whole, a capture what is left of it; but also what is held for others.
        return queued_bytes if self.async_ms is None else min(queued_bytes, self.inflight_bytes)

    @property
    def has_whole_epoch(self) -> bool:
        """What it worked on is what came between two barriers: no capture at either of them divides it otherwise."""
        return self.kind in (None, "aligned") and (self.before is None or not self.before.waiting_bytes)

    @property
    def offered_bytes(self) -> int:
        """What it was given to process, done or not."""
        return self.epoch_bytes + self.left_bytes

    @property
    def came_bytes(self) -> int:
        """What has come for it of late, in this epoch and those before."""
        if self.before is None:
            return self.offered_bytes
        new_bytes = self.epoch_bytes + self.waiting_bytes - self.before.waiting_bytes
        return max(0, new_bytes) + self.before.came_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """A slot's way, in this order; None for what had not come. `last_word_ms`: when the driver heard of it last.

    `storage`: the newest upload that told the slot how fast the store is, of this checkpoint or an earlier one;
    `encoded_for_ms`: what encoding took of its loop. None in facts that were stored before these were noted.
    """

    slot: int
    triggered_ms: float | None = None
    encoding_ms: float | None = None
    queued_ms: float | None = None
    uploading_ms: float | None = None
    sink_ms: float = 0.0
    storing_ms: float = 0.0
    stored_bytes: int = 0
    acknowledged_ms: float | None = None
    last_word_ms: float | None = None
    long_steps: tuple[StepFacts, ...] = ()
    storage: StorageSpeed | None = None
    encoded_for_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """The commit of an earlier checkpoint, behind which this one had to wait; it may have begun before the trigger.

    `ended_ms` is None while it lasts. `written_ms`: how long the manifest and the log entry of that checkpoint took. A
    commit makes a log entry too, and nothing tells its time from the sink's but this.
    """

    checkpoint: int
    started_ms: float
    ended_ms: float | None
    written_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What the query was set to, so that nobody is advised to set what is set.

    `switch_after_ms`: None keeps checkpoints aligned, 0 is unaligned at once. `debloat_target_ms`: None without
    debloating.
    """

    guarantee: Guarantee
    switch_after_ms: float | None
    debloat_target_ms: float | None
    active_backpressure: ActiveBackpressure


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """`completing_ms`: when all was there to be written to the manifest and the log. `writing_ms`: when that began,
    once the driver was done with what came before it, `commits_before` among it; None also where it was not noted.

    `failure` is one of the closed list of reasons, `detail` what was said about it, `is_upload_failure` whether it was
    the store that a slot's part failed at. `ingest_paused_ms`: of what Spark ingests, that which paused longest.
    `edges`: which vertex feeds which. `configured` is None in facts that were stored before it was noted.
    """

    checkpoint: int
    generation: int
    outcome: Outcome
    kind: str
    is_savepoint: bool
    triggered_at_ms: int
    duration_ms: float
    interval_ms: float
    timeout_ms: float
    failure: str | None = None
    detail: str | None = None
    failed_slot: int | None = None
    is_upload_failure: bool = False
    completing_ms: float | None = None
    writing_ms: float | None = None
    commits_before: tuple[CommitFacts, ...] = ()
    ingest_paused_ms: float = 0.0
    tasks: tuple[TaskFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    configured: Configured | None = None

    def task(self, task: TaskId) -> TaskFacts | None:
        return next((found for found in self.tasks if found.task == task), None)

    def slot(self, slot: int) -> SlotFacts | None:
        return next((found for found in self.slots if found.slot == slot), None)

    def tasks_of(self, slot: int) -> tuple[TaskFacts, ...]:
        """Subtask i of every vertex runs in slot i."""
        return tuple(task for task in self.tasks if task.task.subtask == slot)

    def siblings(self, task: TaskId) -> tuple[TaskFacts, ...]:
        return tuple(found for found in self.tasks if found.task.vertex == task.vertex and found.task != task)

    def receivers(self, task: TaskId) -> tuple[TaskFacts, ...]:
        vertices = {receiver for sender, receiver in self.edges if sender == task.vertex}
        return tuple(found for found in self.tasks if found.task.vertex in vertices)
