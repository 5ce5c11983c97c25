"""Event time at a gate: the watermark of a task from those of its channels, and what key groups keep of an old one.

The gate's watermark is the minimum over the channels that are neither idle nor ended, and never goes back: what was
told downstream has fired windows. It must never advance on the word of an idle channel alone.

Once all channels whose event time begins in one place have ended, it has come as far as the furthest of them: nothing
older can follow, so that the end of a run finds event time where one task that had read everything would have it. By
default each edge is such a place; those of a union behind which the watermark is defined share one.
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import ChannelId, EdgeId, KeyGroupRange

MIN_WATERMARK_MS: Final = -(1 << 63)
MAX_WATERMARK_MS: Final = (1 << 63) - 1
# Spark's event time begins in 1970: what lies before is late from the start.
FIRST_EVENT_TIME_MS: Final = 0


@dataclass(frozen=True, slots=True)
class ChannelWatermark:
    """What a snapshot stores of one channel."""

    event_time_ms: int
    is_idle: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """The gate's watermark is now this."""

    event_time_ms: int


@dataclass(frozen=True, slots=True)
class BecomeIdle:
    """Every live channel is idle: tell downstream."""


@dataclass(frozen=True, slots=True)
class BecomeActive:
    """A channel of an idle gate is active again: tell downstream."""


WatermarkAction: TypeAlias = Advance | BecomeIdle | BecomeActive


class _Status(Enum):
    ACTIVE = "active"
    IDLE = "idle"
    ENDED = "ended"


@dataclass(slots=True)
class _Channel:
    event_time_ms: int
    status: _Status
    is_in_heap: bool


class GateWatermarks:
    def __init__(
        self,
        channels: Iterable[ChannelId],
        *,
        restored: Mapping[ChannelId, ChannelWatermark] = {},
        current_ms: int = MIN_WATERMARK_MS,
        event_time_of: Mapping[EdgeId, EdgeId] = {},
    ) -> None:
        """`restored` and `current_ms` are what the snapshot stored; a channel that is not in it starts anew.

        `event_time_of`: the edge that stands for all whose event time begins in the same place.
        """
        self._channels = {channel: _started(restored.get(channel, _INITIAL)) for channel in channels}
        strangers = restored.keys() - self._channels.keys()
        if strangers:
            raise ProtocolViolation(f"The snapshot has a watermark of {min(strangers)}, which this gate does not read.")
        self._current_ms = current_ms
        self._event_time_of = event_time_of
        self._live_of_edge = Counter(event_time_of.get(channel.edge, channel.edge) for channel in self._channels)
        self._furthest_of_edge: dict[EdgeId, int] = {}
        # The least of the edges that have ended and had event time; such an edge holds back the others for good.
        self._ended_ms: int | None = None
        self._live = len(self._channels)
        self._active = sum(state.status is _Status.ACTIVE for state in self._channels.values())
        # The restored downstream knows already that this gate was idle: it is not told again.
        self._is_idle = self._live > 0 and self._active == 0
        # One entry per channel at most. An entry may lag behind its channel, which only moves forward: so it is a
        # lower bound, and is put right only when it comes to the top.
        self._heap = [(state.event_time_ms, channel) for channel, state in self._channels.items() if state.is_in_heap]
        heapq.heapify(self._heap)

    # -- events

    def on_watermark(self, channel: ChannelId, event_time_ms: int) -> list[WatermarkAction]:
        state = self._live_channel(channel)
        state.event_time_ms = max(state.event_time_ms, event_time_ms)
        if state.status is _Status.IDLE:
            self._activate(channel, state)
        return self._settle()

    def on_rows(self, channel: ChannelId) -> tuple[WatermarkAction, ...]:
        """Rows make an idle channel active again. Called for every slice, so the usual answer costs one look."""
        if self._channels[channel].status is _Status.ACTIVE:
            return ()
        self._activate(channel, self._live_channel(channel))
        return tuple(self._settle())

    def on_idle(self, channel: ChannelId) -> list[WatermarkAction]:
        state = self._live_channel(channel)
        if state.status is _Status.ACTIVE:
            state.status = _Status.IDLE
            self._active -= 1
        return self._settle()

    def on_end(self, channel: ChannelId) -> list[WatermarkAction]:
        state = self._live_channel(channel)
        if state.status is _Status.ACTIVE:
            self._active -= 1
        state.status = _Status.ENDED
        self._live -= 1
        self._end_of(self._event_time_of.get(channel.edge, channel.edge), state.event_time_ms)
        return self._settle()

    # -- questions

    @property
    def current_ms(self) -> int:
        return self._current_ms

    @property
    def is_live(self) -> bool:
        """Whether one of its channels has not ended."""
        return self._live > 0

    @property
    def is_idle(self) -> bool:
        """What downstream was told last; the end of the last channel changes nothing about it."""
        return self._is_idle

    def snapshot(self) -> dict[ChannelId, ChannelWatermark]:
        """The channels that have left their initial value.

        The others restore to the same without an entry, and a wide gate of a job without event time stores nothing.
        An ended channel is stored as it was last: until its sender says again that it has ended, it holds nothing back
        that it did not hold back before.
        """
        stored = {
            channel: ChannelWatermark(state.event_time_ms, is_idle=state.status is _Status.IDLE)
            for channel, state in self._channels.items()
        }
        return {channel: watermark for channel, watermark in stored.items() if watermark != _INITIAL}

    # -- decisions

    def _live_channel(self, channel: ChannelId) -> _Channel:
        state = self._channels[channel]
        if state.status is _Status.ENDED:
            raise ProtocolViolation(f"Channel {channel} has ended, but more came from it.")
        return state

    def _activate(self, channel: ChannelId, state: _Channel) -> None:
        state.status = _Status.ACTIVE
        self._active += 1
        if not state.is_in_heap:
            state.is_in_heap = True
            heapq.heappush(self._heap, (state.event_time_ms, channel))

    def _end_of(self, edge: EdgeId, event_time_ms: int) -> None:
        furthest_ms = max(self._furthest_of_edge.get(edge, MIN_WATERMARK_MS), event_time_ms)
        self._furthest_of_edge[edge] = furthest_ms
        self._live_of_edge[edge] -= 1
        if self._live_of_edge[edge] == 0 and furthest_ms > MIN_WATERMARK_MS:
            self._ended_ms = furthest_ms if self._ended_ms is None else min(self._ended_ms, furthest_ms)

    def _settle(self) -> list[WatermarkAction]:
        if self._live == 0:
            return self._advance_to(self._current_ms if self._ended_ms is None else self._ended_ms)
        if self._active == 0:
            if self._is_idle:
                return []
            self._is_idle = True
            return [BecomeIdle()]
        actions: list[WatermarkAction] = []
        if self._is_idle:
            self._is_idle = False
            actions.append(BecomeActive())
        lowest_ms = self._lowest_active_ms()
        return actions + self._advance_to(lowest_ms if self._ended_ms is None else min(lowest_ms, self._ended_ms))

    def _advance_to(self, event_time_ms: int) -> list[WatermarkAction]:
        if event_time_ms <= self._current_ms:
            return []
        self._current_ms = event_time_ms
        return [Advance(event_time_ms)]

    def _lowest_active_ms(self) -> int:
        """Needs an active channel. Each entry put right here pays for one event, so an event costs O(log n)."""
        while True:
            entry_ms, channel = self._heap[0]
            state = self._channels[channel]
            if state.status is not _Status.ACTIVE:
                heapq.heappop(self._heap)
                state.is_in_heap = False
            elif state.event_time_ms > entry_ms:
                heapq.heapreplace(self._heap, (state.event_time_ms, channel))
            else:
                return entry_ms


