"""Spark's casts between numbers, booleans, strings and times, by ANSI or legacy rules.

Refused, because Arrow and Java print or parse them differently: floats, decimals and times to and from strings,
decimals to anything but a wider decimal, and times in a zone other than UTC.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Cast
from tidegate.plan.kernels.constants import constant, constants
from tidegate.plan.kernels.nested_casts import nested_conversion
from tidegate.plan.kernels.values import Kernel, Value, any_true, array_of, as_array, numpy_of, unsupported

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_MICROS_PER_S = 1_000_000
_MICROS_PER_DAY = 86_400 * _MICROS_PER_S
_UTC_ZONES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00", "UTC+0", "Etc/UCT", "Zulu", "Etc/Zulu"})
_TIMESTAMP = pa.timestamp("us", "UTC")
_TIMESTAMP_NTZ = pa.timestamp("us")
# What UTF8String.trimAll removes: Java's whitespace and ISO control characters of one byte.
_BLANKS = "".join(map(chr, range(33))) + "\x7f"
_TRUE_WORDS = constants(["t", "true", "y", "yes", "1"], pa.string())
_FALSE_WORDS = constants(["f", "false", "n", "no", "0"], pa.string())
_MOST_DIGITS = constant(30, pa.int32())
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def build_cast(cast: Cast, child: Kernel) -> Kernel:
    if child.type == cast.type:
        return child
    convert, raises = _conversion(cast, child.type)

    def run(rows: pa.RecordBatch) -> Value:
        return convert(as_array(child.run(rows), rows.num_rows))

    return Kernel(run, cast.type, raises=raises or child.raises)


def _conversion(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    """How to convert, and whether that may raise."""
    target = cast.type
    if pa.types.is_nested(source):
        return nested_conversion(cast, source, _conversion)
    if pa.types.is_integer(source):
        return _from_integer(cast, source)
    if pa.types.is_floating(source):
        return _from_float(cast, source)
    if pa.types.is_boolean(source):
        return _from_boolean(cast)
    if source == pa.string():
        return _from_string(cast)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target) and _is_wider(target, source):
        return lambda values: pc.cast(values, target), False
    if pa.types.is_temporal(source):
        return _from_time(cast, source)
    raise _refusal(cast, source)


def _from_integer(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if pa.types.is_integer(target):
        return _between_integers(cast, source)
    if pa.types.is_floating(target):
        return lambda values: pc.cast(values, target, safe=False), False
    if pa.types.is_boolean(target):
        zero = constant(0, source)
        return lambda values: pc.not_equal(values, zero), False
    if target == pa.string():
        return lambda values: pc.cast(values, target), False
    if target == _TIMESTAMP:
        return _seconds_to_timestamp, False
    if pa.types.is_decimal(target) and target.precision - target.scale >= _INTEGER_DIGITS[source.bit_width]:
        return lambda values: pc.cast(values, target), False
    raise _refusal(cast, source)


def _between_integers(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if source.bit_width <= target.bit_width or not cast.ansi:
        return lambda values: pc.cast(values, target, safe=False), False
    sentence = _sentence("CAST_OVERFLOW", cast, source)

    def convert(values: pa.Array) -> pa.Array:
        try:
            return pc.cast(values, target, safe=True)
        except pa.ArrowInvalid as overflow:
            raise UserCodeFailure(sentence) from overflow

    return convert, True


def _from_float(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if pa.types.is_floating(target):
        return lambda values: pc.cast(values, target, safe=False), False
    if pa.types.is_boolean(target):
        zero = constant(0.0, source)
        return lambda values: pc.not_equal(values, zero), False
    if pa.types.is_integer(target):
        if cast.ansi:
            return _float_to_integer_checked(cast, source), True
        return lambda values: _truncated(values, target), False
    raise _refusal(cast, source)


def _float_to_integer_checked(cast: Cast, source: pa.DataType) -> Convert:
    bits = cast.type.bit_width
    lowest, highest = float(-(2 ** (bits - 1))), float(2 ** (bits - 1) - 1)
    sentence = _sentence("CAST_OVERFLOW", cast, source)

    def convert(values: pa.Array) -> pa.Array:
        numbers = numpy_of(values).astype(np.float64, copy=False)
        with np.errstate(all="ignore"):
            fits = (np.floor(numbers) <= highest) & (np.ceil(numbers) >= lowest)
        if values.null_count:
            fits |= numpy_of(pc.cast(values.is_null(), pa.int8())).astype(bool)
        if not fits.all():
            raise UserCodeFailure(sentence)
        return _truncated(values, cast.type)

    return convert


def _truncated(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Java's narrowing: toward zero, NaN is 0, saturated at int (long for a long), then wrapped to short or byte."""
    numbers = numpy_of(values).astype(np.float64, copy=True)
    numbers[np.isnan(numbers)] = 0.0
    wide = np.int64 if target.bit_width == 64 else np.int32
    limits = np.iinfo(wide)
    above, below = numbers >= float(limits.max), numbers <= float(limits.min)
    numbers[above | below] = 0.0
    whole = numbers.astype(wide)
    whole[above], whole[below] = limits.max, limits.min
    exact = pa.int64() if target.bit_width == 64 else pa.int32()
    return pc.cast(array_of(whole, exact, nulls_of=values), target, safe=False)


def _from_boolean(cast: Cast) -> tuple[Convert, bool]:
    target = cast.type
    if pa.types.is_integer(target) or pa.types.is_floating(target) or target == pa.string():
        return lambda values: pc.cast(values, target), False
    raise _refusal(cast, pa.bool_())


