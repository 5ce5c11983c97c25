"""Times to text and back by a pattern of java.time, for the letters whose meaning is the same everywhere.

The pattern is a constant. Text in a language, eras, weeks and zones are refused, and so is parsing of fractions and
of fields that stand without a separator between them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels import calendar
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.constants import FALSE, constant
from tidegate.plan.kernels.dates import days_of_parts, sentence, taken, text_constant
from tidegate.plan.kernels.instants import MICROS_PER_S, TIMES, joined, local_parts, toward_zero
from tidegate.plan.kernels.lifting import Flags, Lifted, Numbers, lift
from tidegate.plan.kernels.values import Kernel, numpy_of, unsupported
from tidegate.plan.kernels.zones import S_PER_DAY, zone_of


@dataclass(frozen=True, slots=True)
class Field:
    letter: str
    width: int


Part: TypeAlias = Field | str

_PIECES = re.compile(r"(?P<field>([a-zA-Z])\2*)|'(?P<quoted>(?:[^']|'')*)'|(?P<plain>[^a-zA-Z'\[\]{}#]+)")
_PRINTED = {"y": (1, 4), "M": (1, 2), "d": (1, 2), "H": (1, 2), "m": (1, 2), "s": (1, 2)}
_FRACTION_DIGITS = 6
_DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TWO_DIGITS = [f"{number:02}" for number in range(100)]
_ONE_DIGIT = [str(number) for number in range(100)]
# Java reads four digits, or more after a plus, or four and more after a minus; no year has 19 of them.
_YEAR = r"([0-9]{4}|\+0?[0-9]{5,18}|-0?[0-9]{4,18})"
_NUMBERS = {1: r"(0{0,17}[0-9]{1,2})", 2: r"([0-9]{2})"}
# Letters of other alphabets fold to some of the others when Java ignores case.
_PARSED_LETTERS = frozenset("TZ")


def build_format(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DateFormatClass, FromUnixTime."""
    times, pattern = arguments
    parts = _parts(call, pattern, _is_printed)
    zone = zone_of(call, times.type) if times.type in TIMES else zone_of(call)
    in_seconds = call.function == "FromUnixTime"
    if times.type != pa.int64() if in_seconds else times.type not in TIMES:
        raise unsupported(call.function, times.type)

    def run(numbers: Numbers) -> Lifted:
        with np.errstate(over="ignore"):
            micros = numbers * MICROS_PER_S if in_seconds else numbers
        return print_times(parts, *local_parts(zone, micros))

    return lift(call, (times,), run)


