"""Spark's decimal arithmetic: exact, then rounded half up to the type that Spark gave the result.

What does not fit that type raises in ANSI mode and is null otherwise. Sums and products run in Arrow's 256 bits;
where those may be too few, and for quotients, on Python integers in numpy's loops.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import TRUE, constant
from tidegate.plan.kernels.text import constant_integer, run_in_order
from tidegate.plan.kernels.values import Kernel, Value, any_true, array_of, as_array, mask_of, unsupported

_WIDEST = 76
# Java's quotients have this scale before they are rounded to the result's.
_QUOTIENT_SCALE = 39
_SCALA_DIGITS = 34
Objects = npt.NDArray[np.object_]


def build_sum_or_product(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Add, Subtract, Multiply."""
    left, right = _operands(call, arguments)
    if call.function == "Multiply":
        digits, scale = left.precision + right.precision + 1, left.scale + right.scale
        widths = (left, right)
    else:
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        digits = whole + scale + 1
        widths = (_decimal256(whole + scale, scale),) * 2
    fits_arrow = digits < _WIDEST and all(width.precision <= _WIDEST for width in widths)
    by_arrow, by_objects = _SUMS[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        first, second = (as_array(value, rows.num_rows) for value in run_in_order(arguments, rows))
        if fits_arrow:
            wide = [
                pc.cast(value, _decimal256(w.precision, w.scale))
                for value, w in zip((first, second), widths, strict=True)
            ]
            return fitted(by_arrow(*wide), call)
        if call.function == "Multiply":
            exact = by_objects(unscaled(first), unscaled(second))
        else:
            exact = by_objects(_at_scale(first, scale), _at_scale(second, scale))
        return _fitted_objects(exact, scale, _nulls_of_both(first, second), call)

    return Kernel(run, call.type, raises=call.ansi or any(argument.raises for argument in arguments))


def build_division(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Divide, Remainder, Pmod, IntegralDivide: the divisor is looked at first."""
    left, right = _operands(call, arguments)
    dividend, divisor = arguments
    zero = constant(0, right)
    error = "REMAINDER_BY_ZERO" if call.function in ("Remainder", "Pmod") else "DIVIDE_BY_ZERO"
    scale = max(left.scale, right.scale)

    def run(rows: pa.RecordBatch) -> Value:
        second, first = (as_array(value, rows.num_rows) for value in run_in_order((divisor, dividend), rows))
        is_zero = pc.equal(second, zero)
        if call.ansi and any_true(pc.and_(is_zero, first.is_valid())):
            raise UserCodeFailure(_sentence(error, "a divisor is zero", call))
        second = pc.if_else(is_zero, constant(None, right), second)
        nulls = _nulls_of_both(first, second)
        if call.function == "Divide":
            divided, by = unscaled(first), unscaled(second)
            shift = _QUOTIENT_SCALE + right.scale - left.scale
            exact = _half_up(divided * 10**shift, _no_zeros(by))
            return _fitted_objects(exact, _QUOTIENT_SCALE, nulls, call)
        divided, by = _at_scale(first, scale), _no_zeros(_at_scale(second, scale))
        if call.function == "IntegralDivide":
            return _integral(_quotient(divided, by), nulls, call)
        remainder = divided - _quotient(divided, by) * by
        if call.function == "Pmod":
            added = remainder + by
            remainder = np.where(remainder < 0, added - _quotient(added, by) * by, remainder)
        return _fitted_objects(remainder, scale, nulls, call)

    return Kernel(run, call.type, raises=call.ansi or any(argument.raises for argument in arguments))


def build_sign(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """UnaryMinus, Abs: a decimal's range is the same on both sides of zero.

    Spark rounds more digits than Scala's decimals have: such types are refused.
    """
    (child,) = arguments
    if child.type != call.type or child.type.precision > _SCALA_DIGITS:
        raise unsupported(call.function, child.type)
    apply = pc.negate if call.function == "UnaryMinus" else pc.abs
    return Kernel(lambda rows: apply(child.run(rows)), call.type, raises=child.raises)


def build_round(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Round, BRound, RoundCeil, RoundFloor at a constant scale; Ceil and Floor at 0."""
    child, *given = arguments
    if not pa.types.is_decimal(call.type):
        raise unsupported(call.function, child.type)
    digits = constant_integer(given[0], call.function, "scale") if given else 0
    mode = _ROUNDINGS[call.function]
    # One digit more than the value may have, for what is carried.
    wide = _decimal256(min(child.type.precision + 2 + max(-digits, 0), _WIDEST), child.type.scale)

    def run(rows: pa.RecordBatch) -> Value:
        values = pc.cast(as_array(child.run(rows), rows.num_rows), wide)
        if digits < child.type.scale:
            values = pc.round(values, ndigits=digits, round_mode=mode)
        return fitted(values, call)

    return Kernel(run, call.type, raises=call.ansi or child.raises)


def build_check_overflow(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    null_on_overflow = call.setting("nullOnOverflow")
    if null_on_overflow is None or not pa.types.is_decimal(child.type):
        raise unsupported(call.function, child.type)
    raising = Call(call.function, call.arguments, call.type, ansi=null_on_overflow == "false")

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        return fitted(pc.cast(values, _decimal256(_WIDEST, child.type.scale)), raising)

    return Kernel(run, call.type, raises=raising.ansi or child.raises)


def fitted(values: pa.Array, call: Call) -> pa.Array:
    """Rounded half up to the call's type; what has too many digits raises or is null."""
    rounded, fits = rounded_to(values, call.type)
    if not any_true(pc.invert(fits)):
        return pc.cast(rounded, call.type)
    if call.ansi:
        raise UserCodeFailure(_sentence("NUMERIC_VALUE_OUT_OF_RANGE", f"a result does not fit {call.type}", call))
    return pc.cast(pc.if_else(fits, rounded, pa.nulls(1, rounded.type)[0]), call.type)


def rounded_to(values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Rounded half up to the type's scale, still in the wide type; and which rows fit the type's precision."""
    if values.type.scale > type_.scale:
        values = pc.round(values, ndigits=type_.scale, round_mode="half_towards_infinity")
    whole = type_.precision - type_.scale
    if values.type.precision - values.type.scale <= whole:
        return values, mask_of(np.ones(len(values), bool))
    return values, pc.fill_null(pc.less(pc.abs(values), power_of_ten(whole, values.type)), TRUE)


def power_of_ten(exponent: int, type_: pa.DataType) -> pa.Scalar:
    """In a decimal of 256 bits."""
    data = (10 ** (exponent + type_.scale)).to_bytes(32, "little")
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(data)])[0]


def unscaled(values: pa.Array) -> Objects:
    """The digits as Python integers, 0 for a null."""
    filled = pc.fill_null(values, constant(0, values.type)) if values.null_count else values
    words = np.frombuffer(filled.buffers()[1], np.uint64).reshape(-1, 2)[filled.offset : filled.offset + len(filled)]
    high = words[:, 1].astype(np.int64).astype(object)
    return np.asarray(high * 2**64 + words[:, 0].astype(object), object)


def decimals(values: Objects, type_: pa.DataType, *, nulls_of: pa.Array) -> pa.Array:
    """A column of unscaled integers that fit the type."""
    data = b"".join([int(value).to_bytes(16, "little", signed=True) for value in values])
    column = pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])
    return column if nulls_of.null_count == 0 else pc.if_else(nulls_of.is_valid(), column, constant(None, type_))


def _fitted_objects(values: Objects, scale: int, nulls_of: pa.Array, call: Call) -> pa.Array:
    if scale > call.type.scale:
        values = _half_up(values, np.full(len(values), 10 ** (scale - call.type.scale), object))
    elif scale < call.type.scale:
        values = values * 10 ** (call.type.scale - scale)
    overflows = np.abs(values) >= 10**call.type.precision
    overflows = overflows.astype(bool)
    if call.ansi and any_true(pc.and_(mask_of(overflows), nulls_of.is_valid())):
        raise UserCodeFailure(_sentence("NUMERIC_VALUE_OUT_OF_RANGE", f"a result does not fit {call.type}", call))
    result = decimals(np.where(overflows, 0, values), call.type, nulls_of=nulls_of)
    if not overflows.any():
        return result
    return pc.if_else(mask_of(overflows), constant(None, call.type), result)


def _integral(values: Objects, nulls_of: pa.Array, call: Call) -> pa.Array:
    """A long, of the lowest 64 bits."""
    if call.type != pa.int64():
        raise unsupported(call.function, call.type)
    if call.ansi and bool(np.any((values >= 2**63) | (values < -(2**63)))):
        raise UserCodeFailure(_sentence("ARITHMETIC_OVERFLOW", "overflow", call))
    wrapped = (values & (2**64 - 1)).astype(np.uint64).view(np.int64)
    return array_of(wrapped, pa.int64(), nulls_of=nulls_of)


def _at_scale(values: pa.Array, scale: int) -> Objects:
    return np.asarray(unscaled(values) * 10 ** (scale - values.type.scale), object)


def _no_zeros(values: Objects) -> Objects:
    """Zeros stand only where the result is null anyway."""
    return np.where(values == 0, 1, values)


def _quotient(left: Objects, right: Objects) -> Objects:
    """Toward zero."""
    size = np.abs(left) // np.abs(right)
    return np.where((left < 0) != (right < 0), -size, size)


def _half_up(left: Objects, right: Objects) -> Objects:
    size = (2 * np.abs(left) + np.abs(right)) // (2 * np.abs(right))
    return np.asarray(np.where((left < 0) != (right < 0), -size, size), object)


def _nulls_of_both(first: pa.Array, second: pa.Array) -> pa.Array:
    if second.null_count == 0:
        return first
    return second if first.null_count == 0 else pc.if_else(first.is_valid(), second, constant(None, second.type))


def _operands(call: Call, arguments: tuple[Kernel, ...]) -> tuple[pa.DataType, pa.DataType]:
    left, right = (argument.type for argument in arguments)
    is_long = call.function == "IntegralDivide" and call.type == pa.int64()
    if not (pa.types.is_decimal(left) and pa.types.is_decimal(right) and (pa.types.is_decimal(call.type) or is_long)):
        raise unsupported(call.function, left, right)
    return left, right


def _decimal256(precision: int, scale: int) -> pa.DataType:
    return pa.decimal256(min(precision, _WIDEST), scale)


def _sentence(error: str, what: str, call: Call) -> str:
    advice = "filter or guard such rows, cast to a wider decimal, or set spark.sql.ansi.enabled to false"
    return f"[{error}] {what} in {call.function}: {advice}."


_SUMS: Mapping[str, tuple[Callable[..., pa.Array], Callable[[Objects, Objects], Objects]]] = {
    "Add": (pc.add, lambda left, right: left + right),
    "Subtract": (pc.subtract, lambda left, right: left - right),
    "Multiply": (pc.multiply, lambda left, right: left * right),
}
_ROUNDINGS: Mapping[str, str] = {
    "Round": "half_towards_infinity",
    "BRound": "half_to_even",
    "RoundCeil": "up",
    "Ceil": "up",
    "RoundFloor": "down",
    "Floor": "down",
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_SUMS, build_sum_or_product),
    **dict.fromkeys(("Divide", "Remainder", "Pmod", "IntegralDivide"), build_division),
    **dict.fromkeys(("UnaryMinus", "Abs"), build_sign),
    **dict.fromkeys(_ROUNDINGS, build_round),
    "CheckOverflow": build_check_overflow,
}
