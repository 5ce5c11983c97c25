"""Words of text files as column values, by the rules of Spark's csv and json readers.

Regular spellings are converted column by column; what is left is parsed one by one as Java and Spark do. A word that
Spark would read in a way that depends on the day, or that is not known here, is refused with its text; nothing is
guessed. Owns no file and no option.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged

Scalar: TypeAlias = Callable[[str], Any]

_MICROS_PER_S = 1_000_000
_MICROS_PER_DAY = 86_400 * _MICROS_PER_S
_LONG = 1 << 63
_FIRST_GREGORIAN_DAY = -141_427
_EPOCH = datetime(1970, 1, 1)
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800 * _MICROS_PER_S, 253_402_300_799 * _MICROS_PER_S
# The calendar repeats every 400 years.
_MICROS_PER_CYCLE = 146_097 * _MICROS_PER_DAY
# What UTF8String.trimAll removes: Java's whitespace and ISO control characters of one byte.
BLANKS = "".join(map(chr, range(33))) + "\x7f"
UTC_ZONES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00", "Zulu"})
_SIMPLE_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}
_SIMPLE_DATE = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}$"
_SIMPLE_LOCAL = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_SIMPLE_ZONED = (
    r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
)
_SIMPLE_FLOAT = r"^-?[0-9]{1,17}(\.[0-9]{1,17})?$"
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME_ONLY = re.compile(r"(?:T[0-9]{1,2}|[0-9]{1,2}:).*", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^.0-9].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(?:([0-9]{1,2})|([0-9]{1,2}):([0-9]{1,2})|([0-9]{2})([0-9]{2}))")
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
# Java's old names, of which some mean other places today.
_SHORT_ZONES = frozenset({
    "ACT", "AET", "AGT", "ART", "AST", "BET", "BST", "CAT", "CNT", "CST", "CTT", "EAT", "ECT", "EST", "HST", "IET",
    "IST", "JST", "MIT", "MST", "NET", "NST", "PLT", "PNT", "PRT", "PST", "SST", "VST",
})  # fmt: skip
_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)")
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_BIG_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?")
_DECIMALS = Context(prec=200, rounding=ROUND_HALF_UP)
# More than this before the point fits no decimal type; it also keeps an exponent from becoming a huge number.
_MOST_DECIMAL_DIGITS = 100


class Unreadable(Exception):
    """The word is no value of the type: Spark's reader makes it null and the record a corrupt one."""


@dataclass(frozen=True, slots=True)
class Column:
    """`bad` is true where a word could not be read, and the value is null there."""

    values: pa.Array
    bad: pa.Array | None


@dataclass(frozen=True, slots=True)
class Reading:
    """How words of one type become values: `simple` takes those that fit `pattern`, `scalar` all others."""

    type: pa.DataType
    pattern: str
    simple: Callable[[pa.Array], pa.Array]
    scalar: Scalar

    def column(self, words: pa.Array) -> Column:
        is_simple = pc.match_substring_regex(words, self.pattern)
        if _all(is_simple):
            try:
                return Column(self.simple(words), None)
            except pa.ArrowInvalid:
                return self._one_by_one(words, pc.is_valid(words))
        rest = pc.and_(pc.is_valid(words), pc.invert(pc.fill_null(is_simple, False)))
        return self._one_by_one(words, rest)

    def _one_by_one(self, words: pa.Array, rest: pa.Array) -> Column:
        try:
            values = self.simple(pc.if_else(rest, pa.scalar(None, pa.string()), words))
        except pa.ArrowInvalid:
            # Spelled regularly, and still no value: the thirtieth of February.
            rest = pc.is_valid(words)
            values = pa.nulls(len(words), self.type)
        read: dict[str, Any] = {}
        odd: list[Any] = []
        is_bad: list[bool] = []
        for word in words.filter(rest).to_pylist():
            if word not in read:
                read[word] = self._read(word)
            odd.append(None if read[word] is _UNREADABLE else read[word])
            is_bad.append(read[word] is _UNREADABLE)
        replaced = pc.replace_with_mask(values, rest, pa.array(odd, self.type))
        bad = pc.replace_with_mask(pa.array([False] * len(words), pa.bool_()), rest, pa.array(is_bad, pa.bool_()))
        return Column(replaced, bad if any(is_bad) else None)

    def _read(self, word: str) -> Any:
        try:
            return self.scalar(word)
        except Unreadable:
            return _UNREADABLE


_UNREADABLE = object()


