"""Which rows are written ahead of the next snapshot, so that what is written again stays in proportion.

A row that is written ahead and changes again before the barrier was written for nothing. So for each row that is
written for the first time since the last snapshot at most one other is written that was written since then already.
Must never leave out a row that was not.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags

# One in so many.
_MANY: Final = 8


@dataclass(slots=True)
class RowsOfEpoch:
    """Since the last snapshot. `first_number`: of the files that were begun since then."""

    first_number: int
    _changed_again_before: bool = False
    _new_rows: int = 0
    _rows_again: int = 0
    _found_again: int = 0

    def next(self, first_number: int) -> "RowsOfEpoch":
        """From a snapshot on."""
        return RowsOfEpoch(first_number, self._do_many_change_again())

    def changes_again(self) -> bool:
        """Whether many of the rows that are written change again before the next snapshot, or did before the last."""
        return self._changed_again_before or self._do_many_change_again()

    def _do_many_change_again(self) -> bool:
        return many_of(self._found_again, self._new_rows)

    def chosen(self, can_be: Flags, numbers: npt.NDArray[np.integer[Any]]) -> Flags:
        """Of these rows, `numbers` those of the files that they are in: all that can be, or the new ones alone."""
        is_again = can_be & (numbers >= self.first_number)
        again = int(np.count_nonzero(is_again))
        self._new_rows += int(np.count_nonzero(can_be)) - again
        self._found_again += again
        if self._rows_again + again > self._new_rows:
            flags: Flags = can_be & ~is_again
            return flags
        self._rows_again += again
        return can_be


def many_of(again: int, written: int) -> bool:
    return again * _MANY > written
