"""Which keys may have been seen, by their hashes: never wrong for one that was, seldom for one that was not.

Grows with the keys that are added up to a bound, and is wrong more often beyond it; forgets those that have ended. Must
never look at keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
_NEVER_US: Final = np.iinfo(np.int64).max

_Bits: TypeAlias = npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Table:
    """`room`: for so many more keys. `last_end_us`: when the last of its keys ends."""

    bits: _Bits
    room: int
    last_end_us: int = -_NEVER_US - 1

    @classmethod
    def for_keys(cls, keys: int) -> "_Table":
        return cls(np.zeros(_PLACES_PER_KEY * keys // 8, dtype=np.uint8), keys)

    def keys(self) -> int:
        """For so many it is."""
        return 8 * len(self.bits) // _PLACES_PER_KEY


class KeysSeen:
    """A list of tables, each for more keys than those before it together as long as none goes: none is ever made anew.

    One whose keys have all ended goes. When there is no room for the next, the last one takes more keys than it is
    for: of those that were never seen it takes one in 20 for one that was with twice as many, one in 7 with four times
    as many, two in 5 with eight times.
    """

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._has_forgotten = False

    def add(self, hashes: Hashes, *, most_bytes: int, last_end_us: int = _NEVER_US) -> None:
        """In tables of no more than that together, but for the first, which is small.

        `last_end_us`: when the last of these ends; nobody asks for one that has ended.
        """
        # One that is known by a table that goes sooner than it ends must be known by another.
        new = hashes[~self._may_hold(hashes, self._tables_until(last_end_us))]
        if len(new) == 0:
            return
        if not self._tables or len(new) > self._tables[-1].room:
            self._add_table(len(new), most_bytes)
        table = self._tables[-1]
        for at_byte, bit in _places(new, table.bits):
            _mark(table.bits, at_byte, bit)
        table.room -= len(new)
        table.last_end_us = max(table.last_end_us, last_end_us)

    def _tables_until(self, end_us: int) -> list[_Table]:
        return [table for table in self._tables if table.last_end_us >= end_us]

    def _add_table(self, least_keys: int, most_bytes: int) -> None:
        # If one has gone since the last one was begun, as many keys end as come.
        more_keys = self._tables[-1].keys() if self._tables and self._has_forgotten else self._keys() + 1
        wanted = max(_FIRST_KEYS, least_keys, more_keys)
        table = _Table.for_keys(1 << (wanted - 1).bit_length())
        if not self._tables or self.size_bytes() + table.bits.nbytes <= most_bytes:
            self._tables.append(table)
            self._has_forgotten = False

    def _keys(self) -> int:
        return sum(table.keys() for table in self._tables)

    def forget_ended(self, until_us: int) -> None:
        staying = [table for table in self._tables if table.last_end_us > until_us]
        self._has_forgotten |= len(staying) < len(self._tables)
        self._tables = staying

    def may_hold(self, hashes: Hashes) -> Flags:
        return self._may_hold(hashes, self._tables)

    def _may_hold(self, hashes: Hashes, tables: Sequence[_Table]) -> Flags:
        found = np.zeros(len(hashes), dtype=np.bool_)
        for table in tables:
            (first, first_bit), (second, second_bit) = _places(hashes, table.bits)
            found |= ((table.bits[first] & first_bit) != 0) & ((table.bits[second] & second_bit) != 0)
        return found

    def size_bytes(self) -> int:
        return sum(table.bits.nbytes for table in self._tables)


def _mark(bits: _Bits, at_byte: Hashes, bit: _Bits) -> None:
    """Again for those whose byte another one wrote in the same step: `bitwise_or.at` takes ten times as long."""
    while len(at_byte):
        bits[at_byte] |= bit
        is_missing = (bits[at_byte] & bit) == 0
        at_byte, bit = at_byte[is_missing], bit[is_missing]


def _places(hashes: Hashes, bits: _Bits) -> list[tuple[Hashes, _Bits]]:
    """Of each hash its two: the byte, and the bit in it."""
    mask = np.uint64(8 * len(bits) - 1)
    places = (hashes & mask, (hashes >> _SECOND) & mask)
    return [(at // _PLACES_PER_BYTE, np.uint8(1) << (at % _PLACES_PER_BYTE).astype(np.uint8)) for at in places]
