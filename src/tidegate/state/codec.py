"""Keys and values of user state as bytes: msgpack of plain tuples, the same on every platform and in every run.

Equal keys give equal bytes. Must never unpickle or run anything it reads.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import msgspec
import numpy as np

from tidegate.model.errors import Damaged, UserCodeFailure

_NAIVE_DATETIME, _AWARE_DATETIME, _DATE, _DECIMAL, _BIG_INTEGER = 1, 2, 3, 4, 5

_MICROSECOND = timedelta(microseconds=1)
_NAIVE_EPOCH = datetime(1970, 1, 1)
_AWARE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = struct.Struct(">q")
# Wide enough that taking trailing zeros away never rounds.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_NAN = float("nan")


def encode_key(key: Sequence[Any], *, state: str) -> bytes:
    """Equal keys, as Spark groups them, give equal bytes: 0.0 and -0.0, every NaN, 1.0 and 1.00 as decimals."""
    return _pack([_portable(_canonical(field), position, state) for position, field in enumerate(key)])


def encode_value(value: Sequence[Any], *, state: str) -> bytes:
    return _pack([_portable(field, position, state) for position, field in enumerate(value)])


def decode(data: bytes | memoryview) -> tuple[Any, ...]:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, struct.error, ValueError) as error:
        raise Damaged(f"A stored key or value cannot be read ({error}): restore from an older checkpoint.") from error


def _canonical(field: Any) -> Any:
    if isinstance(field, float):
        return _NAN if field != field else field + 0.0
    if isinstance(field, Decimal):
        return _EXACT.normalize(field) if field else Decimal(0)
    if isinstance(field, np.floating):
        return _canonical(field.item())
    if isinstance(field, list):
        return [_canonical(item) for item in field]
    return field


def _portable(field: Any, position: int, state: str) -> Any:
    encoder = _ENCODERS.get(type(field))
    if encoder is None:
        if isinstance(field, np.generic):
            return _portable(field.item(), position, state)
        if isinstance(field, list):
            return [_portable(item, position, state) for item in field]
        raise UserCodeFailure(
            f"State {state!r} cannot store a value of type {type(field).__name__} in field {position}: "
            "use None, bool, int, float, str, bytes, datetime, date, Decimal, or a list of these."
        )
    return encoder(field)


def _same(field: Any) -> Any:
    return field


def _encode_int(value: int) -> Any:
    if -(1 << 63) <= value < 1 << 63:
        return value
    return msgspec.msgpack.Ext(_BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _encode_datetime(value: datetime) -> msgspec.msgpack.Ext:
    if value.utcoffset() is None:
        return msgspec.msgpack.Ext(_NAIVE_DATETIME, _INT64.pack((value - _naive_epoch(value)) // _MICROSECOND))
    return msgspec.msgpack.Ext(_AWARE_DATETIME, _INT64.pack((value - _AWARE_EPOCH) // _MICROSECOND))


def _naive_epoch(value: datetime) -> datetime:
    # A tzinfo that knows no offset makes a datetime naive in all but its attribute.
    return _NAIVE_EPOCH if value.tzinfo is None else _NAIVE_EPOCH.replace(tzinfo=value.tzinfo)


def _encode_date(value: date) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_DATE, _INT64.pack(value.toordinal()))


def _encode_decimal(value: Decimal) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_DECIMAL, str(value).encode("ascii"))


def _decode_extension(code: int, data: memoryview) -> Any:
    match code:
        case 1:
            return _NAIVE_EPOCH + _INT64.unpack(data)[0] * _MICROSECOND
        case 2:
            return _AWARE_EPOCH + _INT64.unpack(data)[0] * _MICROSECOND
        case 3:
            return date.fromordinal(_INT64.unpack(data)[0])
        case 4:
            return Decimal(bytes(data).decode("ascii"))
        case 5:
            return int.from_bytes(data, "big", signed=True)
        case _:
            raise ValueError(f"unknown extension {code}")


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    type(None): _same,
    bool: _same,
    int: _encode_int,
    float: _same,
    str: _same,
    bytes: _same,
    bytearray: bytes,
    datetime: _encode_datetime,
    date: _encode_date,
    Decimal: _encode_decimal,
}
_pack = msgspec.msgpack.Encoder().encode
_DECODER: msgspec.msgpack.Decoder[tuple[Any, ...]] = msgspec.msgpack.Decoder(
    tuple[Any, ...], ext_hook=_decode_extension
)
