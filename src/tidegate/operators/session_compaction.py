"""Leaves sessions that are over behind, and keys that have none any more, part by part.

The sessions that there are stay in use meanwhile, but must not change: if one does, this is dropped and begun anew.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots
from tidegate.operators.compaction import MOST_COPIED_BYTES, Compacted, Compaction, KeptArrays
from tidegate.operators.sessions import Sessions

# So many sessions are handled in a step: a few ms, as they are sorted.
MOST_LINKED_SESSIONS: Final = 1 << 15


class SessionCompaction:
    """`arrays`: what else stands by slot. What it gives is complete once `advance` says so."""

    def __init__(self, index: KeyIndex, sessions: Sessions, live: Flags, arrays: Sequence[GrowingArray[Any]]) -> None:
        self.slots: Slots = np.flatnonzero(live)
        self.index = index
        self.sessions = Sessions()
        self.values = KeptArrays(arrays, self.slots)
        self._old = sessions
        self._steps = self._parts()

    def advance(self) -> bool:
        """One part; whether nothing is left."""
        return next(self._steps, True)

    def _parts(self) -> Iterator[bool]:
        is_used = np.zeros(self.index.count, dtype=np.bool_)
        for part in self._parts_of(len(self.slots)):
            is_used[self._old.keys.used[self.slots[part]]] = True
            yield False
        keys = Compaction(self.index, is_used)
        yield False
        while (compacted := keys.advance(lambda: is_used)) is None:
            yield False
        while not self.values.copy_some(MOST_COPIED_BYTES):
            yield False
        yield from self._sessions_of(compacted)
        self.index = compacted.index

    def _sessions_of(self, keys: Compacted) -> Iterator[bool]:
        numbers = np.zeros(self.index.count, dtype=np.int64)
        for part in self._parts_of(len(keys.slots)):
            numbers[keys.slots[part]] = np.arange(part.start, part.stop)
            yield False
        self.sessions.reserve(session_count=len(self.slots), key_count=len(keys.slots))
        yield False
        for part in self._parts_of(len(self.slots)):
            slots = self.slots[part]
            self.sessions.add_closed_up(numbers[self._old.keys.used[slots]], self._old.starts_us.used[slots])
            yield False

    def _parts_of(self, count: int) -> Iterator[slice]:
        for start in range(0, count, MOST_LINKED_SESSIONS):
            yield slice(start, min(start + MOST_LINKED_SESSIONS, count))
