"""approx_count_distinct: Spark's HyperLogLog++, register for register, so that it gives Spark's very estimate.

Takes the 64-bit hashes of the values, which must be Spark's xxhash64 with its default seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.accumulators.contract import Frozen, without_nulls
from tidegate.operators.columnar import GrowingArray, Slots, fixed_array
from tidegate.plan.nodes import SketchTables

# How many neighbours of a raw estimate its bias is averaged over.
_NEIGHBOURS = 6
_FEW_PER_REGISTER = 2.5
# Spark's 1.0 / (1 << run) is a shift of 32 bits, which begins anew at 32 and is negative at 31.
_INVERSE_POWERS = 1.0 / (np.int32(1) << (np.arange(65, dtype=np.int32) % 32)).astype(np.float64)


class DistinctSketch:
    """One row of registers per slot: each the longest run of leading zeros seen, plus one."""

    def __init__(self, tables: SketchTables) -> None:
        self._tables = tables
        self._registers = 1 << tables.precision
        self._counters: GrowingArray[np.uint8] = GrowingArray(np.uint8, width=self._registers)

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return (pa.binary(self._registers),)

    def grow_to(self, slot_count: int) -> None:
        self._counters.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        values, slots = without_nulls(columns[0], slots)
        if len(slots) == 0:
            return
        hashes = values.view(np.uint64)
        precision = np.uint64(self._tables.precision)
        registers = (hashes >> np.uint64(64 - self._tables.precision)).astype(np.int64)
        # The padding bit ends the run of zeros where the hash does.
        rest = (hashes << precision) | np.uint64(1 << (self._tables.precision - 1))
        runs = _leading_zeros(rest) + np.uint8(1)
        np.maximum.at(self._counters.used.reshape(-1), slots * self._registers + registers, runs)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        counters = self._counters.used
        np.maximum.at(counters, targets, counters[sources])

    def clear(self, slots: Slots) -> None:
        self._counters.used[slots] = 0

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return [self._counters]

    def keep(self, slots: Slots) -> None:
        return

    def freeze(self, slots: Slots | None = None) -> Frozen:
        copy = self._counters.used.copy() if slots is None else self._counters.used[slots]
        return lambda part: [fixed_array(pa.binary(self._registers), copy[part], None)]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        column, width = columns[0], self._registers
        if len(column) == 0:
            return
        stored = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        self._counters.used[slots] = stored[column.offset * width : (column.offset + len(column)) * width].reshape(
            -1, width
        )

    def results(self, slots: Slots) -> pa.Array:
        estimates = _estimates(self._counters.used[slots], self._tables)
        # As Math.round, which is what Spark ends with.
        return fixed_array(pa.int64(), np.floor(estimates + 0.5).astype(np.int64), None)

    def size_bytes(self) -> int:
        return self._counters.used.nbytes


def _leading_zeros(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Values must not be 0."""
    zeros = np.zeros(len(values), dtype=np.uint8)
    left = values.copy()
    for width in (32, 16, 8, 4, 2, 1):
        is_short = left < (np.uint64(1) << np.uint64(64 - width))
        zeros[is_short] += np.uint8(width)
        left[is_short] <<= np.uint64(width)
    return zeros


def _estimates(counters: npt.NDArray[np.uint8], tables: SketchTables) -> npt.NDArray[np.float64]:
    count = counters.shape[1]
    inverse = _INVERSE_POWERS[counters].sum(axis=1)
    empty = (counters == 0).sum(axis=1)
    raw = _alpha(count) * count * count / inverse
    corrected = np.where(raw < 5.0 * count, raw - _biases(raw, tables), raw)
    with np.errstate(divide="ignore"):
        linear = count * np.log(count / empty)
    # Few values: counting the empty registers is more exact.
    are_few = (linear <= tables.threshold) | (raw <= _FEW_PER_REGISTER * count)
    chosen: npt.NDArray[np.float64] = np.where((empty > 0) & are_few, linear, corrected)
    return chosen


def _alpha(count: int) -> float:
    match count:
        case 16:
            return 0.673
        case 32:
            return 0.697
        case 64:
            return 0.709
        case _:
            return 0.7213 / (1.0 + 1.079 / count)


def _biases(raw: npt.NDArray[np.float64], tables: SketchTables) -> npt.NDArray[np.float64]:
    """The mean bias of the nearest raw estimates that were measured."""
    estimates, biases = np.array(tables.raw_estimates), np.array(tables.biases)
    nearest = np.searchsorted(estimates, raw, side="left")
    low = np.maximum(nearest - _NEIGHBOURS + 1, 0)
    high = np.minimum(low + _NEIGHBOURS, len(estimates))
    # The interval moves up while the next one above is nearer than its lowest.
    for _ in range(_NEIGHBOURS):
        can_move = high < len(estimates)
        above = estimates[np.minimum(high, len(estimates) - 1)]
        moves = can_move & ((raw - above) ** 2 < (raw - estimates[low]) ** 2)
        low, high = low + moves, high + moves
    total = np.zeros(len(raw))
    for place in range(_NEIGHBOURS):
        inside = low + place < high
        total += np.where(inside, biases[np.minimum(low + place, len(biases) - 1)], 0.0)
    mean: npt.NDArray[np.float64] = total / (high - low)
    return mean
