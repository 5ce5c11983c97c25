"""Bytes and code points of string columns: slices by position, and functions applied once per distinct value.

Never guesses about bytes that are no UTF-8: what counts code points refuses them when it meets them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.values import Kernel, Value, as_array, run_where, unsupported

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of a column, and where each row's begin and end in them; a null row may have any."""

    data: npt.NDArray[np.uint8]
    starts: Integers
    ends: Integers


def bytes_of(values: pa.Array) -> Bytes:
    _validity, offsets, data = values.buffers()
    if offsets is None or len(values) == 0:
        return Bytes(np.empty(0, np.uint8), np.zeros(len(values), np.int64), np.zeros(len(values), np.int64))
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Bytes(content, bounds[:-1], bounds[1:])


def used_bytes(values: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes of all rows, without those of rows that were sliced away."""
    found = bytes_of(values)
    return found.data[found.starts[0] : found.ends[-1]] if len(values) else found.data


def is_ascii(values: pa.Array) -> bool:
    content = used_bytes(values)
    return len(content) == 0 or bool(content.max() < 0x80)


def require_utf8(values: pa.Array, function: str) -> None:
    if is_ascii(values):
        return
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as broken:
        raise UserCodeFailure(
            f"{function} met a string that is not valid UTF-8, which only Spark can count: "
            f"repair it with make_valid_utf8, or drop it, before the stream."
        ) from broken


def column_of(type_: pa.DataType, *, lengths: Integers, data: npt.NDArray[np.uint8], nulls_of: pa.Array) -> pa.Array:
    """A string or binary column of consecutive pieces of `data`, null where `nulls_of` is."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    column = pa.Array.from_buffers(type_, len(lengths), buffers)
    return column if nulls_of.null_count == 0 else pc.if_else(nulls_of.is_valid(), column, constant(None, type_))


def byte_slices(values: pa.Array, *, starts: Integers, ends: Integers) -> pa.Array:
    """For each row the bytes from `starts` to `ends`, counted from the row's own beginning."""
    found = bytes_of(values)
    lengths = np.maximum(ends - starts, 0)
    first = np.cumsum(lengths) - lengths
    picked = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(found.starts + starts - first, lengths)
    return column_of(values.type, lengths=lengths, data=found.data[picked], nulls_of=values)


@dataclass(frozen=True, slots=True)
class CodePoints:
    """Where each code point of a column begins; `first` and `count` say which of them are a row's."""

    begins: Integers
    first: Integers
    count: Integers
    bytes: Bytes

    def byte_of(self, position: Integers) -> Integers:
        """The byte, from the row's beginning, where its code point `position` (0 to `count`) begins."""
        at = np.append(self.begins, len(self.bytes.data))[self.first + position]
        return np.where(position >= self.count, self.bytes.ends, at) - self.bytes.starts

    def position_of(self, byte: Integers) -> Integers:
        """How many code points of the row begin before its byte."""
        return np.searchsorted(self.begins, self.bytes.starts + byte) - self.first


def code_points(values: pa.Array, function: str) -> CodePoints:
    require_utf8(values, function)
    found = bytes_of(values)
    begins = np.flatnonzero((found.data & 0xC0) != 0x80)
    first = np.searchsorted(begins, found.starts)
    return CodePoints(begins, first, np.searchsorted(begins, found.ends) - first, found)


def text_slices(values: pa.Array, *, starts: Integers, ends: Integers, function: str) -> pa.Array:
    """For each row the code points from `starts` to `ends`, both cut to what the row has."""
    points = code_points(values, function)
    low = np.clip(starts, 0, points.count)
    high = np.clip(ends, low, points.count)
    return byte_slices(values, starts=points.byte_of(low), ends=points.byte_of(high))


def strings(values: Sequence[str | bytes | None], type_: pa.DataType) -> pa.Array:
    """A column of Python values, made without `pa.array`, which would import pandas."""
    encoded = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    lengths = np.array([len(value) for value in encoded], np.int64)
    present = bytes(value is not None for value in values)
    known = pc.equal(_int8(present), constant(1, pa.int8()))
    column = column_of(type_, lengths=lengths, data=np.frombuffer(b"".join(encoded), np.uint8), nulls_of=known)
    return column if all(present) else pc.if_else(known, column, constant(None, type_))


def _int8(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int8(), len(data), [None, pa.py_buffer(data)])


def per_distinct(
    values: pa.Array, function: Callable[[Any], str | bytes | None], type_: pa.DataType | None = None
) -> pa.Array:
    """Calls Python once for each distinct value: for what neither Arrow nor numpy can do."""
    encoded = values.dictionary_encode()
    results = [None if value is None else function(value) for value in encoded.dictionary.to_pylist()]
    return strings(results, type_ or values.type).take(encoded.indices)


def run_in_order(arguments: Sequence[Kernel], rows: pa.RecordBatch) -> list[Value]:
    """Each argument only where all before it are valid, as Spark evaluates functions that are null for a null."""
    results: list[Value] = []
    valid: pa.Array | None = None
    for argument in arguments:
        if not argument.raises or valid is None:
            value = argument.run(rows)
        else:
            value = run_where(argument, rows, valid)
        results.append(value)
        present = as_array(pc.is_valid(value), rows.num_rows)
        valid = present if valid is None else pc.and_(valid, present)
    return results


def require_types(function: str, arguments: Sequence[Kernel], *types: pa.DataType) -> None:
    if tuple(argument.type for argument in arguments) != types:
        raise unsupported(function, *(argument.type for argument in arguments))


def constant_of(argument: Kernel, function: str, role: str) -> object:
    """The constant's Python value, or a refusal."""
    if argument.constant is None or not argument.constant.is_valid:
        raise unsupported(f"{function} with a {role} that is not a constant", argument.type)
    return argument.constant.as_py()


def constant_text(argument: Kernel, function: str, role: str) -> str:
    value = constant_of(argument, function, role)
    if not isinstance(value, str):
        raise unsupported(f"{function} with such a {role}", argument.type)
    return value


def constant_integer(argument: Kernel, function: str, role: str) -> int:
    value = constant_of(argument, function, role)
    if not isinstance(value, int):
        raise unsupported(f"{function} with such a {role}", argument.type)
    return value
