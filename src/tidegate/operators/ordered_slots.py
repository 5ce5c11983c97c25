"""The slots of each key, in an order that their owner knows: of each key a range of one array, with room for more.

A range that is full is moved to one twice as large, and another key takes its place. Must never touch what stands in
front of a key's first change, unless its range is moved.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.plan.kernels.lists import positions_within

# Of one slot for each of some numbers: whether it stands before what that number wants.
IsBefore: TypeAlias = Callable[[Slots, Slots], Flags]


@dataclass(frozen=True, slots=True)
class Places:
    """Keys, each with a place among its slots; in the order of both."""

    keys: Slots
    places: Slots


class Spare:
    """Numbers that are free; those that were given back last are taken first."""

    def __init__(self) -> None:
        self._numbers: GrowingArray[np.int64] = GrowingArray(np.int64)

    def give_back(self, numbers: Slots) -> None:
        self._numbers.append(numbers)

    def take(self, most: int) -> Slots:
        taken = self._numbers.used[max(0, self._numbers.count - most) :].copy()
        self._numbers.count -= len(taken)
        return taken


class OrderedSlots:
    def __init__(self) -> None:
        self._slots: GrowingArray[np.int64] = GrowingArray(np.int64)
        # Of each key: where its range begins, how many slots it has there, and the bits of how many fit; 0 if it has
        # no range.
        self._firsts: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._counts: GrowingArray[np.int32] = GrowingArray(np.int32)
        self._room_bits: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        # Where ranges begin that nobody has any more, by their bits.
        self._spare: defaultdict[int, Spare] = defaultdict(Spare)

    def grow_keys_to(self, key_count: int) -> None:
        for array in (self._firsts, self._counts, self._room_bits):
            array.grow_to(max(array.count, key_count))

    def reserve(self, *, slot_count: int, key_count: int) -> None:
        """Room for so many slots of so many keys, while there are none."""
        self._slots.reserve(slot_count)
        for array in (self._firsts, self._counts, self._room_bits):
            array.reserve(key_count)
        self.grow_keys_to(key_count)

    def size_bytes(self) -> int:
        arrays = (self._slots, self._firsts, self._counts, self._room_bits)
        return sum(array.used.nbytes for array in arrays)

    def of(self, keys: Slots) -> Slots:
        """Those of the first key, then those of the second."""
        return self._slots.used[_ranges(self._firsts.used[keys], self._counts_of(keys))]

    def at(self, keys: Slots, places: Slots) -> Slots:
        slots: Slots = self._slots.used[self._firsts.used[keys] + places]
        return slots

    def find(self, keys: Slots, is_before: IsBefore, start: Slots | None = None) -> Slots:
        """For each, how many slots of its key are before what it wants; those come first. Looks from `start` on.

        Looks at the last one, at the first, and then further and further from the last, where most are wanted: at few,
        however many there are.
        """
        low = np.zeros(len(keys), dtype=np.int64) if start is None else start.copy()
        high = self._counts_of(keys)
        left, step = np.flatnonzero(low < high), 1
        while len(left):
            lows, highs = low[left], high[left]
            looked_at = lows if step == 2 else np.maximum((lows + highs) // 2, highs - step)
            before = is_before(self.at(keys[left], looked_at), left)
            low[left[before]] = looked_at[before] + 1
            high[left[~before]] = looked_at[~before]
            left, step = left[low[left] < high[left]], 2 * step
        return low

    def change(self, *, gone: Places, added: Places, slots: Slots) -> None:
        """Takes out what stands at places, and puts slots in front of what stands at others, as all stand now."""
        if len(gone.keys) + len(added.keys) == 0:
            return
        keys, numbers = np.unique(np.concatenate([gone.keys, added.keys]), return_inverse=True)
        of_gone, of_added = numbers[: len(gone.keys)], numbers[len(gone.keys) :]
        counts = self._counts_of(keys)
        added_counts = np.bincount(of_added, minlength=len(keys))
        new_counts = counts + added_counts - np.bincount(of_gone, minlength=len(keys))
        first_changed = counts.copy()
        np.minimum.at(first_changed, numbers, np.concatenate([gone.places, added.places]))
        is_moved = new_counts > _room(self._room_bits.used[keys])
        first_changed[is_moved] = 0
        rest = self._rest_of(keys, first_changed)
        # Of a key's place in the rest of all keys: so much before the place that it has among its own.
        lengths = counts - first_changed
        before = np.cumsum(lengths) - counts
        stays = np.ones(len(rest), dtype=np.bool_)
        stays[before[of_gone] + gone.places] = False
        into = before[of_added] + added.places
        rest = np.insert(rest, into, slots)
        if len(gone.keys):
            rest = rest[np.insert(stays, into, np.ones(len(slots), dtype=np.bool_))]
        self._move(keys[is_moved], new_counts[is_moved])
        self._slots.used[_places(self._firsts.used[keys] + first_changed, new_counts - first_changed)] = rest
        self._counts.used[keys] = new_counts

    def _rest_of(self, keys: Slots, start: Slots) -> Slots:
        """Their slots from these places on."""
        rest: Slots = self._slots.used[_places(self._firsts.used[keys] + start, self._counts_of(keys) - start)]
        return rest

    def _move(self, keys: Slots, counts: Slots) -> None:
        """Gives keys ranges with room for so many, in which nothing is written yet."""
        old_bits, new_bits = self._room_bits.used[keys], _bits_for(counts)
        for bits in np.unique(old_bits[old_bits > 0]).tolist():
            self._spare[bits].give_back(self._firsts.used[keys[old_bits == bits]])
        for bits in np.unique(new_bits).tolist():
            these = keys[new_bits == bits]
            again = self._spare[bits].take(len(these))
            start, room = self._slots.count, int(_room(np.array([bits]))[0])
            self._slots.grow_to(start + (len(these) - len(again)) * room)
            self._firsts.used[these] = np.concatenate([again, np.arange(start, self._slots.count, room)])
        self._room_bits.used[keys] = new_bits

    def _counts_of(self, keys: Slots) -> Slots:
        return self._counts.used[keys].astype(np.int64)


def places_between(low: Slots, high: Slots) -> tuple[Slots, Slots]:
    """All from low to before high, of the first and then of the second; and which each is of."""
    lengths = high - low
    return np.repeat(np.arange(len(low)), lengths), _ranges(low, lengths)


def _room(bits: Slots) -> Slots:
    """None for 0, then 1, 2, 4 and so on."""
    return (1 << bits.astype(np.int64)) >> 1


def _bits_for(counts: Slots) -> Slots:
    """Those of the smallest range that has room for so many, of which there is at least one."""
    return np.frexp((counts - 1).astype(np.float64))[1].astype(np.int64) + 1


def _places(starts: Slots, lengths: Slots) -> Slots | slice:
    """To read or write ranges; one of them is not taken apart, as it may be long."""
    return slice(starts[0], starts[0] + lengths[0]) if len(starts) == 1 else _ranges(starts, lengths)


def _ranges(starts: Slots, lengths: Slots) -> Slots:
    """All numbers of the first range, then those of the second."""
    return np.repeat(starts, lengths) + positions_within(lengths)
