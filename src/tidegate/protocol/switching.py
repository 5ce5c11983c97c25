"""When an aligned checkpoint should become unaligned before its deadline: when waiting surely fails and storing is
quicker than draining.

It owns the estimate only; the deadline itself stands in `barriers`. It must never switch on a rate it does not know.
"""

from dataclasses import dataclass
from math import exp2
from typing import Final

# Draining must look so much longer than what is left: a misjudged rate must not store what would have drained in time.
DRAIN_MARGIN: Final = 1.25

# Rates of user code change within seconds; one slow call among many must not decide.
RATE_HALF_LIFE_MS: Final = 1000.0

# About ten slices: the first calls of user code are slow (imports, caches) and are not its rate.
KNOWN_AFTER_MS: Final = 100.0

# As much as grants, which come in lumps, make an average of seconds swing.
STEADY_WITHIN: Final = 1 / 8


class DrainRate:
    """A moving average of how fast a task consumes while it has input; time without input is not to be reported."""

    def __init__(self, *, half_life_ms: float = RATE_HALF_LIFE_MS) -> None:
        self._half_life_ms = half_life_ms
        self._consumed_bytes = 0.0
        self._elapsed_ms = 0.0

    def on_consumed(self, size_bytes: int, elapsed_ms: float) -> None:
        kept = exp2(-elapsed_ms / self._half_life_ms)
        self._consumed_bytes = self._consumed_bytes * kept + size_bytes
        self._elapsed_ms = self._elapsed_ms * kept + elapsed_ms

    @property
    def bytes_per_ms(self) -> float | None:
        """None until enough was seen."""
        if self._elapsed_ms < KNOWN_AFTER_MS:
            return None
        return self._consumed_bytes / self._elapsed_ms


class SteadyRate:
    """A drain rate that is followed in steps: while its average is near what it was, it is what it was.

    For limits that are this rate times many seconds, where each little change would be seen as a jump.
    """

    def __init__(self, *, half_life_ms: float) -> None:
        self._average = DrainRate(half_life_ms=half_life_ms)
        self.bytes_per_ms: float | None = None

    def on_consumed(self, size_bytes: int, elapsed_ms: float) -> None:
        self._average.on_consumed(size_bytes, elapsed_ms)
        average = self._average.bytes_per_ms
        if average is None:
            return
        if self.bytes_per_ms is None or abs(average - self.bytes_per_ms) > STEADY_WITHIN * self.bytes_per_ms:
            self.bytes_per_ms = average


@dataclass(frozen=True, slots=True)
class StorageSpeed:
    """What an upload took. As much again takes no longer, and more takes longer by as much as it is more.

    So a small upload, most of whose time is the call itself, never makes storage look faster than it is.
    """

    stored_bytes: int = 0
    storing_ms: float = 0.0

    def storing_ms_of(self, size_bytes: int) -> float | None:
        """None while no upload was seen."""
        if not self.stored_bytes:
            return None
        return self.storing_ms * max(1.0, size_bytes / self.stored_bytes)


UNKNOWN_SPEED: Final = StorageSpeed()


def should_switch_now(
    *, queued_bytes: int, drain_bytes_per_ms: float | None, storage: StorageSpeed, left_ms: float
) -> bool:
    """`queued_bytes` stand before the barrier; `left_ms` is left until the aligned timeout."""
    store_ms = storage.storing_ms_of(queued_bytes)
    if drain_bytes_per_ms is None or store_ms is None or queued_bytes <= 0:
        return False
    drain_ms = queued_bytes / drain_bytes_per_ms if drain_bytes_per_ms > 0 else float("inf")
    return drain_ms > DRAIN_MARGIN * left_ms and store_ms < drain_ms
