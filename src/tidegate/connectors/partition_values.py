"""Columns that live in the names of folders, `key=value`: how values are written there and read back, as Spark does it.

Owns the spelling of such names; it makes no folder.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.plan.parsing.text_values import FloatWords, Unreadable, reading

# What Linux's file systems allow for one name.
_MOST_NAME_BYTES = 255
_SHOWN_LETTERS = 40
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(1, 32)))


def partition_array(value: str | None, column: "pa.Field[Any]", *, count: int, zone: str, path: str) -> pa.Array:
    """The same value for every row of a file."""
    if value is None:
        return pa.nulls(count, column.type)
    if pa.types.is_string(column.type):
        return pa.repeat(pa.scalar(value, column.type), count)
    how = reading(column.type, zone=zone, floats=FloatWords())
    if how is None:
        raise Damaged(f"The folder of {path} gives column {column.name!r}, a {column.type}, which has no spelling.")
    try:
        read = how.column(pa.array([value], pa.string()))
    except Unreadable:
        read = None
    if read is None or read.bad is not None:
        raise Damaged(
            f"The folder of {path} says {value!r} for column {column.name!r}, which is no {column.type}: "
            f"rename the folder, or correct the schema."
        )
    return pa.repeat(read.values[0], count)


def folder_name(column: str, value: str | None) -> str:
    """Raises `UserCodeFailure` for a name that no folder can have: published later, it would block every commit."""
    name = f"{_escape(column)}={NO_VALUE if not value else _escape(value)}"
    size_bytes = len(name.encode())
    if "\0" in name:
        why, advice = "it has a NUL character", "take it out with replace()"
    elif size_bytes > _MOST_NAME_BYTES:
        why = f"its name would have {size_bytes} bytes, of at most {_MOST_NAME_BYTES}"
        advice = "partition by a part or a digest of it, such as left() or md5() gives"
    else:
        return name
    shown = value if value is None or len(value) <= _SHOWN_LETTERS else f"{value[:_SHOWN_LETTERS]}..."
    raise UserCodeFailure(
        f"Column {column!r} of partitionBy has the value {shown!r}, which cannot be a folder ({why}): {advice}, or "
        f"filter such rows."
    )


def speller(type_: pa.DataType, *, zone: str) -> Callable[[Any], str | None] | None:
    """How Spark casts a value of the type to a string; None for types whose spelling is Java's own."""
    if pa.types.is_string(type_) or pa.types.is_signed_integer(type_):
        return lambda value: None if value is None else str(value)
    if pa.types.is_boolean(type_):
        return lambda value: None if value is None else str(value).lower()
    if pa.types.is_date32(type_):
        return lambda value: None if value is None else date.isoformat(value)
    if pa.types.is_decimal(type_):
        return lambda value: None if value is None else f"{value:f}"
    if pa.types.is_timestamp(type_):
        return lambda value: None if value is None else _spelled_time(value, zone)
    return None


def _spelled_time(value: datetime, zone: str) -> str:
    local = value if value.tzinfo is None else value.astimezone(UTC if zone == "UTC" else ZoneInfo(zone))
    text = f"{local:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    fraction = f"{local.microsecond:06d}".rstrip("0")
    return f"{text}.{fraction}" if fraction else text


def _escape(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)
