"""Columns as plain ones: structs taken apart into their fields and put together again, arrays made of numpy's."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.key_table import Slots
from tidegate.plan.key_groups import validity_of

Flags: TypeAlias = npt.NDArray[np.bool_]


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """A struct is compared by its fields, with one flag in front that says whether it is there at all."""
    if not pa.types.is_struct(kind):
        return [kind]
    return [pa.bool_(), *(leaf for field in kind for leaf in leaf_types(field.type))]


def leaves_of(column: pa.Array) -> list[pa.Array]:
    if not pa.types.is_struct(column.type):
        return [column]
    valid = validity_of(column)
    is_there = fixed_array(pa.bool_(), np.ones(len(column), np.bool_) if valid is None else valid, None)
    return [is_there, *(leaf for child in column.flatten() for leaf in leaves_of(child))]


def rebuilt(kind: pa.DataType, leaves: Iterator[pa.Array]) -> pa.Array:
    if not pa.types.is_struct(kind):
        return next(leaves)
    is_there = next(leaves)
    children = [rebuilt(field.type, leaves) for field in kind]
    validity = None if is_there.true_count == len(is_there) else is_there.buffers()[1]
    return pa.Array.from_buffers(kind, len(is_there), [validity], children=children)


def slots_array(slots: Slots) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(slots), [None, pa.py_buffer(np.ascontiguousarray(slots))])


def fixed_array(kind: pa.DataType, values: npt.NDArray[Any], valid: Flags | None) -> pa.Array:
    """An Arrow array of a fixed-width type; `values` must not be written to afterwards."""
    validity = None if valid is None else validity_buffer(valid)
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def validity_buffer(valid: Flags) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
