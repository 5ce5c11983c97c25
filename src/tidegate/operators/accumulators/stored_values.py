"""Values of any Arrow type that groups hold: appended to, read by number, never changed in place.

What was frozen stays readable, because Arrow's arrays do not change; what no group refers to any more is left behind
when there is as much of it as of the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, Slots, ascending_order, fixed_array, slots_array

# Below this, leaving dead values behind is not worth a copy of the live ones.
_FEW_VALUES = 4096
# A chunk has so many values or bytes, or what was appended at once: what is copied when it ends takes less than a ms.
_CHUNK_VALUES = 1 << 16
_CHUNK_BYTES = 1 << 22


class ValueLog:
    """Values by number, in the order in which they were appended: in chunks, and small arrays behind them."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        # Only ever appended to; `_firsts`: the number of the first value of each.
        self._chunks: list[pa.Array] = []
        self._firsts: list[int] = []
        self._recent: list[pa.Array] = []
        self._recent_count = 0
        self._recent_bytes = 0
        self._size_bytes = 0
        self.count = 0

    def append(self, values: pa.Array) -> None:
        if len(values) == 0:
            return
        values = _plain(values, self.kind)
        self._recent.append(values)
        # Their own: many may be parts of one batch, whose memory would count for each.
        value_bytes = int(values.nbytes)
        self._size_bytes += value_bytes
        self._recent_bytes += value_bytes
        self._recent_count += len(values)
        self.count += len(values)
        if self._recent_count >= _CHUNK_VALUES or self._recent_bytes >= _CHUNK_BYTES:
            self._end_chunk()

    def take(self, numbers: Slots, valid: Flags | None = None) -> pa.Array:
        """Null where `valid` is not."""
        return self.reader()(numbers, valid)

    def reader(self) -> Callable[[Slots, Flags | None], pa.Array]:
        """Reads what is there now, also later."""
        if len(self._recent) > 1:
            self._recent = [pa.concat_arrays(self._recent)]
        chunks, firsts, chunk_count = self._chunks, self._firsts, len(self._chunks)
        recent, first_recent = self._recent[:1], self.count - self._recent_count

        def read(numbers: Slots, valid: Flags | None) -> pa.Array:
            return _taken(
                [*chunks[:chunk_count], *recent], [*firsts[:chunk_count], first_recent], numbers, valid, self.kind
            )

        return read

    def keep(self, numbers: Slots) -> None:
        kept = self.take(numbers)
        self._chunks, self._firsts, self._recent, self._recent_count, self._recent_bytes = [], [], [], 0, 0
        self._size_bytes = self.count = 0
        self.append(kept)

    def empty_copy(self, count: int) -> "ValueLog":
        """A log of such values without any; how many will come makes no difference."""
        return ValueLog(self.kind)

    def append_from(self, other: "ValueLog", numbers: Slots) -> None:
        self.append(other.take(numbers))

    def memory_met_anywhere(self) -> list[npt.NDArray[Any]]:
        return []

    def size_bytes(self) -> int:
        return self._size_bytes

    def _end_chunk(self) -> None:
        self._firsts.append(self.count - self._recent_count)
        # With one more, so that they are copied: a batch that they are part of need not stay.
        self._chunks.append(pa.concat_arrays([pa.nulls(0, self.kind), *self._recent]))
        self._recent, self._recent_count, self._recent_bytes = [], 0, 0


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


def _taken(
    chunks: Sequence[pa.Array], firsts: Sequence[int], numbers: Slots, valid: Flags | None, kind: pa.DataType
) -> pa.Array:
    """Values by number; `firsts`: the number of the first in each chunk, and of one more if there are more of them."""
    if len(chunks) <= 1:
        only = chunks[0] if chunks else pa.nulls(0, kind)
        return only.take(fixed_array(pa.int64(), numbers, valid))
    if valid is not None:
        numbers = np.where(valid, numbers, 0)
    order = ascending_order(numbers)
    ascending = numbers if order is None else numbers[order]
    stops = [*np.searchsorted(ascending, firsts[1 : len(chunks)]).tolist(), len(ascending)]
    starts = [0, *stops[:-1]]
    parts = [
        chunk.take(slots_array(ascending[start:stop] - first))
        for chunk, first, start, stop in zip(chunks, firsts, starts, stops, strict=False)
        if start < stop
    ]
    taken = pa.concat_arrays(parts) if parts else pa.nulls(0, kind)
    if order is None and valid is None:
        return taken
    places = np.arange(len(numbers))
    if order is not None:
        places[order] = np.arange(len(numbers))
    return taken.take(fixed_array(pa.int64(), places, valid))


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A dictionary differs from batch to batch, so that values are kept without."""
    return values.cast(kind) if pa.types.is_dictionary(values.type) else values
