"""How much of an operator's rows may be in memory, when some are to leave, and how many of them.

Knows sizes only. Must never let rows leave by handfuls: what makes room for a few is as long as for many.
"""

from collections.abc import Callable
from typing import Final

from tidegate.state.row_store import RowMemory

# While some rows are copied there are more of them in memory, and while a snapshot is written.
_MEMORY_PARTS: Final = 2
# The part of the memory that knowing which keys were written away may take. A row in memory takes 40 times as much as
# knowing of a key does; and reading for a key that was never written away takes as long as writing ten rows.
_SEEN_SHARE: Final = 0.5
# If fewer than one in so many can be written away it is not worth it, until there are so much more.
_LEAST_PART: Final = 16
_GROWTH: Final = 1.25
# What finding a key takes beside the key.
_TABLE_BYTES: Final = 24


class Room:
    """`seen_bytes`: what knowing which keys were written away takes now."""

    def __init__(self, memory: RowMemory, seen_bytes: Callable[[], int]) -> None:
        self._memory = memory
        self._seen_bytes = seen_bytes
        self._tried_bytes = 0.0

    def is_full(self, size_bytes: int, key_count: int) -> bool:
        """Whether some rows are to leave; `size_bytes`: of what the operator holds, of so many keys."""
        return _taken_bytes(size_bytes, key_count) > max(self._most_bytes(), self._tried_bytes)

    def leaving_count(self, size_bytes: int, key_count: int, live_count: int) -> int:
        """How many of the live ones are to leave, until half of what there is room for is left."""
        return live_count - int(live_count * self._most_bytes() / _taken_bytes(size_bytes, key_count)) // 2

    def is_worth_it(self, chosen_count: int, size_bytes: int, key_count: int, live_count: int) -> bool:
        """Whether so many make room. If not, nothing is full until there is more, or another try is due."""
        if chosen_count * _LEAST_PART < live_count:
            self._tried_bytes = _GROWTH * _taken_bytes(size_bytes, key_count)
            return False
        self._tried_bytes = 0.0
        return True

    def try_again(self) -> None:
        self._tried_bytes = 0.0

    def most_seen_bytes(self) -> int:
        return int(self._memory.share_bytes() * _SEEN_SHARE)

    def _most_bytes(self) -> int:
        seen_bytes = min(self._seen_bytes(), self.most_seen_bytes())
        return (self._memory.share_bytes() - seen_bytes) // _MEMORY_PARTS


def _taken_bytes(size_bytes: int, key_count: int) -> int:
    # Arrays have room for up to as much again.
    return 2 * size_bytes + _TABLE_BYTES * key_count
