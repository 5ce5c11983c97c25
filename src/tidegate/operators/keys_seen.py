"""Which keys may have been seen, by their hashes: never wrong for one that was, seldom for one that was not.

Grows with the keys that are added up to a bound, and is wrong more often beyond it; forgets none. Must never look at
keys.
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
    """A list of tables, each for twice as many keys as the one before: none is ever made anew.

    When there is no room for the next, the last one takes more keys than it is for: of those that were never seen it
    takes one in 20 for one that was with twice as many, one in 7 with four times as many, two in 5 with eight times.
    """

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._room = 0

    def add(self, hashes: Hashes, *, most_bytes: int) -> None:
        """In tables of no more than that together, but for the first, which is small."""
        new = hashes[~self.may_hold(hashes)]
        if len(new) > self._room:
            self._add_table(len(new), most_bytes)
        if len(new):
            for at_byte, bit in _places(new, self._tables[-1]):
                _mark(self._tables[-1], at_byte, bit)
            self._room -= len(new)

    def _add_table(self, least_keys: int, most_bytes: int) -> None:
        keys = max(_FIRST_KEYS, 2 * _keys_of(self._tables[-1]) if self._tables else 0)
        while keys < least_keys:
            keys *= 2
        table_bytes = _PLACES_PER_KEY * keys // 8
        if not self._tables or self.size_bytes() + table_bytes <= most_bytes:
            self._tables.append(np.zeros(table_bytes, dtype=np.uint8))
            self._room = keys

    def may_hold(self, hashes: Hashes) -> Flags:
        found = np.zeros(len(hashes), dtype=np.bool_)
        for table in self._tables:
            (first, first_bit), (second, second_bit) = _places(hashes, table)
            found |= ((table[first] & first_bit) != 0) & ((table[second] & second_bit) != 0)
        return found

    def size_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables)


def _keys_of(table: _Table) -> int:
    return 8 * len(table) // _PLACES_PER_KEY


def _mark(table: _Table, at_byte: Hashes, bit: _Table) -> None:
    """Again for those whose byte another one wrote in the same step: `bitwise_or.at` takes ten times as long."""
    while len(at_byte):
        table[at_byte] |= bit
        is_missing = (table[at_byte] & bit) == 0
        at_byte, bit = at_byte[is_missing], bit[is_missing]


def _places(hashes: Hashes, table: _Table) -> list[tuple[Hashes, _Table]]:
    """Of each hash its two: the byte, and the bit in it."""
    mask = np.uint64(8 * len(table) - 1)
    places = (hashes & mask, (hashes >> _SECOND) & mask)
    return [(at // _PLACES_PER_BYTE, np.uint8(1) << (at % _PLACES_PER_BYTE).astype(np.uint8)) for at in places]
