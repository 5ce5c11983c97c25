"""Keys in columns: finds the slot of every key of a slice at once, without Python per row.

A key, once added, keeps its slot and is never changed or removed, so a prefix of the columns can be read at any
time later without a copy; what is no longer needed is left out of the index that `kept` makes. Whatever is stored per
slot is the caller's.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.key_leaves import key_leaf_types, key_leaves_of, rebuilt_key
from tidegate.operators.key_table import FREE, KeyTable
from tidegate.operators.key_table import Slots as Slots
from tidegate.operators.leaves import Flags as Flags
from tidegate.operators.leaves import fixed_array as fixed_array
from tidegate.operators.leaves import slots_array as slots_array
from tidegate.operators.leaves import validity_buffer
from tidegate.plan.key_groups import (
    Hashes,
    as_large_binary,
    fixed_values_of,
    hash_rows,
    is_variable_width,
    validity_of,
)

ScalarT = TypeVar("ScalarT", bound=np.generic)

_FIRST_CAPACITY = 1024
# Arrays that are filled together start with so many different capacities, so that they do not grow in one step. All are
# multiples of the blocks in which slots are looked at.
_CAPACITIES = 8
_capacities = cycle(range(_FIRST_CAPACITY, 2 * _FIRST_CAPACITY, _FIRST_CAPACITY // _CAPACITIES))
# An array that is moved bit by bit is moved to the next memory while this last part of it is filled.
_LAST_PART = 4
_LEAST_MOVED_VALUES = 1 << 12
# Numbers below this are put in order without comparing them.
_RADIX_SORTED = 1 << 16
# What keys have in arrays, strings and bytes does not count up to here: 65,536 of them have no more than 2 MiB.
SHORT_KEY_BYTES = 32
# Types in which Arrow keeps strings and bytes as offsets into one piece of memory.
_OFFSET_TYPES: dict[pa.DataType, type[np.signedinteger[Any]]] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


class _Holder:
    def __init__(self) -> None:
        self.held = np.zeros(0)


_holder = _Holder()


def _references_of_an_attribute() -> int:
    """Of what nobody else refers to, as this interpreter counts: versions differ in what a call itself adds."""
    return sys.getrefcount(_holder.held)


class GrowingArray(Generic[ScalarT]):
    """A numpy array that doubles. Growing leaves the old memory alone, so views taken before stay as they were."""

    def __init__(self, dtype: type[ScalarT] | np.dtype[ScalarT], *, width: int | None = None) -> None:
        capacity = next(_capacities)
        shape = (capacity,) if width is None else (capacity, width)
        self._all: npt.NDArray[ScalarT] = np.zeros(shape, dtype=dtype)
        self._copy: npt.NDArray[ScalarT] | None = None
        self.count = 0

    @property
    def used(self) -> npt.NDArray[ScalarT]:
        return self._all[: self.count]

    @property
    def memory(self) -> npt.NDArray[ScalarT]:
        """All of it, also behind what is used."""
        return self._all

    def in_rows_of(self, width: int) -> npt.NDArray[ScalarT]:
        """All of its memory, which ends with zeros, in rows of so many values: a power of two up to 128."""
        return self._all.reshape(-1, width)

    def frozen(self) -> npt.NDArray[ScalarT]:
        """A copy of what is there now, in the memory of the last one if nobody reads that any more.

        New memory costs many times what copying does, the first time that it is written to.
        """
        if self._copy is None or len(self._copy) < self.count or self._is_copy_read():
            self._copy = np.empty_like(self._all)
        self._copy[: self.count] = self.used
        return self._copy[: self.count]

    def _is_copy_read(self) -> bool:
        """Views of it, and whatever refers to those, refer to it: it then has more references than an attribute has."""
        return sys.getrefcount(self._copy) > _references_of_an_attribute()

    def append(self, values: npt.NDArray[Any]) -> None:
        start = self.count
        self.grow_to(start + len(values))
        self._all[start : self.count] = values

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Place i becomes what places[i] was; the old memory is left alone."""
        kept = self.memory_for(len(places))
        kept[: len(places)] = self.used[places]
        self.take_over(kept, len(places))

    def memory_for(self, count: int) -> npt.NDArray[ScalarT]:
        """Zeros, for so many values and some more."""
        return np.zeros((_capacity_for(count), *self._all.shape[1:]), dtype=self._all.dtype)

    def reserve(self, count: int) -> None:
        """Room for so many values in an array that has none: it is not moved while they come."""
        self._all = self.memory_for(_with_last_part(count))

    def take_over(self, memory: npt.NDArray[ScalarT], count: int) -> None:
        """Memory in which its values stand from now on, and how many they are; the old memory is left alone."""
        self._all, self._copy, self.count = memory, None, count

    def grow_to(self, count: int) -> None:
        """New places hold zero."""
        if count > len(self._all):
            capacity = 2 * len(self._all)
            while capacity < count:
                capacity *= 2
            grown = np.zeros((capacity, *self._all.shape[1:]), dtype=self._all.dtype)
            grown[: self.count] = self.used
            self._all = grown
        self.count = count


