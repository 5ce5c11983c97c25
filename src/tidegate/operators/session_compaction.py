"""Leaves sessions that are over, or elsewhere, behind, and keys that have none any more, part by part.

The sessions that there are stay in use meanwhile. First the keys are copied; those that come meanwhile are copied too.
Then what stands by session: if it changes, that is begun anew. Must never put in place what has changed since.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots
from tidegate.operators.compaction import MOST_BEGINNINGS, MOST_COPIED_BYTES, Compacted, Compaction, KeptArrays
from tidegate.operators.sessions import Sessions

# So many sessions are handled in a step: a few ms, as they are sorted.
MOST_LINKED_SESSIONS: Final = 1 << 15


class SessionCompaction:
    """`staying`: the sessions that are to be kept, as of now. `arrays`: what else stands by session.

    What it gives is complete once `advance` says so.
    """

    def __init__(
        self,
        index: KeyIndex,
        sessions: Sessions,
        staying: Callable[[], Flags],
        arrays: Callable[[], Sequence[GrowingArray[Any]]],
    ) -> None:
        self._old_index = index
        self._old = sessions
        self._staying = staying
        self._arrays = arrays
        self._keys = Compaction(index, self._used_keys())
        self._steps: Iterator[bool] | None = None
        self._beginnings = 0
        self.index = index
        self.sessions = sessions
        self.slots: Slots = np.zeros(0, dtype=np.int64)
        self.values = KeptArrays((), self.slots)

    def advance(self) -> bool:
        """One part; whether nothing is left."""
        if self._steps is None:
            keys = self._keys.advance(self._used_keys)
            if keys is None:
                return False
            self._steps = self._parts(keys)
            self._beginnings += 1
        if self._beginnings <= MOST_BEGINNINGS:
            return next(self._steps, True)
        while not next(self._steps, True):
            pass
        return True

    def changed(self) -> None:
        """Sessions did, or what stands by them: what was copied of it is not true any more."""
        self._keys.values_changed()
        self._steps = None

    def hurry(self, added_keys: int) -> None:
        """Rows come all the time, the last ones with so many keys: once the keys are copied, one step does the rest."""
        self._keys.hurry(added_keys)
        self._beginnings = MOST_BEGINNINGS

    def _used_keys(self) -> Flags:
        is_used = np.zeros(self._old_index.count, dtype=np.bool_)
        is_used[self._old.keys.used[self._staying()]] = True
        return is_used

    def _parts(self, keys: Compacted) -> Iterator[bool]:
        self.slots = np.flatnonzero(self._staying())
        self.values = KeptArrays(self._arrays(), self.slots)
        self.sessions = Sessions()
        yield False
        while not self.values.copy_some(MOST_COPIED_BYTES):
            yield False
        numbers = np.zeros(self._old_index.count, dtype=np.int64)
        for part in _parts_of(len(keys.slots)):
            numbers[keys.slots[part]] = np.arange(part.start, part.stop)
            yield False
        self.sessions.reserve(session_count=len(self.slots), key_count=len(keys.slots))
        yield False
        for part in _parts_of(len(self.slots)):
            slots = self.slots[part]
            self.sessions.add_closed_up(numbers[self._old.keys.used[slots]], self._old.starts_us.used[slots])
            yield False
        self.index = keys.index


def _parts_of(count: int) -> Iterator[slice]:
    for start in range(0, count, MOST_LINKED_SESSIONS):
        yield slice(start, min(start + MOST_LINKED_SESSIONS, count))
