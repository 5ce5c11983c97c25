"""Debloating: windows so large that a gate's queued bytes are worth about `target_ms` of its own work, and no larger.

A barrier then waits about that long behind data, whatever the rate. It owns the sizes only; it must never make a
window smaller than one slice, which would starve the task, give out more than the gate's share of the slot's memory,
nor change a window for a mere wobble.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp2
from typing import Final

from tidegate.model.ids import ChannelId

# Long enough for some twenty slices, short enough that five fit into the default target.
PERIOD_MS: Final = 200.0

# Of many channels each delivers only now and then, which is not a change of its share.
SHARE_HALF_LIFE_MS: Final = 5 * PERIOD_MS

# Within about the default target a barrier waits behind fast and slow rows alike: a rate that is soon back where it was
# has not changed. One that stays is followed so much later.
BURSTS_WITHIN_MS: Final = 5 * PERIOD_MS

# A smaller change is not made: rates wobble by a tenth or two, each change costs a message to the sender, and a
# quarter of the target is less than anyone notices.
LEAST_CHANGE: Final = 0.25

# What a sender gathers and overdraws comes on top of the windows, and all of it together is to be worth the target.
PART_OF_TARGET: Final = 0.75


@dataclass(frozen=True, slots=True)
class SetWindow:
    channel: ChannelId
    window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBounds:
    """`start_bytes`: before the rate is known. `most_total_bytes`: all windows of the gate together."""

    least_bytes: int
    start_bytes: int
    most_bytes: int
    most_total_bytes: int


class Debloat:
    """One per gate."""

    def __init__(self, *, target_ms: float, bounds: WindowBounds, channels: Iterable[ChannelId], now_ms: float) -> None:
        self._target_ms = target_ms
        self._bounds = bounds
        self._windows_bytes = dict.fromkeys(channels, bounds.start_bytes)
        self._consumed_bytes = dict.fromkeys(self._windows_bytes, 0)  # in the period that lasts
        self._weights_bytes = dict.fromkeys(self._windows_bytes, 0.0)  # what each consumed, the past fading
        self._period_began_ms = now_ms
        self._rate = _RateBehindBursts()

    def on_consumed(self, channel: ChannelId, size_bytes: int) -> None:
        self._consumed_bytes[channel] += size_bytes

    def on_time(self, now_ms: float, *, drain_bytes_per_ms: float | None, slice_bytes: int) -> list[SetWindow]:
        """`drain_bytes_per_ms`: how fast the gate is emptied while there is input, None while that is not known.

        `slice_bytes`: what one step takes.
        """
        elapsed_ms = now_ms - self._period_began_ms
        if elapsed_ms < PERIOD_MS:
            return []
        self._period_began_ms = now_ms
        self._weigh_shares(elapsed_ms)
        if drain_bytes_per_ms is None or not any(self._weights_bytes.values()):
            return []
        rate_bytes_per_ms = self._rate.at(now_ms, drain_bytes_per_ms)
        return self._changes(rate_bytes_per_ms * self._target_ms * PART_OF_TARGET, slice_bytes)

    def next_deadline_ms(self) -> float:
        return self._period_began_ms + PERIOD_MS

    # -- decisions

    def _weigh_shares(self, elapsed_ms: float) -> None:
        if not any(self._consumed_bytes.values()):
            return  # without input nothing is known anew: what the shares were is the best guess
        kept = exp2(-elapsed_ms / SHARE_HALF_LIFE_MS)
        for channel, consumed_bytes in self._consumed_bytes.items():
            self._weights_bytes[channel] = self._weights_bytes[channel] * kept + consumed_bytes
            self._consumed_bytes[channel] = 0

    def _changes(self, total_bytes: float, slice_bytes: int) -> list[SetWindow]:
        wanted = self._wanted(total_bytes, slice_bytes)
        changes = {channel: size for channel, size in wanted.items() if self._is_worth_a_change(channel, size)}
        kept_bytes = sum(size for channel, size in self._windows_bytes.items() if channel not in changes)
        if kept_bytes + sum(changes.values()) > self._bounds.most_total_bytes:
            # Windows left as they are because they differ little must not add up to more than there is.
            changes = {channel: size for channel, size in wanted.items() if size != self._windows_bytes[channel]}
        self._windows_bytes |= changes
        return [SetWindow(channel, size) for channel, size in changes.items()]

    def _wanted(self, total_bytes: float, slice_bytes: int) -> dict[ChannelId, int]:
        """One slice for each, and of the rest as much as each has delivered lately."""
        bounds, count = self._bounds, len(self._windows_bytes)
        most_each = bounds.most_total_bytes // count
        least_bytes = max(1, min(max(bounds.least_bytes, slice_bytes), bounds.most_bytes, most_each))
        rest_bytes = max(0.0, min(total_bytes, bounds.most_total_bytes) - least_bytes * count)
        weight_total = sum(self._weights_bytes.values())
        return {
            channel: min(least_bytes + int(rest_bytes * weight / weight_total), bounds.most_bytes)
            for channel, weight in self._weights_bytes.items()
        }

    def _is_worth_a_change(self, channel: ChannelId, wanted_bytes: int) -> bool:
        window_bytes = self._windows_bytes[channel]
        return wanted_bytes != window_bytes and abs(wanted_bytes - window_bytes) >= LEAST_CHANGE * window_bytes


class _RateBehindBursts:
    """Stays what it was as long as that lies within what was seen of late, and goes no further than to its edge.

    So a rate that swings is one and the same, however far it swings, and one that has changed is followed.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # when, and the rate then; one per period
        self._bytes_per_ms: float | None = None

    def at(self, now_ms: float, seen_bytes_per_ms: float) -> float:
        self._seen.append((now_ms, seen_bytes_per_ms))
        while self._seen[0][0] < now_ms - BURSTS_WITHIN_MS:
            self._seen.popleft()
        rates = [rate for _, rate in self._seen]
        before = seen_bytes_per_ms if self._bytes_per_ms is None else self._bytes_per_ms
        self._bytes_per_ms = min(max(before, min(rates)), max(rates))
        return self._bytes_per_ms
