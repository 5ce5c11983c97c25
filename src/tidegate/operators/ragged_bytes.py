"""Bytes of which each row has so many: put together row by row, and taken apart again.

Whole pieces are copied, by Arrow: a place for each byte would take eight times the memory of the bytes. Must never
touch single rows in Python, but to make one string of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged
from tidegate.operators.leaves import slots_array

Lengths: TypeAlias = npt.NDArray[np.int64]
_Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RaggedBytes:
    """Those of the first row, then those of the second; and how many each has."""

    data: _Bytes
    lengths: Lengths


class Cursor:
    """In each of many rows, one behind the other, where the bytes begin that were not taken yet."""

    def __init__(self, data: _Bytes, row_lengths: Lengths) -> None:
        self._data = data
        self._ends = np.cumsum(row_lengths)
        self._at = self._ends - row_lengths

    def take(self, lengths: Lengths) -> _Bytes:
        """The next bytes of each row, so many. Raises `Damaged` where there are fewer."""
        starts, self._at = self._at, self._at + lengths
        if (self._at > self._ends).any():
            # Arrow would read what lies behind them.
            raise Damaged("Rows of state are shorter than they say: restore an older checkpoint.")
        return gathered(self._data, starts, lengths)


def joined(heads: _Bytes, behind: Sequence[RaggedBytes]) -> list[bytes]:
    """Of each row its line of `heads`, then what it has in each of the others, as one string."""
    rows = joined_column(heads, behind)
    if len(rows) == 0:
        return []
    ends, whole = np.frombuffer(rows.buffers()[1], dtype=np.int64), rows.buffers()[2].to_pybytes()
    return [whole[start:end] for start, end in pairwise(ends[: len(rows) + 1].tolist())]


def joined_column(heads: _Bytes, behind: Sequence[RaggedBytes]) -> pa.Array:
    """The same as a large binary array."""
    row_count, width = heads.shape
    pieces = [RaggedBytes(heads.reshape(-1), np.full(row_count, width)), *behind]
    return pc.binary_join_element_wise(*(_pieces(each.data, _ends_of(each.lengths)) for each in pieces), _NOTHING)


def gathered(data: _Bytes, starts: Lengths, lengths: Lengths) -> _Bytes:
    """The bytes that begin at each of `starts`, so many: one piece after the other, which lie in this order."""
    total = int(lengths.sum())
    if total == 0:
        return np.zeros(0, dtype=np.uint8)
    if total == starts[-1] + lengths[-1] - starts[0]:
        # Nothing lies between them.
        return data[starts[0] : starts[0] + total]
    # Every second piece is what lies between those that are wanted.
    ends = np.empty(2 * len(starts) + 1, dtype=np.int64)
    ends[:-1:2], ends[1:-1:2], ends[-1] = starts, starts + lengths, len(data)
    wanted = _pieces(data, ends).take(slots_array(np.arange(0, 2 * len(starts), 2)))
    return np.frombuffer(wanted.buffers()[2], dtype=np.uint8)[:total]


def sums_by_row(lengths: Lengths, per_row: Lengths | None) -> Lengths:
    """Of so many lengths for each row, one after the other; None if there is one for each."""
    if per_row is None:
        return lengths
    ends, running = np.cumsum(per_row), _ends_of(lengths)
    sums: Lengths = running[ends] - running[ends - per_row]
    return sums


def _ends_of(lengths: Lengths) -> Lengths:
    """With a zero in front."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _pieces(data: _Bytes, ends: Lengths) -> pa.Array:
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


# Made from buffers: `pa.scalar` would import pandas.
_NOTHING = _pieces(np.zeros(0, dtype=np.uint8), np.zeros(2, dtype=np.int64))[0]
