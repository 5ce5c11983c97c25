"""Casts to and from decimals, as stages that give null for what they cannot convert.

Who builds the cast decides what a null of a stage means: an error in ANSI mode, a null otherwise.
"""

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.kernels.cast_stages import Convert, Stage, total
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.decimals import power_of_ten, rounded_to
from tidegate.plan.kernels.text import per_distinct
from tidegate.plan.kernels.values import any_true, array_of, mask_of, numpy_of

TEXT = pa.string()
# What String.trim removes.
_BLANKS = "".join(map(chr, range(33)))
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_MOST_DIGITS = 38
_BEYOND_ALL_TYPES = rf"^[0-9]{{{_MOST_DIGITS + 1}}}"
_WIDEST = 76
# Doubles from here on are whole numbers.
_NO_FRACTION_FROM = 2.0**53
# Beyond it Java's exponents overflow.
_LARGEST_EXPONENT = 2**31 - 1


def decimal_cast(source: pa.DataType, target: pa.DataType) -> list[Stage] | None:
    """The stages of a cast from or to a decimal, or none if there is no such cast here."""
    if pa.types.is_decimal(target):
        return _to_decimal(source, target)
    return _from_decimal(source, target) if pa.types.is_decimal(source) else None


def _to_decimal(source: pa.DataType, target: pa.DataType) -> list[Stage] | None:
    fit = Stage(lambda values: _fit(values, target), "NUMERIC_VALUE_OUT_OF_RANGE")
    if pa.types.is_decimal(source):
        return [total(_widen(source.precision, source.scale)), fit]
    if pa.types.is_integer(source):
        return [total(lambda values: pc.cast(pc.cast(values, pa.int64()), pa.decimal256(19, 0))), fit]
    if pa.types.is_boolean(source):
        return [total(lambda values: pc.cast(pc.cast(values, pa.int64()), pa.decimal256(19, 0))), fit]
    if pa.types.is_floating(source):
        return [Stage(lambda values: _of_floats(values, target), None), fit]
    if source == TEXT:
        return [
            Stage(lambda values: _plain_texts(values, target), "CAST_INVALID_INPUT"),
            Stage(_of_supported_size, "NUMERIC_OUT_OF_SUPPORTED_RANGE"),
            total(lambda values: pc.cast(values, pa.decimal256(_WIDEST, target.scale + 1))),
            fit,
        ]
    return None


def _from_decimal(source: pa.DataType, target: pa.DataType) -> list[Stage] | None:
    if pa.types.is_boolean(target):
        zero = constant(0, source)
        return [total(lambda values: pc.not_equal(values, zero))]
    if pa.types.is_floating(target):
        # Parsing its text is the one conversion that is rounded correctly.
        return [total(lambda values: pc.cast(pc.cast(values, TEXT), target))]
    return None


def truncated(values: pa.Array) -> pa.Array:
    """A decimal without its fraction, as a decimal of 38 digits."""
    whole = pc.trunc(pc.cast(values, pa.decimal256(_WIDEST, values.type.scale)))
    return pc.cast(pc.cast(whole, pa.decimal256(_WIDEST, 0)), pa.decimal128(_MOST_DIGITS, 0))


def lowest_bits(values: pa.Array) -> pa.Array:
    """The lowest 64 bits of a decimal without fraction."""
    if len(values) == 0:
        return pa.nulls(0, pa.int64())
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    return array_of(words[values.offset : values.offset + len(values), 0], pa.int64(), nulls_of=values)


def plain_text(values: pa.Array) -> pa.Array:
    """Without an exponent, and with all digits of its scale."""
    digits = unscaled_text(values)
    scale = values.type.scale
    if scale == 0:
        return digits
    padded = pc.replace_substring_regex(
        pc.utf8_lpad(pc.ascii_ltrim(digits, characters="-"), width=scale + 1, padding="0"),
        pattern=rf"^([0-9]*)([0-9]{{{scale}}})$",
        replacement=r"\1.\2",
    )
    sign = pc.if_else(pc.starts_with(digits, pattern="-"), constant("-", TEXT), constant("", TEXT))
    return pc.binary_join_element_wise(sign, padded, constant("", TEXT))


def unscaled_text(values: pa.Array) -> pa.Array:
    whole = pa.Array.from_buffers(
        pa.decimal128(_MOST_DIGITS, 0), len(values), values.buffers(), values.null_count, values.offset
    )
    return pc.cast(whole, TEXT)


