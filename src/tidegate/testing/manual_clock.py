"""A clock that stands still until a test moves it. Never reads the machine's time."""

_WALL_START_MS = 1_700_000_000_000


class ManualClock:
    """`Clock` for tests: both times move together, forward only.

    `monotonic_ms` starts at 0, `wall_ms` at `wall_start_ms`, so that code which takes one for the other is found out.
    """

    def __init__(self, *, wall_start_ms: int = _WALL_START_MS) -> None:
        self._wall_start_ms = wall_start_ms
        self._now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._wall_start_ms + int(self._now_ms)

    def advance(self, ms: float) -> None:
        self.advance_to(self._now_ms + ms)

    def advance_to(self, ms: float) -> None:
        """Moves to a moment of `monotonic_ms`."""
        if not ms >= self._now_ms:
            raise ValueError(f"The clock stands at {self._now_ms} ms and cannot move to {ms} ms: time goes forward.")
        self._now_ms = float(ms)
