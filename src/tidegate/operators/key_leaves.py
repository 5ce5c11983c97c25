"""The plain columns that keys are compared by: the fields of structs, and of lists the bytes that they are written as.

Equal keys, as Spark compares them, have equal bytes: one NaN, no -0.0.
"""

from collections.abc import Iterator

import pyarrow as pa

from tidegate.operators.leaves import fixed_array, leaf_types, leaves_of, rebuilt
from tidegate.operators.row_codec import RowCodec
from tidegate.plan.key_groups import check_key_type, fixed_values_of, validity_of


def key_leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """Raises `UnsupportedPlan` for what is no key."""
    check_key_type(kind)
    return [pa.large_binary() if pa.types.is_list(leaf) else leaf for leaf in leaf_types(kind)]


def key_leaves_of(column: pa.Array) -> list[pa.Array]:
    return [_as_bytes(leaf) if pa.types.is_list(leaf.type) else leaf for leaf in leaves_of(column)]


def rebuilt_key(kind: pa.DataType, leaves: Iterator[pa.Array]) -> pa.Array:
    of_kind = (
        RowCodec([leaf]).decode_column(next(leaves))[0] if pa.types.is_list(leaf) else next(leaves)
        for leaf in leaf_types(kind)
    )
    return rebuilt(kind, of_kind)


def _as_bytes(lists: pa.Array) -> pa.Array:
    """Without nulls: a list that is not there has bytes of its own."""
    return RowCodec([lists.type]).encode_column([_as_compared(lists)], len(lists))


def _as_compared(column: pa.Array) -> pa.Array:
    kind = column.type
    if not _has_floats(kind):
        return column
    if pa.types.is_list(kind):
        buffers, elements = column.buffers()[:2], _as_compared(column.values)
        return pa.Array.from_buffers(kind, len(column), buffers, offset=column.offset, children=[elements])
    if pa.types.is_struct(kind):
        return rebuilt(kind, iter([_as_compared(leaf) for leaf in leaves_of(column)]))
    return fixed_array(kind, fixed_values_of(column), validity_of(column))


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_floats(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))
