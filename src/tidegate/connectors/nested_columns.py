"""Arrays, maps and structs of a file as the nested types of a wanted schema, field by field, by Spark's rules.

Fields are matched by name; a missing one is null, one that is not wanted is left out. What to do with the values inside
is the caller's.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.connectors.column_names import ColumnNames
from tidegate.plan.kernels.lists import list_array, lists_of, struct_array
from tidegate.plan.key_groups import validity_of

Cast: TypeAlias = Callable[["pa.Array[Any]", pa.DataType, ColumnNames], "pa.Array[Any]"]


def can_fit(
    stored: pa.DataType,
    wanted: pa.DataType,
    names: ColumnNames,
    can_read: Callable[[pa.DataType, pa.DataType, ColumnNames], bool],
) -> bool | None:
    """Whether a nested type can be read as another; None if they are not nested alike."""
    if pa.types.is_map(stored) and pa.types.is_map(wanted):
        parts = ((stored.key_type, wanted.key_type), (stored.item_type, wanted.item_type))
        return all(can_read(inner, wanted_inner, names) for inner, wanted_inner in parts)
    if _is_array(stored) and pa.types.is_list(wanted):
        return can_read(stored.value_type, wanted.value_type, names)
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        positions = _positions(stored, wanted, names)
        return positions is not None and all(
            can_read(stored.field(at).type, field.type, names)
            for at, field in zip(positions, wanted, strict=True)
            if at is not None
        )
    return None


def fit(column: "pa.Array[Any]", wanted: pa.DataType, names: ColumnNames, cast: Cast) -> "pa.Array[Any]":
    """The column in the wanted type, for types that `can_fit`; `cast` converts what is inside."""
    if pa.types.is_struct(wanted):
        return _fit_struct(column, wanted, names, cast)
    lists = lists_of(_with_usual_offsets(column))
    elements = lists.elements()
    if pa.types.is_map(wanted):
        kinds = (wanted.key_type, wanted.item_type)
        parts = [cast(elements.field(at), kind, names) for at, kind in enumerate(kinds)]
        entry = pa.struct([pa.field("key", wanted.key_type, nullable=False), pa.field("value", wanted.item_type)])
        return list_array(wanted, lists.lengths, struct_array(entry, parts, len(elements), None), lists.valid)
    return list_array(wanted, lists.lengths, cast(elements, wanted.value_type, names), lists.valid)


def has_intervals(type_: pa.DataType) -> bool:
    """Whether a value of it has an interval anywhere inside."""
    if pa.types.is_map(type_):
        return has_intervals(type_.key_type) or has_intervals(type_.item_type)
    if pa.types.is_list(type_):
        return has_intervals(type_.value_type)
    if pa.types.is_struct(type_):
        return any(has_intervals(field.type) for field in type_)
    return bool(pa.types.is_duration(type_) or pa.types.is_interval(type_))


def _is_array(type_: pa.DataType) -> bool:
    """Also as Arrow's writers lay arrays out in memory: a file remembers it, and means nothing by it."""
    # Not list views: Arrow casts them to arrays that are not valid.
    layouts = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_layout(type_) for is_layout in layouts)


def _with_usual_offsets(column: "pa.Array[Any]") -> "pa.Array[Any]":
    if pa.types.is_list(column.type) or pa.types.is_map(column.type):
        return column
    return column.cast(pa.list_(column.type.value_field))


def _fit_struct(column: "pa.Array[Any]", wanted: pa.DataType, names: ColumnNames, cast: Cast) -> "pa.Array[Any]":
    positions = _positions(column.type, wanted, names)
    assert positions is not None, "the types were compared before"
    parts = [
        pa.nulls(len(column), field.type) if at is None else cast(column.field(at), field.type, names)
        for at, field in zip(positions, wanted, strict=True)
    ]
    return struct_array(wanted, parts, len(column), validity_of(column))


def _positions(stored: pa.DataType, wanted: pa.DataType, names: ColumnNames) -> list[int | None] | None:
    """Where each wanted field stands in the stored struct; None if a name fits several."""
    by_key: dict[str, int] = {}
    for at, field in enumerate(stored):
        if names.key(field.name) in by_key:
            return None
        by_key[names.key(field.name)] = at
    return [by_key.get(names.key(field.name)) for field in wanted]
