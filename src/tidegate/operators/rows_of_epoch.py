"""Which rows are written ahead of the next snapshot, so that what is written again stays in proportion.

A row that is written ahead and changes again before the barrier was written for nothing. So for each row that is
written for the first time since the last snapshot at most one other is written that was written since then already.
Must never leave out a row that was not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags


@dataclass(slots=True)
class RowsOfEpoch:
    """Since the last snapshot. `first_number`: of the files that were begun since then."""

    first_number: int
    _new_rows: int = 0
    _rows_again: int = 0

    def chosen(self, can_be: Flags, numbers: npt.NDArray[np.integer[Any]]) -> Flags:
        """Of these rows, `numbers` those of the files that they are in: all that can be, or the new ones alone."""
        is_again = can_be & (numbers >= self.first_number)
        again = int(np.count_nonzero(is_again))
        self._new_rows += int(np.count_nonzero(can_be)) - again
        if self._rows_again + again > self._new_rows:
            flags: Flags = can_be & ~is_again
            return flags
        self._rows_again += again
        return can_be
