"""Which keys may have been seen, by their hashes: never wrong for one that was, seldom for one that was not.

Grows with the keys that are added, and forgets none. Must never look at keys.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags
from tidegate.plan.key_groups import Hashes

# Two of them are marked for each key: one in twenty keys that were never seen is taken for one that was.
_PLACES_PER_KEY: Final = 8
_FIRST_KEYS: Final = 1 << 13
# The low bits find the first place, and those from here on the second.
_SECOND: Final = np.uint64(24)


class KeysSeen:
    """A list of tables, each for twice as many keys as the one before: none is ever made anew."""

    def __init__(self) -> None:
        self._tables: list[npt.NDArray[np.bool_]] = []
        self._room = 0

    def add(self, hashes: Hashes) -> None:
        new = hashes[~self.may_hold(hashes)]
        if len(new) > self._room:
            keys = max(_FIRST_KEYS, 2 * len(self._tables[-1]) // _PLACES_PER_KEY if self._tables else 0)
            while keys < len(new):
                keys *= 2
            self._tables.append(np.zeros(_PLACES_PER_KEY * keys, dtype=np.bool_))
            self._room = keys
        if len(new):
            for places in _places(new, self._tables[-1]):
                self._tables[-1][places] = True
            self._room -= len(new)

    def may_hold(self, hashes: Hashes) -> Flags:
        found = np.zeros(len(hashes), dtype=np.bool_)
        for table in self._tables:
            first, second = _places(hashes, table)
            found |= table[first] & table[second]
        return found

    def size_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables)


def _places(hashes: Hashes, table: npt.NDArray[np.bool_]) -> tuple[Hashes, Hashes]:
    mask = np.uint64(len(table) - 1)
    return hashes & mask, (hashes >> _SECOND) & mask
