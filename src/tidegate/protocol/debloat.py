"""Debloating: windows so large that a gate's queued bytes are worth about `target_ms` of its own work, and no larger.

A barrier then waits about that long behind data, whatever the rate. It owns the sizes only; it must never make a
window smaller than one slice, which would starve the task, nor change one for a mere wobble.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp2
from typing import Final

from tidegate.model.ids import ChannelId

# Long enough for some twenty slices, short enough that five fit into the default target.
PERIOD_MS: Final = 200.0

# The gate's rate forgets half of the past per period: it follows a fall to a tenth within a few.
RATE_HALF_LIFE_MS: Final = PERIOD_MS

# Shares are slower: of many channels each delivers only now and then, which is not a change of its rate.
SHARE_HALF_LIFE_MS: Final = 5 * PERIOD_MS

# A smaller change is not made: rates wobble by a tenth or two, each change costs a message to the sender, and a
# quarter of the target is less than anyone notices.
LEAST_CHANGE: Final = 0.25


@dataclass(frozen=True, slots=True)
class SetWindow:
    channel: ChannelId
    window_bytes: int


class Debloat:
    """One per gate."""

    def __init__(
        self, *, target_ms: float, least_bytes: int, most_bytes: int, channels: Iterable[ChannelId], now_ms: float
    ) -> None:
        """Every channel is taken to start with `most_bytes`: a window is cut once the rate is known, not before."""
        self._target_ms = target_ms
        self._least_bytes = least_bytes
        self._most_bytes = max(least_bytes, most_bytes)
        self._windows_bytes = dict.fromkeys(channels, self._most_bytes)
        self._consumed_bytes = dict.fromkeys(self._windows_bytes, 0)  # in the period that lasts
        self._weights_bytes = dict.fromkeys(self._windows_bytes, 0.0)  # what each consumed, the past fading
        self._rate_bytes_per_ms: float | None = None
        self._period_began_ms = now_ms

    def on_consumed(self, channel: ChannelId, size_bytes: int) -> None:
        self._consumed_bytes[channel] += size_bytes

    def on_time(self, now_ms: float, *, queued_bytes: int) -> list[SetWindow]:
        """`queued_bytes`: what waits at the gate now."""
        elapsed_ms = now_ms - self._period_began_ms
        if elapsed_ms < PERIOD_MS:
            return []
        consumed_bytes = sum(self._consumed_bytes.values())
        self._period_began_ms = now_ms
        if consumed_bytes > 0:
            self._weigh_shares(elapsed_ms)
        elif queued_bytes == 0 or self._rate_bytes_per_ms is None:
            # Without input, or before the first consumption, the period says nothing about what the task can do.
            return []
        self._rate_bytes_per_ms = self._averaged(consumed_bytes / elapsed_ms, elapsed_ms)
        return self._changes(self._rate_bytes_per_ms * self._target_ms)

    def next_deadline_ms(self) -> float:
        return self._period_began_ms + PERIOD_MS

    # -- decisions

    def _weigh_shares(self, elapsed_ms: float) -> None:
        kept = exp2(-elapsed_ms / SHARE_HALF_LIFE_MS)
        for channel, consumed_bytes in self._consumed_bytes.items():
            self._weights_bytes[channel] = self._weights_bytes[channel] * kept + consumed_bytes
            self._consumed_bytes[channel] = 0

    def _averaged(self, measured_bytes_per_ms: float, elapsed_ms: float) -> float:
        if self._rate_bytes_per_ms is None:
            return measured_bytes_per_ms
        kept = exp2(-elapsed_ms / RATE_HALF_LIFE_MS)
        return self._rate_bytes_per_ms * kept + measured_bytes_per_ms * (1 - kept)

    def _changes(self, total_bytes: float) -> list[SetWindow]:
        # Something was consumed once, and weights fade only when something new is: the sum is never 0.
        bytes_per_weight = total_bytes / sum(self._weights_bytes.values())
        changes: list[SetWindow] = []
        for channel, weight in self._weights_bytes.items():
            wanted_bytes = min(max(round(weight * bytes_per_weight), self._least_bytes), self._most_bytes)
            window_bytes = self._windows_bytes[channel]
            if wanted_bytes == window_bytes or abs(wanted_bytes - window_bytes) < LEAST_CHANGE * window_bytes:
                continue
            self._windows_bytes[channel] = wanted_bytes
            changes.append(SetWindow(channel, wanted_bytes))
        return changes
