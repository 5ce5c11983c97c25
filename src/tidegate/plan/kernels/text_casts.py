"""Casts between texts and floats, dates, timestamps and binaries.

Floats are printed as Java 19 and newer do, by the shortest digits; doubles also as before, which is slower.
"""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.kernels.cast_stages import Stage, total
from tidegate.plan.kernels.constants import FALSE, constant
from tidegate.plan.kernels.text import per_distinct, strings
from tidegate.plan.kernels.values import any_true, array_of, mask_of, numpy_of
from tidegate.plan.parsing.java_doubles import Digits, double_text

TEXT, BOOL = pa.string(), pa.bool_()
_JAVA_BLANKS = "".join(map(chr, range(33)))
# What UTF8String.trimAll removes.
_SPARK_BLANKS = _JAVA_BLANKS + "\x7f"
_NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?[fFdD]?$"
_WORDS = {
    "inf": ["inf", "+inf", "infinity", "+infinity"],
    "-inf": ["-inf", "-infinity"],
    "nan": ["nan"],
}
_HEXADECIMAL = re.compile(r"([+-]?)0[xX](?=\.?[0-9a-fA-F])([0-9a-fA-F]*)(?:\.([0-9a-fA-F]*))?[pP]([+-]?[0-9]+)[fFdD]?")
# Beyond it every number of so few digits is 0 or infinite.
_FURTHEST_POWER = 5000
_DATE = (
    r"(?s)^(?P<sign>[+-]?)(?P<year>[0-9]{4,7})"
    r"(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?$"
)
# Days of 0000-01-01 and 10000-01-01: Arrow prints what lies between as Java does.
_FIRST_PLAIN_DAY, _PLAIN_DAYS_END = -719_528, 2_932_897
_MICROS_PER_DAY = 86_400_000_000


def text_cast(source: pa.DataType, target: pa.DataType) -> list[Stage] | None:
    """The stages of a cast from or to a text, or none if there is no such cast here."""
    if source == TEXT and pa.types.is_floating(target):
        return [Stage(lambda values: _floats(values, target), "CAST_INVALID_INPUT")]
    if source == TEXT and target == pa.date32():
        return [Stage(_dates, "CAST_INVALID_INPUT")]
    if source == pa.binary() and target == TEXT:
        # The bytes as they are, as Spark keeps them, UTF-8 or not.
        return [total(lambda values: pc.cast(values, TEXT, safe=False))]
    if target == TEXT and pa.types.is_floating(source):
        return [total(_float_texts)]
    if source == pa.date32() and target == TEXT:
        return [total(_date_texts)]
    if source == pa.timestamp("us") and target == TEXT:
        return [total(_timestamp_texts)]
    return None


def _floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    text = pc.utf8_trim(values, characters=_JAVA_BLANKS)
    is_number = pc.match_substring_regex(text, pattern=_NUMBER)
    null = constant(None, TEXT)
    if any_true(pc.invert(is_number)):
        others = per_distinct(pc.if_else(is_number, null, text), _special)
        text = pc.if_else(is_number, text, others)
    digits = pc.replace_substring_regex(text, pattern="^([^a-z]+)[fFdD]$", replacement=r"\1")
    return pc.cast(digits, target)


def _special(text: str) -> str | None:
    """NaN and the infinities as Arrow reads them; nothing for what is no number."""
    if text in ("+NaN", "-NaN"):
        return "nan"
    if _HEXADECIMAL.fullmatch(text):
        return _of_hexadecimal(text)
    lower = text.lower() if text.isascii() else text
    return next((name for name, words in _WORDS.items() if lower in words), None)


def _of_hexadecimal(text: str) -> str:
    """The same number in decimal digits, all of them."""
    found = _HEXADECIMAL.fullmatch(text)
    assert found is not None, "only called for what matches"
    sign, whole, fraction, exponent = found.group(1), found.group(2), found.group(3) or "", int(found.group(4))
    digits = int(whole + fraction, 16)
    power = exponent - 4 * len(fraction)
    if abs(power) > _FURTHEST_POWER or not digits:
        return f"{sign}1e999" if digits and power > 0 else f"{sign}0"
    return f"{sign}{digits * 2**power}" if power >= 0 else f"{sign}{digits * 5**-power}e{power}"


def _dates(values: pa.Array) -> pa.Array:
    parts = pc.extract_regex(pc.utf8_trim(values, characters=_SPARK_BLANKS), pattern=_DATE)
    sign, year, month, day = (pc.struct_field(parts, index) for index in range(4))
    years = numpy_of(_integers(year, "1")).astype(np.int64)
    years = np.where(_is_minus(sign), -years, years)
    months, days = (numpy_of(_integers(part, "1")).astype(np.int64) for part in (month, day))
    first = ((years - 1970) * 12 + np.clip(months, 1, 12) - 1).astype("datetime64[M]")
    begins = first.astype("datetime64[D]").astype(np.int64)
    length = (first + 1).astype("datetime64[D]").astype(np.int64) - begins
    epoch_days = begins + days - 1
    exists = (months >= 1) & (months <= 12) & (days >= 1) & (days <= length) & (np.abs(epoch_days) < 2**31)
    result = array_of(np.where(exists, epoch_days, 0).astype(np.int32), pa.date32(), nulls_of=year)
    return pc.if_else(mask_of(exists), result, constant(None, pa.date32()))


