"""Counts, sums and averages of integers and floating point numbers, and the bit operations.

Must never let a sum of integers pass through floating point.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.accumulators.contract import FixedColumns, distinct_slots, raw_values, without_nulls
from tidegate.operators.columnar import GrowingArray, Slots, fixed_array
from tidegate.plan.key_groups import validity_of

_INT64_MAX = (1 << 63) - 1
_LOW_HALF = np.int64(0xFFFFFFFF)


class CountAccumulator(FixedColumns):
    """Rows, or with arguments the rows in which none of them is null."""

    def __init__(self) -> None:
        super().__init__(pa.int64())

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        flags = [valid for column in columns if (valid := validity_of(column)) is not None]
        if flags:
            slots = slots[np.logical_and.reduce(flags)]
        np.add.at(self.arrays[0].used, slots, 1)

    def add_partials(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        np.add.at(self.arrays[0].used, slots, raw_values(columns[0]).astype(np.int64))

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        counts = self.arrays[0].used
        np.add.at(counts, targets, counts[sources])

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(pa.int64(), self.arrays[0].used[slots], None)


class IntegerSum(FixedColumns):
    """Null until a value came. Past 64 bits it wraps, as Spark does without ANSI, or raises, as Spark does with it."""

    def __init__(self, *, raises_on_overflow: bool) -> None:
        super().__init__(pa.int64(), pa.bool_())
        self._raises_on_overflow = raises_on_overflow
        # No sum is further from 0 than this; kept loose, made tight only when it gets in the way.
        self._bound = 0

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        if len(slots):
            self._add(values.astype(np.int64, copy=False), slots)
            self.arrays[1].used[slots] = True

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        sums, seen = self.arrays[0].used, self.arrays[1].used
        self._add(sums[sources], targets)
        np.logical_or.at(seen, targets, seen[sources])

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        super().restore(slots, columns)
        self._bound = max(self._bound, _furthest_from_zero(raw_values(columns[0])))

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(pa.int64(), self.arrays[0].used[slots], self.arrays[1].used[slots])

    def _add(self, values: npt.NDArray[np.int64], slots: Slots) -> None:
        if not self._raises_on_overflow or self._surely_fits(values):
            np.add.at(self.arrays[0].used, slots, values)
        else:
            self._add_checked(values, slots)

    def _surely_fits(self, values: npt.NDArray[np.int64]) -> bool:
        change = _furthest_from_zero(values) * len(values)
        if self._bound + change > _INT64_MAX:
            self._bound = _furthest_from_zero(self.arrays[0].used)
        self._bound += change
        return self._bound <= _INT64_MAX

    def _add_checked(self, values: npt.NDArray[np.int64], slots: Slots) -> None:
        """Adds the two halves of 32 bits apart, where they cannot overflow, and looks whether the whole still fits."""
        sums = self.arrays[0].used
        touched, positions = distinct_slots(slots, len(sums))
        low, high = sums[touched] & _LOW_HALF, sums[touched] >> 32
        np.add.at(low, positions, values & _LOW_HALF)
        np.add.at(high, positions, values >> 32)
        high += low >> 32
        if (high != high.astype(np.int32)).any():
            raise UserCodeFailure(
                "[ARITHMETIC_OVERFLOW] long overflow: a sum left the range of BIGINT; cast its argument to a DECIMAL, "
                "use try_sum, or set spark.sql.ansi.enabled to false to let it wrap."
            )
        sums[touched] = (high << 32) | (low & _LOW_HALF)
        self._bound = _furthest_from_zero(sums)


class FloatSum(FixedColumns):
    """Null until a value came."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), pa.bool_())

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        _add_floats(self.arrays[0], values, slots)
        self.arrays[1].used[slots] = True

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        sums, seen = self.arrays[0].used, self.arrays[1].used
        _add_floats(self.arrays[0], sums[sources], targets)
        np.logical_or.at(seen, targets, seen[sources])

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(pa.float64(), self.arrays[0].used[slots], self.arrays[1].used[slots])


class FloatAverage(FixedColumns):
    """The sum as a double, and how many values it is of."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), pa.int64())

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        _add_floats(self.arrays[0], values, slots)
        np.add.at(self.arrays[1].used, slots, 1)

    def add_partials(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        """Sums, null where no value came, and of how many values they are."""
        sums, having = without_nulls(columns[0], slots)
        _add_floats(self.arrays[0], sums, having)
        np.add.at(self.arrays[1].used, slots, raw_values(columns[1]).astype(np.int64))

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        sums, counts = self.arrays[0].used, self.arrays[1].used
        _add_floats(self.arrays[0], sums[sources], targets)
        np.add.at(counts, targets, counts[sources])

    def results(self, slots: Slots) -> pa.Array:
        sums, counts = self.arrays[0].used[slots], self.arrays[1].used[slots]
        with np.errstate(invalid="ignore"):
            averages = sums / np.maximum(counts, 1)
        return fixed_array(pa.float64(), averages, counts > 0)


class BitAccumulator(FixedColumns):
    """AND, OR or XOR of integers, null until a value came."""

    def __init__(self, kind: pa.DataType, operation: np.ufunc) -> None:
        super().__init__(kind, pa.bool_())
        self._kind = kind
        self._operation = operation

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        bits, seen = self.arrays[0].used, self.arrays[1].used
        # What an AND starts from; an OR or XOR starts from the zero that is there.
        if self._operation is np.bitwise_and:
            bits[slots[~seen[slots]]] = -1
        self._operation.at(bits, slots, values)
        seen[slots] = True

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        filled = self.arrays[1].used[sources]
        values = fixed_array(self._kind, self.arrays[0].used[sources[filled]], None)
        self.add([values], targets[filled])

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(self._kind, self.arrays[0].used[slots], self.arrays[1].used[slots])


def _add_floats(sums: GrowingArray[Any], values: npt.NDArray[Any], slots: Slots) -> None:
    # Infinities of both signs make a NaN, as in Spark.
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums.used, slots, values.astype(np.float64, copy=False))


def _furthest_from_zero(values: npt.NDArray[np.int64]) -> int:
    return max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0
