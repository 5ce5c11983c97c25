"""What a task saw of the checkpoints that are under way: when their barriers came, and what it did until its snapshot.

Only for people who ask why a checkpoint took so long: nothing here may decide anything. Everything is bounded.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.model.ids import ChannelId, CheckpointId, TaskId
from tidegate.network.messages import BarrierSeen, LongStep
from tidegate.protocol.kinds import CheckpointKind
from tidegate.worker.task_reports import TaskCounters

# Far more than can be under way at once; what is aborted or done goes sooner.
_REMEMBERED = 64
# Five slices: a step that takes so long is one call of a function, or the first calls of a slow one.
LONG_STEP_MS = 50.0
_LONG_STEPS = 32


@dataclass(frozen=True, slots=True)
class Marks:
    """A task's counters at one moment."""

    rows_in: int = 0
    bytes_in: int = 0
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0
    paused_ms: float = 0.0
    unstored_ms: float = 0.0

    @classmethod
    def of(cls, counters: TaskCounters, *, paused_ms: float) -> "Marks":
        return cls(
            rows_in=counters.rows_in,
            bytes_in=counters.bytes_in,
            busy_ms=counters.busy_ms,
            backpressured_ms=counters.backpressured_ms,
            paused_ms=paused_ms,
            unstored_ms=counters.unstored_ms,
        )


@dataclass(slots=True)
class Seen:
    """One checkpoint as one task saw it. `at_first` and `at_snapshot` are its counters then."""

    first: BarrierSeen | None
    last: BarrierSeen | None
    first_at_ms: float
    queued_bytes: int
    at_first: Marks
    kind: CheckpointKind | None = None
    snapshot_at_ms: float | None = None
    sync_ms: float = 0.0
    state_bytes: int = 0
    at_snapshot: Marks | None = None
    epoch_began: Marks = field(default_factory=Marks)


class BarrierWatch:
    def __init__(self) -> None:
        self._seen: dict[CheckpointId, Seen] = {}
        self._last_snapshot = Marks()
        self.long_steps: deque[LongStep] = deque(maxlen=_LONG_STEPS)

    def on_step(self, task: TaskId, *, ended_at_ms: float, duration_ms: float, rows: int) -> None:
        if duration_ms >= LONG_STEP_MS:
            self.long_steps.append(LongStep(task, ended_at_ms, duration_ms, rows))

    def has_heard_again(self, checkpoint: CheckpointId, channel: ChannelId | None, now_ms: float) -> bool:
        """Notes a barrier that is not the first; false if it is."""
        seen = self._seen.get(checkpoint)
        if seen is None:
            return False
        seen.last = None if channel is None else BarrierSeen(channel, now_ms)
        return True

    def on_first_barrier(
        self, checkpoint: CheckpointId, channel: ChannelId | None, *, now_ms: float, marks: Marks, queued_bytes: int
    ) -> None:
        barrier = None if channel is None else BarrierSeen(channel, now_ms)
        self._add(checkpoint, Seen(barrier, barrier, now_ms, queued_bytes, marks))

    def on_snapshot(
        self,
        checkpoint: CheckpointId,
        kind: CheckpointKind,
        *,
        started_ms: float,
        sync_ms: float,
        state_bytes: int,
        marks: Marks,
    ) -> None:
        seen = self._seen.get(checkpoint)
        if seen is None:
            seen = Seen(None, None, started_ms, 0, marks)
            self._add(checkpoint, seen)
        seen.kind, seen.snapshot_at_ms, seen.sync_ms, seen.state_bytes = kind, started_ms, sync_ms, state_bytes
        seen.at_snapshot, seen.epoch_began = marks, self._last_snapshot
        self._last_snapshot = marks

    def on_done(self, checkpoint: CheckpointId) -> None:
        self._seen = {later: seen for later, seen in self._seen.items() if later > checkpoint}

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._seen.pop(checkpoint, None)

    def first_barrier_ms(self, checkpoint: CheckpointId) -> float | None:
        seen = self._seen.get(checkpoint)
        return None if seen is None else seen.first_at_ms

    def seen(self, checkpoint: CheckpointId) -> Seen | None:
        return self._seen.get(checkpoint)

    def epoch_began(self, checkpoint: CheckpointId) -> Marks:
        seen = self._seen.get(checkpoint)
        return self._last_snapshot if seen is None or seen.at_snapshot is None else seen.epoch_began

    def _add(self, checkpoint: CheckpointId, seen: Seen) -> None:
        self._seen[checkpoint] = seen
        if len(self._seen) > _REMEMBERED:
            del self._seen[min(self._seen)]


def longest(steps: Iterable[LongStep], *, ended_after_ms: float, most: int) -> list[LongStep]:
    recent = [step for step in steps if step.ended_at_ms >= ended_after_ms]
    return sorted(recent, key=lambda step: step.duration_ms, reverse=True)[:most]
