"""Which aggregations can be combined before the shuffle, and what then travels instead of rows.

A call is taken apart into calls whose results, each nullable and in one column, can be added up again in any order of
arrival: of an average the sum and the count. Must never allow what would give another answer than the rows themselves:
where the order or the identity of rows matters beyond that, rows travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import pyarrow as pa

from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.plan.physical import PartialAggregateSpec, PartialLayout

# So many rows can be combined at once: a count fits 32 bits, and a sum of decimals has no more than 6 digits more.
MOST_COMBINED_ROWS = 1_000_000
COUNT_TYPE = pa.int32()

_COMBINED_DIGITS = 6
_MAX_DECIMAL_DIGITS = 38
# By how much Spark's sum of decimals is wider than its values.
_SUM_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Combined:
    """The operator before the shuffle, and where the one behind it finds what it is to add up."""

    spec: PartialAggregateSpec
    layout: PartialLayout


def combined(calls: Sequence[AggregateCall], rows: pa.Schema, *, key_count: int, counts_rows: bool) -> Combined | None:
    """None if rows must travel. `counts_rows`: each combined row says how many it stands for."""
    if key_count == 0 and not calls:
        return None
    parts: list[AggregateCall] = []
    columns: list[tuple[int, ...]] = []
    for call in calls:
        of_call = _parts_of(call)
        if of_call is None:
            return None
        parts += [part for part in of_call if part not in parts]
        columns.append(tuple(key_count + parts.index(part) for part in of_call))
    keys = list(rows)[:key_count]
    values = [pa.field(f"_part{at}", type_of(part)) for at, part in enumerate(parts)]
    row_count = [pa.field("_rows", COUNT_TYPE)] if counts_rows else []
    schema = pa.schema([*keys, *values, *row_count])
    spec = PartialAggregateSpec(key_count, tuple(parts), rows, schema)
    return Combined(spec, PartialLayout(tuple(columns), len(schema) - 1 if counts_rows else None))


def type_of(part: AggregateCall) -> pa.DataType:
    return COUNT_TYPE if is_count(part) else part.type


def is_count(part: AggregateCall) -> bool:
    return part.function in (AggregateFunction.COUNT, AggregateFunction.COUNT_ROWS)


def average_sum_type(argument: pa.DataType) -> pa.DataType:
    """What an average sums its values in: doubles, or of decimals Spark's wider ones."""
    if not pa.types.is_decimal128(argument):
        return pa.float64()
    return pa.decimal128(min(_MAX_DECIMAL_DIGITS, argument.precision + _SUM_DIGITS), argument.scale)


def _parts_of(call: AggregateCall) -> tuple[AggregateCall, ...] | None:
    if call.distinct:
        return None
    match call.function:
        case AggregateFunction.COUNT_ROWS | AggregateFunction.COUNT:
            return (call,)
        case AggregateFunction.SUM:
            return (call,) if _fits(call, call.type) else None
        case AggregateFunction.AVG:
            kind = average_sum_type(call.arguments[0].type)
            total = replace(call, function=AggregateFunction.SUM, type=kind)
            count = replace(call, function=AggregateFunction.COUNT, type=pa.int64(), ansi=False)
            return (total, count) if _fits(call, kind) else None
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return (call,)
        case AggregateFunction.BIT_AND | AggregateFunction.BIT_OR | AggregateFunction.BIT_XOR:
            return (call,)
        case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
            is_least = call.function is AggregateFunction.MIN_BY
            ordering = call.arguments[1]
            extreme = AggregateFunction.MIN if is_least else AggregateFunction.MAX
            return call, replace(call, function=extreme, arguments=(ordering,), type=ordering.type)
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            # Without a row that counts there is no first one, which a null cannot say: it may be the first value.
            return None if call.condition is not None else (call,)
        case AggregateFunction.FIRST_NON_NULL | AggregateFunction.LAST_NON_NULL:
            return (call,)
        case (
            AggregateFunction.COLLECT_LIST
            | AggregateFunction.COLLECT_LIST_WITH_NULLS
            | AggregateFunction.COLLECT_SET
            | AggregateFunction.COLLECT_SET_WITH_NULLS
            | AggregateFunction.APPROX_COUNT_DISTINCT
        ):
            # What these hold of a few rows is not smaller than the rows.
            return None
        case (
            AggregateFunction.STDDEV_POP
            | AggregateFunction.STDDEV_SAMP
            | AggregateFunction.VAR_POP
            | AggregateFunction.VAR_SAMP
            | AggregateFunction.SKEWNESS
            | AggregateFunction.KURTOSIS
            | AggregateFunction.COVAR_POP
            | AggregateFunction.COVAR_SAMP
            | AggregateFunction.CORR
        ):
            # Five or six doubles of each group, merged by formulas that round: the rows are as good.
            return None
        case _:
            assert_never(call.function)


def _fits(call: AggregateCall, kind: pa.DataType) -> bool:
    """No sum of decimals of so many rows may leave its type, or it would fail where the whole sum does not."""
    argument = call.arguments[0].type
    return not pa.types.is_decimal128(argument) or argument.precision + _COMBINED_DIGITS <= kind.precision
