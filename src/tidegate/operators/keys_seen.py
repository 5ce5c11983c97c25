"""Which keys may have been seen, by their hashes: never wrong for one that was, seldom for one that was not.

Grows with the keys that are added, and forgets none. Must never look at keys.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags
from tidegate.plan.key_groups import Hashes

# Bits, two of which are marked for each key: of keys that were never seen one in seventy is taken for one that was by a
# table that is full.
_PLACES_PER_KEY: Final = 16
_PLACES_PER_BYTE: Final = np.uint64(8)
_FIRST_KEYS: Final = 1 << 13
# The low bits find the first place, and those from here on the second.
_SECOND: Final = np.uint64(24)


_Table: TypeAlias = npt.NDArray[np.uint8]


class KeysSeen:
    """A list of tables, each for twice as many keys as the one before: none is ever made anew."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._room = 0

    def add(self, hashes: Hashes) -> None:
        new = hashes[~self.may_hold(hashes)]
        if len(new) > self._room:
            keys = max(_FIRST_KEYS, 2 * 8 * len(self._tables[-1]) // _PLACES_PER_KEY if self._tables else 0)
            while keys < len(new):
                keys *= 2
            self._tables.append(np.zeros(_PLACES_PER_KEY * keys // 8, dtype=np.uint8))
            self._room = keys
        if len(new):
            for at_byte, bit in _places(new, self._tables[-1]):
                np.bitwise_or.at(self._tables[-1], at_byte, bit)
            self._room -= len(new)

    def may_hold(self, hashes: Hashes) -> Flags:
        found = np.zeros(len(hashes), dtype=np.bool_)
        for table in self._tables:
            (first, first_bit), (second, second_bit) = _places(hashes, table)
            found |= ((table[first] & first_bit) != 0) & ((table[second] & second_bit) != 0)
        return found

    def size_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables)


def _places(hashes: Hashes, table: _Table) -> list[tuple[Hashes, _Table]]:
    """Of each hash its two: the byte, and the bit in it."""
    mask = np.uint64(8 * len(table) - 1)
    places = (hashes & mask, (hashes >> _SECOND) & mask)
    return [(at // _PLACES_PER_BYTE, np.uint8(1) << (at % _PLACES_PER_BYTE).astype(np.uint8)) for at in places]
