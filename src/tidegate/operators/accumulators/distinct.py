"""DISTINCT: the rows of values that each group has seen, of which only new ones go on to the calls over them.

The rows are what a snapshot stores: the running values of the calls follow from them. Must never touch single rows in
Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.collected import ListsBySlot
from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.columnar import GrowingArray, KeyIndex, Slots, slots_array

# Below this, leaving dead rows behind is not worth a copy of the live ones.
_FEW_ROWS = 4096
_NOBODY = 0  # owners are slots counted from 1


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows of values that their groups had not seen, each with its group's slot."""

    rows: pa.RecordBatch
    slots: Slots


class DistinctRows:
    """Pairs of slot and row, each once. Values are equal as Spark groups them: -0.0 is 0.0, NaN and null are values."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        """Raises `UnsupportedPlan` for types whose values cannot be compared."""
        self._schema = pa.schema([pa.field(f"value_{at}", kind) for at, kind in enumerate(kinds)])
        self._kind = pa.list_(pa.struct(list(self._schema)))
        self._pairs = self._no_pairs()
        self._owners: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._slot_count = 0
        self._dead = 0

    @property
    def stored_type(self) -> pa.DataType:
        """What a snapshot holds of each group."""
        return self._kind

    def grow_to(self, slot_count: int) -> None:
        self._slot_count = slot_count

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> FreshRows:
        pairs = pa.RecordBatch.from_arrays(
            [slots_array(slots), *columns], names=[str(at) for at in range(len(columns) + 1)]
        )
        found = self._pairs.find_or_add(pairs)
        self._owners.grow_to(self._pairs.count)
        # Those that were just added, and those of a group that was cleared since.
        unowned = np.flatnonzero(self._owners.used[found] == _NOBODY)
        self._owners.used[found[unowned]] = slots[unowned] + 1
        return self._read(np.unique(found[unowned]))

    def merge(self, *, sources: Slots, targets: Slots) -> FreshRows:
        """Gives the groups of `targets` what those of `sources` have seen; the rows that are new to them."""
        places = np.zeros(self._slot_count + 1, dtype=np.int64)
        places[sources + 1] = targets + 1
        heirs = places[self._owners.used]
        entries = np.flatnonzero(heirs)
        return self.add(self._values(entries), heirs[entries] - 1)

    def clear(self, slots: Slots) -> None:
        is_cleared = np.zeros(self._slot_count + 1, dtype=np.bool_)
        is_cleared[slots + 1] = True
        entries = np.flatnonzero(is_cleared[self._owners.used])
        self._owners.used[entries] = _NOBODY
        self._dead += len(entries)
        if self._dead > max(_FEW_ROWS, self._owners.count // 2):
            self._rebuild(np.arange(self._slot_count + 1))

    def keep(self, slots: Slots) -> None:
        places = np.zeros(self._slot_count + 1, dtype=np.int64)
        places[slots + 1] = np.arange(1, len(slots) + 1)
        self._rebuild(places)
        self._slot_count = len(slots)

    def freeze(self, slots: Slots | None = None) -> Frozen:
        owners, pairs, kind = self._owners.used.copy(), self._pairs, self._kind
        return ListsBySlot(owners, slots, self._slot_count, lambda entries: _structs(pairs, entries, kind), kind)

    def restore(self, slots: Slots, lists: pa.Array) -> FreshRows:
        """All that groups had seen; the groups are new."""
        offsets = np.frombuffer(lists.buffers()[1], dtype=np.int32)[lists.offset : lists.offset + len(lists) + 1]
        return self.add(lists.flatten().flatten(), np.repeat(slots, np.diff(offsets)))

    def size_bytes(self) -> int:
        return self._pairs.size_bytes() + self._owners.used.nbytes

    def _read(self, entries: Slots) -> FreshRows:
        rows = pa.RecordBatch.from_arrays(self._values(entries), schema=self._schema)
        return FreshRows(rows, self._owners.used[entries] - 1)

    def _values(self, entries: Slots) -> list[pa.Array]:
        return self._pairs.gather(entries)[1:]

    def _rebuild(self, places: Slots) -> None:
        """The rows that belong to somebody, each slot at its new place; the old ones stay for whoever froze them."""
        owners = places[self._owners.used]
        entries = np.flatnonzero(owners)
        values = self._values(entries)
        self._pairs, self._owners, self._dead = self._no_pairs(), GrowingArray(np.int64), 0
        self.add(values, owners[entries] - 1)

    def _no_pairs(self) -> KeyIndex:
        return KeyIndex([pa.int64(), *(field.type for field in self._schema)])


def _structs(pairs: KeyIndex, entries: Slots, kind: pa.ListType) -> pa.Array:
    return pa.Array.from_buffers(kind.value_type, len(entries), [None], children=pairs.gather(entries)[1:])
