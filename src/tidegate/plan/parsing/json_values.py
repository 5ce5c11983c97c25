"""One JSON text as values of a type, with all that Spark's reader makes of texts that do not fit.

Follows the reader step by step: which errors cost a field, which the array or map around it, which the record, and
what is kept of it. For texts that cannot be read in bulk, one at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.parsing.json_copy import copy_of, java_text
from tidegate.plan.parsing.json_cursor import Grammar, JsonCursor, JsonError, Token
from tidegate.plan.parsing.text_values import (
    Unreadable,
    instant_micros,
    java_decimal,
    java_float,
    json_date_reading,
    local_micros,
)

Convert: TypeAlias = Callable[[JsonCursor], Any]

_FLOAT_WORDS = {
    "NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "+INF": "inf", "-Infinity": "-inf", "-INF": "-inf",
}  # fmt: skip


class Partial(Exception):
    """Some of a value could be read: `value` has nulls for the rest, and the record is a corrupt one."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


# What Spark's reader catches: a value of another type, and a text that is no JSON at this place.
_FAILURES = (Unreadable, JsonError)


@dataclass(frozen=True, slots=True)
class JsonReading:
    """How one text is read: `zone` is where times without one are, `digits` how this Java prints a double.

    `raw_strings`: what is no string and is wanted as one is taken as it stands; else it is written anew.
    """

    grammar: Grammar
    zone: str
    digits: Digits
    raw_strings: bool

    def converter(self, type_: pa.DataType) -> Convert:
        """Values as `pa.array` takes them: dictionaries, lists, pairs of a map, times as integers."""
        if pa.types.is_struct(type_):
            return self._struct(type_)
        if pa.types.is_map(type_):
            return self._map(type_)
        if pa.types.is_list(type_):
            return self._array(type_)
        if pa.types.is_string(type_):
            return self._string
        convert = self._scalar(type_)

        def read(cursor: JsonCursor) -> Any:
            token = _value_token(cursor)
            return None if token is None else convert(cursor, token)

        return read

    def object_of(self, type_: pa.DataType) -> Callable[[JsonCursor], dict[str, Any]]:
        """Reads the fields of an object that the cursor stands at the beginning of."""
        fields = {field.name: self.converter(field.type) for field in type_}
        empty = dict.fromkeys(fields)

        def read(cursor: JsonCursor) -> dict[str, Any]:
            row: dict[str, Any] = dict(empty)
            is_bad = False
            while cursor.next() not in (None, Token.END_OBJECT):
                name = cursor.name()
                if name is None or name not in fields:
                    cursor.skip_children()
                    continue
                try:
                    row[name] = fields[name](cursor)
                except Partial as partial:
                    row[name], is_bad = partial.value, True
                except _FAILURES:
                    is_bad = True
                    cursor.skip_children()
            if is_bad:
                raise Partial(row)
            return row

        return read

    def elements_of(self, type_: pa.DataType) -> Callable[[JsonCursor], list[Any]]:
        """Reads the elements of an array that the cursor stands at the beginning of."""
        convert = self.converter(type_.value_type)

        def read(cursor: JsonCursor) -> list[Any]:
            values: list[Any] = []
            is_bad = False
            while cursor.next() not in (None, Token.END_ARRAY):
                try:
                    values.append(convert(cursor))
                except Partial as partial:
                    values.append(partial.value)
                    is_bad = True
            if is_bad:
                raise Partial(values)
            return values

        return read

    def entries_of(self, type_: pa.DataType) -> Callable[[JsonCursor], list[tuple[str, Any]]]:
        """Reads the entries of an object that the cursor stands at the beginning of."""
        convert = self.converter(type_.item_type)

        def read(cursor: JsonCursor) -> list[tuple[str, Any]]:
            entries: list[tuple[str, Any]] = []
            is_bad, is_lost = False, False
            while cursor.next() not in (None, Token.END_OBJECT):
                name = java_text(cursor.name() or "")
                try:
                    entries.append((name, convert(cursor)))
                except Partial as partial:
                    entries.append((name, partial.value))
                    is_bad = True
                except _FAILURES:
                    is_lost = True
                    cursor.skip_children()
            if is_lost:
                raise Unreadable
            if is_bad:
                raise Partial(entries)
            return entries

        return read

    def _struct(self, type_: pa.DataType) -> Convert:
        return _starting_with(Token.START_OBJECT, self.object_of(type_))

    def _array(self, type_: pa.DataType) -> Convert:
        return _starting_with(Token.START_ARRAY, self.elements_of(type_))

    def _map(self, type_: pa.DataType) -> Convert:
        return _starting_with(Token.START_OBJECT, self.entries_of(type_))

    def _string(self, cursor: JsonCursor) -> str | None:
        match _value_token(cursor):
            case None:
                return None
            case Token.STRING:
                return java_text(cursor.text())
            case _:
                return cursor.raw() if self.raw_strings else copy_of(cursor, self.digits)

    def _scalar(self, type_: pa.DataType) -> Callable[[JsonCursor, Token], Any]:
        if pa.types.is_timestamp(type_):
            return self._local_time if type_.tz is None else self._time
        if pa.types.is_boolean(type_):
            return _boolean
        if pa.types.is_integer(type_):
            return lambda cursor, token: _integer(cursor, token, type_.bit_width)
        if pa.types.is_floating(type_):
            return lambda cursor, token: _float(cursor, token, type_)
        if pa.types.is_decimal(type_):
            return lambda cursor, token: _decimal(cursor, token, type_)
        dates = json_date_reading(type_)
        return lambda cursor, token: int(dates.scalar(_text_of_time(cursor, token)))

    def _time(self, cursor: JsonCursor, token: Token) -> int:
        if token is Token.INTEGER:
            return _wrapped(_within(int(cursor.text()), 64) * 1_000_000)
        return instant_micros(_text_of_time(cursor, token), zone=self.zone)

    def _local_time(self, cursor: JsonCursor, token: Token) -> int:
        return local_micros(_text_of_time(cursor, token))


