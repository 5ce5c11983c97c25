"""collect_list and collect_set: the values of each group as an array."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.accumulators.stored_values import ValueLog
from tidegate.operators.columnar import GrowingArray, KeyIndex, Slots, slots_array
from tidegate.plan.key_groups import validity_of

# Below this, leaving dead values behind is not worth a copy of the live ones.
_FEW_VALUES = 4096
_NOBODY = -1  # as an index, the last place: arrays by slot have one more for it
_MAX_LIST_VALUES = (1 << 31) - 1  # offsets of a Spark array in Arrow have 32 bits


class CollectedList:
    """All values in one log, each with the slot it belongs to; in a group they keep the order in which they came."""

    def __init__(self, kind: pa.ListType, *, ignores_nulls: bool) -> None:
        self._kind = kind
        self._values = ValueLog(kind.value_type)
        self._owners: GrowingArray[np.int64] = GrowingArray(np.int64)  # slots from 1; 0 is nobody's
        self._ignores_nulls = ignores_nulls
        self._slot_count = 0
        self._dead = 0

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return (self._kind,)

    def grow_to(self, slot_count: int) -> None:
        self._slot_count = slot_count

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        column = columns[0]
        if self._ignores_nulls:
            column, slots = _without_nulls(column, slots)
        self._values.append(column)
        self._owners.append(slots + 1)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        places = np.arange(self._slot_count + 1)
        places[sources + 1] = targets + 1
        self._owners.used[:] = places[self._owners.used]

    def clear(self, slots: Slots) -> None:
        is_cleared = np.zeros(self._slot_count + 1, dtype=np.bool_)
        is_cleared[slots + 1] = True
        entries = np.flatnonzero(is_cleared[self._owners.used])
        self._owners.used[entries] = 0
        self._dead += len(entries)
        if self._dead > max(_FEW_VALUES, self._owners.count // 2):
            self._keep_entries(np.flatnonzero(self._owners.used))

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return []

    def keep(self, slots: Slots) -> None:
        places = np.zeros(self._slot_count + 1, dtype=np.int64)
        places[slots + 1] = np.arange(1, len(slots) + 1)
        self._owners.used[:] = places[self._owners.used]
        self._slot_count = len(slots)
        self._keep_entries(np.flatnonzero(self._owners.used))

    def freeze(self, slots: Slots | None = None) -> Frozen:
        owners, read = self._owners.frozen(), self._values.reader()
        kind, slot_count = self._kind, self._slot_count
        return lambda part: [
            lists_by_slot(owners, slots_in(part, slots), slot_count, lambda rows: read(rows, None), kind)
        ]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        values, slots = _listed(columns[0], slots)
        self._values.append(values)
        self._owners.append(slots + 1)

    def results(self, slots: Slots) -> pa.Array:
        return lists_by_slot(self._owners.used, slots, self._slot_count, self._values.take, self._kind)

    def size_bytes(self) -> int:
        return self._owners.used.nbytes + self._values.size_bytes()

    def _keep_entries(self, entries: Slots) -> None:
        self._values.keep(entries)
        self._owners.keep(entries)
        self._dead = 0


class CollectedSet:
    """Pairs of slot and value, each once. Spark promises no order of them."""

    def __init__(self, kind: pa.ListType, *, ignores_nulls: bool) -> None:
        self._kind = kind
        self._pairs = KeyIndex([pa.int64(), kind.value_type])
        self._owners: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._ignores_nulls = ignores_nulls
        self._slot_count = 0
        self._dead = 0

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return (self._kind,)

    def grow_to(self, slot_count: int) -> None:
        self._slot_count = slot_count

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        column = columns[0]
        if self._ignores_nulls:
            column, slots = _without_nulls(column, slots)
        if len(slots):
            self._add_pairs(column, slots)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        places = np.full(self._slot_count + 1, -1, dtype=np.int64)
        places[sources] = targets
        entries = np.flatnonzero(places[self._owners.used] >= 0)
        if len(entries):
            self._add_pairs(self._pairs.gather(entries)[1], places[self._owners.used[entries]])

    def clear(self, slots: Slots) -> None:
        is_cleared = np.zeros(self._slot_count + 1, dtype=np.bool_)
        is_cleared[slots] = True
        entries = np.flatnonzero(is_cleared[self._owners.used])
        self._owners.used[entries] = _NOBODY
        self._dead += len(entries)
        if self._dead > max(_FEW_VALUES, self._owners.count // 2):
            self._rebuild(np.arange(self._slot_count))

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return []

    def keep(self, slots: Slots) -> None:
        places = np.full(self._slot_count, _NOBODY, dtype=np.int64)
        places[slots] = np.arange(len(slots))
        self._rebuild(places)
        self._slot_count = len(slots)

    def freeze(self, slots: Slots | None = None) -> Frozen:
        owners, pairs, slot_count = self._owners.used.copy() + 1, self._pairs, self._slot_count
        return lambda part: [
            lists_by_slot(owners, slots_in(part, slots), slot_count, lambda rows: pairs.gather(rows)[1], self._kind)
        ]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        values, slots = _listed(columns[0], slots)
        if len(slots):
            self._add_pairs(values, slots)

    def results(self, slots: Slots) -> pa.Array:
        pairs = self._pairs
        return lists_by_slot(
            self._owners.used + 1, slots, self._slot_count, lambda rows: pairs.gather(rows)[1], self._kind
        )

    def size_bytes(self) -> int:
        return self._pairs.size_bytes() + self._owners.used.nbytes

    def _add_pairs(self, values: pa.Array, slots: Slots) -> None:
        rows = pa.RecordBatch.from_arrays([slots_array(slots), values], names=["slot", "value"])
        found = self._pairs.find_or_add(rows)
        self._owners.grow_to(self._pairs.count)
        # New ones, and those of a group that was cleared since.
        self._owners.used[found] = slots

    def _rebuild(self, places: Slots) -> None:
        """The pairs that belong to somebody, each slot at its new place; the old ones stay for whoever froze them."""
        owners = np.append(places, _NOBODY)[self._owners.used]
        entries = np.flatnonzero(owners != _NOBODY)
        values = self._pairs.gather(entries)[1]
        self._pairs = KeyIndex([pa.int64(), self._kind.value_type])
        self._owners = GrowingArray(np.int64)
        self._dead = 0
        if len(entries):
            self._add_pairs(values, owners[entries])


def _without_nulls(column: pa.Array, slots: Slots) -> tuple[pa.Array, Slots]:
    valid = validity_of(column)
    if valid is None:
        return column, slots
    rows = np.flatnonzero(valid)
    return column.take(slots_array(rows)), slots[rows]


def _listed(lists: pa.ListArray, slots: Slots) -> tuple[pa.Array, Slots]:
    """The values in all lists, each with the slot of its list."""
    offsets = np.frombuffer(lists.buffers()[1], dtype=np.int32)[lists.offset : lists.offset + len(lists) + 1]
    return lists.flatten(), np.repeat(slots, np.diff(offsets))


def slots_in(part: slice, slots: Slots | None) -> Slots:
    """Of those that were frozen, the ones in this part: of all, the part itself."""
    return np.arange(part.start, part.stop) if slots is None else slots[part]


def lists_by_slot(
    owners: Slots, slots: Slots, slot_count: int, take: Callable[[Slots], pa.Array], kind: pa.DataType
) -> pa.Array:
    """The values of each slot as a list; `owners` are slots counted from 1."""
    places = np.zeros(slot_count + 1, dtype=np.int64)
    places[slots + 1] = np.arange(1, len(slots) + 1)
    at = places[owners]
    chosen: Slots = np.flatnonzero(at)
    order = chosen[np.argsort(at[chosen], kind="stable")]
    if len(order) > _MAX_LIST_VALUES:
        raise UserCodeFailure(
            f"Groups that are shown together hold {len(order)} collected values, an Arrow array at most "
            f"{_MAX_LIST_VALUES}: collect less, such as with a shorter window."
        )
    offsets = np.zeros(len(slots) + 1, dtype=np.int32)
    np.cumsum(np.bincount(at[order] - 1, minlength=len(slots)), out=offsets[1:])
    values = take(order)
    return pa.Array.from_buffers(kind, len(slots), [None, pa.py_buffer(offsets)], children=[values])
