"""Flow control by byte windows: a channel may have so many bytes sealed but not yet consumed.

An element may overdraw the window; the task then waits until grants have made room again. A grant names how far the
receiver has consumed, not a number of bytes: so both sides can never disagree about what an element weighs.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

from tidegate.model.ids import Sequence

# Of a window, or nothing is put in: slices must not be tiny, and a window must not be overdrawn by the last of them.
LEAST_ROOM: Final = 0.125


class SendWindow:
    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._in_flight: deque[tuple[Sequence, int]] = deque()
        self._in_flight_bytes = 0

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def resize(self, window_bytes: int) -> None:
        """What is in flight stays so: a smaller window only has no room until enough of it is consumed."""
        self._window_bytes = window_bytes

    def has_room(self, *, gathered_bytes: int = 0, most_bytes: float = inf) -> bool:
        """For a slice of some size. `gathered_bytes` wait to be sent; `most_bytes`: if less than the window may be."""
        ahead_bytes = self._in_flight_bytes + gathered_bytes
        return not ahead_bytes or ahead_bytes <= min(self._window_bytes, most_bytes) * (1 - LEAST_ROOM)

    def spend(self, sequence: Sequence, size_bytes: int) -> None:
        self._in_flight.append((sequence, size_bytes))
        self._in_flight_bytes += size_bytes

    def granted(self, consumed: Sequence) -> None:
        """The receiver has processed everything below `consumed`."""
        while self._in_flight and self._in_flight[0][0] < consumed:
            self._in_flight_bytes -= self._in_flight.popleft()[1]


@dataclass(frozen=True, slots=True)
class MostAhead:
    """How much work a sender may lay before a receiver, beside the window: so much of the receiver's time.

    `unknown_bytes`: as long as nobody knows how much that is.
    """

    most_ms: float
    unknown_bytes: int

    def limit_bytes(self, drain_bytes_per_ms: float | None) -> float:
        return self.unknown_bytes if drain_bytes_per_ms is None else max(1.0, drain_bytes_per_ms * self.most_ms)


# Also the sender's knowledge of how fast the receiver is must not be older, however large its window.
GRANT_EVERY_MS: Final = 250.0


class ReceiveWindow:
    """Gathers what was consumed into few grants: one for each quarter window, whenever the channel runs dry, and
    after some time.
    """

    def __init__(self, window_bytes: int) -> None:
        self._threshold_bytes = _grant_threshold_bytes(window_bytes)
        self._owed_bytes = 0
        self._granted_at_ms = 0.0

    def resize(self, window_bytes: int) -> None:
        """What is owed stays owed; a smaller window may make it due with the next consumption."""
        self._threshold_bytes = _grant_threshold_bytes(window_bytes)

    def is_grant_due(self, consumed_bytes: int, *, channel_is_empty: bool, now_ms: float) -> bool:
        self._owed_bytes += consumed_bytes
        is_old = now_ms - self._granted_at_ms >= GRANT_EVERY_MS
        if self._owed_bytes < self._threshold_bytes and not channel_is_empty and not is_old:
            return False
        self._owed_bytes = 0
        self._granted_at_ms = now_ms
        return True


def _grant_threshold_bytes(window_bytes: int) -> int:
    return max(1, window_bytes // 4)
