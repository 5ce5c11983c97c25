"""What a grouped aggregation asks of the running values of one call, and what those of fixed width share.

A slot is a group's place. A slot that was never added to, or was cleared, holds what an empty group holds.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import GrowingArray, Slots, fixed_array
from tidegate.plan.key_groups import fixed_values_of, validity_of

# From one in so many on, all slots are frozen for the sake of some.
_ALL_FROM_PART = 8

# The stored columns of a range of slots, as they were when the values were frozen.
Frozen: TypeAlias = Callable[[slice], list[pa.Array]]


class Accumulator(Protocol):
    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        """What a snapshot holds of each group."""
        ...

    def grow_to(self, slot_count: int) -> None: ...

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        """One row for each of `slots`: the call's arguments."""
        ...

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        """Adds what the groups of `sources` hold to those of `targets`; no group is on both sides."""
        ...

    def clear(self, slots: Slots) -> None: ...

    @property
    def arrays(self) -> Sequence[GrowingArray[Any]]:
        """What stands by slot in so many bytes each: whoever leaves slots behind copies it bit by bit."""
        ...

    def keep(self, slots: Slots) -> None:
        """Slot i becomes what slots[i] was, and the others are gone: in `arrays` that has been done."""
        ...

    def freeze(self, slots: Slots | None = None) -> Frozen:
        """The values of this moment, of all slots or of these, to be read later by place; must not take long."""
        ...

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None: ...
    def results(self, slots: Slots) -> pa.Array: ...
    def size_bytes(self) -> int: ...


class FixedColumns:
    """Running values of fixed width, one array per stored column, in which zero is what an empty group holds."""

    def __init__(self, *types: pa.DataType) -> None:
        self._types = types
        self.arrays: list[GrowingArray[Any]] = [GrowingArray(_dtype(kind)) for kind in types]

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return self._types

    def grow_to(self, slot_count: int) -> None:
        for array in self.arrays:
            array.grow_to(slot_count)

    def clear(self, slots: Slots) -> None:
        for array in self.arrays:
            array.used[slots] = 0

    def keep(self, slots: Slots) -> None:
        return

    def freeze(self, slots: Slots | None = None) -> Frozen:
        if slots is not None and _ALL_FROM_PART * len(slots) < self.arrays[0].count:
            copies, slots = [array.used[slots] for array in self.arrays], None
        else:
            # Copying all of them at once is quicker than choosing many.
            copies = [array.frozen() for array in self.arrays]
        return lambda part: [
            fixed_array(kind, copy[part if slots is None else slots[part]], None)
            for kind, copy in zip(self._types, copies, strict=True)
        ]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        for array, column in zip(self.arrays, columns, strict=True):
            array.used[slots] = raw_values(column)

    def size_bytes(self) -> int:
        return sum(array.used.nbytes for array in self.arrays)


def raw_values(column: pa.Array) -> npt.NDArray[Any]:
    """The values of a fixed-width column bit by bit: -0.0 stays what it is. Under a null is anything."""
    kind = column.type
    if not pa.types.is_floating(kind):
        return fixed_values_of(column)
    if len(column) == 0:
        return np.zeros(0, dtype=_dtype(kind))
    return np.frombuffer(column.buffers()[1], dtype=_dtype(kind))[column.offset : column.offset + len(column)]


def without_nulls(column: pa.Array, slots: Slots) -> tuple[npt.NDArray[Any], Slots]:
    """The values that are not null, each with its slot."""
    values, valid = raw_values(column), validity_of(column)
    return (values, slots) if valid is None else (values[valid], slots[valid])


def distinct_slots(slots: Slots, slot_count: int) -> tuple[Slots, Slots]:
    """The slots that occur, each once, and for each row the place of its slot among them."""
    rows = np.arange(len(slots))
    # Only the places of slots that occur are written and read.
    scratch = np.empty(slot_count, dtype=np.int64)
    scratch[slots] = rows
    distinct = slots[scratch[slots] == rows]
    scratch[distinct] = np.arange(len(distinct))
    return distinct, scratch[slots]


def first_rows(slots: Slots, slot_count: int) -> Slots:
    """The first row of each slot that occurs, ascending."""
    rows = np.arange(len(slots))
    scratch = np.empty(slot_count, dtype=np.int64)
    # The last write to a place stays: in reverse, that of the first row.
    scratch[slots[::-1]] = rows[::-1]
    first: Slots = rows[scratch[slots] == rows]
    return first


def last_rows(slots: Slots, slot_count: int) -> Slots:
    """The last row of each slot that occurs, ascending."""
    rows = np.arange(len(slots))
    scratch = np.empty(slot_count, dtype=np.int64)
    scratch[slots] = rows
    last: Slots = rows[scratch[slots] == rows]
    return last


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    return np.dtype(f"{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
