"""Mathematics that every correct machine computes alike: rounding, roots, signs, bits, shifts, factorials.

Exponentials, logarithms and trigonometry are refused: Java's and C's libraries differ in the last bit.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant, constants
from tidegate.plan.kernels.decimal_casts import lowest_bits, rounded_doubles
from tidegate.plan.kernels.text import constant_integer, run_in_order
from tidegate.plan.kernels.values import Kernel, Value, any_true, array_of, as_array, mask_of, numpy_of, unsupported

_DOUBLE, _INT, _LONG = pa.float64(), pa.int32(), pa.int64()
_FACTORIALS = constants([math.factorial(number) for number in range(21)], _LONG)
_DEGREES_TO_RADIANS = 0.017453292519943295
_RADIANS_TO_DEGREES = 57.29577951308232
_LONG_DIGITS = 19
# More of them change no double that has a fraction and is not tiny.
_MOST_DIGITS = 30
_ROUNDINGS: Mapping[str, str] = {"Round": "half_towards_infinity", "BRound": "half_to_even"}


def build_of_double(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Sqrt, Signum, Rint, ToRadians, ToDegrees."""
    (child,) = arguments
    if child.type != _DOUBLE or call.type != _DOUBLE:
        raise unsupported(call.function, child.type)
    apply = _OF_DOUBLE[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        with np.errstate(all="ignore"):
            return array_of(apply(numpy_of(values)), _DOUBLE, nulls_of=values)

    return Kernel(run, _DOUBLE, raises=child.raises)


def build_whole(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Ceil and Floor to a long: 0 for NaN; what does not fit is saturated, or an error in ANSI mode."""
    (child,) = arguments
    if child.type == _LONG:
        return child
    if child.type != _DOUBLE or call.type != _LONG:
        raise unsupported(call.function, child.type)
    apply = np.ceil if call.function == "Ceil" else np.floor

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        whole = apply(numpy_of(values).astype(np.float64))
        above, below, missing = whole >= 2.0**63, whole < -(2.0**63), np.isnan(whole)
        if call.ansi and any_true(pc.and_(mask_of(above | below), values.is_valid())):
            raise UserCodeFailure(
                f"[ARITHMETIC_OVERFLOW] A number does not fit a long in {call.function}: "
                f"filter or guard such rows, or set spark.sql.ansi.enabled to false."
            )
        result = np.where(above | below | missing, 0.0, whole).astype(np.int64)
        result[above], result[below] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        return array_of(result, _LONG, nulls_of=values)

    return Kernel(run, _LONG, raises=call.ansi or child.raises)


def build_round(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Round, BRound of integers and doubles to a constant number of digits."""
    child, given = arguments
    digits = constant_integer(given, call.function, "scale")
    if child.type == _DOUBLE == call.type and 0 <= digits <= _MOST_DIGITS:
        mode = _ROUNDINGS[call.function]
        return Kernel(
            lambda rows: rounded_doubles(as_array(child.run(rows), rows.num_rows), digits, mode),
            _DOUBLE,
            raises=child.raises,
        )
    if not pa.types.is_integer(child.type) or child.type != call.type:
        raise unsupported(f"{call.function} to {digits} digits", child.type)
    return child if digits >= 0 else _round_integers(call, child, digits)


def _round_integers(call: Call, child: Kernel, digits: int) -> Kernel:
    if digits < -_LONG_DIGITS:
        raise unsupported(f"{call.function} to {digits} digits", child.type)
    mode = _ROUNDINGS[call.function]

    def run(rows: pa.RecordBatch) -> Value:
        values = pc.cast(as_array(child.run(rows), rows.num_rows), pa.decimal128(38, 0))
        rounded = pc.round(values, ndigits=digits, round_mode=mode)
        if not call.ansi:
            return pc.cast(lowest_bits(rounded), child.type, safe=False)
        try:
            return pc.cast(rounded, child.type)
        except pa.ArrowInvalid as overflow:
            raise UserCodeFailure(
                f"[ARITHMETIC_OVERFLOW] A rounded number does not fit {child.type} in {call.function}: "
                f"filter or guard such rows, or set spark.sql.ansi.enabled to false."
            ) from overflow

    return Kernel(run, child.type, raises=call.ansi or child.raises)


def build_shift(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """By the lowest five bits of the distance for an int, six for a long, as in Java."""
    child, distance = arguments
    if child.type not in (_INT, _LONG) or distance.type != _INT or child.type != call.type:
        raise unsupported(call.function, child.type, distance.type)
    signed, unsigned = (np.int32, np.uint32) if child.type == _INT else (np.int64, np.uint64)
    kind = unsigned if call.function == "ShiftRightUnsigned" else signed
    shift = np.left_shift if call.function == "ShiftLeft" else np.right_shift

    def run(rows: pa.RecordBatch) -> Value:
        values, by = (as_array(value, rows.num_rows) for value in run_in_order(arguments, rows))
        amount = (numpy_of(by) & (child.type.bit_width - 1)).astype(kind)
        shifted = shift(numpy_of(values).view(kind), amount).view(signed)
        result = array_of(shifted, child.type, nulls_of=values)
        return result if by.null_count == 0 else pc.if_else(by.is_valid(), result, constant(None, child.type))

    return Kernel(run, child.type, raises=child.raises or distance.raises)


def build_bit_count(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Of 64 bits, into which smaller numbers are widened with their sign."""
    (child,) = arguments
    if not pa.types.is_integer(child.type):
        raise unsupported(call.function, child.type)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        wide = numpy_of(values).astype(np.int64).view(np.uint64)
        return array_of(np.bitwise_count(wide).astype(np.int32), _INT, nulls_of=values)

    return Kernel(run, _INT, raises=child.raises)


def build_factorial(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null beyond 20, where a long ends, and below 0."""
    (child,) = arguments
    if child.type != _INT:
        raise unsupported(call.function, child.type)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        known = pc.and_(pc.greater_equal(values, constant(0, _INT)), pc.less_equal(values, constant(20, _INT)))
        return _FACTORIALS.take(pc.if_else(known, values, constant(None, _INT)))

    return Kernel(run, _LONG, raises=child.raises)


def _sign(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    numbers = values.astype(np.float64)
    return np.where((numbers == 0) | np.isnan(numbers), numbers, np.copysign(1.0, numbers))


_OF_DOUBLE: Mapping[str, Callable[..., npt.NDArray[np.generic]]] = {
    "Sqrt": np.sqrt,
    "Rint": np.rint,
    "Signum": _sign,
    "ToRadians": lambda values: values * _DEGREES_TO_RADIANS,
    "ToDegrees": lambda values: values * _RADIANS_TO_DEGREES,
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_OF_DOUBLE, build_of_double),
    **dict.fromkeys(("Ceil", "Floor"), build_whole),
    **dict.fromkeys(_ROUNDINGS, build_round),
    **dict.fromkeys(("ShiftLeft", "ShiftRight", "ShiftRightUnsigned"), build_shift),
    "BitwiseCount": build_bit_count,
    "Factorial": build_factorial,
}
