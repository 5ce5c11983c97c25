"""Spark's arithmetic on integers and floats: ANSI raises, legacy wraps around and gives null for a zero divisor.

Decimal arithmetic stands in `decimals`.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.comparison import comparison_of
from tidegate.plan.kernels.constants import FALSE, constant
from tidegate.plan.kernels.interval_arithmetic import DURATION, build_exact
from tidegate.plan.kernels.values import (
    Kernel,
    Value,
    any_true,
    array_of,
    as_array,
    numpy_of,
    run_if_valid,
    unsupported,
)

_SPARK_NAMES = {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long"}


def build_binary(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Add, Subtract, Multiply: the right side is skipped where the left is null."""
    if call.type == DURATION:
        return build_exact(call, arguments)
    _require_numbers(call, arguments)
    left, right = arguments
    wrapping, checked = _BINARY[call.function]
    overflows = call.ansi and pa.types.is_integer(call.type)
    apply = _checked(checked, call) if overflows else wrapping

    def run(rows: pa.RecordBatch) -> Value:
        first = left.run(rows)
        return apply(first, run_if_valid(right, rows, first))

    return Kernel(run, call.type, raises=overflows or left.raises or right.raises)


def build_unary(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """UnaryMinus, Abs."""
    if call.type == DURATION:
        return build_exact(call, arguments)
    _require_numbers(call, arguments)
    (child,) = arguments
    wrapping, checked = _UNARY[call.function]
    overflows = call.ansi and pa.types.is_integer(call.type)
    apply = _checked(checked, call) if overflows else wrapping
    return Kernel(lambda rows: apply(child.run(rows)), call.type, raises=overflows or child.raises)


def build_division(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Divide, IntegralDivide, Remainder, Pmod: Spark looks at the divisor first and may skip the dividend."""
    _require_numbers(call, arguments)
    if call.function == "Divide" and not pa.types.is_floating(call.type):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    dividend, divisor = arguments
    zero = constant(0, divisor.type)
    null = constant(None, divisor.type)
    apply = _DIVISIONS[call.function, pa.types.is_floating(call.type)]
    never_zero = divisor.constant is not None and divisor.constant.is_valid and divisor.constant.as_py() != 0
    error = "REMAINDER_BY_ZERO" if call.function in ("Remainder", "Pmod") else "DIVIDE_BY_ZERO"
    overflows = call.ansi and call.function == "IntegralDivide"

    def run(rows: pa.RecordBatch) -> Value:
        right = divisor.run(rows)
        if never_zero:
            left = dividend.run(rows)
        elif call.ansi:
            left = run_if_valid(dividend, rows, right)
            is_zero = pc.equal(right, zero)
            if any_true(is_zero):
                if any_true(pc.and_(is_zero, pc.is_valid(left))):
                    raise UserCodeFailure(_sentence(error, "a divisor is zero", call))
                right = pc.if_else(is_zero, null, right)
        else:
            right = pc.if_else(pc.equal(right, zero), null, right)
            left = run_if_valid(dividend, rows, right)
        if overflows:
            _check_integral_overflow(left, right, call)
        return apply(left, right, rows.num_rows)

    raises = dividend.raises or divisor.raises or (call.ansi and not never_zero) or _may_overflow(overflows, divisor)
    return Kernel(run, call.type, raises=raises)


def build_bitwise(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    if not all(pa.types.is_integer(argument.type) and argument.type == call.type for argument in arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    if len(arguments) == 1:
        (child,) = arguments
        return Kernel(lambda rows: pc.bit_wise_not(child.run(rows)), call.type, raises=child.raises)
    left, right = arguments
    apply = _BITWISE[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        first = left.run(rows)
        return apply(first, run_if_valid(right, rows, first))

    return Kernel(run, call.type, raises=left.raises or right.raises)


def build_extreme(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Greatest, Least: nulls are skipped, and of equal ones the first stays."""
    if pa.types.is_nested(call.type) or any(argument.type != call.type for argument in arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    wins = comparison_of("GreaterThan" if call.function == "Greatest" else "LessThan", call.type, call.type)

    def run(rows: pa.RecordBatch) -> Value:
        best, *others = (as_array(argument.run(rows), rows.num_rows) for argument in arguments)
        for other in others:
            better = pc.or_(best.is_null(), pc.fill_null(wins(other, best), FALSE))
            best = pc.if_else(better, other, best)
        return best

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def normalized(kernel: Kernel) -> Kernel:
    """-0.0 becomes 0.0 and every NaN the same NaN, so that equal floats have equal bytes."""
    zero, nan = constant(0.0, kernel.type), constant(float("nan"), kernel.type)

    def run(rows: pa.RecordBatch) -> Value:
        values = kernel.run(rows)
        values = pc.if_else(pc.equal(values, zero), zero, values)
        return pc.if_else(pc.is_nan(values), nan, values)

    return Kernel(run, kernel.type, raises=kernel.raises)


def build_normalize(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    if not pa.types.is_floating(call.type):
        raise unsupported(call.function, call.type)
    return normalized(arguments[0])


def _require_numbers(call: Call, arguments: tuple[Kernel, ...]) -> None:
    for argument in arguments:
        if argument.type != call.type or not (argument.type in _SPARK_NAMES or pa.types.is_floating(argument.type)):
            raise unsupported(call.function, *(each.type for each in arguments))


def _checked(function: Callable[..., Value], call: Call) -> Callable[..., Value]:
    narrow = call.type.bit_width < 32 and call.function not in ("UnaryMinus", "Abs")
    error = "BINARY_ARITHMETIC_OVERFLOW" if narrow else "ARITHMETIC_OVERFLOW"
    sentence = _sentence(error, f"{_SPARK_NAMES[call.type]} overflow", call)

    def apply(*values: Value) -> Value:
        try:
            return function(*values)
        except pa.ArrowInvalid as overflow:
            raise UserCodeFailure(sentence) from overflow

    return apply


def _sentence(error: str, what: str, call: Call) -> str:
    advice = "filter or guard such rows, or set spark.sql.ansi.enabled to false"
    return f"[{error}] {what} in {call.function}: {advice}."


def _may_overflow(checked: bool, divisor: Kernel) -> bool:
    return checked and (divisor.constant is None or divisor.constant.as_py() == -1)


def _check_integral_overflow(left: Value, right: Value, call: Call) -> None:
    lowest = constant(-(2**63), pa.int64())
    if any_true(pc.and_(pc.equal(right, constant(-1, pa.int64())), pc.equal(left, lowest))):
        raise UserCodeFailure(_sentence("ARITHMETIC_OVERFLOW", "overflow", call))


def _divide_integers(left: Value, right: Value, _length: int) -> Value:
    # Arrow gives 0 for the lowest value divided by -1; Java wraps around, as negation does.
    minus_one = constant(-1, pa.int64())
    if isinstance(right, pa.Scalar) and right.as_py() != -1:
        return pc.divide(left, right)
    return pc.if_else(pc.equal(right, minus_one), pc.negate(left), pc.divide(left, right))


def _remainder_integers(left: Value, right: Value, _length: int) -> Value:
    # Truncating division as in Java; x - (x / -1) * -1 is 0 even where Arrow's quotient of the lowest value is not.
    if not isinstance(right, pa.Scalar) or right.as_py() == -1:
        right = pc.if_else(pc.equal(right, constant(-1, right.type)), constant(1, right.type), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _pmod_integers(left: Value, right: Value, length: int) -> Value:
    if left.type.bit_width < 32:  # Java adds bytes and shorts as ints, which do not wrap around here.
        wide = _pmod_integers(pc.cast(left, pa.int32()), pc.cast(right, pa.int32()), length)
        return pc.cast(wide, left.type)
    remainder = _remainder_integers(left, right, length)
    shifted = _remainder_integers(pc.add(remainder, right), right, length)
    return pc.if_else(pc.less(remainder, constant(0, remainder.type)), shifted, remainder)


def _divide_floats(left: Value, right: Value, _length: int) -> Value:
    return pc.divide(left, right)


def _remainder_floats(left: Value, right: Value, length: int) -> Value:
    first, second = as_array(left, length), as_array(right, length)
    with np.errstate(all="ignore"):
        values = np.fmod(numpy_of(first), numpy_of(second))
    return array_of(values, first.type, nulls_of=_either(first, second))


def _pmod_floats(left: Value, right: Value, length: int) -> Value:
    remainder = _remainder_floats(left, right, length)
    shifted = _remainder_floats(pc.add(remainder, right), right, length)
    return pc.if_else(pc.less(remainder, constant(0, remainder.type)), shifted, remainder)


def _either(first: pa.Array, second: pa.Array) -> pa.Array:
    """Any column that is null where one of the two is."""
    if second.null_count == 0:
        return first
    return second if first.null_count == 0 else pc.add(first, second)


_BINARY: Mapping[str, tuple[Callable[..., Value], Callable[..., Value]]] = {
    "Add": (pc.add, pc.add_checked),
    "Subtract": (pc.subtract, pc.subtract_checked),
    "Multiply": (pc.multiply, pc.multiply_checked),
}
_UNARY: Mapping[str, tuple[Callable[..., Value], Callable[..., Value]]] = {
    "UnaryMinus": (pc.negate, pc.negate_checked),
    "Abs": (pc.abs, pc.abs_checked),
}
_BITWISE: Mapping[str, Callable[..., Value]] = {
    "BitwiseAnd": pc.bit_wise_and,
    "BitwiseOr": pc.bit_wise_or,
    "BitwiseXor": pc.bit_wise_xor,
}
_DIVISIONS: Mapping[tuple[str, bool], Callable[[Value, Value, int], Value]] = {
    ("Divide", True): _divide_floats,
    ("IntegralDivide", False): _divide_integers,
    ("Remainder", False): _remainder_integers,
    ("Remainder", True): _remainder_floats,
    ("Pmod", False): _pmod_integers,
    ("Pmod", True): _pmod_floats,
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_BINARY, build_binary),
    **dict.fromkeys(_UNARY, build_unary),
    **dict.fromkeys(("Divide", "IntegralDivide", "Remainder", "Pmod"), build_division),
    **dict.fromkeys((*_BITWISE, "BitwiseNot"), build_bitwise),
    **dict.fromkeys(("Greatest", "Least"), build_extreme),
    "NormalizeNaNAndZero": build_normalize,
}
