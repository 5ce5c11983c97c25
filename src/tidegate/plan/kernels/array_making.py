"""Arrays and maps put together: from columns, from numbers, from other arrays and maps."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels.lists import (
    Flags,
    Integers,
    Lists,
    any_of,
    both,
    fixed_array,
    joined,
    list_array,
    lists_of,
    only_valid,
    packed,
    padded,
    positions_within,
    starts_of,
    struct_array,
    take,
)
from tidegate.plan.kernels.nested import (
    blanked,
    column,
    integers,
    interleaved,
    map_array,
    require_map_keys,
    require_quiet,
)
from tidegate.plan.kernels.values import Kernel, Value, unsupported
from tidegate.plan.key_groups import validity_of

Build = Callable[[Call, tuple[Kernel, ...]], Kernel]


def build_create_array(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    if not arguments:
        raise unsupported("CreateArray without elements", call.type)

    def run(rows: pa.RecordBatch) -> Value:
        lengths = np.full(rows.num_rows, len(arguments), np.int64)
        return list_array(call.type, lengths, interleaved(arguments, rows), None)

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def build_concat(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null if any part is null."""
    require_quiet(call, arguments[1:])

    def run(rows: pa.RecordBatch) -> Value:
        parts = [lists_of(column(argument, rows)) for argument in arguments]
        valid: Flags | None = None
        for part in parts:
            valid = both(valid, part.valid)
        return packed(call.type, joined(parts, valid))

    return Kernel(run, call.type, raises=arguments[0].raises)


