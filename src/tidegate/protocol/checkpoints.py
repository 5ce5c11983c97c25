"""When checkpoints and savepoints start, when they are complete, when they fail, and what follows from it.

Owns the order in which they come into the job log: always the order of their ids, because what is last in the log
counts as the newest. It never speaks to slots or the store: it gives actions, and is told what became of them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.protocol.requests import Afterwards, Request, RequestQueue, SavepointRequest, Waiting

# What is stored but not committed is replayed to the sinks at a restore; a sink that cannot follow slows the rest.
MAX_UNCOMMITTED = 8
# Between two tries at what was asked for; doubled with each failure in a row, since what ails a store needs time, and
# the failures that are tolerated are few. The interval, which starts one anyway, is the longest.
_FIRST_WAIT_MS = 1_000.0
_MOST_DOUBLINGS = 12


class FailureReason(Enum):
    """Why a checkpoint did not complete. Closed: statistics count by it."""

    EXPIRED = "expired"  # not acknowledged by all slots within checkpoint.timeout
    DECLINED = "declined"  # a slot could not take or upload its snapshot
    STORE_FAILED = "store_failed"  # the manifest or the log entry could not be written
    INCONSISTENT = "inconsistent"  # the two sides of a channel do not meet
    SUBSUMED = "subsumed"  # a newer one came first into the job log, or may have
    JOB_RESTARTED = "job_restarted"  # the generation ended while it was under way
    JOB_STOPPED = "job_stopped"  # the job ended while it was under way
    TOO_MANY_REQUESTS = "too_many_requests"  # never started: as many as may wait were waiting already
    NOT_RUNNING = "not_running"  # never started: the generation had ended, or ended while the request waited

    @property
    def is_pre_flight(self) -> bool:
        """Nothing was started: no slot was told, nothing is to be aborted."""
        return self in _PRE_FLIGHT

    @property
    def counts_as_failure(self) -> bool:
        """Whether it counts towards `checkpoint.tolerableFailures`, if it was not a savepoint."""
        return self in _COUNTED


_PRE_FLIGHT = frozenset({FailureReason.TOO_MANY_REQUESTS, FailureReason.NOT_RUNNING})
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
    savepoint: SavepointRequest | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """Every slot has acknowledged: write the manifest, then the log entry; then say `on_stored`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the tasks; they drop uploads and stop aligning at once. Who asked for the savepoint hears the reason."""

    checkpoint: CheckpointId
    reason: FailureReason
    savepoint: SavepointRequest | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Never started; the reason is a pre-flight one."""

    request: Request
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class FailJob:
    """More checkpoints failed in a row than are tolerated."""

    checkpoint: CheckpointId
    reason: FailureReason


CheckpointAction: TypeAlias = Trigger | Complete | Abort | Refuse | FailJob


class _Stage(Enum):
    ACKNOWLEDGING = "acknowledging"
    HELD_BACK = "held_back"  # acknowledged by all, behind an older savepoint that is not in the log yet
    STORING = "storing"


@dataclass(slots=True)
class _Pending:
    triggered_at_ms: float
    waiting_for: set[SlotIndex]
    savepoint: SavepointRequest | None
    stage: _Stage = _Stage.ACKNOWLEDGING


@dataclass(frozen=True, slots=True)
class _Start:
    due_ms: float
    waiting: Waiting | None  # None: the interval asks, or another try at what was asked for is due


