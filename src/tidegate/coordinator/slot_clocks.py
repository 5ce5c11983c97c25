"""Each slot's clock beside the driver's: where a moment that a slot names lies in the driver's time.

A message is never heard before it was said, so the least difference seen comes nearest to the truth; it may grow again
slowly, because clocks drift.
"""

from dataclasses import dataclass
from typing import Final

from tidegate.model.ids import SlotIndex

# A few messages a second: far more than clocks drift, far less than a message takes.
_DRIFT_PER_MESSAGE_MS: Final = 0.02


@dataclass(slots=True)
class _Clock:
    offset_ms: float
    last_word_ms: float


class SlotClocks:
    def __init__(self) -> None:
        self._clocks: dict[SlotIndex, _Clock] = {}

    def on_word(self, slot: SlotIndex, *, said_at_ms: float, now_ms: float) -> None:
        """A slot that does not say when it spoke (0) tells nothing about its clock."""
        if not said_at_ms:
            return
        offset_ms = now_ms - said_at_ms
        clock = self._clocks.get(slot)
        if clock is None:
            self._clocks[slot] = _Clock(offset_ms, now_ms)
            return
        clock.offset_ms = min(offset_ms, clock.offset_ms + _DRIFT_PER_MESSAGE_MS)
        clock.last_word_ms = now_ms

    def clear(self) -> None:
        """Other processes come."""
        self._clocks.clear()

    def in_driver_time_ms(self, slot: SlotIndex, at_ms: float) -> float | None:
        clock = self._clocks.get(slot)
        return None if clock is None else at_ms + clock.offset_ms

    def last_word_ms(self, slot: SlotIndex) -> float | None:
        clock = self._clocks.get(slot)
        return None if clock is None else clock.last_word_ms
