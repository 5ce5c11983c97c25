"""Columns of arrays, maps and structs taken apart into numpy extents and Arrow children, and put together again.

Works on buffers alone: no Python objects per row, no pandas, and nothing that lies under a null is ever looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.key_groups import validity_of

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

# Arrow's arrays of a batch share one 32-bit range of elements.
_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Lists:
    """A column of arrays (or maps): row i holds `values[starts[i] : starts[i] + lengths[i]]`; a null row holds none."""

    starts: Integers
    lengths: Integers
    values: pa.Array
    valid: Flags | None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def total(self) -> int:
        return int(self.lengths.sum())

    def rows(self) -> Integers:
        """The row that each element belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def positions(self) -> Integers:
        """The position of each element within its row, from 0."""
        return positions_within(self.lengths)

    def indices(self) -> Integers:
        """Where each element stands in `values`."""
        return np.repeat(self.starts, self.lengths) + self.positions()

    def elements(self) -> pa.Array:
        """The elements of all rows, one row after the other."""
        if len(self.lengths) == 0:
            return self.values.slice(0, 0)
        if np.array_equal(self.starts[1:], self.starts[:-1] + self.lengths[:-1]):
            return self.values.slice(int(self.starts[0]), self.total)
        return take(self.values, self.indices())


def lists_of(column: pa.Array) -> Lists:
    length, valid = len(column), validity_of(column)
    if length == 0:
        nothing = np.zeros(0, np.int64)
        return Lists(nothing, nothing, column.values, None)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + length + 1].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if valid is not None and lengths[~valid].any():
        # What stands under a null is none of its elements.
        lengths = np.where(valid, lengths, 0)
    return Lists(starts, lengths, column.values, valid)


def positions_within(lengths: Integers) -> Integers:
    ends = np.cumsum(lengths)
    positions: Integers = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return positions


def list_array(type_: pa.DataType, lengths: npt.NDArray[Any], values: pa.Array, valid: Flags | None) -> pa.Array:
    """Arrays (or maps) of these lengths over `values`, one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_ELEMENTS:
        raise UserCodeFailure(
            f"The arrays of one batch would have {offsets[-1]} elements, more than {_MOST_ELEMENTS}: make them shorter."
        )
    # Arrow reads the children of a list from their own offset on.
    return pa.Array.from_buffers(
        type_, len(lengths), [_validity(valid), pa.py_buffer(offsets.astype(np.int32))], children=[values]
    )


def struct_array(type_: pa.DataType, fields: Sequence[pa.Array], length: int, valid: Flags | None) -> pa.Array:
    return pa.Array.from_buffers(type_, length, [_validity(valid)], children=list(fields))


def fixed_array(type_: pa.DataType, values: npt.NDArray[Any], valid: Flags | None = None) -> pa.Array:
    """A column of a fixed-width type; `values` must not be written to afterwards."""
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(type_) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(type_, len(values), [_validity(valid), pa.py_buffer(data)])


def take(values: pa.Array, indices: Integers, valid: Flags | None = None) -> pa.Array:
    """The values at those indices, null where not `valid`."""
    if valid is not None:
        indices = np.where(valid, indices, 0)
    return values.take(fixed_array(pa.int64(), indices, valid))


def flags_of(column: pa.Array) -> Flags:
    """True where a boolean column is true; a null counts as false."""
    values, valid = bits_of(column), validity_of(column)
    return values if valid is None else values & valid


def bits_of(column: pa.Array) -> Flags:
    length = len(column)
    if length == 0:
        return np.zeros(0, np.bool_)
    packed = np.frombuffer(column.buffers()[1], np.uint8)
    return np.unpackbits(packed, bitorder="little")[column.offset : column.offset + length].view(np.bool_)


def both(first: Flags | None, second: Flags | None) -> Flags | None:
    """Valid where both are; None stands for all."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def only_valid(lists: Lists, valid: Flags | None) -> Lists:
    """The same with no elements in the rows that are not valid."""
    if valid is None:
        return lists
    return Lists(lists.starts, np.where(valid, lists.lengths, 0), lists.values, valid)


def joined(parts: list[Lists], valid: Flags | None) -> Lists:
    """The elements of the first part of a row, then of the second, and so on."""
    parts = [only_valid(part, valid) for part in parts]
    values = pa.concat_arrays([part.elements() for part in parts])
    bases = np.cumsum([0, *(part.total for part in parts)])
    starts = np.stack([starts_of(part.lengths) + base for part, base in zip(parts, bases, strict=False)], axis=1)
    lengths = np.stack([part.lengths for part in parts], axis=1)
    flat = Lists(starts.reshape(-1), lengths.reshape(-1), values, None)
    totals = lengths.sum(axis=1)
    return Lists(starts_of(totals), totals, flat.elements(), valid)


def packed(type_: pa.DataType, lists: Lists) -> pa.Array:
    return list_array(type_, lists.lengths, lists.elements(), lists.valid)


def starts_of(lengths: Integers) -> Integers:
    return np.cumsum(lengths) - lengths


def any_of(lists: Lists, flags: Flags) -> Flags:
    found = np.zeros(len(lists), np.bool_)
    found[lists.rows()[flags]] = True
    return found


def padded(lists: Lists, lengths: Integers) -> pa.Array:
    """The elements of each row up to its length, null where there are fewer."""
    positions = positions_within(lengths)
    inside = positions < np.repeat(lists.lengths, lengths)
    return take(lists.values, np.repeat(lists.starts, lengths) + positions, inside)


def _validity(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
