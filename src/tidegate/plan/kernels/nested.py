"""Structs and maps, and single elements of arrays: made from columns, and taken apart into columns.

A field of a null struct is null; a missing key is null; an index outside of an array is null, or an error in ANSI mode.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.comparison import equality
from tidegate.plan.kernels.lists import (
    Flags,
    Integers,
    Lists,
    both,
    flags_of,
    list_array,
    lists_of,
    only_valid,
    struct_array,
    take,
)
from tidegate.plan.kernels.ordering import has_floats, ranks, require_orderable
from tidegate.plan.kernels.values import Kernel, Value, as_array, numpy_of, run_if_valid, unsupported
from tidegate.plan.key_groups import validity_of


def build_get_struct_field(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    if not pa.types.is_struct(child.type):
        raise unsupported(call.function, child.type)
    ordinal = _ordinal(call)
    return Kernel(lambda rows: _field(column(child, rows), ordinal), call.type, raises=child.raises)


def build_get_array_struct_fields(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The field of every element; a null element gives a null."""
    (child,) = arguments
    ordinal = _ordinal(call)

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        return list_array(call.type, lists.lengths, _field(lists.elements(), ordinal), lists.valid)

    return Kernel(run, call.type, raises=child.raises)


def build_create_named_struct(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Arguments are name, value, name, value, ..."""
    values = arguments[1::2]
    if not values:
        raise unsupported("CreateNamedStruct without fields", call.type)

    def run(rows: pa.RecordBatch) -> Value:
        return struct_array(call.type, [column(value, rows) for value in values], rows.num_rows, None)

    return Kernel(run, call.type, raises=any(value.raises for value in values))


def build_get_array_item(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    array, ordinal = arguments
    if not pa.types.is_list(array.type):
        raise unsupported(call.function, array.type)

    def run(rows: pa.RecordBatch) -> Value:
        lists, wanted, given = _array_and_index(array, ordinal, rows)
        inside = (wanted >= 0) & (wanted < lists.lengths)
        if call.ansi and (given & ~inside).any():
            raise _bad_index("INVALID_ARRAY_INDEX", lists, wanted, given & ~inside)
        return take(lists.values, lists.starts + wanted, inside & given)

    return Kernel(run, call.type, raises=array.raises or ordinal.raises or call.ansi)


def build_element_at(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Counts from 1, or from the end if negative; of a map, the value of a key."""
    collection, key = arguments[:2]
    if len(arguments) > 2:
        raise unsupported("ElementAt with a default", collection.type)
    if pa.types.is_map(collection.type):
        return build_get_map_value(call, arguments)

    def run(rows: pa.RecordBatch) -> Value:
        lists, wanted, given = _array_and_index(collection, key, rows)
        if (given & (wanted == 0)).any():
            raise UserCodeFailure("[INVALID_INDEX_OF_ZERO] The index 0 is invalid: element_at counts from 1.")
        inside = np.abs(wanted) <= lists.lengths
        if call.ansi and (given & ~inside).any():
            raise _bad_index("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", lists, wanted, given & ~inside)
        position = np.where(wanted > 0, wanted - 1, lists.lengths + wanted)
        return take(lists.values, lists.starts + position, inside & given)

    return Kernel(run, call.type, raises=True)


def build_get_map_value(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    maps, key = arguments[:2]
    if not pa.types.is_map(maps.type):
        raise unsupported(call.function, maps.type)
    equal = equality(call, maps.type.key_type, key.type)

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(maps, rows)
        wanted = as_array(run_if_valid(key, rows, stored), rows.num_rows)
        lists = lists_of(stored)
        owners, entries = lists.rows(), lists.elements()
        matches = np.flatnonzero(flags_of(equal(entries.field(0), take(wanted, owners))))
        # In reverse, the first of several matches is the one that stays.
        found, at = np.zeros(len(lists), np.bool_), np.zeros(len(lists), np.int64)
        found[owners[matches]], at[owners[matches][::-1]] = True, matches[::-1]
        return take(entries.field(1), at, found)

    return Kernel(run, call.type, raises=maps.raises or key.raises)


def build_map_keys(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    return _map_part(call, arguments, lambda entries: entries.field(0))


def build_map_values(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    return _map_part(call, arguments, lambda entries: entries.field(1))


def build_map_entries(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    entry = call.type.value_type
    return _map_part(
        call, arguments, lambda entries: struct_array(entry, [entries.field(0), entries.field(1)], len(entries), None)
    )


def build_create_map(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Arguments are key, value, key, value, ..."""
    require_map_keys(call, call.type.key_type)
    keys, values = arguments[::2], arguments[1::2]
    if not keys:
        raise unsupported("CreateMap without entries", call.type)

    def run(rows: pa.RecordBatch) -> Value:
        lengths = np.full(rows.num_rows, len(keys), np.int64)
        return map_array(call, lengths, interleaved(keys, rows), interleaved(values, rows), None)

    return Kernel(run, call.type, raises=not _surely_distinct(keys) or any(value.raises for value in values))


def build_map_from_arrays(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_map_keys(call, call.type.key_type)
    first, second = arguments

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(first, rows)
        keys, values = lists_of(stored), lists_of(as_array(run_if_valid(second, rows, stored), rows.num_rows))
        valid = both(keys.valid, values.valid)
        keys, values = only_valid(keys, valid), only_valid(values, valid)
        if not np.array_equal(keys.lengths, values.lengths):
            raise UserCodeFailure(
                "The key array and value array of MapData must have the same length: make them equally long."
            )
        return map_array(call, keys.lengths, keys.elements(), values.elements(), valid)

    return Kernel(run, call.type, raises=True)


def map_array(call: Call, lengths: Integers, keys: pa.Array, values: pa.Array, valid: Flags | None) -> pa.Array:
    """Maps as Spark builds them: no null keys, no key twice."""
    if keys.null_count:
        raise UserCodeFailure("[NULL_MAP_KEY] Cannot use null as map key: filter or replace it.")
    owners, found = np.repeat(np.arange(len(lengths)), lengths), ranks(keys)
    order = np.lexsort((found, owners))
    if ((np.diff(owners[order]) == 0) & (np.diff(found[order]) == 0)).any():
        raise UserCodeFailure("[DUPLICATED_MAP_KEY] A map would have one key twice: remove duplicates first.")
    entry = pa.struct([pa.field("key", keys.type, nullable=False), pa.field("value", values.type)])
    return list_array(call.type, lengths, struct_array(entry, [keys, values], len(keys), None), valid)


def require_map_keys(call: Call, key: pa.DataType) -> None:
    require_orderable(call.function, key)
    if has_floats(key):
        # Whether 0.0 and -0.0 are one key depends on how Spark happens to build the map.
        raise unsupported(f"{call.function} with floating point keys", key)


def interleaved(kernels: Sequence[Kernel], rows: pa.RecordBatch) -> pa.Array:
    """The first row's value of each kernel, then the second row's, and so on."""
    count, length = len(kernels), rows.num_rows
    together = pa.concat_arrays([column(kernel, rows) for kernel in kernels])
    at = np.arange(count) * length + np.arange(length).reshape(-1, 1)
    return take(together, at.reshape(-1))


def column(kernel: Kernel, rows: pa.RecordBatch) -> pa.Array:
    return as_array(kernel.run(rows), rows.num_rows)


def integers(values: pa.Array) -> Integers:
    """Integers of any width; where they are null is anything."""
    return numpy_of(values).astype(np.int64)


def blanked(values: Integers, valid: Flags | None, *, blank: int) -> Integers:
    """With `blank` where it is not valid."""
    return values if valid is None else np.where(valid, values, blank)


def require_quiet(call: Call, arguments: tuple[Kernel, ...]) -> None:
    # Spark evaluates arguments only up to the first null: ones that may raise are not surely equal.
    if any(argument.raises for argument in arguments):
        raise unsupported(f"{call.function} with arguments that may raise", call.type)


def valid_rows(values: pa.Array) -> Flags:
    valid = validity_of(values)
    return np.ones(len(values), np.bool_) if valid is None else valid


def _surely_distinct(keys: Sequence[Kernel]) -> bool:
    """Constants that are not null and not equal make a map without an error."""
    known = [key.constant for key in keys if key.constant is not None and key.constant.is_valid]
    if len(known) < len(keys):
        return False
    return len(np.unique(ranks(pa.concat_arrays([pa.repeat(key, 1) for key in known])))) == len(keys)


def _array_and_index(array: Kernel, ordinal: Kernel, rows: pa.RecordBatch) -> tuple[Lists, Integers, Flags]:
    """The arrays, the indices, and where both are given."""
    stored = column(array, rows)
    index = as_array(run_if_valid(ordinal, rows, stored), rows.num_rows)
    return lists_of(stored), integers(index), valid_rows(stored) & valid_rows(index)


def _bad_index(error: str, lists: Lists, wanted: Integers, bad: Flags) -> UserCodeFailure:
    row = int(np.flatnonzero(bad)[0])
    return UserCodeFailure(
        f"[{error}] The index {wanted[row]} is out of bounds: the array has {lists.lengths[row]} elements."
    )


def _ordinal(call: Call) -> int:
    ordinal = call.setting("ordinal")
    assert ordinal is not None, "Catalyst gives the ordinal of a field"
    return int(ordinal)


def _field(structs: pa.Array, ordinal: int) -> pa.Array:
    return pc.struct_field(structs, [ordinal])


def _map_part(call: Call, arguments: tuple[Kernel, ...], part: Callable[[pa.Array], pa.Array]) -> Kernel:
    (child,) = arguments
    if not pa.types.is_map(child.type):
        raise unsupported(call.function, child.type)

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        return list_array(call.type, lists.lengths, part(lists.elements()), lists.valid)

    return Kernel(run, call.type, raises=child.raises)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "GetStructField": build_get_struct_field,
    "GetArrayStructFields": build_get_array_struct_fields,
    "CreateNamedStruct": build_create_named_struct,
    "GetArrayItem": build_get_array_item,
    "ElementAt": build_element_at,
    "GetMapValue": build_get_map_value,
    "MapKeys": build_map_keys,
    "MapValues": build_map_values,
    "MapEntries": build_map_entries,
    "CreateMap": build_create_map,
    "MapFromArrays": build_map_from_arrays,
}
# As Spark marks them: null whenever an argument is null.
NULL_INTOLERANT = frozenset(BUILDERS) - {"CreateNamedStruct", "CreateMap"}
