"""Spark's order of values of any orderable type as ranks, so that nested values compare like numbers.

Nulls inside are equal to each other and stand first; NaN equals itself and stands last, -0.0 equals 0.0; structs
compare field by field, arrays element by element. Maps have no order, in Spark as here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.kernels.lists import Flags, Integers, fixed_array, lists_of
from tidegate.plan.kernels.values import Value, as_array, numpy_of, unsupported
from tidegate.plan.key_groups import fixed_values_of, is_variable_width, validity_of

_NULL_RANK = -1
_SIGN_BIT = np.uint64(1 << 63)


def require_orderable(function: str, type_: pa.DataType) -> None:
    if not is_orderable(type_):
        raise unsupported(function, type_)


def is_orderable(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_) or pa.types.is_null(type_) or pa.types.is_interval(type_):
        return False
    if pa.types.is_list(type_):
        return is_orderable(type_.value_type)
    if pa.types.is_struct(type_):
        return all(is_orderable(field.type) for field in type_)
    return True


def has_floats(type_: pa.DataType) -> bool:
    if pa.types.is_list(type_):
        return has_floats(type_.value_type)
    if pa.types.is_struct(type_):
        return any(has_floats(field.type) for field in type_)
    return bool(pa.types.is_floating(type_))


def ranks(values: pa.Array) -> Integers:
    """Dense ranks from 0 in Spark's ascending order; -1 for null. Equal values have equal ranks."""
    kind = values.type
    if pa.types.is_struct(kind):
        found = _ranks_of_tuples([ranks(values.field(at)) for at in range(kind.num_fields)], len(values))
    elif pa.types.is_list(kind):
        found = _ranks_of_lists(values)
    elif is_variable_width(kind):
        found = _ranks_of_bytes(values)
    else:
        found = _ranks_of_fixed(fixed_values_of(values))
    valid = validity_of(values)
    return found if valid is None else np.where(valid, found, _NULL_RANK)


def ranks_together(*columns: pa.Array) -> list[Integers]:
    """Ranks that are comparable across the columns, which are of one type."""
    all_ranks = ranks(pa.concat_arrays(columns))
    ends = np.cumsum([len(column) for column in columns])
    return np.split(all_ranks, ends[:-1])


def compare_nested(function: str, left: Value, right: Value) -> Value:
    """A comparison by Catalyst's name on structs or arrays; null where either side is null."""
    length = max(len(value) if isinstance(value, pa.Array) else 1 for value in (left, right))
    first, second = as_array(left, length), as_array(right, length)
    lower, upper = ranks_together(first, second)
    valid = (lower != _NULL_RANK) & (upper != _NULL_RANK)
    result = fixed_array(pa.bool_(), _NUMPY_COMPARISONS[function](lower, upper), valid)
    return result if isinstance(left, pa.Array) or isinstance(right, pa.Array) else result[0]


def _ranks_of_tuples(columns: Sequence[npt.NDArray[Any]], length: int) -> Integers:
    """By the first column, then the second and so on."""
    if not columns or length == 0:
        return np.zeros(length, np.int64)
    order = np.lexsort(tuple(reversed(columns)))
    differs = np.zeros(length, np.bool_)
    for column in columns:
        differs[1:] |= column[order][1:] != column[order][:-1]
    found = np.empty(length, np.int64)
    found[order] = np.cumsum(differs)
    return found


def _ranks_of_lists(values: pa.Array) -> Integers:
    """Position by position, to the end of the longest; an array that has ended stands before one that has not."""
    lists = lists_of(values)
    elements = ranks(lists.elements())
    firsts = np.cumsum(lists.lengths) - lists.lengths
    found: Integers = np.zeros(len(lists), np.int64)
    for position in range(int(lists.lengths.max(initial=0))):
        going_on = lists.lengths > position
        at_position = np.full(len(lists), _NULL_RANK - 1)
        at_position[going_on] = elements[firsts[going_on] + position]
        found = _ranks_of_tuples([found, at_position], len(lists))
    return found


def _ranks_of_bytes(values: pa.Array) -> Integers:
    encoded = pc.dictionary_encode(values, null_encoding="mask")
    # UTF-8 sorts by bytes as by code points, which is Spark's order of strings.
    order = numpy_of(pc.array_sort_indices(encoded.dictionary).cast(pa.int64()))
    rank_of = np.empty(len(order) + 1, np.int64)
    rank_of[order] = np.arange(len(order))
    codes = numpy_of(encoded.indices).astype(np.int64)
    valid: Flags | None = validity_of(values)
    found: Integers = rank_of[codes if valid is None else np.where(valid, codes, len(order))]
    return found


def _ranks_of_fixed(values: npt.NDArray[Any]) -> Integers:
    if values.ndim == 2:  # a decimal: unsigned low and signed high half
        return _ranks_of_tuples([values[:, 1] ^ _SIGN_BIT, values[:, 0]], len(values))
    _distinct, inverse = np.unique(values, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


_NUMPY_COMPARISONS: dict[str, Any] = {
    "EqualTo": np.equal,
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
}
