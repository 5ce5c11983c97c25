"""When an aligned checkpoint should become unaligned before its deadline: when waiting surely fails and storing is
quicker than draining.

It owns the estimate only; the deadline itself stands in `barriers`. It must never switch on a rate it does not know.
"""

from math import exp2
from typing import Final

# Draining must look twice as long as what is left: a misjudged rate must not store what would have drained in time.
DRAIN_MARGIN: Final = 2.0

# Rates of user code change within seconds; one slow call among many must not decide.
RATE_HALF_LIFE_MS: Final = 1000.0

# About ten slices: the first calls of user code are slow (imports, caches) and are not its rate.
KNOWN_AFTER_MS: Final = 100.0


class DrainRate:
    """A moving average of how fast a task consumes while it has input; time without input is not to be reported."""

    def __init__(self) -> None:
        self._consumed_bytes = 0.0
        self._elapsed_ms = 0.0

    def on_consumed(self, size_bytes: int, elapsed_ms: float) -> None:
        kept = exp2(-elapsed_ms / RATE_HALF_LIFE_MS)
        self._consumed_bytes = self._consumed_bytes * kept + size_bytes
        self._elapsed_ms = self._elapsed_ms * kept + elapsed_ms

    @property
    def bytes_per_ms(self) -> float | None:
        """None until enough was seen."""
        if self._elapsed_ms < KNOWN_AFTER_MS:
            return None
        return self._consumed_bytes / self._elapsed_ms


def should_switch_now(
    *, queued_bytes: int, drain_bytes_per_ms: float | None, storage_bytes_per_ms: float | None, left_ms: float
) -> bool:
    """`queued_bytes` stand before the barrier; `left_ms` is left until the aligned timeout."""
    if drain_bytes_per_ms is None or storage_bytes_per_ms is None or queued_bytes <= 0:
        return False
    drain_ms = _duration_ms(queued_bytes, bytes_per_ms=drain_bytes_per_ms)
    store_ms = _duration_ms(queued_bytes, bytes_per_ms=storage_bytes_per_ms)
    return drain_ms > DRAIN_MARGIN * left_ms and store_ms < drain_ms


def _duration_ms(size_bytes: int, *, bytes_per_ms: float) -> float:
    return size_bytes / bytes_per_ms if bytes_per_ms > 0 else float("inf")
