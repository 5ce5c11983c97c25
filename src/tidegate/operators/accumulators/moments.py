"""Variance, standard deviation, skewness, kurtosis, covariance and correlation, by Spark's formulas for merging.

A slice's rows are summed up first and merged as a whole, so results may differ from Spark's in the last digits, as
Spark's own do when rows are partitioned otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.accumulators.contract import FixedColumns, distinct_slots, raw_values
from tidegate.operators.columnar import Flags, Slots, fixed_array
from tidegate.plan.key_groups import validity_of
from tidegate.plan.nodes import AggregateFunction

Doubles: TypeAlias = npt.NDArray[np.float64]

_QUIET: dict[str, Any] = {"invalid": "ignore", "over": "ignore", "divide": "ignore"}


class CentralMoments(FixedColumns):
    """Count, mean and the sums of the second to fourth powers of the distance from the mean."""

    def __init__(self, function: AggregateFunction) -> None:
        super().__init__(*[pa.float64()] * 5)
        self._function = function

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        (values,), slots = _complete(columns[:1], slots)
        if len(slots) == 0:
            return
        with np.errstate(**_QUIET):
            touched, places = distinct_slots(slots, self.arrays[0].count)
            counts, means, distance = _means(values, places, len(touched))
            powers = [_sums(distance**power, places, len(touched)) for power in (2, 3, 4)]
            self._merge_in(touched, [counts, means, *powers])

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        with np.errstate(**_QUIET):
            for rows in _in_turns(targets):
                self._merge_in(targets[rows], [array.used[sources[rows]] for array in self.arrays])

    def results(self, slots: Slots) -> pa.Array:
        count, _, m2, m3, m4 = (array.used[slots] for array in self.arrays)
        with np.errstate(**_QUIET):
            values, is_undefined = _MOMENTS[self._function](count, m2, m3, m4)
        return _shown(values, count, is_undefined)

    def _merge_in(self, slots: Slots, added: Sequence[Doubles]) -> None:
        """Slots must be distinct."""
        n1, mean1, a2, a3, a4 = (array.used[slots] for array in self.arrays)
        n2, mean2, b2, b3, b4 = added
        n, delta = n1 + n2, mean2 - mean1
        per_row = np.where(n == 0, 0.0, delta / np.where(n == 0, 1.0, n))
        third = per_row**2 * delta * n1 * n2 * (n1 - n2) + 3.0 * per_row * (n1 * b2 - n2 * a2)
        fourth = per_row**3 * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
        fourth += 6.0 * per_row**2 * (n1 * n1 * b2 + n2 * n2 * a2) + 4.0 * per_row * (n1 * b3 - n2 * a3)
        merged = [
            n,
            mean1 + per_row * n2,
            a2 + b2 + delta * per_row * n1 * n2,
            a3 + b3 + third,
            a4 + b4 + fourth,
        ]
        for array, values, alone in zip(self.arrays, merged, added, strict=True):
            # An empty group takes what is added as it is, without a rounding.
            array.used[slots] = np.where(n1 == 0, alone, values)


class Covariance(FixedColumns):
    """Count, both means, the sum of the products of the distances from them, and of the squares of each."""

    def __init__(self, function: AggregateFunction) -> None:
        super().__init__(*[pa.float64()] * 6)
        self._function = function

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        (left, right), slots = _complete(columns[:2], slots)
        if len(slots) == 0:
            return
        with np.errstate(**_QUIET):
            touched, places = distinct_slots(slots, self.arrays[0].count)
            counts, left_means, dx = _means(left, places, len(touched))
            _, right_means, dy = _means(right, places, len(touched))
            products = [_sums(product, places, len(touched)) for product in (dx * dy, dx * dx, dy * dy)]
            self._merge_in(touched, [counts, left_means, right_means, *products])

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        with np.errstate(**_QUIET):
            for rows in _in_turns(targets):
                self._merge_in(targets[rows], [array.used[sources[rows]] for array in self.arrays])

    def results(self, slots: Slots) -> pa.Array:
        count, _, _, products, squares_x, squares_y = (array.used[slots] for array in self.arrays)
        with np.errstate(**_QUIET):
            match self._function:
                case AggregateFunction.COVAR_POP:
                    values, is_undefined = products / count, np.zeros(len(slots), dtype=np.bool_)
                case AggregateFunction.COVAR_SAMP:
                    values, is_undefined = products / (count - 1.0), count == 1.0
                case _:
                    scale = np.sqrt(squares_x * squares_y)
                    # Spark divides as SQL does: by 0 it is null.
                    values, is_undefined = products / scale, (count == 1.0) | (scale == 0.0)
        return _shown(values, count, is_undefined)

    def _merge_in(self, slots: Slots, added: Sequence[Doubles]) -> None:
        n1, x1, y1, c1, xx1, yy1 = (array.used[slots] for array in self.arrays)
        n2, x2, y2, c2, xx2, yy2 = added
        n, dx, dy = n1 + n2, x2 - x1, y2 - y1
        divisor = np.where(n == 0, 1.0, n)
        dx_n, dy_n = dx / divisor, dy / divisor
        merged = [
            n,
            x1 + dx_n * n2,
            y1 + dy_n * n2,
            c1 + c2 + dx * dy_n * n1 * n2,
            xx1 + xx2 + dx * dx_n * n1 * n2,
            yy1 + yy2 + dy * dy_n * n1 * n2,
        ]
        for array, values, alone in zip(self.arrays, merged, added, strict=True):
            array.used[slots] = np.where(n1 == 0, alone, values)


Moments: TypeAlias = Callable[[Doubles, Doubles, Doubles, Doubles], tuple[Doubles, Flags]]


def _population(n: Doubles, m2: Doubles, _m3: Doubles, _m4: Doubles) -> tuple[Doubles, Flags]:
    return m2 / n, np.zeros(len(n), dtype=np.bool_)


def _sample(n: Doubles, m2: Doubles, _m3: Doubles, _m4: Doubles) -> tuple[Doubles, Flags]:
    return m2 / (n - 1.0), n == 1.0


def _skewness(n: Doubles, m2: Doubles, m3: Doubles, _m4: Doubles) -> tuple[Doubles, Flags]:
    return np.sqrt(n) * m3 / np.sqrt(m2 * m2 * m2), m2 == 0.0


def _kurtosis(n: Doubles, m2: Doubles, _m3: Doubles, m4: Doubles) -> tuple[Doubles, Flags]:
    return n * m4 / (m2 * m2) - 3.0, m2 == 0.0


def _rooted(moments: Moments) -> Moments:
    def rooted(n: Doubles, m2: Doubles, m3: Doubles, m4: Doubles) -> tuple[Doubles, Flags]:
        values, is_undefined = moments(n, m2, m3, m4)
        return np.sqrt(values), is_undefined

    return rooted


_MOMENTS: Mapping[AggregateFunction, Moments] = {
    AggregateFunction.VAR_POP: _population,
    AggregateFunction.VAR_SAMP: _sample,
    AggregateFunction.STDDEV_POP: _rooted(_population),
    AggregateFunction.STDDEV_SAMP: _rooted(_sample),
    AggregateFunction.SKEWNESS: _skewness,
    AggregateFunction.KURTOSIS: _kurtosis,
}


def _complete(columns: Sequence[pa.Array], slots: Slots) -> tuple[list[Doubles], Slots]:
    """The rows in which no column is null."""
    flags = [valid for column in columns if (valid := validity_of(column)) is not None]
    values = [raw_values(column) for column in columns]
    if not flags:
        return values, slots
    chosen = np.logical_and.reduce(flags)
    return [each[chosen] for each in values], slots[chosen]


def _means(values: Doubles, places: Slots, count: int) -> tuple[Doubles, Doubles, Doubles]:
    """Per place the count and the mean, per row the distance from its mean.

    Taken as distances from one of the values, so that equal values have exactly their own mean.
    """
    counts = np.bincount(places, minlength=count).astype(np.float64)
    pivots = np.empty(count)
    pivots[places] = values
    means = pivots + _sums(values - pivots[places], places, count) / counts
    return counts, means, values - means[places]


def _sums(values: Doubles, places: Slots, count: int) -> Doubles:
    sums: Doubles = np.bincount(places, weights=values, minlength=count).astype(np.float64, copy=False)
    return sums


def _in_turns(targets: Slots) -> list[Slots]:
    """Rows in as many turns as the most frequent target has, no target twice in one of them."""
    order = np.argsort(targets, kind="stable")
    ordered = targets[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else order
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    return [order[turn == number] for number in range(int(turn.max()) + 1)] if len(turn) else []


def _shown(values: Doubles, count: Doubles, is_undefined: Flags) -> pa.Array:
    return fixed_array(pa.float64(), values, (count > 0) & ~is_undefined)
