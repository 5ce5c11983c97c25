"""When checkpoints start, when they are complete, when they fail, and what follows from it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tidegate.model.ids import CheckpointId, SlotIndex


class FailureReason(Enum):
    """Why a checkpoint did not complete. Closed: statistics count by it."""

    EXPIRED = "expired"  # not acknowledged by all slots within checkpoint.timeout
    DECLINED = "declined"  # a slot could not take or upload its snapshot
    STORE_FAILED = "store_failed"  # the manifest or the log entry could not be written
    INCONSISTENT = "inconsistent"  # the two sides of a channel do not meet
    SUBSUMED = "subsumed"  # a newer one completed first
    JOB_RESTARTED = "job_restarted"  # the generation ended
    JOB_STOPPED = "job_stopped"

    @property
    def counts_as_failure(self) -> bool:
        """Whether it counts towards `checkpoint.tolerableFailures`."""
        return self in _COUNTED


_COUNTED = frozenset(
    {FailureReason.EXPIRED, FailureReason.DECLINED, FailureReason.STORE_FAILED, FailureReason.INCONSISTENT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    interval_ms: float
    timeout_ms: float
    min_pause_ms: float
    max_concurrent: int
    tolerable_failures: int


@dataclass(frozen=True, slots=True)
class Trigger:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Complete:
    """Every slot has acknowledged: write the manifest, then the log entry; then say `on_stored`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the tasks; they drop uploads and stop aligning at once."""

    checkpoint: CheckpointId
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class FailJob:
    """More checkpoints failed in a row than are tolerated."""

    checkpoint: CheckpointId
    reason: FailureReason


CheckpointAction: TypeAlias = Trigger | Complete | Abort | FailJob


@dataclass(slots=True)
class _Pending:
    triggered_at_ms: float
    waiting_for: set[SlotIndex] = field(default_factory=set)
    is_storing: bool = False


class Checkpoints:
    """The checkpoints of one generation. Ids only grow; the next free one is given at the start."""

    def __init__(
        self, settings: CheckpointSettings, *, slots: Iterable[SlotIndex], next_id: CheckpointId, now_ms: float
    ) -> None:
        self._settings = settings
        self._slots = frozenset(slots)
        self._next_id = next_id
        self._next_periodic_ms = now_ms + settings.interval_ms
        self._pause_until_ms = now_ms
        self._pending: dict[CheckpointId, _Pending] = {}
        self._requested = 0
        self._failures_in_row = 0
        self._is_closed = False
        self.failures: Counter[FailureReason] = Counter()

    @property
    def next_id(self) -> CheckpointId:
        return self._next_id

    def pending(self) -> tuple[CheckpointId, ...]:
        return tuple(self._pending)

    def request(self, now_ms: float) -> list[CheckpointAction]:
        """One more as soon as it is allowed, whatever the interval and the pause say."""
        self._requested += 1
        return self.on_time(now_ms)

    def on_time(self, now_ms: float) -> list[CheckpointAction]:
        actions: list[CheckpointAction] = []
        for checkpoint, pending in list(self._pending.items()):
            expired = now_ms >= pending.triggered_at_ms + self._settings.timeout_ms
            if expired and not pending.is_storing:
                actions += self._fail(checkpoint, FailureReason.EXPIRED)
        if not self._is_closed and len(self._pending) < self._settings.max_concurrent:
            if self._requested:
                self._requested -= 1
                actions.append(self._trigger(now_ms))
            elif now_ms >= max(self._next_periodic_ms, self._pause_until_ms):
                # A fixed rate, but what was missed while none could start is not made up for.
                missed = (now_ms - self._next_periodic_ms) // self._settings.interval_ms
                self._next_periodic_ms += (missed + 1) * self._settings.interval_ms
                actions.append(self._trigger(now_ms))
        return actions

    def on_acknowledged(self, checkpoint: CheckpointId, slot: SlotIndex) -> list[CheckpointAction]:
        pending = self._pending.get(checkpoint)
        if pending is None or slot not in pending.waiting_for:
            return []  # aborted meanwhile, or said twice
        pending.waiting_for.discard(slot)
        if pending.waiting_for:
            return []
        if any(newer.is_storing for id, newer in self._pending.items() if id > checkpoint):
            # Behind a newer one in the log it would count as the newest, and be restored although that is committed.
            return self._fail(checkpoint, FailureReason.SUBSUMED)
        pending.is_storing = True
        return [Complete(checkpoint)]

    def on_stored(self, checkpoint: CheckpointId, now_ms: float) -> list[CheckpointAction]:
        """Its entry is in the job log: it exists."""
        if self._pending.pop(checkpoint, None) is None:
            return []
        self._failures_in_row = 0
        self._pause_until_ms = now_ms + self._settings.min_pause_ms
        actions: list[CheckpointAction] = []
        for older in [id for id, p in self._pending.items() if id < checkpoint and not p.is_storing]:
            actions += self._fail(older, FailureReason.SUBSUMED)
        return actions + self.on_time(now_ms)

    def on_failed(self, checkpoint: CheckpointId, reason: FailureReason) -> list[CheckpointAction]:
        return self._fail(checkpoint, reason) if checkpoint in self._pending else []

    def close(self, reason: FailureReason) -> list[CheckpointAction]:
        """The generation ends: nothing starts any more, what is pending is aborted."""
        self._is_closed = True
        actions: list[CheckpointAction] = []
        for checkpoint in list(self._pending):
            actions += self._fail(checkpoint, reason)
        return actions

    def next_deadline_ms(self) -> float:
        deadlines = [p.triggered_at_ms + self._settings.timeout_ms for p in self._pending.values() if not p.is_storing]
        if not self._is_closed and len(self._pending) < self._settings.max_concurrent:
            deadlines.append(max(self._next_periodic_ms, self._pause_until_ms))
        return min(deadlines, default=float("inf"))

    def _trigger(self, now_ms: float) -> Trigger:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        self._pending[checkpoint] = _Pending(now_ms, set(self._slots))
        return Trigger(checkpoint)

    def _fail(self, checkpoint: CheckpointId, reason: FailureReason) -> list[CheckpointAction]:
        del self._pending[checkpoint]
        self.failures[reason] += 1
        actions: list[CheckpointAction] = [Abort(checkpoint, reason)]
        if reason.counts_as_failure:
            self._failures_in_row += 1
            if self._failures_in_row > self._settings.tolerable_failures:
                # The generation is over: one that started now would be aborted before anybody was told of it.
                self._is_closed = True
                actions.append(FailJob(checkpoint, reason))
        return actions