def can_convert(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return 0 < len(names) == len(set(names)) and all(can_convert(field.type) for field in type_)
    if pa.types.is_map(type_):
        return bool(pa.types.is_string(type_.key_type)) and can_convert(type_.item_type)
    if pa.types.is_list(type_):
        return can_convert(type_.value_type)
    checks: Sequence[Callable[[pa.DataType], bool]] = (
        pa.types.is_string, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_boolean,
        pa.types.is_decimal, pa.types.is_date32, pa.types.is_timestamp,
    )  # fmt: skip
    return any(check(type_) for check in checks)


def _starting_with(start: Token, read: Convert) -> Convert:
    def convert(cursor: JsonCursor) -> Any:
        token = _value_token(cursor)
        if token is None:
            return None
        if token is not start:
            raise _mismatch(cursor, token)
        return read(cursor)

    return convert


def _value_token(cursor: JsonCursor) -> Token | None:
    """The token of the value, behind its name; None for a null and for a value that could not be read."""
    token = cursor.token
    while token is Token.NAME:
        token = cursor.next()
    return None if token is Token.NULL else token


def _mismatch(cursor: JsonCursor, token: Token) -> Exception:
    """Spark looks at a string before it says that it does not fit, which may find it broken."""
    if token is Token.STRING:
        cursor.text()
    return Unreadable()


def _boolean(cursor: JsonCursor, token: Token) -> bool:
    if token not in (Token.TRUE, Token.FALSE):
        raise _mismatch(cursor, token)
    return token is Token.TRUE


def _integer(cursor: JsonCursor, token: Token, bits: int) -> int:
    if token is not Token.INTEGER:
        raise _mismatch(cursor, token)
    value = int(cursor.text())
    if bits == 8:
        # Jackson lets a byte go up to 255 and wraps it.
        if not -128 <= value <= 255:
            raise Unreadable
        return value if value < 128 else value - 256
    return _within(value, bits)


def _within(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Unreadable
    return value


def _wrapped(micros: int) -> int:
    """Spark multiplies in 64 bits without a look."""
    return (micros + (1 << 63)) % (1 << 64) - (1 << 63)


def _float(cursor: JsonCursor, token: Token, type_: pa.DataType) -> float:
    if token in (Token.STRING, Token.FLOAT) and cursor.text() in _FLOAT_WORDS:
        return float(_FLOAT_WORDS[cursor.text()])
    if token not in (Token.INTEGER, Token.FLOAT):
        raise _mismatch(cursor, token)
    # Jackson reads an integer first, and an integer has no negative zero.
    return java_float("0" if cursor.text() == "-0" else cursor.text(), type_)


def _decimal(cursor: JsonCursor, token: Token, type_: pa.DataType) -> Decimal:
    if token in (Token.INTEGER, Token.FLOAT):
        return java_decimal(cursor.text(), type_)
    if token is Token.STRING and cursor.text():
        return java_decimal(cursor.text().replace(",", ""), type_)
    raise _mismatch(cursor, token)


def _text_of_time(cursor: JsonCursor, token: Token) -> str:
    if token is not Token.STRING or not cursor.text():
        raise _mismatch(cursor, token)
    return cursor.text()
