"""The groups of one slice: which rows have the same key, found within the slice alone and kept nowhere.

Keys are equal as Spark groups them: -0.0 is 0.0, one NaN, null is a value. Must never touch single rows in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Slots, fixed_array
from tidegate.operators.key_leaves import key_leaves_of
from tidegate.plan.key_groups import fixed_values_of, is_variable_width, validity_of

# Numbers so much closer together than there are rows of them are their own places, without a hash table.
_PLACES_PER_ROW = 4
_FEW_PLACES = 1 << 14
_MOST_CODES = 1 << 62
_NO_ROW = -1


@dataclass(frozen=True, slots=True)
class SliceGroups:
    """`places`: of each row, its group's, below `place_count`; not every place need have a group.

    `occupied`: of each group, its place. `rows`: of each group, a row that has its key.
    """

    places: Slots
    place_count: int
    occupied: Slots
    rows: Slots

    @property
    def count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class _Codes:
    """A number per row, from 0 below `bound`; the same for equal keys alone."""

    values: npt.NDArray[Any]
    bound: int
    is_dense: bool


def groups_of(keys: Sequence[pa.Array], row_count: int) -> SliceGroups:
    """`row_count` must not be 0."""
    codes = _Codes(np.zeros(row_count, dtype=np.int64), 1, is_dense=True)
    for key in keys:
        plain = key.dictionary_decode() if pa.types.is_dictionary(key.type) else key
        for leaf in key_leaves_of(plain):
            codes = _paired(codes, _codes_of(leaf))
    if not _is_close(codes.bound, row_count):
        codes = _dense(codes)
    places = codes.values.astype(np.int64, copy=False)
    rows = np.full(codes.bound, _NO_ROW)
    rows[places] = np.arange(row_count)
    occupied = np.arange(codes.bound) if codes.is_dense else np.flatnonzero(rows != _NO_ROW)
    return SliceGroups(places, codes.bound, occupied, rows[occupied])


def _codes_of(leaf: pa.Array) -> _Codes:
    if is_variable_width(leaf.type):
        return _encoded(leaf)
    if pa.types.is_null(leaf.type):
        return _Codes(np.zeros(len(leaf), dtype=np.int64), 1, is_dense=True)
    values, valid = fixed_values_of(leaf), validity_of(leaf)
    if valid is not None:
        values = values.copy()
        values[~valid] = 0
    words = [values[:, 0], values[:, 1]] if values.ndim == 2 else [values]
    codes = _codes_of_numbers(words[0])
    for word in words[1:]:
        codes = _paired(codes, _codes_of_numbers(word))
    return codes if valid is None else _paired(codes, _Codes(valid.view(np.int8), 2, is_dense=False))


def _codes_of_numbers(values: npt.NDArray[Any]) -> _Codes:
    # By their bits: a NaN then equals itself.
    bits = values.view(f"i{values.itemsize}") if values.dtype.kind in "fu" else values
    least, most = int(bits.min()), int(bits.max())
    bound = most - least + 1
    if _is_close(bound, len(bits)):
        return _Codes(bits.astype(np.int64, copy=False) - least, bound, is_dense=bound == 1)
    return _encoded(fixed_array(pa.int64(), bits.astype(np.int64, copy=False), None))


def _is_close(bound: int, row_count: int) -> bool:
    return bound <= max(_FEW_PLACES, _PLACES_PER_ROW * row_count)


def _encoded(values: pa.Array) -> _Codes:
    encoded = values.dictionary_encode(null_encoding="encode")
    return _Codes(fixed_values_of(encoded.indices), len(encoded.dictionary), is_dense=True)


def _paired(left: _Codes, right: _Codes) -> _Codes:
    if left.bound == 1:
        return right
    if right.bound == 1:
        return left
    if left.bound * right.bound > _MOST_CODES:
        left, right = _dense(left), _dense(right)
    values = left.values.astype(np.int64, copy=False) * right.bound + right.values
    return _Codes(values, left.bound * right.bound, is_dense=False)


def _dense(codes: _Codes) -> _Codes:
    """The same without gaps: as many numbers as occur."""
    if codes.is_dense:
        return codes
    if not _is_close(codes.bound, len(codes.values)):
        return _encoded(fixed_array(pa.int64(), codes.values, None))
    numbers = np.zeros(codes.bound, dtype=np.int64)
    numbers[codes.values] = 1
    occurring = np.flatnonzero(numbers)
    numbers[occurring] = np.arange(len(occurring))
    return _Codes(numbers[codes.values], len(occurring), is_dense=True)