def reading(type_: pa.DataType, *, zone: str, floats: "FloatWords") -> Reading | None:
    """For a column of a csv file; None for a type that has no words (a nested one, a binary)."""
    if pa.types.is_signed_integer(type_):
        digits = _SIMPLE_DIGITS[type_.bit_width]
        return Reading(type_, rf"^-?[0-9]{{1,{digits}}}$", _cast_to(type_), lambda word: java_integer(word, type_))
    if pa.types.is_floating(type_):
        return Reading(type_, _SIMPLE_FLOAT, _cast_to(type_), lambda word: floats.read(word, type_))
    if pa.types.is_boolean(type_):
        return Reading(type_, "^(?i:true|false)$", _to_boolean, _no_value)
    if pa.types.is_decimal(type_):
        return decimal_reading(type_)
    if pa.types.is_date32(type_):
        return date_reading(type_)
    if pa.types.is_timestamp(type_):
        return timestamp_reading(type_, zone=zone)
    return None


def decimal_reading(type_: pa.DataType) -> Reading:
    whole = type_.precision - type_.scale
    fraction = rf"(\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
    pattern = rf"^-?[0-9]{{1,{max(1, whole)}}}{fraction}$" if whole else "^$."
    return Reading(type_, pattern, _cast_to(type_), lambda word: java_decimal(word.replace(",", ""), type_))


def date_reading(type_: pa.DataType) -> Reading:
    return Reading(type_, _SIMPLE_DATE, _cast_to(type_), date_days)


def json_date_reading(type_: pa.DataType) -> Reading:
    return Reading(type_, _SIMPLE_DATE, _cast_to(type_), _json_date_days)


def timestamp_reading(type_: pa.DataType, *, zone: str) -> Reading:
    if type_.tz is None:
        return Reading(type_, _SIMPLE_LOCAL, _cast_to(type_), local_micros)
    is_utc = zone in UTC_ZONES

    def simple(words: pa.Array) -> pa.Array:
        if is_utc:
            local = pc.match_substring_regex(words, _SIMPLE_LOCAL)
            words = pc.if_else(local, pc.binary_join_element_wise(words, "Z", ""), words)
        return pc.cast(words, type_)

    pattern = f"{_SIMPLE_LOCAL}|{_SIMPLE_ZONED}" if is_utc else _SIMPLE_ZONED
    return Reading(type_, pattern, simple, lambda word: instant_micros(word, zone=zone))


@dataclass(frozen=True, slots=True)
class FloatWords:
    """The csv reader's own words for what is no number."""

    nan: str = "NaN"
    positive_infinity: str = "Inf"
    negative_infinity: str = "-Inf"

    def read(self, word: str, type_: pa.DataType) -> float:
        if word == self.nan:
            return float("nan")
        if word == self.positive_infinity:
            return float("inf")
        if word == self.negative_infinity:
            return float("-inf")
        return java_float(word, type_)


def java_integer(word: str, type_: pa.DataType) -> int:
    """`Long.parseLong` and its smaller brothers."""
    if _INTEGER.fullmatch(word) is None or any(ord(letter) > 0xFFFF for letter in word):
        raise Unreadable
    value = int(word)
    limit = 1 << (type_.bit_width - 1)
    if not -limit <= value < limit:
        raise Unreadable
    return value


def java_float(word: str, type_: pa.DataType) -> float:
    """`Double.parseDouble`, which allows blanks around, a letter behind, and hexadecimal numbers."""
    bare = word.strip(BLANKS[:33])
    found = _FLOAT.fullmatch(bare)
    if found is None:
        if _HEX_FLOAT.fullmatch(bare) is None:
            raise Unreadable
        if pa.types.is_float32(type_):
            raise Damaged(f"The hexadecimal number {word!r} cannot be read as a float: write it in decimal digits.")
        return float.fromhex(bare.rstrip("fFdD") if "p" in bare.lower() else bare)
    sign, nan, infinity, digits = found.groups()
    if nan or infinity:
        return float("nan") if nan else float(f"{sign}inf")
    if pa.types.is_float32(type_):
        return _rounded_float32(sign + digits)
    return float(sign + digits)


def java_decimal(word: str, type_: pa.DataType) -> Decimal:
    if _BIG_DECIMAL.fullmatch(word) is None:
        raise Unreadable
    value = Decimal(word)
    if value and value.adjusted() > _MOST_DECIMAL_DIGITS:
        raise Unreadable
    try:
        fitted = value.quantize(Decimal(1).scaleb(-type_.scale), context=_DECIMALS)
    except InvalidOperation:
        raise Unreadable from None
    if len(fitted.as_tuple().digits) > type_.precision and fitted:
        raise Unreadable
    return fitted


