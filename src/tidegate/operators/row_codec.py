"""Rows as bytes, one string for each: those of equal rows are equal, and whoever wrote them reads them back.

A row is the fixed part of all its columns, then what is of variable width: of strings and bytes themselves, of a list
its elements, which lie as rows do: the fixed parts of all of them, then what is of variable width. Bytes of rows are
stored: a form, once released, must never change. Must never touch single values in Python.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.leaves import Flags, fixed_array, leaf_types, leaves_of, rebuilt, validity_buffer
from tidegate.operators.ragged_bytes import (
    Cursor,
    Lengths,
    RaggedBytes,
    gathered,
    joined,
    joined_column,
    sums_by_row,
)
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
    """Not dictionaries, nor lists of a fixed size or as views, nor what holds any."""
    return all(_can_encode_leaf(leaf) for leaf in leaf_types(kind))


class RowCodec:
    """For types that `can_encode`; floats are kept bit by bit."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._layout = _Layout(kinds)

    def encode(self, columns: Sequence[pa.Array], row_count: int) -> list[bytes]:
        encoded = self._layout.encoded(columns, row_count, None)
        return joined(encoded.heads, encoded.behind) if self._layout.has_variable else _split(encoded.heads)

    def encode_column(self, columns: Sequence[pa.Array], row_count: int) -> pa.Array:
        """The same as a large binary array."""
        encoded = self._layout.encoded(columns, row_count, None)
        return joined_column(encoded.heads, encoded.behind)

    def decode(self, rows: Sequence[bytes]) -> list[pa.Array]:
        data = np.frombuffer(b"".join(rows), dtype=np.uint8)
        return self._decoded(data, np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))

    def decode_column(self, rows: pa.Array) -> list[pa.Array]:
        return self._decoded(*_variable(rows, pa.large_binary(), None))

    def _decoded(self, data: _Bytes, lengths: Lengths) -> list[pa.Array]:
        cursor, width = Cursor(data, lengths), self._layout.width
        heads = cursor.take(np.full(len(lengths), width)).reshape(len(lengths), width)
        return self._layout.decoded(heads, cursor, None)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """`place`: of its value in the fixed part, or of its length. `elements`: of a list, how they lie."""

    kind: pa.DataType
    place: slice
    elements: "_Layout | None"


@dataclass(frozen=True, slots=True)
class _Encoded:
    """`heads`: the fixed parts, one line for each row or element."""

    heads: _Bytes
    behind: list[RaggedBytes]


class _Layout:
    """How rows lie that have columns of these types, or the elements of lists.

    `per_row`: of elements, how many each row has in all its lists; None where there is one of them in each row.
    """

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._kinds = list(kinds)
        leaves = [leaf for kind in kinds for leaf in leaf_types(kind)]
        # Whether each leaf is there, then their values, or the lengths of values.
        ends = [len(leaves), *(len(leaves) + np.cumsum([_head_width(leaf) for leaf in leaves])).tolist()]
        self._leaves = [
            _Leaf(leaf, slice(*place), _Layout([_element_type(leaf)]) if _is_list(leaf) else None)
            for leaf, place in zip(leaves, pairwise(ends), strict=True)
        ]
        self.width: int = ends[-1]
        self.has_variable = any(leaf in _OFFSET_TYPES or _is_list(leaf) for leaf in leaves)

    def encoded(self, columns: Sequence[pa.Array], count: int, per_row: Lengths | None) -> _Encoded:
        arrays = [array for column in columns for array in leaves_of(column)]
        heads = np.zeros((count, self.width), dtype=np.uint8)
        behind: list[RaggedBytes] = []
        for at, (array, leaf) in enumerate(zip(arrays, self._leaves, strict=True)):
            valid = validity_of(array)
            heads[:, at] = 1 if valid is None else valid
            if leaf.elements is not None:
                elements, lengths = _listed(array, leaf.kind, valid)
                heads[:, leaf.place] = _as_bytes(lengths)
                behind += leaf.elements._encoded_elements(elements, sums_by_row(lengths, per_row))
            elif leaf.kind in _OFFSET_TYPES:
                data, lengths = _variable(array, leaf.kind, valid)
                heads[:, leaf.place] = _as_bytes(lengths)
                behind.append(RaggedBytes(data, sums_by_row(lengths, per_row)))
            else:
                heads[:, leaf.place] = _fixed(array, leaf.kind)
                if valid is not None:
                    heads[~valid, leaf.place] = 0
        return _Encoded(heads, behind)

    def _encoded_elements(self, elements: pa.Array, per_row: Lengths) -> list[RaggedBytes]:
        encoded = self.encoded([elements], len(elements), per_row)
        return [RaggedBytes(encoded.heads.reshape(-1), per_row * self.width), *encoded.behind]

    def decoded(self, heads: _Bytes, cursor: Cursor, per_row: Lengths | None) -> list[pa.Array]:
        """`cursor`: at what is behind the heads."""
        arrays = []
        for at, leaf in enumerate(self._leaves):
            valid, values = heads[:, at] != 0, np.ascontiguousarray(heads[:, leaf.place])
            if leaf.elements is not None:
                lengths = _from_bytes(values)
                elements = leaf.elements._decoded_elements(cursor, sums_by_row(lengths, per_row))
                arrays.append(_as_lists(leaf.kind, elements, lengths, valid))
            elif leaf.kind in _OFFSET_TYPES:
                lengths = _from_bytes(values)
                data = cursor.take(sums_by_row(lengths, per_row))
                arrays.append(_as_variable(leaf.kind, data, lengths, valid))
            else:
                arrays.append(_as_fixed(leaf.kind, values, valid))
        remaining: Iterator[pa.Array] = iter(arrays)
        return [rebuilt(kind, remaining) for kind in self._kinds]

    def _decoded_elements(self, cursor: Cursor, per_row: Lengths) -> pa.Array:
        heads = cursor.take(per_row * self.width).reshape(int(per_row.sum()), self.width)
        (elements,) = self.decoded(heads, cursor, per_row)
        return elements