def build_flatten(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null if any of the inner arrays is null."""
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        outer = lists_of(column(child, rows))
        inner = lists_of(outer.elements())
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(inner.lengths)])
        last = np.cumsum(outer.lengths)
        starts = ends[last - outer.lengths]
        whole = None if inner.valid is None else ~any_of(outer, ~inner.valid)
        flat = Lists(starts, ends[last] - starts, inner.elements(), both(outer.valid, whole))
        return packed(call.type, only_valid(flat, flat.valid))

    return Kernel(run, call.type, raises=child.raises)


def build_reverse(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        lasts = lists.starts + lists.lengths - 1
        elements = take(lists.values, np.repeat(lasts, lists.lengths) - lists.positions())
        return list_array(call.type, lists.lengths, elements, lists.valid)

    return Kernel(run, call.type, raises=child.raises)


def build_array_repeat(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    element, count = arguments
    require_quiet(call, arguments)

    def run(rows: pa.RecordBatch) -> Value:
        times = column(count, rows)
        valid = validity_of(times)
        lengths = np.maximum(blanked(integers(times), valid, blank=0), 0)
        elements = take(column(element, rows), np.repeat(np.arange(rows.num_rows), lengths))
        return list_array(call.type, lengths, elements, valid)

    return Kernel(run, call.type, raises=False)


def build_sequence(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Of integers; without a step it goes up or down by one."""
    element = call.type.value_type
    if not pa.types.is_integer(element) or any(argument.type != element for argument in arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))

    def run(rows: pa.RecordBatch) -> Value:
        columns = [column(argument, rows) for argument in arguments]
        valid: Flags | None = None
        for argument in columns:
            valid = both(valid, validity_of(argument))
        starts, stops, *steps = (blanked(integers(argument), valid, blank=0) for argument in columns)
        step = steps[0] if steps else np.where(starts <= stops, 1, -1)
        _check_sequence(starts, stops, step)
        # Unsigned, the distance of any two longs fits.
        distance = np.where(starts <= stops, stops, starts).view(np.uint64) - np.minimum(starts, stops).view(np.uint64)
        strides = np.maximum(np.abs(step).view(np.uint64), np.uint64(1))
        lengths = np.minimum(distance // strides, np.uint64(2**40)).astype(np.int64) + 1
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        _check_total(call, lengths)
        values = np.repeat(starts, lengths) + positions_within(lengths) * np.repeat(step, lengths)
        return list_array(call.type, lengths, fixed_array(pa.int64(), values).cast(element), valid)

    return Kernel(run, call.type, raises=True)


def build_arrays_zip(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Shorter arrays are filled up with nulls; null if any array is null."""
    require_quiet(call, arguments[1:])
    if not arguments:
        raise unsupported("ArraysZip without arrays", call.type)

    def run(rows: pa.RecordBatch) -> Value:
        parts = [lists_of(column(argument, rows)) for argument in arguments]
        valid: Flags | None = None
        for part in parts:
            valid = both(valid, part.valid)
        lengths = np.maximum.reduce([part.lengths for part in parts])
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        fields = [padded(part, lengths) for part in parts]
        return list_array(
            call.type, lengths, struct_array(call.type.value_type, fields, int(lengths.sum()), None), valid
        )

    return Kernel(run, call.type, raises=arguments[0].raises)


def build_array_insert(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Counts from 1, or from the end if negative; what lies between the array and a far place is null."""
    child, position, item = arguments
    require_quiet(call, arguments[1:])
    if call.setting("legacyNegativeIndex") != "false":
        raise unsupported("ArrayInsert with Spark's old negative index", child.type)

    def run(rows: pa.RecordBatch) -> Value:
        lists, places = lists_of(column(child, rows)), column(position, rows)
        valid = both(lists.valid, validity_of(places))
        lists, wanted = only_valid(lists, valid), blanked(integers(places), valid, blank=1)
        if (wanted == 0).any():
            raise UserCodeFailure("[INVALID_INDEX_OF_ZERO] The index 0 is invalid: array_insert counts from 1.")
        is_before = wanted + lists.lengths < 0
        at = np.where(is_before, 0, np.where(wanted < 0, wanted + lists.lengths + 1, wanted - 1))
        lengths = np.where(is_before, -wanted, np.maximum(lists.lengths, at) + 1)
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        _check_total(call, lengths)
        return list_array(call.type, lengths, _inserted(lists, lengths, at, is_before, column(item, rows)), valid)

    return Kernel(run, call.type, raises=True)


def build_map_concat(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null if any map is null."""
    require_quiet(call, arguments[1:])
    require_map_keys(call, call.type.key_type)

    def run(rows: pa.RecordBatch) -> Value:
        parts = [lists_of(column(argument, rows)) for argument in arguments]
        valid: Flags | None = None
        for part in parts:
            valid = both(valid, part.valid)
        maps = joined(parts, valid)
        entries = maps.elements()
        return map_array(call, maps.lengths, entries.field(0), entries.field(1), valid)

    return Kernel(run, call.type, raises=True)


def build_map_from_entries(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null if any entry is null."""
    (child,) = arguments
    require_map_keys(call, call.type.key_type)

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        present = validity_of(lists.elements())
        lists = only_valid(lists, both(lists.valid, None if present is None else ~any_of(lists, ~present)))
        entries = lists.elements()
        return map_array(call, lists.lengths, entries.field(0), entries.field(1), lists.valid)

    return Kernel(run, call.type, raises=True)


def _inserted(lists: Lists, lengths: Integers, at: Integers, is_before: Flags, items: pa.Array) -> pa.Array:
    """The elements of each row with its item at its place; `is_before`: the array stands at the end of the row."""
    positions, owners = positions_within(lengths), np.repeat(np.arange(len(lengths)), lengths)
    shift = np.where(is_before, lengths - lists.lengths, 0)[owners]
    is_item = positions == at[owners]
    behind = (positions > at[owners]) & ~is_before[owners]
    within = positions - shift - behind
    inside = (within >= 0) & (within < lists.lengths[owners]) & ~is_item
    elements = lists.elements()
    sources = np.where(is_item, len(elements) + owners, starts_of(lists.lengths)[owners] + within)
    return take(pa.concat_arrays([elements, items]), sources, is_item | inside)


def _check_sequence(starts: Integers, stops: Integers, step: Integers) -> None:
    fits = ((step > 0) & (starts <= stops)) | ((step < 0) & (starts >= stops)) | ((step == 0) & (starts == stops))
    if not fits.all():
        bad = int(np.flatnonzero(~fits)[0])
        raise UserCodeFailure(
            f"Illegal sequence boundaries: {starts[bad]} to {stops[bad]} by {step[bad]}: the step must lead to the end."
        )


def _check_total(call: Call, lengths: Integers) -> None:
    # Before anything of that size is allocated.
    if len(lengths) and float(lengths.astype(np.float64).sum()) > 2**31 - 1:
        raise UserCodeFailure(
            f"[COLLECTION_SIZE_LIMIT_EXCEEDED] {call.function} would make {lengths.max()} elements: make it shorter."
        )


BUILDERS: Mapping[str, Build] = {
    "CreateArray": build_create_array,
    "Flatten": build_flatten,
    "ArrayRepeat": build_array_repeat,
    "Sequence": build_sequence,
    "ArraysZip": build_arrays_zip,
    "ArrayInsert": build_array_insert,
    "MapConcat": build_map_concat,
    "MapFromEntries": build_map_from_entries,
}
# Functions that Spark has for strings and for arrays: these are the ones that give arrays.
OVERLOADS: Mapping[str, Build] = {"Concat": build_concat, "Reverse": build_reverse}
# As Spark marks them: null whenever an argument is null.
NULL_INTOLERANT = frozenset({"Flatten"})