def date_days(word: str) -> int:
    """Spark's cast of a string to a date, as days since 1970."""
    found = _DATE.fullmatch(word.strip(BLANKS))
    if found is None:
        raise Unreadable
    sign, year, month, day = found.groups()
    return _days(int(f"{sign}{year}"), int(month or 1), int(day or 1))


def _json_date_days(word: str) -> int:
    """As `date_days`, and what is no date but a number counts days, as Spark 1.5 wrote them."""
    try:
        return date_days(word.replace("GMT", ""))
    except Unreadable:
        days = java_integer(word, pa.int32())
    if days < _FIRST_GREGORIAN_DAY:
        raise Damaged(f"The date {word!r} counts days before the year 1582: write it as year, month and day.")
    return days


def local_micros(word: str) -> int:
    micros, zone = _fields(word)
    if zone is not None:
        raise Unreadable
    return micros


def instant_micros(word: str, *, zone: str) -> int:
    """Spark's cast of a string to a timestamp, as microseconds since 1970 in UTC."""
    bare = word.strip(BLANKS)
    if _TIME_ONLY.fullmatch(bare):
        raise Damaged(f"The time {word!r} has no date, so Spark would take today's: write the date as well.")
    micros, own_zone = _fields(bare)
    instant = micros - _offset_micros(micros, own_zone.strip() if own_zone is not None else zone)
    if not -_LONG <= instant < _LONG:
        raise Unreadable
    return instant


def _fields(word: str) -> tuple[int, str | None]:
    found = _TIMESTAMP.fullmatch(word.strip(BLANKS))
    if found is None:
        raise Unreadable
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Unreadable
    days = _days(int(f"{sign}{year}"), int(month or 1), int(day or 1))
    micros = int((fraction or "").ljust(6, "0")[:6])
    return ((days * 24 + hours) * 60 + minutes) * 60 * _MICROS_PER_S + seconds * _MICROS_PER_S + micros, zone


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the calendar that `java.time.LocalDate` uses, for any year."""
    if not 1 <= month <= 12 or not 1 <= day <= _days_of_month(year, month):
        raise Unreadable
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _days_of_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _offset_micros(local: int, zone: str) -> int:
    if zone in UTC_ZONES:
        return 0
    offset = _OFFSET.fullmatch(zone)
    if offset is not None:
        sign, *numbers = offset.groups()
        hours, minutes = ([int(number) for number in numbers if number is not None] + [0])[:2]
        seconds = hours * 3600 + minutes * 60
        if seconds > 18 * 3600 or minutes > 59:
            raise Unreadable
        return (-1 if sign == "-" else 1) * seconds * _MICROS_PER_S
    if zone[:1] in ("+", "-", "") or zone in _SHORT_ZONES:
        raise Damaged(
            f"Tidegate does not know how Spark reads the zone {zone!r} of a timestamp: write an offset such as +01:00."
        )
    return _region_offset_micros(local, zone)


def _region_offset_micros(local: int, zone: str) -> int:
    if _REGION.fullmatch(zone) is None:
        raise Unreadable
    try:
        region = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise Unreadable from None
    # Python's years end at 1 and 9999; beyond, a zone's rules repeat with the calendar, or have not begun.
    cycles = (local - min(max(local, _FIRST_MICROS), _LAST_MICROS)) / _MICROS_PER_CYCLE
    whole = math.ceil(cycles) if cycles > 0 else math.floor(cycles)
    moment = _EPOCH + timedelta(microseconds=local - whole * _MICROS_PER_CYCLE)
    # In a gap fold 0 gives the offset before it, in an overlap the earlier one: both as java.time does.
    delta = moment.replace(tzinfo=region, fold=0).utcoffset()
    assert delta is not None, "a region always has an offset"
    return int(delta / timedelta(microseconds=1))


def _rounded_float32(digits: str) -> float:
    # Through a double it would be rounded twice.
    return float(pc.cast(pa.scalar(digits.lstrip("+"), pa.string()), pa.float32()).as_py())


def _cast_to(type_: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda words: pc.cast(words, type_)


def _to_boolean(words: pa.Array) -> pa.Array:
    return pc.equal(pc.utf8_lower(words), "true")


def _no_value(word: str) -> Any:
    raise Unreadable


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())