class FilledArray(GrowingArray[ScalarT]):
    """Is written to by `put` alone: so it is moved to the next memory bit by bit before this one is full."""

    def __init__(self, dtype: type[ScalarT] | np.dtype[ScalarT], *, width: int | None = None) -> None:
        super().__init__(dtype, width=width)
        self._next: npt.NDArray[ScalarT] | None = None
        self._moved = 0

    def put(self, places: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        self._all[places] = values
        if self._next is not None:
            # What has been moved is not moved again.
            is_moved = places < self._moved
            self._next[places[is_moved]] = values[is_moved]

    def grow_to(self, count: int) -> None:
        added = count - self.count
        if self._next is not None and len(self._all) < count <= len(self._next):
            self._move(self.count - self._moved)
            self._all, self._next, self._moved = self._next, None, 0
        super().grow_to(count)
        if self._next is not None and len(self._next) <= len(self._all):
            self._next, self._moved = None, 0
        if self.count > len(self._all) - len(self._all) // _LAST_PART:
            if self._next is None:
                self._next = np.zeros((2 * len(self._all), *self._all.shape[1:]), dtype=self._all.dtype)
            self._move(max(_LEAST_MOVED_VALUES, _LAST_PART * added))

    def _move(self, count: int) -> None:
        assert self._next is not None
        stop = min(self._moved + count, self.count)
        self._next[self._moved : stop] = self._all[self._moved : stop]
        self._moved = stop


class AppendedArray(FilledArray[ScalarT]):
    """What was appended never changes."""

    def reserve(self, count: int) -> None:
        # Nothing is read before it is written, and to fill memory that was used before with zeros takes long.
        self._all = np.empty((_capacity_for(_with_last_part(count)), *self._all.shape[1:]), dtype=self._all.dtype)

    def append(self, values: npt.NDArray[Any]) -> None:
        start = self.count
        super().append(values)
        if self._next is not None and self._moved > start:
            self._next[start : self._moved] = values[: self._moved - start]


def _capacity_for(count: int) -> int:
    capacity = next(_capacities)
    while capacity < count:
        capacity *= 2
    return capacity


def _with_last_part(count: int) -> int:
    """Behind three quarters of its memory, an array that is moved bit by bit is moved on."""
    return count + count // (_LAST_PART - 1) + 1


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One key column of a slice, brought to the form in which keys are compared; blank where it is null."""

    values: Any  # a numpy array, or a large binary array of Arrow
    valid: Flags | None


class FixedKeys:
    def __init__(self, kind: pa.DataType) -> None:
        empty = fixed_values_of(pa.nulls(0, kind))
        self.kind = kind
        self._values: AppendedArray[Any] = AppendedArray(empty.dtype, width=2 if empty.ndim == 2 else None)

    def read(self, column: pa.Array) -> KeyColumn:
        values, valid = fixed_values_of(column), validity_of(column)
        if valid is not None:
            values = values.copy()
            values[~valid] = 0
        # Compared by their bits: a NaN then equals itself.
        return KeyColumn(values.view(f"i{values.itemsize}") if values.dtype.kind == "f" else values, valid)

    def equal(self, slots: Slots, rows: KeyColumn, which: Slots | None) -> Flags:
        stored = self._values.used.view(rows.values.dtype)[slots]
        same: Flags = stored == (rows.values if which is None else rows.values[which])
        return same if same.ndim == 1 else np.logical_and(same[:, 0], same[:, 1])

    def append(self, rows: KeyColumn, which: Slots) -> None:
        self._values.append(rows.values[which].view(self._values.used.dtype))

    def reserve(self, count: int) -> None:
        """Room for so many keys, while there are none."""
        self._values.reserve(count)

    def column(self) -> KeyColumn:
        """All that is here, for another to append from."""
        return KeyColumn(self._values.used, None)

    def gather(self, slots: Slots | slice, valid: Flags) -> pa.Array:
        if pa.types.is_null(self.kind):
            return pa.nulls(len(valid))
        return fixed_array(self.kind, self._values.used[slots], valid)

    def size_bytes(self) -> int:
        return self._values.used.nbytes


class VariableKeys:
    """Strings and bytes in Arrow's own layout, so that Arrow can take and compare them in place."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._offsets: AppendedArray[np.int64] = AppendedArray(np.int64)
        self._offsets.grow_to(1)
        self._data: AppendedArray[np.uint8] = AppendedArray(np.uint8)
        self.longest_bytes = 0

    def read(self, column: pa.Array) -> KeyColumn:
        return KeyColumn(as_large_binary(column), validity_of(column))

    def equal(self, slots: Slots, rows: KeyColumn, which: Slots | None) -> Flags:
        values = rows.values if which is None else rows.values.take(slots_array(which))
        same = pc.equal(self._stored().take(slots_array(slots)), values)
        return fixed_values_of(same).view(np.bool_)

    def append(self, rows: KeyColumn, which: Slots) -> None:
        added = rows.values.take(slots_array(which))
        offsets = np.frombuffer(added.buffers()[1], dtype=np.int64)[added.offset : added.offset + len(added) + 1]
        if offsets[-1] > offsets[0]:
            data = np.frombuffer(added.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
            self.longest_bytes = max(self.longest_bytes, int(np.diff(offsets).max()))
            self._offsets.append(offsets[1:] - offsets[0] + self._data.count)
            self._data.append(data)
        else:
            self._offsets.append(np.full(len(added), self._data.count))

    def reserve(self, count: int) -> None:
        # The bytes that they will take are not known.
        self._offsets.reserve(count + 1)
        self._offsets.used[0] = 0

    def column(self) -> KeyColumn:
        return KeyColumn(self._stored(), None)

    def gather(self, slots: Slots | slice, valid: Flags) -> pa.Array:
        if isinstance(slots, slice) and (offset_type := _OFFSET_TYPES.get(self.kind)) is not None:
            return self._range(slots, valid, offset_type)
        # A null among the indices is taken as a null.
        wanted = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        return self._stored().take(fixed_array(pa.int64(), wanted, valid)).cast(pa.binary()).cast(self.kind)

    def size_bytes(self) -> int:
        return self._offsets.used.nbytes + self._data.used.nbytes

    def data_bytes(self) -> int:
        """Of all that were added, without what each takes anyway."""
        return self._data.count

    def bytes_of(self, slots: Slots | None) -> Slots:
        """The lengths of these, or of all."""
        offsets = self._offsets.used
        return np.diff(offsets) if slots is None else offsets[slots + 1] - offsets[slots]

    def _range(self, slots: slice, valid: Flags, offset_type: type[np.signedinteger[Any]]) -> pa.Array:
        """Refers to the bytes that are here, which do not change."""
        offsets = self._offsets.used[slots.start : slots.stop + 1]
        data = self._data.used[offsets[0] : offsets[-1]]
        buffers = [validity_buffer(valid), pa.py_buffer((offsets - offsets[0]).astype(offset_type)), pa.py_buffer(data)]
        return pa.Array.from_buffers(self.kind, len(valid), buffers)

    def _stored(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._offsets.used), pa.py_buffer(self._data.used)]
        return pa.Array.from_buffers(pa.large_binary(), self._offsets.count - 1, buffers)


class KeyIndex:
    """Key to slot: a table by the stable hash, with the keys themselves compared at every hit.

    Keys whose hashes collide take neighbouring places of the table, like keys whose places collide.
    """

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._kinds = list(kinds)
        leaves = [leaf for kind in kinds for leaf in key_leaf_types(kind)]
        self._columns = [VariableKeys(leaf) if is_variable_width(leaf) else FixedKeys(leaf) for leaf in leaves]
        self._valid: list[AppendedArray[np.bool_]] = [AppendedArray(np.bool_) for _ in leaves]
        self._has_nulls = [False] * len(leaves)
        self._hashes: AppendedArray[np.uint64] = AppendedArray(np.uint64)
        self.table = KeyTable()

    @property
    def count(self) -> int:
        return self._hashes.count

    @property
    def hashes(self) -> Hashes:
        """One per slot; as it only grows, a view taken now keeps its values."""
        return self._hashes.used

    def find_or_add(self, rows: pa.RecordBatch) -> Slots:
        """The slot of each row's key (its first columns), which gets one if it is new."""
        hashes = hash_rows(rows, len(self._kinds))
        leaves = [
            leaf for index, kind in enumerate(self._kinds) for leaf in key_leaves_of(_decoded(rows.column(index), kind))
        ]
        keys = [keys.read(leaf) for keys, leaf in zip(self._columns, leaves, strict=True)]
        count_before = self.count
        places = self.table.now.home(hashes)
        slots = self.table.now.at(places)
        left = np.flatnonzero(~self._matches(slots, hashes, keys, None))
        while len(left):
            self._advance(places, left, hashes)
            left = self._settle(places, left, slots, hashes, keys)
        self.table.prepare(self.count - count_before, self._hashes.used)
        return slots

    def gather(self, slots: Slots | slice) -> list[pa.Array]:
        """The keys of those slots, one array per key column, in the column's own type."""
        leaves = [keys.gather(slots, valid.used[slots]) for keys, valid in zip(self._columns, self._valid, strict=True)]
        remaining = iter(leaves)
        return [rebuilt_key(kind, remaining) for kind in self._kinds]

    def kept(self, slots: Slots) -> Self:
        """An index of these keys alone, the first at slot 0; this one stays as it is, for whoever still reads it."""
        copy = self.empty_copy(len(slots))
        copy.append_from(self, slots)
        return copy

    def empty_copy(self, key_count: int) -> Self:
        """An index of such keys without any, but with room for so many."""
        copy = type(self)(self._kinds)
        copy.table = KeyTable(key_count)
        for column in copy._columns:
            column.reserve(key_count)
        for valid in copy._valid:
            valid.reserve(key_count)
        copy._hashes.reserve(key_count)
        return copy

    def append_from(self, other: "KeyIndex", slots: Slots) -> None:
        """Adds keys that are not here, each at the next slot."""
        first = self.count
        if not self.table.has_room(first + len(slots)):
            self.table.make_room(first + len(slots), self._hashes.used)
        for own, theirs in zip(self._columns, other._columns, strict=True):
            own.append(theirs.column(), slots)
        for valid, their_valid in zip(self._valid, other._valid, strict=True):
            valid.append(their_valid.used[slots])
        self._has_nulls = [own or theirs for own, theirs in zip(self._has_nulls, other._has_nulls, strict=True)]
        added = other._hashes.used[slots]
        self._hashes.append(added)
        self.table.put(np.arange(first, self.count), added)

    def size_bytes(self) -> int:
        return self._hashes.used.nbytes + sum(keys.size_bytes() for keys in self._columns)

    def variable_bytes(self, slots: Slots | None = None) -> Slots | None:
        """What the keys of these slots, or all, have in arrays, strings and bytes; None if all of them are short."""
        columns = [keys for keys in self._columns if isinstance(keys, VariableKeys)]
        if sum(keys.longest_bytes for keys in columns) <= SHORT_KEY_BYTES:
            return None
        total: Slots = np.sum([keys.bytes_of(slots) for keys in columns], axis=0)
        return total

    def variable_size_bytes(self) -> int:
        """The same of all keys together, however short they are."""
        return sum(keys.data_bytes() for keys in self._columns if isinstance(keys, VariableKeys))

    def _advance(self, places: Slots, rows: Slots, hashes: Hashes) -> None:
        """Moves rows on to the first place that is free or holds a key of the same hash."""
        table = self.table.now
        while len(rows) and self.count:
            found = table.at(places[rows])
            rows = rows[(found != FREE) & (self._hashes.used[found] != hashes[rows])]
            places[rows] = table.next(places[rows])

    def _settle(self, places: Slots, rows: Slots, slots: Slots, hashes: Hashes, keys: Sequence[KeyColumn]) -> Slots:
        """Gives rows the slot at their place, adding keys at free ones; the rows still without a slot."""
        is_free = self.table.now.at(places[rows]) == FREE
        if is_free.any() and not self._add(rows[is_free], places, hashes, keys):
            places[rows] = self.table.now.home(hashes[rows])
            return rows
        found = self.table.now.at(places[rows])
        matches = self._matches(found, hashes, keys, rows)
        slots[rows[matches]] = found[matches]
        left = rows[~matches]
        # Another key with the very same hash: it stops `_advance`, so it is passed here.
        collided = left[self._hashes.used[found[~matches]] == hashes[left]]
        places[collided] = self.table.now.next(places[collided])
        return left

    def _matches(self, slots: Slots, hashes: Hashes, keys: Sequence[KeyColumn], which: Slots | None) -> Flags:
        """Where the key in that slot is the row's; `which` are the rows meant, None for all."""
        if self.count == 0:
            return np.zeros(len(slots), dtype=np.bool_)
        wanted = hashes if which is None else hashes[which]
        # A free place reads the last slot, which is then ruled out.
        matches: Flags = self._hashes.used[slots] == wanted
        matches &= slots != FREE
        if not matches.any():
            return matches
        # None if all are left. No other row is compared: one long key would be copied for each row that has another.
        left = None if matches.all() else np.flatnonzero(matches)
        for stored, valid, has_nulls, rows in zip(self._columns, self._valid, self._has_nulls, keys, strict=True):
            at, of = (slots, which) if left is None else (slots[left], left if which is None else which[left])
            same = stored.equal(at, rows, of)
            if rows.valid is not None or has_nulls:
                same &= valid.used[at] == (True if rows.valid is None else _chosen(rows.valid, of))
            if not same.all():
                left = np.flatnonzero(same) if left is None else left[same]
        if left is not None:
            matches[:] = False
            matches[left] = True
        return matches

    def _add(self, rows: Slots, places: Slots, hashes: Hashes, keys: Sequence[KeyColumn]) -> bool:
        """Adds keys of rows at free places, one per place; False if the table had to grow first.

        Rows of one key always stand at the same place, so what is added is distinct.
        """
        table, at = self.table.now, places[rows]
        # The last write to a place stays: in reverse, that of the first row.
        table.set(at[::-1], rows[::-1])
        is_first = table.at(at) == rows
        added = rows[is_first]
        if not self.table.has_room(self.count + len(added)):
            self.table.make_room(self.count + len(added), self._hashes.used)
            return False
        self.table.add(at[is_first], np.arange(self.count, self.count + len(added)), hashes[added])
        self._hashes.append(hashes[added])
        for index, column in enumerate(keys):
            self._columns[index].append(column, added)
            self._valid[index].append(np.ones(len(added), np.bool_) if column.valid is None else column.valid[added])
            self._has_nulls[index] |= column.valid is not None
        return True


def ascending_order(numbers: Slots) -> Slots | None:
    """The places of numbers from the least on, equal ones as they stand; None if that is how all stand.

    No number is negative, nor so large that there would be no bits left for its place.
    """
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return None
    if int(numbers.max()) < _RADIX_SORTED:
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    # Sorting numbers with their places takes half as long as finding the order.
    place_bits = len(numbers).bit_length()
    order = (numbers << place_bits) | np.arange(len(numbers))
    order.sort()
    order &= (1 << place_bits) - 1
    return order


def _chosen(flags: Flags, which: Slots | None) -> Flags:
    return flags if which is None else flags[which]


def _decoded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(kind) if pa.types.is_dictionary(column.type) else column
