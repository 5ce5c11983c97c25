"""Values of user code as Spark's JVM takes them: by declared type, never by what Python would make of them.

Spark pickles such values to the JVM, which keeps what fits the declared type, cuts integers to its width and makes
everything else null. The same happens here, so that states and results of pickled functions are Spark's. What Java
would write in its own way (a float, a date or bytes as a string) is refused, never approximated.
"""

import struct
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidegate.model.errors import UnsupportedPlan

Convert: TypeAlias = Callable[[Any], Any]

_FLOAT = struct.Struct(">f")
_INTEGER_BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def to_stored(kind: DataType, *, of: str) -> Convert:
    """From PySpark's internal form to plain values: numbers, text, bytes, and lists for whatever has parts."""
    bits = _INTEGER_BITS.get(type(kind))
    if bits is not None:
        return lambda value: _cut(value, bits)
    match kind:
        case BooleanType():
            return lambda value: value if isinstance(value, bool) else None
        case FloatType():
            return lambda value: _single(value) if isinstance(value, float) else None
        case DoubleType():
            return lambda value: value if isinstance(value, float) else None
        case DecimalType():
            return lambda value: _decimal(value, kind, of) if isinstance(value, Decimal) else None
        case DateType():
            return lambda value: _cut(value, 32)
        case TimestampType() | TimestampNTZType() | DayTimeIntervalType():
            return lambda value: _cut(value, 64)
        case StringType():
            return lambda value: _text(value, of)
        case BinaryType():
            return _bytes
        case ArrayType():
            element = to_stored(kind.elementType, of=of)
            return lambda value: [element(item) for item in value] if isinstance(value, list | tuple) else None
        case MapType():
            key, item = to_stored(kind.keyType, of=of), to_stored(kind.valueType, of=of)
            return lambda value: [[key(k), item(v)] for k, v in value.items()] if isinstance(value, dict) else None
        case StructType():
            fields = [to_stored(field.dataType, of=of) for field in kind.fields]
            return lambda value: None if value is None else _parts(value, fields, of)
        case _:
            raise UnsupportedPlan(f"{of} has Spark's type {kind.simpleString()}, which Tidegate does not keep.")


def from_stored(kind: DataType) -> Convert:
    """What user code gets back: instants as naive datetimes in the worker's own zone, structs as Rows."""
    match kind:
        case DateType() | TimestampType() | TimestampNTZType() | DayTimeIntervalType():
            return lambda value: kind.fromInternal(value)
        case ArrayType():
            element = from_stored(kind.elementType)
            return lambda value: None if value is None else [element(item) for item in value]
        case MapType():
            key, item = from_stored(kind.keyType), from_stored(kind.valueType)
            return lambda value: None if value is None else {key(k): item(v) for k, v in value}
        case StructType():
            fields = [from_stored(field.dataType) for field in kind.fields]
            return lambda value: None if value is None else _row(kind.names, fields, value)
        case _:
            return lambda value: value


def _row(names: list[str], fields: list[Convert], value: Any) -> Row:
    row = tuple.__new__(Row, (convert(item) for convert, item in zip(fields, value, strict=True)))
    row.__fields__ = names
    return row


def _cut(value: Any, bits: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        return None
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _single(value: float) -> float:
    try:
        single: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return single


def _decimal(value: Decimal, kind: DecimalType, of: str) -> Decimal:
    if not value.is_finite():
        raise ValueError(f"{of} is {kind.simpleString()} and cannot hold {value}")
    digits = max(1, value.adjusted() + kind.scale + 2, len(value.as_tuple().digits) + kind.scale)
    context = Context(prec=digits, rounding=ROUND_HALF_UP)
    rounded = context.quantize(value, Decimal(1).scaleb(-kind.scale))
    if rounded and rounded.adjusted() + 1 > kind.precision - kind.scale:
        raise ValueError(f"{of} is {kind.simpleString()} and cannot hold {value}")
    return rounded


def _text(value: Any, of: str) -> str | None:
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            raise TypeError(f"{of} is a string and was given {value!r}: convert it with str() in your code")


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _parts(value: Any, fields: list[Convert], of: str) -> list[Any] | None:
    if not isinstance(value, list | tuple):
        return None
    if len(value) != len(fields):
        raise ValueError(f"{of} has {len(fields)} fields and was given {value!r}")
    return [convert(item) for convert, item in zip(fields, value, strict=True)]
