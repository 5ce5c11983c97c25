"""Spark's casts between numbers, booleans, strings and times, by ANSI or legacy rules.

What has to do with decimals, with times and with texts of both stands in modules of its own. Refused: texts to
timestamps without a zone.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.plan.expressions import Cast
from tidegate.plan.kernels.cast_stages import Convert, Stage, may_fail, quiet, raising, total
from tidegate.plan.kernels.constants import constant, constants
from tidegate.plan.kernels.decimal_casts import decimal_cast, lowest_bits, plain_text, truncated
from tidegate.plan.kernels.nested_casts import nested_conversion
from tidegate.plan.kernels.text import require_utf8
from tidegate.plan.kernels.text_casts import earlier_double_texts, text_cast
from tidegate.plan.kernels.time_casts import between_times
from tidegate.plan.kernels.values import Kernel, Value, array_of, as_array, mask_of, numpy_of, unsupported
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.parsing.text_values import timestamp_reading

_MICROS_PER_S = 1_000_000
_UTC_ZONES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00", "UTC+0", "Etc/UCT", "Zulu", "Etc/Zulu"})
_TIMESTAMP = pa.timestamp("us", "UTC")
_TIMESTAMP_NTZ = pa.timestamp("us")
# What UTF8String.trimAll removes: Java's whitespace and ISO control characters of one byte.
_BLANKS = "".join(map(chr, range(33))) + "\x7f"
_TRUE_WORDS = constants(["t", "true", "y", "yes", "1"], pa.string())
_FALSE_WORDS = constants(["f", "false", "n", "no", "0"], pa.string())
_MOST_DIGITS = constant(30, pa.int32())


def build_cast(cast: Cast, child: Kernel) -> Kernel:
    if child.type == cast.type:
        return child
    convert, raises = _conversion(cast, child.type)
    return _kernel(cast, child, convert, raises=raises)


def build_try_cast(cast: Cast, child: Kernel) -> Kernel:
    """By the rules of ANSI mode, with a null where that would raise."""
    if child.type == cast.type:
        return child
    strict = replace(cast, ansi=True)
    stages = _stages(strict, child.type)
    if stages is not None:
        return _kernel(cast, child, quiet(stages), raises=False)
    convert, raises = _conversion(strict, child.type)
    if raises:
        raise unsupported("Cast in TRY mode", child.type, cast.type)
    return _kernel(cast, child, convert, raises=False)


def _kernel(cast: Cast, child: Kernel, convert: Convert, *, raises: bool) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        return convert(as_array(child.run(rows), rows.num_rows))

    return Kernel(run, cast.type, raises=raises or child.raises)


def _stages(cast: Cast, source: pa.DataType) -> list[Stage] | None:
    """For casts that mean the same in both modes, but for the error; none for those that do not."""
    target = cast.type
    if source == pa.string() and pa.types.is_integer(target):
        return [Stage(_string_to_integer(cast), "CAST_INVALID_INPUT")]
    if source == pa.string() and pa.types.is_boolean(target):
        return [Stage(_string_to_boolean, "CAST_INVALID_INPUT")]
    if cast.ansi and pa.types.is_integer(target):
        return _to_integer_strictly(source, target)
    if pa.types.is_decimal(source) and target == pa.string():
        return [total(plain_text if cast.ansi else lambda values: pc.cast(values, target))]
    if source == _TIMESTAMP and target == pa.string() and cast.zone in _UTC_ZONES:
        return [total(lambda values: values.view(_TIMESTAMP_NTZ)), *(text_cast(_TIMESTAMP_NTZ, target) or [])]
    if source == _TIMESTAMP and target == pa.string():
        to_local = between_times(replace(cast, type=_TIMESTAMP_NTZ), source)
        assert to_local is not None, "a timestamp can lose its zone"
        return [total(to_local[0]), *(text_cast(_TIMESTAMP_NTZ, target) or [])]
    if source == pa.string() and target == _TIMESTAMP:
        return [Stage(lambda values: _string_to_timestamp(values, cast.zone), "CAST_INVALID_INPUT")]
    if source == _TIMESTAMP and target == pa.float64():
        return [total(_timestamp_to_double)]
    if cast.digits is Digits.EARLIER and source == pa.float64() and target == pa.string():
        return [total(earlier_double_texts)]
    return decimal_cast(source, target) or text_cast(source, target)


def _to_integer_strictly(source: pa.DataType, target: pa.DataType) -> list[Stage] | None:
    if pa.types.is_integer(source) and source.bit_width > target.bit_width:
        return [Stage(lambda values: _fitting_integers(values, target), "CAST_OVERFLOW")]
    if pa.types.is_floating(source):
        return [Stage(lambda values: _fitting_floats(values, target), "CAST_OVERFLOW")]
    if pa.types.is_decimal(source):
        return [total(truncated), Stage(lambda values: _fitting_integers(values, target), "CAST_OVERFLOW")]
    return None


def _conversion(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    """How to convert, and whether that may raise."""
    target = cast.type
    if pa.types.is_nested(source):
        return nested_conversion(cast, source, _conversion)
    stages = _stages(cast, source)
    if stages is not None:
        return (raising(stages, cast, source), may_fail(stages)) if cast.ansi else (quiet(stages), False)
    if pa.types.is_integer(source):
        return _from_integer(cast, source)
    if pa.types.is_floating(source):
        return _from_float(cast, source)
    if pa.types.is_boolean(source):
        return _from_boolean(cast)
    if source == pa.string():
        return _from_string(cast)
    if pa.types.is_decimal(source) and pa.types.is_integer(target):
        return lambda values: pc.cast(lowest_bits(truncated(values)), target, safe=False), False
    if pa.types.is_temporal(source):
        return _from_time(cast, source)
    raise _refusal(cast, source)


def _from_integer(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if pa.types.is_integer(target):
        return lambda values: pc.cast(values, target, safe=False), False
    if pa.types.is_floating(target):
        return lambda values: pc.cast(values, target, safe=False), False
    if pa.types.is_boolean(target):
        zero = constant(0, source)
        return lambda values: pc.not_equal(values, zero), False
    if target == pa.string():
        return lambda values: pc.cast(values, target), False
    if target == _TIMESTAMP:
        return _seconds_to_timestamp, False
    raise _refusal(cast, source)


def _fitting_integers(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Null for what is beyond the target's range; of integers or decimals without a fraction."""
    lowest, highest = (constant(limit, values.type) for limit in _limits(target))
    fits = pc.and_(pc.greater_equal(values, lowest), pc.less_equal(values, highest))
    return pc.cast(_where(fits, values), target)


