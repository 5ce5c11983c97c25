"""Time as a value that can be replaced. Nothing below the shells reads a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> float:
        """Never goes back; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, for people and for event time; never for deadlines."""
        ...


class SystemClock:
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