def _from_string(cast: Cast) -> tuple[Convert, bool]:
    if pa.types.is_integer(cast.type):
        return _string_to_integer(cast), cast.ansi
    if pa.types.is_boolean(cast.type):
        return _string_to_boolean(cast), cast.ansi
    if cast.type == pa.binary():
        return lambda values: pc.cast(values, pa.binary()), False
    raise _refusal(cast, pa.string())


def _string_to_integer(cast: Cast) -> Convert:
    # Legacy casts cut off a fraction, and take a lone point for 0.
    pattern = r"^[+-]?[0-9]+$" if cast.ansi else r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]*)$"
    limit = constant(2 ** (cast.type.bit_width - 1) - 1, pa.decimal128(38, 0))
    lowest = constant(-(2 ** (cast.type.bit_width - 1)), pa.decimal128(38, 0))

    def convert(values: pa.Array) -> pa.Array:
        text = pc.ascii_trim(values, characters=_BLANKS)
        text = _where(pc.match_substring_regex(text, pattern=pattern), text)
        if not cast.ansi:
            text = pc.replace_substring_regex(text, pattern=r"\.[0-9]*$", replacement="")
        text = pc.replace_substring_regex(text, pattern=r"^(-?)\+?0*([0-9]*)$", replacement=r"\10\2")
        # More than 38 digits would not fit the decimal in between; they fit no integer either.
        text = _where(pc.less_equal(pc.binary_length(text), _MOST_DIGITS), text)
        numbers = pc.cast(text, pa.decimal128(38, 0))
        fits = pc.and_(pc.less_equal(numbers, limit), pc.greater_equal(numbers, lowest))
        return _checked_input(pc.cast(_where(fits, numbers), cast.type), values, cast)

    return convert


def _string_to_boolean(cast: Cast) -> Convert:
    def convert(values: pa.Array) -> pa.Array:
        text = pc.ascii_lower(pc.ascii_trim(values, characters=_BLANKS))
        is_true = pc.is_in(text, value_set=_TRUE_WORDS)
        known = pc.or_(is_true, pc.is_in(text, value_set=_FALSE_WORDS))
        return _checked_input(_where(known, is_true), values, cast)

    return convert


def _checked_input(result: pa.Array, values: pa.Array, cast: Cast) -> pa.Array:
    if cast.ansi and result.null_count > values.null_count:
        bad = values.filter(pc.and_(result.is_null(), values.is_valid()))[0].as_py()
        raise UserCodeFailure(f"{_sentence('CAST_INVALID_INPUT', cast, pa.string())} One of them is {bad!r}.")
    return result


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, values, constant(None, values.type))


def _from_time(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if source == _TIMESTAMP and target == pa.int64():
        return _timestamp_to_seconds, False
    if cast.zone not in _UTC_ZONES:
        raise _refusal(cast, source)
    both = {_TIMESTAMP, _TIMESTAMP_NTZ}
    if source in both and target in both:
        return lambda values: values.view(target), False
    if source in both and target == pa.date32():
        return _timestamp_to_date, False
    if source == pa.date32() and target in both:
        return lambda values: _date_to_timestamp(values, cast), True
    raise _refusal(cast, source)


def _seconds_to_timestamp(values: pa.Array) -> pa.Array:
    """Saturates, as TimeUnit.SECONDS.toMicros does."""
    seconds = numpy_of(values).astype(np.int64, copy=False)
    limits = np.iinfo(np.int64)
    furthest = limits.max // _MICROS_PER_S
    with np.errstate(all="ignore"):
        micros = seconds * _MICROS_PER_S
    micros = np.where(seconds > furthest, limits.max, np.where(seconds < -furthest, limits.min, micros))
    return array_of(micros, _TIMESTAMP, nulls_of=values)


def _timestamp_to_seconds(values: pa.Array) -> pa.Array:
    return array_of(np.floor_divide(numpy_of(values), _MICROS_PER_S), pa.int64(), nulls_of=values)


def _timestamp_to_date(values: pa.Array) -> pa.Array:
    days = np.floor_divide(numpy_of(values), _MICROS_PER_DAY).astype(np.int32)
    return array_of(days, pa.date32(), nulls_of=values)


def _date_to_timestamp(values: pa.Array, cast: Cast) -> pa.Array:
    days = numpy_of(values).astype(np.int64)
    furthest = constant(np.iinfo(np.int64).max // _MICROS_PER_DAY, pa.int64())
    if any_true(pc.greater(pc.abs(pc.cast(values.view(pa.int32()), pa.int64())), furthest)):
        raise UserCodeFailure(_sentence("CAST_OVERFLOW", cast, pa.date32()))
    return array_of(days * _MICROS_PER_DAY, cast.type, nulls_of=values)


def _is_wider(target: pa.DataType, source: pa.DataType) -> bool:
    whole, fraction = target.precision - target.scale, target.scale
    return bool(whole >= source.precision - source.scale and fraction >= source.scale)


def _sentence(error: str, cast: Cast, source: pa.DataType) -> str:
    advice = "filter or guard such rows, or use try_cast in a batch step before"
    return f"[{error}] A {source} does not fit {cast.type}: {advice}."


def _refusal(cast: Cast, source: pa.DataType) -> Exception:
    return unsupported(f"Cast in zone {cast.zone}" if pa.types.is_temporal(source) else "Cast", source, cast.type)
