"""Spark's comparisons: NaN equals NaN and is greater than any number, -0.0 equals 0.0, strings compare by bytes."""

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import FALSE
from tidegate.plan.kernels.ordering import compare_nested, is_orderable
from tidegate.plan.kernels.values import Kernel, Value, run_if_valid, unsupported

Compare = Callable[[Value, Value], Value]


def build_comparison(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    left, right = arguments
    apply = comparison_of(call.function, left.type, right.type)

    def run(rows: pa.RecordBatch) -> Value:
        first = left.run(rows)
        return apply(first, run_if_valid(right, rows, first))

    return Kernel(run, pa.bool_(), raises=left.raises or right.raises)


def build_null_safe_equal(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    left, right = arguments
    equal = equality(call, left.type, right.type)

    def run(rows: pa.RecordBatch) -> Value:
        first, second = left.run(rows), right.run(rows)
        both_null = pc.and_(pc.is_null(first), pc.is_null(second))
        return pc.or_(pc.fill_null(equal(first, second), FALSE), both_null)

    return Kernel(run, pa.bool_(), raises=left.raises or right.raises)


def equality(call: Call, left: pa.DataType, right: pa.DataType) -> Compare:
    _require_comparable(call.function, left, right)
    if pa.types.is_nested(left):
        return partial(compare_nested, "EqualTo")
    return _equal_floats if pa.types.is_floating(left) else pc.equal


def comparison_of(function: str, left: pa.DataType, right: pa.DataType) -> Compare:
    _require_comparable(function, left, right)
    if pa.types.is_nested(left):
        return partial(compare_nested, function)
    ordinary, floating = _COMPARISONS[function]
    return floating if pa.types.is_floating(left) else ordinary


def _require_comparable(function: str, left: pa.DataType, right: pa.DataType) -> None:
    if left != right or not is_orderable(left):
        raise unsupported(function, left, right)


def _equal_floats(left: Value, right: Value) -> Value:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: Value, right: Value) -> Value:
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


_COMPARISONS: Mapping[str, tuple[Compare, Compare]] = {
    "EqualTo": (pc.equal, _equal_floats),
    "LessThan": (pc.less, _less_floats),
    "LessThanOrEqual": (pc.less_equal, lambda left, right: pc.invert(_less_floats(right, left))),
    "GreaterThan": (pc.greater, lambda left, right: _less_floats(right, left)),
    "GreaterThanOrEqual": (pc.greater_equal, lambda left, right: pc.invert(_less_floats(left, right))),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_COMPARISONS, build_comparison),
    "EqualNullSafe": build_null_safe_equal,
}