class Checkpoints:
    """The checkpoints of one generation. Ids only grow; the next free one is given at the start."""

    def __init__(
        self, settings: CheckpointSettings, *, slots: Iterable[SlotIndex], next_id: CheckpointId, now_ms: float
    ) -> None:
        self._settings = settings
        self._slots = frozenset(slots)
        self._next_id = next_id
        self._newest_completed = CheckpointId(0)  # of those for which `Complete` was given
        self._next_periodic_ms = now_ms + settings.interval_ms
        self._pause_until_ms = now_ms
        self._triggered_at_ms = now_ms  # the newest
        self._queue = RequestQueue()
        self._asked_from: CheckpointId | None = None  # the least that does for all who asked; None once one is stored
        self._pending: dict[CheckpointId, _Pending] = {}
        self._uncommitted: set[CheckpointId] = set()
        self._failures_in_row = 0
        self._is_suspended = False
        self._is_closed = False
        self.failures: Counter[FailureReason] = Counter()

    @property
    def next_id(self) -> CheckpointId:
        return self._next_id

    def pending(self) -> tuple[CheckpointId, ...]:
        return tuple(self._pending)

    def request(self, request: Request, now_ms: float) -> list[CheckpointAction]:
        if self._is_closed:
            return [self._refuse(request, FailureReason.NOT_RUNNING)]
        if self._queue.is_full:
            return [self._refuse(request, FailureReason.TOO_MANY_REQUESTS)]
        self._queue.add(request, asked_at_ms=now_ms)
        return self.on_time(now_ms)

    def on_time(self, now_ms: float) -> list[CheckpointAction]:
        actions: list[CheckpointAction] = []
        expired = [id for id, p in self._pending.items() if now_ms >= self._expires_ms(p)]
        for checkpoint in expired:
            actions += self._fail(checkpoint, FailureReason.EXPIRED)
        actions += self._release()
        while (start := self._next_start()) is not None and now_ms >= start.due_ms:
            actions.append(self._begin(start, now_ms))
        return actions

    def on_acknowledged(self, checkpoint: CheckpointId, slot: SlotIndex) -> list[CheckpointAction]:
        pending = self._pending.get(checkpoint)
        if pending is None or slot not in pending.waiting_for:
            return []  # aborted meanwhile, or said twice
        pending.waiting_for.discard(slot)
        if pending.waiting_for:
            return []
        if checkpoint < self._newest_completed:
            # Behind a newer one in the log it would count as the newest, and be restored although that is committed.
            # Also if that one could not be stored: its entry may be there.
            return self._fail(checkpoint, FailureReason.SUBSUMED)
        pending.stage = _Stage.HELD_BACK
        return self._release()

    def on_stored(self, checkpoint: CheckpointId, now_ms: float) -> list[CheckpointAction]:
        """Its entry is in the job log: it exists. `on_committed` follows."""
        if self._pending.pop(checkpoint, None) is None:
            return []
        self._uncommitted.add(checkpoint)
        if self._asked_from is not None and checkpoint >= self._asked_from:
            self._asked_from = None
        self._failures_in_row = 0
        self._pause_until_ms = now_ms + self._settings.min_pause_ms
        actions: list[CheckpointAction] = []
        for older in [id for id, p in self._pending.items() if id < checkpoint and p.stage is not _Stage.STORING]:
            actions += self._fail(older, FailureReason.SUBSUMED)
        return actions + self.on_time(now_ms)

    def on_committed(self, checkpoint: CheckpointId, now_ms: float) -> list[CheckpointAction]:
        """The sinks have it, and the log says so."""
        self._uncommitted.discard(checkpoint)
        return self.on_time(now_ms)

    def on_failed(self, checkpoint: CheckpointId, reason: FailureReason) -> list[CheckpointAction]:
        if checkpoint not in self._pending:
            return []
        return self._fail(checkpoint, reason) + self._release()

    def close(self, reason: FailureReason) -> list[CheckpointAction]:
        """The generation ends: nothing starts any more, what is pending is aborted, what waits is refused."""
        self._is_closed = True
        actions: list[CheckpointAction] = []
        for checkpoint in list(self._pending):
            actions += self._fail(checkpoint, reason)
        return actions + [self._refuse(request, FailureReason.NOT_RUNNING) for request in self._queue.take_all()]

    def next_deadline_ms(self) -> float:
        """When to call `on_time` at the latest; in the past if something may start already."""
        deadlines = [self._expires_ms(pending) for pending in self._pending.values()]
        if (start := self._next_start()) is not None:
            deadlines.append(start.due_ms)
        return min(deadlines, default=float("inf"))

    # -- starting

    def _next_start(self) -> _Start | None:
        """What starts next once its time has come, if anything may."""
        if self._is_closed or self._is_suspended or len(self._uncommitted) >= MAX_UNCOMMITTED:
            return None
        savepoint = self._queue.next_savepoint()
        if savepoint is not None and self._savepoint_underway() is None:
            return _Start(savepoint.asked_at_ms, savepoint)
        if sum(pending.savepoint is None for pending in self._pending.values()) >= self._settings.max_concurrent:
            return None
        if (waiting := self._queue.next_checkpoint()) is not None:
            return _Start(waiting.asked_at_ms, waiting)
        periodic_ms = max(self._next_periodic_ms, self._pause_until_ms)
        return _Start(min(periodic_ms, self._another_try_ms()), None)

    def _another_try_ms(self) -> float:
        """Who asked does not ask again: one that failed would leave them to the next periodic one."""
        if self._asked_from is None or any(id >= self._asked_from for id in self._pending):
            return float("inf")
        doublings = min(max(0, self._failures_in_row - 1), _MOST_DOUBLINGS)
        wait_ms = max(self._settings.min_pause_ms, _FIRST_WAIT_MS * 2.0**doublings)
        return max(self._pause_until_ms, self._triggered_at_ms + wait_ms)

    def _begin(self, start: _Start, now_ms: float) -> Trigger:
        if start.waiting is None:
            # A fixed rate, but what was missed while none could start is not made up for.
            missed = (now_ms - self._next_periodic_ms) // self._settings.interval_ms
            self._next_periodic_ms += (missed + 1) * self._settings.interval_ms
            return self._trigger(None, now_ms)
        self._queue.take(start.waiting)
        request = start.waiting.request
        if isinstance(request, SavepointRequest):
            return self._trigger(request, now_ms)
        self._asked_from = self._next_id
        return self._trigger(None, now_ms)

    def _trigger(self, savepoint: SavepointRequest | None, now_ms: float) -> Trigger:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        self._triggered_at_ms = now_ms
        self._pending[checkpoint] = _Pending(now_ms, set(self._slots), savepoint)
        if savepoint is not None and savepoint.afterwards is Afterwards.SUSPEND:
            # For good unless it fails: a later one would commit results that the savepoint knows nothing of.
            self._is_suspended = True
        return Trigger(checkpoint, savepoint)

    # -- ending

    def _release(self) -> list[CheckpointAction]:
        """Completes, in the order of ids, what all have acknowledged and no older savepoint holds back."""
        if self._is_closed:
            return []
        savepoint = self._savepoint_underway()
        actions: list[CheckpointAction] = []
        for checkpoint, pending in self._pending.items():
            # Else savepoints would starve beside quicker checkpoints, each of which would subsume them.
            is_behind_savepoint = savepoint is not None and checkpoint > savepoint
            if pending.stage is _Stage.HELD_BACK and not is_behind_savepoint:
                pending.stage = _Stage.STORING
                self._newest_completed = checkpoint
                actions.append(Complete(checkpoint))
        return actions

    def _fail(self, checkpoint: CheckpointId, reason: FailureReason) -> list[CheckpointAction]:
        savepoint = self._pending.pop(checkpoint).savepoint
        self.failures[reason] += 1
        actions: list[CheckpointAction] = [Abort(checkpoint, reason, savepoint)]
        if savepoint is not None:
            # Not counted: who asked hears of it, and the job is as safe as it was. A suspended one goes on.
            self._is_suspended = False
        elif reason.counts_as_failure:
            self._failures_in_row += 1
            if self._failures_in_row > self._settings.tolerable_failures and not self._is_closed:
                # The generation is over: one that started now would be aborted before anybody was told of it.
                self._is_closed = True
                actions.append(FailJob(checkpoint, reason))
        return actions

    def _refuse(self, request: Request, reason: FailureReason) -> Refuse:
        self.failures[reason] += 1
        return Refuse(request, reason)

    # -- questions

    def _savepoint_underway(self) -> CheckpointId | None:
        """At most one at a time."""
        return next((id for id, pending in self._pending.items() if pending.savepoint is not None), None)

    def _expires_ms(self, pending: _Pending) -> float:
        """What all have acknowledged waits for nobody whom a timeout could hurry."""
        if pending.stage is not _Stage.ACKNOWLEDGING:
            return float("inf")
        return pending.triggered_at_ms + self._settings.timeout_ms