def _fitting_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Null for what is beyond the target's range once its fraction is cut off, and for NaN."""
    lowest, highest = map(float, _limits(target))
    numbers = numpy_of(values).astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        fits = (np.floor(numbers) <= highest) & (np.ceil(numbers) >= lowest)
    return _where(mask_of(fits), _truncated(values, target))


def _limits(target: pa.DataType) -> tuple[int, int]:
    return -(2 ** (target.bit_width - 1)), 2 ** (target.bit_width - 1) - 1


def _from_float(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if pa.types.is_floating(target):
        return lambda values: pc.cast(values, target, safe=False), False
    if pa.types.is_boolean(target):
        zero = constant(0.0, source)
        return lambda values: pc.not_equal(values, zero), False
    if pa.types.is_integer(target):
        return lambda values: _truncated(values, target), False
    raise _refusal(cast, source)


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
        return pc.cast(_where(fits, numbers), cast.type)

    return convert


def _string_to_boolean(values: pa.Array) -> pa.Array:
    text = pc.ascii_lower(pc.ascii_trim(values, characters=_BLANKS))
    is_true = pc.is_in(text, value_set=_TRUE_WORDS)
    known = pc.or_(is_true, pc.is_in(text, value_set=_FALSE_WORDS))
    return _where(known, is_true)


def _string_to_timestamp(values: pa.Array, zone: str) -> pa.Array:
    """As the json reader takes the same text; a time without a date is refused, as it would mean today's."""
    require_utf8(values, "Cast")
    try:
        return timestamp_reading(_TIMESTAMP, zone=zone).column(values).values
    except Damaged as unknown:
        raise UserCodeFailure(str(unknown)) from unknown


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, values, constant(None, values.type))


def _from_time(cast: Cast, source: pa.DataType) -> tuple[Convert, bool]:
    target = cast.type
    if source == _TIMESTAMP and target == pa.int64():
        return _timestamp_to_seconds, False
    conversion = between_times(cast, source)
    if conversion is None:
        raise _refusal(cast, source)
    return conversion


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


def _timestamp_to_double(values: pa.Array) -> pa.Array:
    return array_of(numpy_of(values).astype(np.int64) / float(_MICROS_PER_S), pa.float64(), nulls_of=values)


def _refusal(cast: Cast, source: pa.DataType) -> Exception:
    return unsupported(f"Cast in zone {cast.zone}" if pa.types.is_temporal(source) else "Cast", source, cast.type)
