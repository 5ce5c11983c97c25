"""min, max, min_by and max_by, in Spark's order: bytes of strings without sign, NaN above all, nulls ignored."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators.contract import (
    FixedColumns,
    Frozen,
    distinct_slots,
    last_rows,
    raw_values,
    without_nulls,
)
from tidegate.operators.accumulators.stored_values import ValueSlots
from tidegate.operators.columnar import GrowingArray, Slots, fixed_array, slots_array
from tidegate.plan.key_groups import fixed_values_of, validity_of

_SIGN = np.uint64(1 << 63)
_ALL_BUT_SIGN = np.int64((1 << 63) - 1)


def is_sortable_in_64_bits(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
    )


def is_sortable_by_arrow(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind))


class FixedExtreme(FixedColumns):
    """The least or greatest of values of up to 64 bits, as the greatest of numbers without sign that start at 0."""

    def __init__(self, kind: pa.DataType, *, flip: np.uint64) -> None:
        super().__init__(pa.uint64(), pa.bool_())
        self._kind = kind
        self._flip = flip

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        np.maximum.at(self.arrays[0].used, slots, _sortable(values) ^ self._flip)
        self.arrays[1].used[slots] = True

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        extremes, seen = self.arrays[0].used, self.arrays[1].used
        np.maximum.at(extremes, targets, extremes[sources])
        np.logical_or.at(seen, targets, seen[sources])

    def results(self, slots: Slots) -> pa.Array:
        values = _unsorted(self.arrays[0].used[slots] ^ self._flip, self._kind)
        return fixed_array(self._kind, values, self.arrays[1].used[slots])


# XOR with all ones turns the order round, so that a minimum is found as a maximum.
LEAST = np.uint64(0xFFFFFFFFFFFFFFFF)
GREATEST = np.uint64(0)


class ExtremeBy:
    """The value that stands beside the least or greatest ordering; of equal ones the newest, as in Spark.

    `add` takes the value and the ordering, or one column that is both.
    """

    def __init__(self, value: pa.DataType, ordering: pa.DataType, *, flip: np.uint64) -> None:
        self._flip = flip
        self._values = ValueSlots(value)
        self._orderings = ValueSlots(pa.uint64() if is_sortable_in_64_bits(ordering) else ordering)

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return *self._values.stored_types, *self._orderings.stored_types

    def grow_to(self, slot_count: int) -> None:
        self._values.grow_to(slot_count)
        self._orderings.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        ordering = columns[-1]
        valid = validity_of(ordering)
        rows = np.arange(len(slots)) if valid is None else np.flatnonzero(valid)
        values, ordering, slots = columns[0], _comparable(ordering), slots[rows]
        if valid is not None:
            chosen = slots_array(rows)
            values, ordering = values.take(chosen), ordering.take(chosen)
        self._offer(values, ordering, slots)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        has = self._orderings.has(sources)
        sources, targets = sources[has], targets[has]
        self._offer(self._values.take(sources), self._orderings.take(sources), targets)

    def clear(self, slots: Slots) -> None:
        self._values.clear(slots)
        self._orderings.clear(slots)

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return [*self._values.arrays, *self._orderings.arrays]

    def keep(self, slots: Slots) -> None:
        self._values.keep(slots)
        self._orderings.keep(slots)

    def freeze(self, slots: Slots | None = None) -> Frozen:
        values, orderings = self._values.freeze(slots), self._orderings.freeze(slots)
        return lambda part: [*values(part), *orderings(part)]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._values.restore(slots, columns[:2])
        self._orderings.restore(slots, columns[2:])

    def results(self, slots: Slots) -> pa.Array:
        return self._values.take(slots)

    def size_bytes(self) -> int:
        return self._values.size_bytes() + self._orderings.size_bytes()

    def _offer(self, values: pa.Array, ordering: pa.Array, slots: Slots) -> None:
        """Rows without nulls in their ordering."""
        if len(slots) == 0:
            return
        best = self._best_rows(ordering, slots)
        found, targets = ordering.take(slots_array(best)), slots[best]
        held = self._orderings.take(targets)
        replaces = pc.less_equal(found, held) if self._flip == LEAST else pc.greater_equal(found, held)
        # Null where the slot holds nothing yet.
        wins = np.flatnonzero(fixed_values_of(pc.fill_null(replaces, True)).view(np.bool_))
        winners = slots_array(best[wins])
        self._values.put(targets[wins], values.take(winners))
        self._orderings.put(targets[wins], ordering.take(winners))

    def _best_rows(self, ordering: pa.Array, slots: Slots) -> Slots:
        """The last row of each slot that has the slot's best ordering among these rows."""
        ranks = _ranks(ordering) ^ self._flip
        distinct, places = distinct_slots(slots, self._values.slot_count)
        best = np.zeros(len(distinct), dtype=np.uint64)
        np.maximum.at(best, places, ranks)
        rows = np.flatnonzero(ranks == best[places])
        chosen: Slots = rows[last_rows(slots[rows], self._values.slot_count)]
        return chosen


def _comparable(ordering: pa.Array) -> pa.Array:
    """What Arrow compares as Spark compares the original; slots of nulls hold anything."""
    if not is_sortable_in_64_bits(ordering.type):
        return ordering
    return fixed_array(pa.uint64(), _sortable(raw_values(ordering)), None)


def _ranks(ordering: pa.Array) -> npt.NDArray[np.uint64]:
    ranked = ordering if ordering.type == pa.uint64() else pc.rank(ordering, tiebreaker="dense")
    return fixed_values_of(ranked)


def _sortable(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Numbers without sign in the order of the values."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        wide[np.isnan(wide)] = np.nan  # one NaN, which is above infinity
        bits = wide.view(np.int64)
        signed = bits ^ ((bits >> 63) & _ALL_BUT_SIGN)
    else:
        signed = values.astype(np.int64)
    return signed.view(np.uint64) ^ _SIGN


def _unsorted(sortable: npt.NDArray[np.uint64], kind: pa.DataType) -> npt.NDArray[Any]:
    signed = (sortable ^ _SIGN).view(np.int64)
    if pa.types.is_floating(kind):
        floats = (signed ^ ((signed >> 63) & _ALL_BUT_SIGN)).view(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # what no value was added to is not shown
            return floats.astype(np.float32 if kind.bit_width == 32 else np.float64)
    if pa.types.is_boolean(kind):
        return (signed & 1).astype(np.bool_)
    return signed.astype(np.dtype(f"i{kind.bit_width // 8}"))
