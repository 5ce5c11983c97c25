"""Functions of whole arrays: what they hold, in which order, and new ones made from them."""

from collections.abc import Callable, Mapping

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
    any_of,
    both,
    fixed_array,
    flags_of,
    joined,
    list_array,
    lists_of,
    only_valid,
    packed,
    starts_of,
    take,
)
from tidegate.plan.kernels.nested import (
    blanked,
    column,
    integers,
    require_quiet,
)
from tidegate.plan.kernels.ordering import has_floats, ranks, ranks_together, require_orderable
from tidegate.plan.kernels.values import Kernel, Value, as_array, run_if_valid, unsupported
from tidegate.plan.key_groups import validity_of

Build = Callable[[Call, tuple[Kernel, ...]], Kernel]


def build_size(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Of an array or a map; of null it is null, or -1 where Spark is set to the old way."""
    (child,) = arguments
    of_null_is_null = call.setting("legacySizeOfNull") == "false"

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        if of_null_is_null or lists.valid is None:
            return fixed_array(pa.int32(), lists.lengths.astype(np.int32), lists.valid)
        return fixed_array(pa.int32(), np.where(lists.valid, lists.lengths, -1).astype(np.int32))

    return Kernel(run, call.type, raises=child.raises)


def build_array_contains(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Unknown if it is not found but an element is null."""

    def answer(lists: Lists, matches: Flags, valid: Flags | None) -> pa.Array:
        found = any_of(lists, matches)
        known = found | ~any_of(lists, ~_element_validity(lists))
        return fixed_array(pa.bool_(), found, both(valid, known))

    return _search(call, arguments, answer)


def build_array_position(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Counts from 1; 0 if it is not found."""

    def answer(lists: Lists, matches: Flags, valid: Flags | None) -> pa.Array:
        at = np.flatnonzero(matches)
        positions = np.zeros(len(lists), np.int64)
        # In reverse, the first of several matches is the one that stays.
        positions[lists.rows()[at][::-1]] = lists.positions()[at][::-1] + 1
        return fixed_array(pa.int64(), positions, valid)

    return _search(call, arguments, answer)


def build_array_remove(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    def answer(lists: Lists, matches: Flags, valid: Flags | None) -> pa.Array:
        return _kept(call.type, only_valid(lists, valid), ~matches[_rows_kept(lists, valid)])

    return _search(call, arguments, answer)


def build_array_extreme(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """The least or greatest element that is not null, the first of equals."""
    (child,) = arguments
    require_orderable(call.function, call.type)
    sign = 1 if call.function == "ArrayMin" else -1

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        elements = lists.elements()
        found = ranks(elements)
        present = np.flatnonzero(found >= 0)
        owners = lists.rows()[present]
        order = present[np.lexsort((sign * found[present], owners))]
        at, has_one = np.zeros(len(lists), np.int64), np.zeros(len(lists), np.bool_)
        sorted_owners = lists.rows()[order]
        at[sorted_owners[::-1]], has_one[sorted_owners] = order[::-1], True
        return take(elements, at, has_one)

    return Kernel(run, call.type, raises=child.raises)


def build_sort_array(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Nulls first when ascending, last when descending."""
    child, ascending = arguments
    require_orderable(call.function, child.type)
    if ascending.constant is None or not ascending.constant.is_valid:
        raise unsupported("SortArray with an order that is not a constant", child.type)
    if pa.types.is_floating(child.type.value_type) and call.setting("containsNull") != "true":
        # Spark sorts these as Java's primitive numbers, where -0.0 stands before 0.0, or as objects, where it does not.
        raise unsupported("SortArray on floating point numbers that are never null", child.type)
    sign = 1 if ascending.constant.as_py() else -1
    return _reordered(call, child, lambda found: sign * found)


def sorted_nulls_last(call: Call, child: Kernel) -> Kernel:
    """As `array_sort` without a comparator."""
    require_orderable(call.function, child.type)
    return _reordered(call, child, lambda found: np.where(found < 0, np.iinfo(np.int64).max, found))


def build_array_distinct(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (child,) = arguments
    _require_set_elements(call)

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        return _kept(call.type, lists, _first_of_each(lists.rows(), ranks(lists.elements())))

    return Kernel(run, call.type, raises=child.raises)


def build_array_union(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    def combine(left: Lists, right: Lists, valid: Flags | None) -> pa.Array:
        all_elements = joined([left, right], valid)
        return _kept(call.type, all_elements, _distinct(all_elements))

    return _set_function(call, arguments, combine)


def build_array_intersect(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    def combine(left: Lists, right: Lists, _valid: Flags | None) -> pa.Array:
        return _kept(call.type, left, _is_in_other(left, right) & _distinct(left))

    return _set_function(call, arguments, combine)


def build_array_except(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    def combine(left: Lists, right: Lists, _valid: Flags | None) -> pa.Array:
        return _kept(call.type, left, ~_is_in_other(left, right) & _distinct(left))

    return _set_function(call, arguments, combine)


def build_arrays_overlap(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """True if an element is common; else unknown if both have elements and one of them is null."""

    def combine(left: Lists, right: Lists, valid: Flags | None) -> pa.Array:
        common = any_of(left, _is_in_other(left, right) & _element_validity(left))
        nulls = any_of(left, ~_element_validity(left)) | any_of(right, ~_element_validity(right))
        unknown = nulls & (left.lengths > 0) & (right.lengths > 0)
        return fixed_array(pa.bool_(), common, both(valid, common | ~unknown))

    require_orderable(call.function, arguments[0].type)
    return _pairwise(call, arguments, combine)


def build_slice(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Counts from 1, or from the end if negative."""
    child, start, length = arguments

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(child, rows)
        first = as_array(run_if_valid(start, rows, stored), rows.num_rows)
        count = as_array(run_if_valid(length, rows, first), rows.num_rows)
        lists = lists_of(stored)
        valid = both(both(lists.valid, validity_of(first)), validity_of(count))
        begins, counts = blanked(integers(first), valid, blank=1), blanked(integers(count), valid, blank=0)
        _check_slice(begins, counts)
        offsets = np.where(begins < 0, lists.lengths + begins, begins - 1)
        outside = (offsets < 0) | (offsets >= lists.lengths)
        lengths = np.where(outside, 0, np.minimum(counts, lists.lengths - offsets))
        part = Lists(lists.starts + np.where(outside, 0, offsets), lengths, lists.values, valid)
        return packed(call.type, only_valid(part, valid))

    return Kernel(run, call.type, raises=True)


def build_array_join(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Null elements are left out, or replaced by the third argument."""
    child, delimiter, *rest = arguments
    require_quiet(call, arguments[1:])
    if child.type.value_type != pa.string():
        raise unsupported(call.function, child.type)

    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        if rest:
            replacement = column(rest[0], rows)
            elements = pc.coalesce(lists.elements(), take(replacement, lists.rows()))
            # A null replacement makes the whole result null, whether it is needed or not.
            valid = both(lists.valid, validity_of(replacement))
            words = _kept(child.type, Lists(starts_of(lists.lengths), lists.lengths, elements, valid), None)
        else:
            words = _kept(child.type, lists, _element_validity(lists))
        return pc.binary_join(words, column(delimiter, rows))

    return Kernel(run, call.type, raises=child.raises)


def _search(
    call: Call, arguments: tuple[Kernel, ...], answer: Callable[[Lists, Flags, Flags | None], pa.Array]
) -> Kernel:
    """Null if the array or the value looked for is null; `answer` gets the elements that equal it."""
    child, wanted = arguments
    if not pa.types.is_list(child.type):
        raise unsupported(call.function, child.type)
    require_orderable(call.function, child.type)
    equal = equality(call, child.type.value_type, wanted.type)

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(child, rows)
        value = as_array(run_if_valid(wanted, rows, stored), rows.num_rows)
        lists = lists_of(stored)
        matches = flags_of(as_array(equal(lists.elements(), take(value, lists.rows())), lists.total))
        return answer(lists, matches, both(lists.valid, validity_of(value)))

    return Kernel(run, call.type, raises=child.raises or wanted.raises)


def _pairwise(
    call: Call, arguments: tuple[Kernel, ...], combine: Callable[[Lists, Lists, Flags | None], pa.Array]
) -> Kernel:
    """Null if either array is null; then neither has elements."""
    left, right = arguments

    def run(rows: pa.RecordBatch) -> Value:
        stored = column(left, rows)
        first, second = lists_of(stored), lists_of(as_array(run_if_valid(right, rows, stored), rows.num_rows))
        valid = both(first.valid, second.valid)
        return combine(only_valid(first, valid), only_valid(second, valid), valid)

    return Kernel(run, call.type, raises=left.raises or right.raises)


def _set_function(
    call: Call, arguments: tuple[Kernel, ...], combine: Callable[[Lists, Lists, Flags | None], pa.Array]
) -> Kernel:
    _require_set_elements(call)
    return _pairwise(call, arguments, combine)


def _require_set_elements(call: Call) -> None:
    require_orderable(call.function, call.type)
    if has_floats(call.type):
        # Whether 0.0 and -0.0 are one element depends on how Spark happens to run it.
        raise unsupported(f"{call.function} on floating point numbers", call.type)


def _reordered(call: Call, child: Kernel, key: Callable[[Integers], Integers]) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        lists = lists_of(column(child, rows))
        elements = lists.elements()
        order = np.lexsort((key(ranks(elements)), lists.rows()))
        return list_array(call.type, lists.lengths, take(elements, order), lists.valid)

    return Kernel(run, call.type, raises=child.raises)


def _first_of_each(owners: Integers, found: Integers) -> Flags:
    """True for the first element of each rank within its row."""
    order = np.lexsort((found, owners))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(owners[order]) != 0) | (np.diff(found[order]) != 0)
    kept = np.zeros(len(order), np.bool_)
    kept[order[is_first]] = True
    return kept


def _distinct(lists: Lists) -> Flags:
    return _first_of_each(lists.rows(), ranks(lists.elements()))


def _is_in_other(left: Lists, right: Lists) -> Flags:
    """True for the elements of `left` that the same row of `right` has too; null equals null."""
    mine, others = ranks_together(left.elements(), right.elements())
    span = int(max(mine.max(initial=0), others.max(initial=0))) + 2
    return np.isin(left.rows() * span + mine, right.rows() * span + others)


def _kept(type_: pa.DataType, lists: Lists, kept: Flags | None) -> pa.Array:
    """Arrays of the elements that are kept, in their order."""
    elements = lists.elements()
    if kept is None or kept.all():
        return list_array(type_, lists.lengths, elements, lists.valid)
    lengths = np.bincount(lists.rows()[kept], minlength=len(lists))
    return list_array(type_, lengths, take(elements, np.flatnonzero(kept)), lists.valid)


def _rows_kept(lists: Lists, valid: Flags | None) -> Flags:
    """True for the elements of valid rows."""
    return np.ones(lists.total, np.bool_) if valid is None else valid[lists.rows()]


def _element_validity(lists: Lists) -> Flags:
    valid = validity_of(lists.elements())
    return np.ones(lists.total, np.bool_) if valid is None else valid


def _check_slice(begins: Integers, counts: Integers) -> None:
    if (begins == 0).any():
        raise UserCodeFailure(
            "[INVALID_PARAMETER_VALUE.START] The start of slice is 0: it counts from 1, or from the end if negative."
        )
    if (counts < 0).any():
        raise UserCodeFailure("[INVALID_PARAMETER_VALUE.LENGTH] The length of slice is negative: make it 0 or more.")


BUILDERS: Mapping[str, Build] = {
    "Size": build_size,
    "ArrayContains": build_array_contains,
    "ArrayPosition": build_array_position,
    "ArrayRemove": build_array_remove,
    "ArrayMin": build_array_extreme,
    "ArrayMax": build_array_extreme,
    "SortArray": build_sort_array,
    "ArrayDistinct": build_array_distinct,
    "ArrayUnion": build_array_union,
    "ArrayIntersect": build_array_intersect,
    "ArrayExcept": build_array_except,
    "ArraysOverlap": build_arrays_overlap,
    "Slice": build_slice,
    "ArrayJoin": build_array_join,
}
# As Spark marks them: null whenever an argument is null.
NULL_INTOLERANT = frozenset(BUILDERS) - {"Size", "ArrayJoin"}
