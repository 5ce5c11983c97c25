"""Arrow scalars and columns made from Python values through buffers.

`pa.scalar` and `pa.array` import pandas on their first call, which costs a starting slot a second or more.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa


def constant(value: Any, type_: pa.DataType) -> pa.Scalar:
    """Times are given as the integers that Arrow stores: days, or units since the epoch; intervals as their parts."""
    return _single(value, type_)[0]


def constants(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return pa.concat_arrays([_single(value, type_) for value in values]) if values else pa.nulls(0, type_)


def _single(value: Any, type_: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(1, type_)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        data = value.encode() if isinstance(value, str) else bytes(value)
        return _column(type_, np.array([0, len(data)], np.int32).tobytes(), data)
    if pa.types.is_nested(type_):
        return _nested(value, type_)
    return _column(type_, _fixed_bytes(value, type_))


def _nested(value: Any, type_: pa.DataType) -> pa.Array:
    """Arrays and structs are given as tuples, maps as tuples of (key, value)."""
    if pa.types.is_struct(type_):
        children = [_single(part, field.type) for part, field in zip(value, type_, strict=True)]
        return pa.Array.from_buffers(type_, 1, [None], children=children)
    if pa.types.is_map(type_):
        keys, items = (
            constants([k for k, _ in value], type_.key_type),
            constants([v for _, v in value], type_.item_type),
        )
        entry = pa.struct([pa.field("key", type_.key_type, nullable=False), pa.field("value", type_.item_type)])
        elements = pa.Array.from_buffers(entry, len(value), [None], children=[keys, items])
    else:
        elements = constants(value, type_.value_type)
    offsets = np.array([0, len(value)], np.int32).tobytes()
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(offsets)], children=[elements])


def _fixed_bytes(value: Any, type_: pa.DataType) -> bytes:
    if pa.types.is_boolean(type_):
        return b"\x01" if value else b"\x00"
    if pa.types.is_decimal(type_):
        _sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int) and exponent + type_.scale >= 0, "a literal has no more digits than its type"
        unscaled = int("".join(map(str, digits))) * 10 ** (exponent + type_.scale)
        return int(-unscaled if _sign else unscaled).to_bytes(16, "little", signed=True)
    if pa.types.is_interval(type_):
        # Given as months, or as what Arrow keeps: months, days and nanoseconds.
        months, days, nanos = value if isinstance(value, tuple) else (value, 0, 0)
        return np.array([months, days], np.int32).tobytes() + np.array([nanos], np.int64).tobytes()
    if pa.types.is_floating(type_):
        return np.array([value], np.float32 if type_.bit_width == 32 else np.float64).tobytes()
    return int(value).to_bytes(type_.bit_width // 8, "little", signed=True)


def _column(type_: pa.DataType, *buffers: bytes) -> pa.Array:
    return pa.Array.from_buffers(type_, 1, [None, *(pa.py_buffer(buffer) for buffer in buffers)])


TRUE, FALSE, UNKNOWN = (constant(value, pa.bool_()) for value in (True, False, None))
