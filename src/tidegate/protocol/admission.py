"""Active backpressure: whether a source may pull, given the checkpoints that are under way.

It bounds the data in front of a barrier to about one interval's. It owns no other reason to wait, and must never wait
for a checkpoint that has settled: when in doubt, the source pulls.
"""

import heapq
from enum import Enum
from typing import Final, assert_never

from tidegate.model.ids import CheckpointId

# News may run ahead of the barrier, or come again, for as many checkpoints; far more than can be under way at once.
REMEMBERED_CHECKPOINTS: Final = 256


class ActiveBackpressure(Enum):
    OFF = "false"
    ON = "true"
    STRICT = "strict"


class SourceAdmission:
    def __init__(self, mode: ActiveBackpressure, *, interval_ms: float, max_concurrent: int, now_ms: float) -> None:
        self._mode = mode
        self._interval_ms = interval_ms
        self._max_concurrent = max_concurrent
        self._last_barrier_ms = now_ms
        self._pending: set[CheckpointId] = set()
        self._reached_all = _RecentIds()
        self._settled = _RecentIds()
        self._ended_pauses_ms = 0.0
        self._paused_since_ms: float | None = None

    # -- events

    def on_triggered(self, checkpoint: CheckpointId, now_ms: float) -> None:
        """The source emitted its barrier."""
        self._last_barrier_ms = max(self._last_barrier_ms, now_ms)
        if checkpoint not in self._settled:
            self._pending.add(checkpoint)

    def on_reached_all(self, checkpoint: CheckpointId) -> None:
        """The barrier has reached every task of the job."""
        self._reached_all.add(checkpoint)

    def on_settled(self, checkpoint: CheckpointId) -> None:
        """The checkpoint completed, failed or was aborted."""
        self._settled.add(checkpoint)
        self._pending.discard(checkpoint)

    # -- questions

    def may_pull(self, now_ms: float) -> bool:
        """Also where a pause begins and ends: a source that is not asked is not held up."""
        if self._must_pause(now_ms):
            if self._paused_since_ms is None:
                self._paused_since_ms = now_ms
            return False
        self._ended_pauses_ms = self.paused_ms(now_ms)
        self._paused_since_ms = None
        return True

    def paused_ms(self, now_ms: float) -> float:
        """All pauses so far, with the one that lasts."""
        if self._paused_since_ms is None:
            return self._ended_pauses_ms
        return self._ended_pauses_ms + max(0.0, now_ms - self._paused_since_ms)

    # -- decisions

    def _must_pause(self, now_ms: float) -> bool:
        if not self._pending or len(self._pending) < self._max_concurrent:
            return False
        if now_ms - self._last_barrier_ms < self._interval_ms:
            return False
        match self._mode:
            case ActiveBackpressure.OFF:
                return False
            case ActiveBackpressure.ON:
                # A slow upload must not throttle a healthy stream.
                return max(self._pending) not in self._reached_all
            case ActiveBackpressure.STRICT:
                return True
            case unreachable:
                assert_never(unreachable)


class _RecentIds:
    """The highest checkpoint ids added. What lies below those counts as added: nothing so old is waited for."""

    def __init__(self) -> None:
        self._ids: set[CheckpointId] = set()
        self._lowest_first: list[CheckpointId] = []
        self._forgotten_up_to = CheckpointId(0)

    def __contains__(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self._forgotten_up_to or checkpoint in self._ids

    def add(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self:
            return
        self._ids.add(checkpoint)
        heapq.heappush(self._lowest_first, checkpoint)
        if len(self._lowest_first) > REMEMBERED_CHECKPOINTS:
            self._forgotten_up_to = heapq.heappop(self._lowest_first)
            self._ids.remove(self._forgotten_up_to)
