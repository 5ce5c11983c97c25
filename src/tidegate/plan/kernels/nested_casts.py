"""Casts of arrays, maps and structs: what is inside is cast by itself, fields by position; the shape stays."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from tidegate.plan.expressions import Cast
from tidegate.plan.kernels.lists import list_array, lists_of, struct_array
from tidegate.plan.kernels.values import unsupported
from tidegate.plan.key_groups import validity_of

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
# How to convert, and whether that may raise.
Conversion: TypeAlias = tuple[Convert, bool]


def nested_conversion(cast: Cast, source: pa.DataType, inside: Callable[[Cast, pa.DataType], Conversion]) -> Conversion:
    """`inside` converts the parts, which may be nested again."""
    target = cast.type

    def part(wanted: pa.DataType, found: pa.DataType) -> Conversion:
        if wanted == found:
            return lambda values: values, False
        return inside(replace(cast, type=wanted), found)

    if pa.types.is_map(source) and pa.types.is_map(target):
        return _of_map(target, part(target.key_type, source.key_type), part(target.item_type, source.item_type))
    if pa.types.is_list(source) and pa.types.is_list(target):
        return _of_list(target, part(target.value_type, source.value_type))
    if pa.types.is_struct(source) and pa.types.is_struct(target) and source.num_fields == target.num_fields:
        return _of_struct(target, [part(a.type, b.type) for a, b in zip(target, source, strict=True)])
    raise unsupported("Cast", source, target)


def _of_list(target: pa.DataType, element: Conversion) -> Conversion:
    convert, raises = element

    def run(values: pa.Array) -> pa.Array:
        lists = lists_of(values)
        return list_array(target, lists.lengths, convert(lists.elements()), lists.valid)

    return run, raises


def _of_map(target: pa.DataType, key: Conversion, item: Conversion) -> Conversion:
    entry = pa.struct([pa.field("key", target.key_type, nullable=False), pa.field("value", target.item_type)])
    (convert_key, key_raises), (convert_item, item_raises) = key, item

    def run(values: pa.Array) -> pa.Array:
        lists = lists_of(values)
        entries = lists.elements()
        parts = [convert_key(entries.field(0)), convert_item(entries.field(1))]
        return list_array(target, lists.lengths, struct_array(entry, parts, len(entries), None), lists.valid)

    return run, key_raises or item_raises


def _of_struct(target: pa.DataType, fields: list[Conversion]) -> Conversion:
    def run(values: pa.Array) -> pa.Array:
        valid = validity_of(values)
        # What stands under a null struct is not cast: it might raise.
        parts = values.flatten() if valid is not None else [values.field(at) for at in range(len(fields))]
        converted = [convert(part) for (convert, _), part in zip(fields, parts, strict=True)]
        return struct_array(target, converted, len(values), valid)

    return run, any(raises for _, raises in fields)