class KeyGroupFloors:
    """How far the old owner of each key group had come, after a restore at another parallelism.

    The new task's watermark may lie behind it; a window that fired there must not fire again here.
    """

    def __init__(self, floors: Sequence[tuple[KeyGroupRange, int]]) -> None:
        """Ranges may overlap, as after two restores in a row: the highest floor of a key group counts."""
        self._floors = tuple(_without_overlap(floors))
        self._firsts = [key_groups.first for key_groups, _ in self._floors]
        self._highest_ms = max((floor_ms for _, floor_ms in self._floors), default=MIN_WATERMARK_MS)

    def of(self, key_group: int, task_ms: int) -> int:
        """The watermark that lateness and firing of this key group go by."""
        if task_ms >= self._highest_ms:
            return task_ms
        at = bisect_right(self._firsts, key_group) - 1
        if at < 0:
            return task_ms
        key_groups, floor_ms = self._floors[at]
        return max(task_ms, floor_ms) if key_group in key_groups else task_ms

    def pending(self, task_ms: int) -> bool:
        """Whether any key group is still ahead of the task."""
        return task_ms < self._highest_ms

    def above(self, task_ms: int) -> tuple[tuple[KeyGroupRange, int], ...]:
        """What the next snapshot must keep."""
        return tuple(floor for floor in self._floors if floor[1] > task_ms)


_INITIAL: Final = ChannelWatermark(MIN_WATERMARK_MS, is_idle=False)


def _started(restored: ChannelWatermark) -> _Channel:
    status = _Status.IDLE if restored.is_idle else _Status.ACTIVE
    return _Channel(restored.event_time_ms, status, is_in_heap=status is _Status.ACTIVE)


def _without_overlap(floors: Iterable[tuple[KeyGroupRange, int]]) -> Iterator[tuple[KeyGroupRange, int]]:
    """The same floors as ascending ranges that do not overlap, the highest winning; neighbours alike are joined."""
    waiting = sorted((r.first, r.last, floor_ms) for r, floor_ms in floors if r.first < r.last)
    borders = sorted({first for first, _, _ in waiting} | {last for _, last, _ in waiting})
    covering: list[tuple[int, int]] = []  # (-floor_ms, last): the highest floor on top
    joined: tuple[KeyGroupRange, int] | None = None
    started = 0
    for first, last in pairwise(borders):
        while started < len(waiting) and waiting[started][0] <= first:
            heapq.heappush(covering, (-waiting[started][2], waiting[started][1]))
            started += 1
        while covering and covering[0][1] <= first:
            heapq.heappop(covering)
        if not covering:
            continue
        floor_ms = -covering[0][0]
        if joined is not None and joined[0].last == first and joined[1] == floor_ms:
            joined = (KeyGroupRange(joined[0].first, last), floor_ms)
            continue
        if joined is not None:
            yield joined
        joined = (KeyGroupRange(first, last), floor_ms)
    if joined is not None:
        yield joined
