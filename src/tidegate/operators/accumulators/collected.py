"""collect_list and collect_set: the values of each group as an array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
# Where values are is found in so many rounds, so that none takes much longer than going over all values does; at once
# for so few that it takes no ms.
_ROUNDS = 8
_FOUND_AT_ONCE = 1 << 14
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
        read = self._values.reader()
        return ListsBySlot(
            self._owners.frozen(), slots, self._slot_count, lambda entries: read(entries, None), self._kind
        )

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        values, slots = _listed(columns[0], slots)
        self._values.append(values)
        self._owners.append(slots + 1)

    def results(self, slots: Slots) -> pa.Array:
        lists = ListsBySlot(self._owners.used, slots, self._slot_count, self._values.take, self._kind)
        return lists.of(slice(0, len(slots)))

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
        pairs = self._pairs
        return ListsBySlot(
            self._owners.used + 1, slots, self._slot_count, lambda entries: pairs.gather(entries)[1], self._kind
        )

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        values, slots = _listed(columns[0], slots)
        if len(slots):
            self._add_pairs(values, slots)

    def results(self, slots: Slots) -> pa.Array:
        (lists,) = self.freeze(slots)(slice(0, len(slots)))
        return lists

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


class ListsBySlot:
    """The values of each slot as a list, of all slots or of these, to be read part by part; `owners`: slots from 1.

    Where the values are is found for several parts when the first of them is read, by going over all values.
    """

    def __init__(
        self,
        owners: Slots,
        slots: Slots | None,
        slot_count: int,
        take: Callable[[Slots], pa.Array],
        kind: pa.DataType,
    ) -> None:
        self._owners = owners
        self._slots = slots
        self._slot_count = slot_count
        self._take = take
        self._kind = kind
        self._order: _Order | None = None

    def __call__(self, part: slice) -> list[pa.Array]:
        return [self.of(part)]

    def of(self, part: slice) -> pa.Array:
        if self._order is None or not self._order.has(part):
            self._order = self._found(part)
        start = self._order.slots.start
        ends = self._order.ends[part.start - start : part.stop - start + 1]
        count = int(ends[-1] - ends[0])
        if count > _MAX_LIST_VALUES:
            raise UserCodeFailure(
                f"Groups that are shown together hold {count} collected values, an Arrow array at most "
                f"{_MAX_LIST_VALUES}: collect less, such as with a shorter window."
            )
        values = self._take(self._order.entries[ends[0] : ends[-1]])
        offsets = pa.py_buffer((ends - ends[0]).astype(np.int32))
        return pa.Array.from_buffers(self._kind, len(ends) - 1, [None, offsets], children=[values])

    def _found(self, part: slice) -> "_Order":
        """Of the slots of this part and those behind it that are found with them."""
        count = self._slot_count if self._slots is None else len(self._slots)
        rounds = 1 if len(self._owners) <= _FOUND_AT_ONCE else _ROUNDS
        part_slots = max(1, part.stop - part.start)
        # A round is some whole parts: one that is cut would be looked for again.
        stop = min(part.start + part_slots * max(1, -(-count // (rounds * part_slots))), count)
        slots = np.arange(part.start, stop) if self._slots is None else self._slots[part.start : stop]
        places = np.zeros(self._slot_count + 1, dtype=np.int64)
        places[slots + 1] = np.arange(1, len(slots) + 1)
        owners = places[self._owners]
        entries = np.flatnonzero(owners)
        owners = owners[entries]
        ends = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(np.bincount(owners - 1, minlength=len(slots)), out=ends[1:])
        # By owner, then by entry: sorting such numbers takes half as long as finding the order of owners.
        entry_bits = len(entries).bit_length()
        numbers = (owners << entry_bits) | np.arange(len(entries))
        numbers.sort()
        return _Order(range(part.start, stop), entries[numbers & ((1 << entry_bits) - 1)], ends)


@dataclass(frozen=True, slots=True)
class _Order:
    """Of a range of slots the entries, those of the first before those of the second; where each one's end, from 0."""

    slots: range
    entries: Slots
    ends: Slots

    def has(self, part: slice) -> bool:
        return bool(self.slots.start <= part.start and part.stop <= self.slots.stop)