def _widen(precision: int, scale: int) -> Convert:
    # One more digit, for what is carried when it is rounded.
    type_ = pa.decimal256(precision + 1, scale)
    return lambda values: pc.cast(values, type_)


def _fit(values: pa.Array, target: pa.DataType) -> pa.Array:
    rounded, fits = rounded_to(values, target)
    return pc.cast(pc.if_else(fits, rounded, pa.nulls(1, rounded.type)[0]), target)


def _of_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    """By the decimal that Java prints for it: the shortest one. NaN and the infinities have none."""
    doubles = pc.cast(values, pa.float64())
    size = np.abs(numpy_of(doubles).astype(np.float64))
    whole = target.precision - target.scale
    type_ = pa.decimal256(_WIDEST, target.scale + 19)
    # Too large for the target, or too small to leave a digit: both are known without their digits.
    is_large, is_small = size >= float(10**whole), size < 10.0 ** -(target.scale + 2)
    ordinary = mask_of(np.isfinite(size) & ~is_large & ~is_small)
    exact = pc.cast(pc.cast(pc.if_else(ordinary, doubles, constant(0.0, pa.float64())), TEXT), type_)
    exact = pc.if_else(mask_of(is_large), power_of_ten(whole, type_), exact)
    known = pc.and_(mask_of(np.isfinite(size)), values.is_valid())
    return pc.if_else(known, exact, pa.nulls(1, type_)[0])


def rounded_doubles(values: pa.Array, digits: int, mode: str) -> pa.Array:
    """Rounds the decimal that Java prints for each; NaN, the infinities and numbers without a fraction stay."""
    size = np.abs(numpy_of(values).astype(np.float64))
    is_small = size < 10.0 ** -(digits + 2)
    ordinary = mask_of((size < _NO_FRACTION_FROM) & ~is_small)
    zero = constant(0.0, pa.float64())
    exact = pc.cast(pc.cast(pc.if_else(ordinary, values, zero), TEXT), pa.decimal256(_WIDEST, digits + 19))
    rounded = pc.cast(pc.cast(pc.round(exact, ndigits=digits, round_mode=mode), TEXT), pa.float64())
    result = pc.if_else(ordinary, rounded, pc.if_else(mask_of(is_small), zero, values))
    return pc.if_else(values.is_valid(), result, constant(None, pa.float64()))


def _plain_texts(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Plain digits, one more than the target has, which is enough to round; what is too large stays too large."""
    text = pc.utf8_trim(values, characters=_BLANKS)
    simple = rf"^[+-]?(?:[0-9]{{1,36}}(?:\.[0-9]{{0,{target.scale}}})?|\.[0-9]{{1,{max(target.scale, 1)}}})$"
    is_simple = pc.match_substring_regex(text, pattern=simple)
    if not any_true(pc.invert(is_simple)):
        return text
    plain = per_distinct(pc.if_else(is_simple, pa.nulls(1, TEXT)[0], text), lambda each: _plain(each, target))
    return pc.if_else(is_simple, text, plain)


def _of_supported_size(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(texts, pattern=_BEYOND_ALL_TYPES), pa.nulls(1, TEXT)[0], texts)


def _plain(text: str, target: pa.DataType) -> str | None:
    """The same number as plain digits, cut behind the digit that decides the rounding."""
    found = _NUMBER.fullmatch("".join(map(_ascii_digit, text)))
    if found is None or not (found.group(2) or found.group(3)):
        return None
    sign, whole, fraction, exponent = found.group(1), found.group(2), found.group(3) or "", int(found.group(4) or 0)
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    digits, point = (whole + fraction).lstrip("0"), len((whole + fraction).lstrip("0")) - len(fraction) + exponent
    if not digits:
        return "0"
    if point > _MOST_DIGITS:
        return "1" + "0" * _MOST_DIGITS
    if point > target.precision - target.scale:
        return f"{sign}1{'0' * (target.precision - target.scale)}"
    if point < -target.scale:
        return "0"
    padded = digits.rjust(len(digits) - min(point, 0), "0") if point <= 0 else digits.ljust(point, "0")
    before = padded[: max(point, 0)] or "0"
    return f"{sign}{before}.{padded[max(point, 0) :][: target.scale + 1] or '0'}"


def _ascii_digit(character: str) -> str:
    """Java takes every decimal digit of Unicode's first plane."""
    if ord(character) < 0x80 or ord(character) > 0xFFFF or unicodedata.category(character) != "Nd":
        return character
    return str(unicodedata.decimal(character))
