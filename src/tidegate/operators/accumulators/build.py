"""Accumulators from calls."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.operators.accumulators.collected import CollectedList, CollectedSet
from tidegate.operators.accumulators.contract import Accumulator
from tidegate.operators.accumulators.decimals import DecimalAverage, DecimalSum
from tidegate.operators.accumulators.extremes import (
    GREATEST,
    LEAST,
    ExtremeBy,
    FixedExtreme,
    is_sortable_by_arrow,
    is_sortable_in_64_bits,
)
from tidegate.operators.accumulators.moments import CentralMoments, Covariance
from tidegate.operators.accumulators.picked import FirstValue, LastValue
from tidegate.operators.accumulators.sketches import DistinctSketch
from tidegate.operators.accumulators.sums import BitAccumulator, CountAccumulator, FloatAverage, FloatSum, IntegerSum
from tidegate.operators.columnar import Slots
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.plan.partials import average_sum_type


def accumulator_of(call: AggregateCall) -> Accumulator:
    """Raises `UnsupportedPlan` for types it cannot take."""
    function, kind = call.function, call.type
    match function:
        case AggregateFunction.COUNT_ROWS | AggregateFunction.COUNT:
            return CountAccumulator()
        case AggregateFunction.SUM:
            return _sum(call)
        case AggregateFunction.AVG:
            return _average(call)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return _extreme(call)
        case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
            ordering = call.arguments[1].type
            _check_sortable(call, ordering)
            return ExtremeBy(kind, ordering, flip=_flip(function))
        case AggregateFunction.FIRST | AggregateFunction.FIRST_NON_NULL:
            return FirstValue(kind, ignores_nulls=function is AggregateFunction.FIRST_NON_NULL)
        case AggregateFunction.LAST | AggregateFunction.LAST_NON_NULL:
            return LastValue(kind, ignores_nulls=function is AggregateFunction.LAST_NON_NULL)
        case AggregateFunction.COLLECT_LIST | AggregateFunction.COLLECT_LIST_WITH_NULLS:
            return CollectedList(kind, ignores_nulls=function is AggregateFunction.COLLECT_LIST)
        case AggregateFunction.COLLECT_SET | AggregateFunction.COLLECT_SET_WITH_NULLS:
            return _set(call)
        case AggregateFunction.BIT_AND:
            return BitAccumulator(kind, np.bitwise_and)
        case AggregateFunction.BIT_OR:
            return BitAccumulator(kind, np.bitwise_or)
        case AggregateFunction.BIT_XOR:
            return BitAccumulator(kind, np.bitwise_xor)
        case AggregateFunction.COVAR_POP | AggregateFunction.COVAR_SAMP | AggregateFunction.CORR:
            return Covariance(function)
        case AggregateFunction.APPROX_COUNT_DISTINCT:
            assert call.sketch is not None, "the reader of the plan gives the tables"
            return DistinctSketch(call.sketch)
        case _:
            return CentralMoments(function)


def add_partials(accumulator: Accumulator, columns: Sequence[pa.Array], slots: Slots) -> None:
    """Adds what rows were combined into before, each column the result of one of the call's parts."""
    if isinstance(accumulator, CountAccumulator | FloatAverage | DecimalAverage):
        accumulator.add_partials(columns, slots)
    else:
        # The sum of sums, the least of the least: as if they were values.
        accumulator.add(columns, slots)


def _sum(call: AggregateCall) -> Accumulator:
    if pa.types.is_int64(call.type):
        return IntegerSum(raises_on_overflow=call.ansi)
    if pa.types.is_float64(call.type):
        return FloatSum()
    if pa.types.is_decimal128(call.type):
        return DecimalSum(call.type, raises_on_overflow=call.ansi)
    raise _unsupported(call, call.type)


def _average(call: AggregateCall) -> Accumulator:
    if pa.types.is_float64(call.type):
        return FloatAverage()
    kind = call.arguments[0].type
    if not pa.types.is_decimal128(kind):
        raise _unsupported(call, kind)
    return DecimalAverage(average_sum_type(kind), call.type, raises_on_overflow=call.ansi)


def _extreme(call: AggregateCall) -> Accumulator:
    _check_sortable(call, call.type)
    flip = _flip(call.function)
    if is_sortable_in_64_bits(call.type):
        return FixedExtreme(call.type, flip=flip)
    return ExtremeBy(call.type, call.type, flip=flip)


def _flip(function: AggregateFunction) -> np.uint64:
    return LEAST if function in (AggregateFunction.MIN, AggregateFunction.MIN_BY) else GREATEST


def _check_sortable(call: AggregateCall, kind: pa.DataType) -> None:
    if not (is_sortable_in_64_bits(kind) or is_sortable_by_arrow(kind)):
        raise _unsupported(call, kind)


def _set(call: AggregateCall) -> Accumulator:
    kind = call.arguments[0].type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        raise _unsupported(call, kind)
    return CollectedSet(call.type, ignores_nulls=call.function is AggregateFunction.COLLECT_SET)


def _unsupported(call: AggregateCall, kind: pa.DataType) -> UnsupportedPlan:
    return UnsupportedPlan(
        f"Tidegate does not run {call.function.value} over {kind}: cast it to a number, a string or a decimal, "
        f"or aggregate its fields."
    )
