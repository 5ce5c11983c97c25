"""Rows as bytes, one string for each: those of equal rows are equal, and whoever wrote them reads them back.

A row is the fixed part of all its columns, then the bytes of those of variable width. Must never touch single values
in Python.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import fixed_array, leaf_types, leaves_of, rebuilt
from tidegate.plan.key_groups import is_variable_width, validity_of

_Bytes = npt.NDArray[np.uint8]
_LENGTH_BYTES = 4
_OFFSET_TYPES: dict[pa.DataType, str] = {
    pa.string(): "i4",
    pa.binary(): "i4",
    pa.large_string(): "i8",
    pa.large_binary(): "i8",
}


def can_encode(kind: pa.DataType) -> bool:
    """Not lists and maps, nor structs with any."""
    return all(leaf in _OFFSET_TYPES or _is_fixed(leaf) for leaf in leaf_types(kind))


class RowCodec:
    """Raises nothing for types that `can_encode`; floats are kept bit by bit."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._kinds = list(kinds)
        self._leaves = [leaf for kind in kinds for leaf in leaf_types(kind)]
        # Whether each leaf is there, then their values, or the lengths of values.
        widths = [_LENGTH_BYTES if leaf in _OFFSET_TYPES else _width(leaf) for leaf in self._leaves]
        self._starts = (len(self._leaves) + np.cumsum([0, *widths])).tolist()
        self._has_variable = any(leaf in _OFFSET_TYPES for leaf in self._leaves)

    def encode(self, columns: Sequence[pa.Array], row_count: int) -> list[bytes]:
        leaves = [leaf for column in columns for leaf in leaves_of(column)]
        heads = np.zeros((row_count, self._starts[-1]), dtype=np.uint8)
        variable: list[tuple[_Bytes, npt.NDArray[np.int64]]] = []
        for at, (leaf, kind) in enumerate(zip(leaves, self._leaves, strict=True)):
            valid = validity_of(leaf)
            heads[:, at] = 1 if valid is None else valid
            place = slice(self._starts[at], self._starts[at + 1])
            if kind in _OFFSET_TYPES:
                data, lengths = _variable(leaf, kind, valid)
                heads[:, place] = lengths.astype("<u4").view(np.uint8).reshape(-1, _LENGTH_BYTES)
                variable.append((data, lengths))
            else:
                heads[:, place] = _fixed(leaf, kind)
                if valid is not None:
                    heads[~valid, place] = 0
        if not self._has_variable:
            return _split(heads)
        return _joined(heads, variable)

    def decode(self, rows: Sequence[bytes]) -> list[pa.Array]:
        data = np.frombuffer(b"".join(rows), dtype=np.uint8)
        width = self._starts[-1]
        if self._has_variable:
            lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
            starts = np.cumsum(lengths) - lengths
            heads = data[starts[:, None] + np.arange(width)]
            at_bytes = starts + width
        else:
            heads = data.reshape(len(rows), width)
            at_bytes = np.zeros(0, dtype=np.int64)
        leaves = []
        for at, kind in enumerate(self._leaves):
            valid = heads[:, at] != 0
            values = np.ascontiguousarray(heads[:, self._starts[at] : self._starts[at + 1]])
            if kind in _OFFSET_TYPES:
                lengths = values.view("<u4").reshape(-1).astype(np.int64)
                leaves.append(_as_variable(kind, data[_places(at_bytes, lengths)], lengths, valid))
                at_bytes = at_bytes + lengths
            else:
                leaves.append(_as_fixed(kind, values, valid))
        remaining: Iterator[pa.Array] = iter(leaves)
        return [rebuilt(kind, remaining) for kind in self._kinds]


def _is_fixed(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or is_variable_width(kind))


def _width(kind: pa.DataType) -> int:
    if pa.types.is_null(kind):
        return 0
    return 1 if pa.types.is_boolean(kind) else int(kind.bit_width) // 8


def _fixed(leaf: pa.Array, kind: pa.DataType) -> _Bytes:
    width = _width(kind)
    if width == 0 or len(leaf) == 0:
        return np.zeros((len(leaf), width), dtype=np.uint8)
    stored = np.frombuffer(leaf.buffers()[1], dtype=np.uint8)
    if pa.types.is_boolean(kind):
        return np.unpackbits(stored, bitorder="little")[leaf.offset : leaf.offset + len(leaf)].reshape(-1, 1)
    return stored[leaf.offset * width : (leaf.offset + len(leaf)) * width].reshape(-1, width)


def _as_fixed(kind: pa.DataType, values: _Bytes, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(valid))
    if pa.types.is_boolean(kind):
        return fixed_array(kind, values.reshape(-1), valid)
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(values)])


def _variable(
    leaf: pa.Array, kind: pa.DataType, valid: npt.NDArray[np.bool_] | None
) -> tuple[_Bytes, npt.NDArray[np.int64]]:
    """The bytes of all values, one after the other, and how many each has; none under a null."""
    if len(leaf) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    stored = np.frombuffer(leaf.buffers()[1], dtype=_OFFSET_TYPES[kind])[leaf.offset : leaf.offset + len(leaf) + 1]
    offsets = stored.astype(np.int64)
    lengths = np.diff(offsets)
    buffer = leaf.buffers()[2]
    data = np.zeros(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, dtype=np.uint8)
    if valid is None:
        return data[offsets[0] : offsets[-1]], lengths
    lengths = np.where(valid, lengths, 0)
    return data[_places(offsets[:-1], lengths)], lengths


def _as_variable(
    kind: pa.DataType, data: _Bytes, lengths: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]
) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=_OFFSET_TYPES[kind])
    np.cumsum(lengths, out=offsets[1:])
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _places(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of all bytes of values that start there and are so long."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: npt.NDArray[np.int64] = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places


def _split(rows: _Bytes) -> list[bytes]:
    if rows.shape[1] == 0:
        return [b""] * len(rows)
    whole: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").reshape(-1).tolist()
    return whole


def _joined(heads: _Bytes, variable: Sequence[tuple[_Bytes, npt.NDArray[np.int64]]]) -> list[bytes]:
    row_count, width = heads.shape
    lengths: npt.NDArray[Any] = width + sum((each for _, each in variable), np.zeros(row_count, dtype=np.int64))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    data = np.zeros(int(ends[-1]) if row_count else 0, dtype=np.uint8)
    data[starts[:, None] + np.arange(width)] = heads
    at = starts + width
    for values, each in variable:
        data[_places(at, each)] = values
        at = at + each
    whole = data.tobytes()
    return [whole[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