def build_parse(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """UnixTimestamp, ToUnixTimestamp, GetTimestamp of text, and the first two of times."""
    times, pattern = arguments
    if times.type == pa.string():
        return _build_text_parse(call, times, pattern)
    if call.function == "GetTimestamp" or times.type not in (*TIMES, pa.date32()):
        raise unsupported(call.function, times.type)
    if times.type in TIMES:
        return lift(call, (times,), lambda micros: toward_zero(micros, MICROS_PER_S))
    zone = zone_of(call)
    return lift(call, (times,), lambda days: zone.day_start(days.astype(np.int64)))


def _build_text_parse(call: Call, text: Kernel, pattern: Kernel) -> Kernel:
    parts = _parts(call, pattern, _is_parsed)
    letters = [part.letter for part in parts if isinstance(part, Field)]
    adjacent = any(isinstance(part, Field) and isinstance(after, Field) for part, after in pairwise(parts))
    if adjacent or len(set(letters)) < len(letters) or "y" not in letters:
        raise unsupported(f"{call.function} with the pattern {text_constant(call, pattern)!r}", text.type)
    regex = "^" + "".join(_regex(part) for part in parts) + "$"
    zone = zone_of(call, call.type)
    as_micros = call.type in TIMES

    def run(values: pa.Array) -> Lifted:
        found = pc.extract_regex(values, pattern=regex)
        local_s, exists = _local_seconds(found)
        if call.ansi and not exists.all():
            raise UserCodeFailure(sentence("CANNOT_PARSE_TIMESTAMP", "a text does not follow the pattern", call))
        seconds = zone.to_instant(np.where(exists, local_s, 0))
        return joined(call, seconds, 0) if as_micros else seconds, ~exists

    return lift(call, (text,), run, raises=True)


def _parts(call: Call, pattern: Kernel, known: Callable[[Part], bool]) -> list[Part]:
    text, parts, place = text_constant(call, pattern), list[Part](), 0
    while place < len(text):
        piece = _PIECES.match(text, place)
        part = None if piece is None else _part(piece)
        if piece is None or part is None or not known(part):
            raise unsupported(f"{call.function} with the pattern {text!r}", call.type)
        parts.append(part)
        place = piece.end()
    return parts


def _part(piece: re.Match[str]) -> Part:
    if piece["field"] is not None:
        return Field(piece["field"][0], len(piece["field"]))
    if piece["quoted"] is not None:
        return piece["quoted"].replace("''", "'") or "'"
    return piece["plain"]


def _is_printed(part: Part) -> bool:
    match part:
        case Field(letter="S", width=width):
            return width <= _FRACTION_DIGITS
        case Field(letter="E", width=width):
            return width <= 3
        case Field(letter="M", width=3):
            return True
        case Field(letter=letter, width=width):
            return width in _PRINTED.get(letter, ())
        case _:
            return True


def _is_parsed(part: Part) -> bool:
    match part:
        case Field(letter="y", width=width):
            return width == 4
        case Field(letter=letter, width=width):
            return width in _PRINTED.get(letter, ())
        case _:
            return all(not letter.isalpha() or letter in _PARSED_LETTERS for letter in part) and part.isascii()


def print_times(parts: Sequence[Part], days: Longs, second: Longs, micros: Longs) -> pa.Array:
    months, day = calendar.split(days)
    fields = {"d": day, "M": months % 12 + 1, "H": second // 3600, "m": second // 60 % 60, "s": second % 60}
    columns: list[pa.Array | pa.Scalar] = []
    for part in parts:
        match part:
            case Field(letter="y", width=width):
                columns.append(_printed_year(calendar.year_of_month(months), width))
            case Field(letter="S", width=width):
                columns.append(_padded(micros // 10 ** (_FRACTION_DIGITS - width), width))
            case Field(letter="E"):
                columns.append(taken(list(_DAY_NAMES), calendar.weekday(days)))
            case Field(letter="M", width=3):
                columns.append(taken(list(_MONTH_NAMES), months % 12))
            case Field(letter=letter, width=width):
                columns.append(taken(_TWO_DIGITS if width == 2 else _ONE_DIGIT, fields[letter]))
            case _:
                columns.append(constant(part, pa.string()))
    if not any(isinstance(column, pa.Array) for column in columns):
        columns.append(taken([""], np.zeros(len(days), np.int64)))
    return pc.binary_join_element_wise(*columns, constant("", pa.string()))


def _printed_year(years: Longs, width: int) -> pa.Array:
    """A year of more digits than the pattern has gets a plus, if the pattern has more than one."""
    sign = np.where(years < 0, 1, np.where((years > 9999) & (width > 1), 2, 0))
    return pc.binary_join_element_wise(
        taken(["", "-", "+"], sign), _padded(np.abs(years), width), constant("", pa.string())
    )


def _padded(numbers: Longs, width: int) -> pa.Array:
    packed = np.ascontiguousarray(numbers)
    text = pc.cast(pa.Array.from_buffers(pa.int64(), len(packed), [None, pa.py_buffer(packed)]), pa.string())
    return pc.utf8_lpad(text, width=width, padding="0")


def _regex(part: Part) -> str:
    match part:
        case Field(letter="y"):
            return _YEAR.replace("(", "(?P<y>", 1)
        case Field(letter=letter, width=width):
            # Names of groups ignore nothing: months are M and minutes m.
            return _NUMBERS[width].replace("(", f"(?P<{letter}>", 1)
        case _:
            return "(?i:" + re.escape(part) + ")"


def _local_seconds(found: pa.Array) -> tuple[Longs, Flags]:
    """The local second each text says, and which of them say one."""
    matched = _flags(found.is_valid())
    ones, zeros = np.ones(len(found), np.int64), np.zeros(len(found), np.int64)
    names = {found.type.field(at).name for at in range(found.type.num_fields)}
    values = {name: _whole(pc.struct_field(found, name), matched) for name in names}
    days, exists = days_of_parts(values["y"], values.get("M", ones), values.get("d", ones))
    hour, minute, second = (values.get(letter, zeros) for letter in "Hms")
    # Java takes no minus before a zero.
    exists &= ~_flags(pc.match_substring_regex(pc.struct_field(found, "y"), pattern="^-0+$"))
    exists &= matched & (hour <= 23) & (minute <= 59) & (second <= 59)
    return days * S_PER_DAY + hour * 3600 + minute * 60 + second, exists


def _flags(mask: pa.Array) -> Flags:
    return numpy_of(pc.cast(pc.fill_null(mask, FALSE), pa.int8())).astype(bool)


def _whole(text: pa.Array, matched: Flags) -> Longs:
    digits = pc.replace_substring_regex(text, pattern=r"^\+", replacement="")
    return np.where(matched, numpy_of(pc.fill_null(pc.cast(digits, pa.int64()), constant(1, pa.int64()))), 1)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(("DateFormatClass", "FromUnixTime"), build_format),
    **dict.fromkeys(("UnixTimestamp", "ToUnixTimestamp", "GetTimestamp"), build_parse),
}
