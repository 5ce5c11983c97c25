"""collect_list and collect_set: the values of each group as an array."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.accumulators.grouped_entries import FrozenLists, GroupedEntries
from tidegate.operators.accumulators.pair_index import PairIndex
from tidegate.operators.accumulators.stored_values import ValueLog
from tidegate.operators.columnar import GrowingArray, Slots, slots_array
from tidegate.plan.key_groups import validity_of


class CollectedList:
    """All values in one log; in a group they keep the order in which they came."""

    def __init__(self, kind: pa.ListType, *, ignores_nulls: bool) -> None:
        self._kind = kind
        self.groups = GroupedEntries(ValueLog(kind.value_type))
        self._ignores_nulls = ignores_nulls

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return (self._kind,)

    def grow_to(self, slot_count: int) -> None:
        self.groups.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        column = columns[0]
        if self._ignores_nulls:
            column, slots = _without_nulls(column, slots)
        self._append(column, slots)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        """The values of a target come first."""
        found = self.groups.found(sources)
        self._append(self.groups.held.take(found.entries), np.repeat(targets, np.diff(found.ends)))

    def clear(self, slots: Slots) -> None:
        self.groups.clear(slots)

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return self.groups.arrays

    def keep(self, slots: Slots) -> None:
        self.groups.keep()

    def freeze(self, slots: Slots | None = None) -> Frozen:
        return self._frozen(slots)

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._append(*_listed(columns[0], slots))

    def results(self, slots: Slots) -> pa.Array:
        return self._frozen(slots).of(slice(0, len(slots)))

    def size_bytes(self) -> int:
        return self.groups.size_bytes()

    def _append(self, values: pa.Array, slots: Slots) -> None:
        if len(slots):
            owners = self.groups.owners_of(slots)
            self.groups.held.append(values)
            self.groups.add(owners)

    def _frozen(self, slots: Slots | None) -> FrozenLists:
        read = self.groups.held.reader()
        return self.groups.freeze(slots, lambda entries: read(entries, None), self._kind)


class CollectedSet:
    """Pairs of owner and value, each once. Spark promises no order of them."""

    def __init__(self, kind: pa.ListType, *, ignores_nulls: bool) -> None:
        self._kind = kind
        self.groups = GroupedEntries(PairIndex([pa.int64(), kind.value_type]))
        self._ignores_nulls = ignores_nulls

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return (self._kind,)

    def grow_to(self, slot_count: int) -> None:
        self.groups.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        column = columns[0]
        if self._ignores_nulls:
            column, slots = _without_nulls(column, slots)
        self._add_pairs(column, slots)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        found = self.groups.found(sources)
        self._add_pairs(self.groups.held.gather(found.entries)[1], np.repeat(targets, np.diff(found.ends)))

    def clear(self, slots: Slots) -> None:
        self.groups.clear(slots)

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return self.groups.arrays

    def keep(self, slots: Slots) -> None:
        self.groups.keep()

    def freeze(self, slots: Slots | None = None) -> Frozen:
        return self._frozen(slots)

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._add_pairs(*_listed(columns[0], slots))

    def results(self, slots: Slots) -> pa.Array:
        return self._frozen(slots).of(slice(0, len(slots)))

    def size_bytes(self) -> int:
        return self.groups.size_bytes()

    def _add_pairs(self, values: pa.Array, slots: Slots) -> None:
        if len(slots):
            owners = self.groups.owners_of(slots)
            new = self.groups.held.add_pairs(owners, [values])
            self.groups.add(owners[new])

    def _frozen(self, slots: Slots | None) -> FrozenLists:
        pairs = self.groups.held
        return self.groups.freeze(slots, lambda entries: pairs.gather(entries)[1], self._kind)


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
