"""Combines the rows of a slice that have the same key, before they are sent to the task that owns it.

Holds nothing from one slice to the next but how well it went: a barrier finds nothing here. Where most rows have a
key of their own they go on one by one, in the same columns, and combining is tried again now and then.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.build import accumulator_of
from tidegate.operators.accumulators.calls import chosen_rows
from tidegate.operators.accumulators.contract import raw_values
from tidegate.operators.columnar import Flags, Slots, fixed_array, slots_array
from tidegate.operators.contract import Emit, Stateless
from tidegate.operators.slice_groups import SliceGroups, groups_of
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import fixed_values_of, validity_of
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.plan.partials import COUNT_TYPE, MOST_COMBINED_ROWS, is_count
from tidegate.plan.physical import PartialAggregateSpec

# Below this, looking for equal keys costs more than sending them.
_FEW_ROWS = 128
# A group must stand for so many rows, or combining costs more than it saves.
_ROWS_PER_GROUP = 2
# So few rows say little about those to come.
_TELLING_ROWS = 1024
_MOST_SLICES_LEFT_OUT = 64
_INT64_MAX = (1 << 63) - 1


class PartialAggregateOperator(Stateless):
    def __init__(self, spec: PartialAggregateSpec) -> None:
        self._spec = spec
        self._parts = [_Part(call) for call in spec.calls]
        self._late_keys = None if spec.keys is None else [compile_expression(key) for key in spec.keys]
        self._counts_rows = len(spec.schema) > spec.key_count + len(spec.calls)
        self._left_out = 0
        self._slices_to_leave_out = 1

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows == 0:
            return
        groups = self._groups(rows)
        if groups is None:
            emit(self._one_by_one(rows))
        else:
            emit(self._combined(rows, groups))

    def _groups(self, rows: pa.RecordBatch) -> SliceGroups | None:
        """None where rows are better left as they are."""
        if not _FEW_ROWS <= rows.num_rows <= MOST_COMBINED_ROWS:
            return None
        if self._left_out:
            self._left_out -= 1
            return None
        if not all(part.may_combine(rows) for part in self._parts):
            return None
        groups = groups_of(rows.columns[: self._spec.key_count], rows.num_rows)
        is_worth_it = groups.count * _ROWS_PER_GROUP <= rows.num_rows
        if rows.num_rows >= _TELLING_ROWS:
            self._left_out = 0 if is_worth_it else self._slices_to_leave_out
            self._slices_to_leave_out = 1 if is_worth_it else min(2 * self._left_out, _MOST_SLICES_LEFT_OUT)
        return groups if is_worth_it else None

    def _combined(self, rows: pa.RecordBatch, groups: SliceGroups) -> pa.RecordBatch:
        having = slots_array(groups.rows)
        keys = self._keys([key.take(having) for key in rows.columns[: self._spec.key_count]])
        values = [part.combined(rows, groups) for part in self._parts]
        if self._counts_rows:
            values.append(_counts(np.bincount(groups.places, minlength=groups.place_count)[groups.occupied]))
        return pa.RecordBatch.from_arrays([*keys, *values], schema=self._spec.schema)

    def _one_by_one(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._keys(rows.columns[: self._spec.key_count])
        values = [part.one_by_one(rows) for part in self._parts]
        if self._counts_rows:
            values.append(_counts(np.ones(rows.num_rows)))
        return pa.RecordBatch.from_arrays([*keys, *values], schema=self._spec.schema)

    def _keys(self, columns: list[pa.Array]) -> list[pa.Array]:
        """The keys of rows that were told apart by these columns."""
        if self._late_keys is None:
            return columns
        rows = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])
        return [key(rows) for key in self._late_keys]


class _Part:
    """One of the calls that the aggregation's own were taken apart into."""

    def __init__(self, call: AggregateCall) -> None:
        self._call = call
        self._arguments = [compile_expression(argument) for argument in call.arguments]
        self._condition = None if call.condition is None else compile_expression(call.condition)
        self._is_count = is_count(call)
        self._may_overflow = call.ansi and call.function is AggregateFunction.SUM and pa.types.is_int64(call.type)

    def may_combine(self, rows: pa.RecordBatch) -> bool:
        """Not if the sum of these rows alone could overflow: with what other rows add it may still fit."""
        if not self._may_overflow:
            return True
        values = fixed_values_of(self._arguments[0](rows))
        return max(abs(int(values.min())), abs(int(values.max()))) * len(values) <= _INT64_MAX

    def combined(self, rows: pa.RecordBatch, groups: SliceGroups) -> pa.Array:
        accumulator = accumulator_of(self._call)
        accumulator.grow_to(groups.place_count)
        rows, places = chosen_rows(self._condition, rows, groups.places)
        accumulator.add([argument(rows) for argument in self._arguments], places)
        results = accumulator.results(groups.occupied)
        return _counts(fixed_values_of(results)) if self._is_count else results

    def one_by_one(self, rows: pa.RecordBatch) -> pa.Array:
        """What each row alone would be combined into."""
        columns = [argument(rows) for argument in self._arguments]
        is_met = _flags(self._condition, rows)
        if self._is_count:
            flags = [valid for column in columns if (valid := validity_of(column)) is not None]
            flags += [] if is_met is None else [is_met]
            return _counts(np.logical_and.reduce(flags) if flags else np.ones(rows.num_rows))
        values = _as_type(columns[0], self._call.type)
        if self._call.function in (AggregateFunction.MIN_BY, AggregateFunction.MAX_BY) or is_met is None:
            return values
        # A null among the indices is taken as a null.
        return values.take(fixed_array(pa.int64(), np.arange(rows.num_rows), is_met))


def _flags(condition: Callable[[pa.RecordBatch], pa.Array] | None, rows: pa.RecordBatch) -> Flags | None:
    if condition is None:
        return None
    met = condition(rows)
    flags, valid = fixed_values_of(met).view(np.bool_), validity_of(met)
    return flags if valid is None else flags & valid


def _counts(counts: Slots | Flags) -> pa.Array:
    return fixed_array(COUNT_TYPE, counts.astype(np.int32), None)


def _as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same numbers in the wider type in which they are summed; other values as they are."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return column.cast(kind)
    if pa.types.is_decimal128(kind):
        return pa.Array.from_buffers(kind, len(column), column.buffers(), offset=column.offset)
    width = np.float64 if pa.types.is_floating(kind) else np.int64
    return fixed_array(kind, raw_values(column).astype(width), validity_of(column))
