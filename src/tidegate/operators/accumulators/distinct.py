"""DISTINCT: the rows of values that each group has seen, of which only new ones go on to the calls over them.

The rows are what a snapshot stores: the running values of the calls follow from them. Must never touch single rows in
Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.accumulators.grouped_entries import GroupedEntries
from tidegate.operators.accumulators.pair_index import PairIndex
from tidegate.operators.columnar import GrowingArray, KeyIndex, Slots


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows of values that their groups had not seen, each with its group's slot."""

    rows: pa.RecordBatch
    slots: Slots


class DistinctRows:
    """Each row once for a group. Values are equal as Spark groups them: -0.0 is 0.0, NaN and null are values."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        """Raises `UnsupportedPlan` for types whose values cannot be compared."""
        self._schema = pa.schema([pa.field(f"value_{at}", kind) for at, kind in enumerate(kinds)])
        self._kind = pa.list_(pa.struct(list(self._schema)))
        self.groups = GroupedEntries(PairIndex([pa.int64(), *kinds]))

    @property
    def stored_type(self) -> pa.DataType:
        """What a snapshot holds of each group."""
        return self._kind

    def grow_to(self, slot_count: int) -> None:
        self.groups.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> FreshRows:
        owners, pairs = self.groups.owners_of(slots), self.groups.held
        first = pairs.count
        new = pairs.add_pairs(owners, columns)
        # As the index has them, in which -0.0 and NaN are brought to one form.
        fresh = pa.RecordBatch.from_arrays(_values(pairs, slice(first, pairs.count)), schema=self._schema)
        self.groups.add(owners[new])
        return FreshRows(fresh, slots[new])

    def merge(self, *, sources: Slots, targets: Slots) -> FreshRows:
        """Gives the groups of `targets` what those of `sources` have seen; the rows that are new to them."""
        found = self.groups.found(sources)
        return self.add(_values(self.groups.held, found.entries), np.repeat(targets, np.diff(found.ends)))

    def clear(self, slots: Slots) -> None:
        self.groups.clear(slots)

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return self.groups.arrays

    def keep(self) -> None:
        self.groups.keep()

    def freeze(self, slots: Slots | None = None) -> Frozen:
        pairs, kind = self.groups.held, self._kind
        return self.groups.freeze(slots, lambda entries: _structs(pairs, entries, kind), kind)

    def restore(self, slots: Slots, lists: pa.Array) -> FreshRows:
        """All that groups had seen; the groups are new."""
        offsets = np.frombuffer(lists.buffers()[1], dtype=np.int32)[lists.offset : lists.offset + len(lists) + 1]
        return self.add(lists.flatten().flatten(), np.repeat(slots, np.diff(offsets)))

    def size_bytes(self) -> int:
        return self.groups.size_bytes()


def _values(pairs: KeyIndex, entries: Slots | slice) -> list[pa.Array]:
    return pairs.gather(entries)[1:]


def _structs(pairs: KeyIndex, entries: Slots, kind: pa.ListType) -> pa.Array:
    return pa.Array.from_buffers(kind.value_type, len(entries), [None], children=_values(pairs, entries))