def _integers(texts: pa.Array, default: str) -> pa.Array:
    """A group that took no part is empty."""
    given = pc.if_else(pc.equal(texts, constant("", TEXT)), constant(default, TEXT), texts)
    return pc.cast(pc.fill_null(given, constant("0", TEXT)), pa.int64())


def _is_minus(signs: pa.Array) -> npt.NDArray[np.bool_]:
    return numpy_of(pc.cast(pc.fill_null(pc.equal(signs, constant("-", TEXT)), FALSE), pa.int8())).astype(bool)


def _float_texts(values: pa.Array) -> pa.Array:
    """Arrow finds the shortest digits; Java's layout of them is made once for each distinct text."""
    number = np.float32 if values.type.bit_width == 32 else np.float64
    return per_distinct(pc.cast(values, TEXT), lambda text: _java_layout(text, number))


def earlier_double_texts(values: pa.Array) -> pa.Array:
    """As Java prints doubles before version 19, once for each distinct one."""
    return per_distinct(values, lambda value: double_text(value, Digits.EARLIER), TEXT)


def _java_layout(text: str, number: type[np.floating[Any]]) -> str:
    """Plain from 0.001 to below ten million, with an exponent elsewhere; a digit stands on both sides of the point."""
    if text in _NAMES:
        return _NAMES[text]
    sign, digits, point = _digits_and_point(text)
    if -3 < point <= 7:
        whole = digits[:point].ljust(point, "0") if point > 0 else "0"
        fraction = digits[point:] if point > 0 else "0" * -point + digits
        return f"{sign}{whole}.{fraction or '0'}"
    if len(digits) == 1:
        # Java looks for the nearest two digits where one would do, which differs among the smallest numbers.
        mantissa, exponent = f"{float(number(text)):.1e}".split("e")
        return f"{mantissa}E{int(exponent)}"
    return f"{sign}{digits[0]}.{digits[1:]}E{point - 1}"


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "0": "0.0", "-0": "-0.0"}
_ARROW_FLOAT = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:e([+-]?[0-9]+))?")


def _digits_and_point(text: str) -> tuple[str, str, int]:
    """The sign, the digits from the first that is not zero, and where the point stands in them."""
    found = _ARROW_FLOAT.fullmatch(text)
    assert found is not None, f"Arrow prints a float as {text!r}"
    whole, fraction = found.group(2), found.group(3) or ""
    point = len(whole) + int(found.group(4) or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    return found.group(1), digits.rstrip("0"), point


def _date_texts(values: pa.Array) -> pa.Array:
    return _with_odd_years(values, pc.cast(values, TEXT), numpy_of(values).astype(np.int64))


def _timestamp_texts(values: pa.Array) -> pa.Array:
    """Without zeros at the end of the fraction."""
    texts = pc.cast(values, TEXT)
    texts = pc.replace_substring_regex(texts, pattern=r"\.0+$", replacement="")
    texts = pc.replace_substring_regex(texts, pattern=r"(\.[0-9]*[1-9])0+$", replacement=r"\1")
    return _with_odd_years(values, texts, numpy_of(values).astype(np.int64) // _MICROS_PER_DAY)


def _with_odd_years(values: pa.Array, texts: pa.Array, days: npt.NDArray[np.int64]) -> pa.Array:
    """Years before 0 and from 10000 on have a sign, and Arrow does not print all of them."""
    odd = (days < _FIRST_PLAIN_DAY) | (days >= _PLAIN_DAYS_END)
    if values.null_count:
        odd &= ~numpy_of(pc.cast(values.is_null(), pa.int8())).astype(bool)
    if not odd.any():
        return texts
    numbers = numpy_of(values)
    printed = [_odd_text(int(numbers[at]), values.type) for at in np.flatnonzero(odd)]
    return pc.replace_with_mask(texts, mask_of(odd), strings(printed, TEXT))


def _odd_text(number: int, type_: pa.DataType) -> str:
    days, micros = (number, 0) if type_ == pa.date32() else divmod(number, _MICROS_PER_DAY)
    year, month, day = _civil(days)
    date = f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04d}-{month:02d}-{day:02d}"
    if type_ == pa.date32():
        return date
    seconds, fraction = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{date} {clock}" + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _civil(days: int) -> tuple[int, int, int]:
    date = np.datetime64(days, "D")
    month = date.astype("datetime64[M]")
    months = int(month.astype(np.int64))
    return months // 12 + 1970, months % 12 + 1, int((date - month.astype("datetime64[D]")).astype(np.int64)) + 1