def _can_encode_leaf(kind: pa.DataType) -> bool:
    if _is_list(kind):
        return can_encode(_element_type(kind))
    if is_variable_width(kind):
        return kind in _OFFSET_TYPES or bool(pa.types.is_fixed_size_binary(kind))
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _element_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type


def _head_width(kind: pa.DataType) -> int:
    return _LENGTH_BYTES if kind in _OFFSET_TYPES or _is_list(kind) else _width(kind)


# -- values of fixed width


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


def _as_fixed(kind: pa.DataType, values: _Bytes, valid: Flags) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(valid))
    if pa.types.is_boolean(kind):
        return fixed_array(kind, values.reshape(-1), valid)
    return pa.Array.from_buffers(kind, len(valid), [validity_buffer(valid), pa.py_buffer(values)])


# -- strings and bytes


def _variable(leaf: pa.Array, kind: pa.DataType, valid: Flags | None) -> tuple[_Bytes, Lengths]:
    """The bytes of all values, one after the other, and how many each has; none under a null."""
    offsets, lengths = _offsets_of(leaf, _OFFSET_TYPES[kind], valid)
    buffer = leaf.buffers()[2]
    if buffer is None or len(leaf) == 0:
        return np.zeros(0, dtype=np.uint8), lengths
    return gathered(np.frombuffer(buffer, dtype=np.uint8), offsets[:-1], lengths), lengths


def _as_variable(kind: pa.DataType, data: _Bytes, lengths: Lengths, valid: Flags) -> pa.Array:
    offsets = _as_offsets(lengths, _OFFSET_TYPES[kind])
    return pa.Array.from_buffers(kind, len(valid), [validity_buffer(valid), offsets, pa.py_buffer(data)])


# -- lists and maps


def _listed(leaf: pa.Array, kind: pa.DataType, valid: Flags | None) -> tuple[pa.Array, Lengths]:
    """The elements of all lists, one after the other, and how many each has; none under a null."""
    _, lengths = _offsets_of(leaf, _list_offset_type(kind), valid)
    if pa.types.is_map(kind):
        as_list, buffers = pa.list_(_element_type(kind)), leaf.buffers()[:2]
        leaf = pa.Array.from_buffers(as_list, len(leaf), buffers, offset=leaf.offset, children=[leaf.values])
    return leaf.flatten(), lengths


def _as_lists(kind: pa.DataType, elements: pa.Array, lengths: Lengths, valid: Flags) -> pa.Array:
    buffers = [validity_buffer(valid), _as_offsets(lengths, _list_offset_type(kind))]
    return pa.Array.from_buffers(kind, len(valid), buffers, children=[elements])


def _list_offset_type(kind: pa.DataType) -> str:
    return "i8" if pa.types.is_large_list(kind) else "i4"


# -- what they have in common


def _offsets_of(leaf: pa.Array, offset_type: str, valid: Flags | None) -> tuple[Lengths, Lengths]:
    """Where each value begins, with the end of the last; and the lengths of those that are there."""
    if len(leaf) == 0:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    stored = np.frombuffer(leaf.buffers()[1], dtype=offset_type)[leaf.offset : leaf.offset + len(leaf) + 1]
    offsets = stored.astype(np.int64)
    lengths = np.diff(offsets)
    return offsets, lengths if valid is None else np.where(valid, lengths, 0)


def _as_offsets(lengths: Lengths, offset_type: str) -> pa.Buffer:
    total, most = int(lengths.sum()), np.iinfo(offset_type).max
    if total > most:
        raise UserCodeFailure(
            f"Rows of state that are needed together hold {total} bytes of strings or elements of arrays, an Arrow "
            f"array at most {most}: collect less, such as with a shorter window."
        )
    offsets = np.zeros(len(lengths) + 1, dtype=offset_type)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def _as_bytes(lengths: Lengths) -> _Bytes:
    return lengths.astype("<u4").view(np.uint8).reshape(-1, _LENGTH_BYTES)


def _from_bytes(values: _Bytes) -> Lengths:
    return values.view("<u4").reshape(-1).astype(np.int64)


def _split(rows: _Bytes) -> list[bytes]:
    if rows.shape[1] == 0:
        return [b""] * len(rows)
    whole: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").reshape(-1).tolist()
    return whole
