"""Numbers by which a log knows rows, and what has become of rows that it holds since it was last written.

A row gets its number when it is written, and another one when it is written again: rows of later files have greater
ones. 0 is the number of a row that the log does not hold. Must never note the same of a row twice.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.operators.columnar import Flags, Slots

Numbers: TypeAlias = npt.NDArray[np.int64]

NO_NUMBERS: Final[Numbers] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Marks:
    """Of rows in a log, by number, ascending: those that are gone, and those that have met a partner and are there."""

    gone: Numbers = field(default_factory=lambda: NO_NUMBERS)
    met: Numbers = field(default_factory=lambda: NO_NUMBERS)

    @property
    def count(self) -> int:
        return len(self.gone) + len(self.met)

    def between(self, low: int, high: int) -> "Marks":
        """Those of rows from `low` to before `high`."""
        return Marks(_between(self.gone, low, high), _between(self.met, low, high))

    def also(self, others: "Marks") -> "Marks":
        gone = np.sort(np.concatenate([self.gone, others.gone]))
        met = np.sort(np.concatenate([self.met, others.met]))
        return Marks(gone, np.setdiff1d(met, gone, assume_unique=True))


class Changes:
    """Bounded by the rows that the log holds: each is noted once as gone, and once as one that has met a partner."""

    def __init__(self) -> None:
        self._gone: list[Numbers] = []
        self._met: list[Numbers] = []

    def note_gone(self, numbers: Numbers) -> None:
        """None of them twice."""
        in_log = numbers[numbers > 0]
        if len(in_log):
            self._gone.append(in_log)

    def note_met(self, numbers: Numbers) -> None:
        in_log = np.unique(numbers[numbers > 0])
        if len(in_log):
            self._met.append(in_log)

    def take(self) -> Marks:
        """All that was noted since the last time."""
        noted = Marks().also(Marks(_joined(self._gone), _joined(self._met)))
        self._gone, self._met = [], []
        return noted

    @property
    def count(self) -> int:
        return sum(len(numbers) for numbers in (*self._gone, *self._met))

    def size_bytes(self) -> int:
        return sum(numbers.nbytes for numbers in (*self._gone, *self._met))


class RowNumbers:
    """Of rows that lie together; `changes` are those of all rows in the log."""

    def __init__(self, of_row: Numbers, changes: Changes) -> None:
        self.of_row = of_row
        self.changes = changes
        # Whether a row that is there may have no number.
        self._has_new = True
        self._look()

    def new(self, is_live: Flags) -> Slots:
        """The rows that are there and not in the log."""
        if not self._has_new:
            return np.zeros(0, dtype=np.int64)
        places = np.flatnonzero(is_live & (self.of_row == 0))
        # None that is gone comes back: until the log holds fewer, there is nothing to look for again.
        self._has_new = len(places) > 0
        return places

    def number(self, places: Slots, first: int) -> None:
        """All that are there and were not in the log are now, in this order."""
        self.of_row[places] = np.arange(first, first + len(places))
        self._look()
        # Others that have no number are not there either.
        self._has_new = False

    def forget_outside(self, low: int, high: int) -> None:
        """The log holds only rows from `low` to before `high` any more."""
        if (0 < self._first < low) or self._last >= high:
            self.of_row[(self.of_row < low) | (self.of_row >= high)] = 0
            self._look()

    def _look(self) -> None:
        in_log = self.of_row[self.of_row > 0]
        self._has_new = len(in_log) < len(self.of_row)
        self._first = int(in_log.min()) if len(in_log) else 0
        self._last = int(in_log.max()) if len(in_log) else 0


def _between(numbers: Numbers, low: int, high: int) -> Numbers:
    start, stop = np.searchsorted(numbers, [low, high])
    return numbers[start:stop]


def _joined(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else NO_NUMBERS
