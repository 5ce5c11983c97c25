"""Values of any Arrow type that groups hold: appended to, read by number, never changed in place.

What was frozen stays readable, because Arrow's arrays do not change; what no group refers to any more is left behind
when there is as much of it as of the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, Slots, fixed_array, slots_array

# Below this, leaving dead values behind is not worth a copy of the live ones.
_FEW_VALUES = 4096


class ValueLog:
    """Values by number, in the order in which they were appended: one large array, and small ones behind it."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._base: pa.Array = pa.nulls(0, kind)
        self._recent: list[pa.Array] = []
        self._size_bytes = 0
        self.count = 0

    def append(self, values: pa.Array) -> None:
        if len(values) == 0:
            return
        values = _plain(values, self.kind)
        self._recent.append(values)
        # Their own: many may be parts of one batch, whose memory would count for each.
        self._size_bytes += int(values.nbytes)
        self.count += len(values)
        if self.count - len(self._base) > max(_FEW_VALUES, len(self._base) // 2):
            self._base, self._recent = pa.concat_arrays([self._base, *self._recent]), []

    def take(self, numbers: Slots, valid: Flags | None = None) -> pa.Array:
        """Null where `valid` is not."""
        return self.reader()(numbers, valid)

    def reader(self) -> Callable[[Slots, Flags | None], pa.Array]:
        """Reads what is there now, also later."""
        if len(self._recent) > 1:
            self._recent = [pa.concat_arrays(self._recent)]
        base = self._base
        recent = self._recent[0] if self._recent else None
        return lambda numbers, valid: _taken(base, recent, numbers, valid)

    def keep(self, numbers: Slots) -> None:
        self._base, self._recent, self.count = self.take(numbers), [], len(numbers)
        self._size_bytes = int(self._base.nbytes)

    def size_bytes(self) -> int:
        return self._size_bytes


class ValueSlots:
    """One value per slot, or none; a null can be a value."""

    def __init__(self, kind: pa.DataType) -> None:
        self.log = ValueLog(kind)
        self._numbers: GrowingArray[np.int64] = GrowingArray(np.int64)  # from 1; 0 is none

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return self.log.kind, pa.bool_()

    @property
    def slot_count(self) -> int:
        return self._numbers.count

    def grow_to(self, slot_count: int) -> None:
        self._numbers.grow_to(slot_count)

    def has(self, slots: Slots) -> Flags:
        flags: Flags = self._numbers.used[slots] > 0
        return flags

    def put(self, slots: Slots, values: pa.Array) -> None:
        """Slots must be distinct."""
        self._numbers.used[slots] = np.arange(self.log.count + 1, self.log.count + 1 + len(slots))
        self.log.append(values)
        self._leave_dead_behind()

    def take(self, slots: Slots) -> pa.Array:
        numbers = self._numbers.used[slots]
        return self.log.take(numbers - 1, numbers > 0)

    def clear(self, slots: Slots) -> None:
        self._numbers.used[slots] = 0

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return [self._numbers]

    def keep(self, slots: Slots) -> None:
        # However few they are: they may be large, and it is to make room that others were left behind.
        self._leave_dead_behind(spare=0)

    def freeze(self, slots: Slots | None = None) -> Callable[[slice], list[pa.Array]]:
        numbers = self._numbers.frozen() if slots is None else self._numbers.used[slots]
        read = self.log.reader()

        def stored(part: slice) -> list[pa.Array]:
            has = numbers[part] > 0
            return [read(numbers[part] - 1, has), fixed_array(pa.bool_(), has, None)]

        return stored

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        has = fixed_flags(columns[1])
        rows = np.flatnonzero(has)
        self.put(slots[rows], columns[0].take(slots_array(rows)))

    def size_bytes(self) -> int:
        return self._numbers.used.nbytes + self.log.size_bytes()

    def _leave_dead_behind(self, *, spare: int = _FEW_VALUES) -> None:
        if self.log.count <= 2 * self._numbers.count + spare:
            return
        filled = np.flatnonzero(self._numbers.used)
        self.log.keep(self._numbers.used[filled] - 1)
        self._numbers.used[filled] = np.arange(1, len(filled) + 1)


def fixed_flags(column: pa.Array) -> Flags:
    packed = np.frombuffer(column.buffers()[1], dtype=np.uint8) if len(column) else np.zeros(0, dtype=np.uint8)
    bits: Flags = np.unpackbits(packed, bitorder="little")[column.offset : column.offset + len(column)].view(np.bool_)
    return bits


def _taken(base: pa.Array, recent: pa.Array | None, numbers: Slots, valid: Flags | None) -> pa.Array:
    if recent is None:
        return base.take(fixed_array(pa.int64(), numbers, valid))
    is_recent = numbers >= len(base)
    if is_recent.all():
        return recent.take(fixed_array(pa.int64(), numbers - len(base), valid))
    if not is_recent.any():
        return base.take(fixed_array(pa.int64(), numbers, valid))
    older, newer = np.flatnonzero(~is_recent), np.flatnonzero(is_recent)
    parts = [
        base.take(fixed_array(pa.int64(), numbers[older], None if valid is None else valid[older])),
        recent.take(fixed_array(pa.int64(), numbers[newer] - len(base), None if valid is None else valid[newer])),
    ]
    order = np.empty(len(numbers), dtype=np.int64)
    order[older], order[newer] = np.arange(len(older)), np.arange(len(older), len(numbers))
    return pa.concat_arrays(parts).take(slots_array(order))


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A dictionary differs from batch to batch, so that values are kept without."""
    return values.cast(kind) if pa.types.is_dictionary(values.type) else values
