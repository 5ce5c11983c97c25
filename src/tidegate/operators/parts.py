"""Rows in parts, each of which is read, encoded or written in one step: by number, and by what their arrays take.

Knows numbers only. Must never make a part of nothing, nor leave a row out.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from tidegate.operators.columnar import Slots

# A part has no more in arrays, unless one row does: a few ms.
PART_BYTES: Final = 1 << 21


def parts_of(row_count: int, most_rows: int, array_bytes: Slots | None) -> Iterator[slice]:
    """Of so many rows, one after the other. `array_bytes`: what each has in arrays; None if none has any."""
    ends_bytes = None if array_bytes is None else np.cumsum(array_bytes)
    start = 0
    while start < row_count:
        stop = min(start + most_rows, row_count)
        if ends_bytes is not None:
            before_bytes = int(ends_bytes[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends_bytes[start:stop], before_bytes + PART_BYTES, side="right"))
            stop = start + max(1, fitting)
        yield slice(start, stop)
        start = stop


def summed(*array_bytes: Slots | None) -> Slots | None:
    """What each row has in several columns, or groups of them; None where none of those has any."""
    counted = [each for each in array_bytes if each is not None]
    return np.sum(counted, axis=0) if counted else None
