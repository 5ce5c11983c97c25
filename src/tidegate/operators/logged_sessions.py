"""Sessions in a log of files: a snapshot writes those that are new or changed, and the numbers of what they were.

A session has no key that lasts, as rows may make several into one: the log knows it by a number, and by another one
after each change. Must never leave the log with two rows of one session.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.operators.columnar import GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.numbered_format import numbered
from tidegate.operators.numbered_log import FrozenRows, KeptNumbers, NumberedLog, ReadPart
from tidegate.operators.row_numbers import Changes, Numbers
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_log import RowLog

NUMBER: Final = "number"


class LoggedSessions:
    """By slot. `format`: of a session as it is stored, without a number."""

    def __init__(self, log: RowLog, format: RowFormat, context: TaskContext) -> None:
        in_log = RowFormat(format.name, format.noun, logged_schema(format.schema))
        self._log = NumberedLog(log, {NUMBER: in_log}, context)
        self._changes = Changes()
        self._numbers: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._changed: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        # Numbers in use are among these.
        self._in_use = KeptNumbers(0, 0)

    # -- slots

    def grow_to(self, slot_count: int) -> None:
        self._numbers.grow_to(slot_count)
        self._changed.grow_to(slot_count)

    def touch(self, slots: Slots) -> None:
        """These are there, and have changed; some may be named twice."""
        self._forget(slots)
        self._changed.used[slots] = True

    def end(self, slots: Slots) -> None:
        """These are not there any more."""
        self._forget(slots)
        self._changed.used[slots] = False

    def is_in_log(self, slots: Slots, numbers: Numbers) -> None:
        """These are there as the log has them under these numbers, if that is not 0."""
        self._numbers.used[slots] = numbers
        self._changed.used[slots] = numbers == 0

    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot."""
        return [self._numbers, self._changed]

    def size_bytes(self) -> int:
        return self._numbers.used.nbytes + self._changed.used.nbytes + self._changes.size_bytes()

    def _forget(self, slots: Slots) -> None:
        in_log = np.unique(slots[self._numbers.used[slots] > 0])
        self._changes.note_gone(self._numbers.used[in_log])
        self._numbers.used[in_log] = 0

    # -- snapshots

    def snapshot(
        self, frozen: Callable[[Slots], ReadPart], array_bytes: Callable[[Slots], Slots | None]
    ) -> list[Section]:
        """`frozen`: of slots, their sessions as they are now; must not take long. `array_bytes`: what each has in them.

        None if sessions have no arrays.
        """
        changed, marks = np.flatnonzero(self._changed.used), self._changes.take()
        if len(changed) or marks.count:
            kept = self._log.give_up(marks, len(changed))
            changed = self._with_given_up(changed, kept)
            (first,) = self._log.append([FrozenRows(NUMBER, len(changed), frozen(changed), array_bytes(changed))])
            self._numbers.used[changed] = np.arange(first, first + len(changed))
            self._changed.used[changed] = False
            self._in_use = KeptNumbers(kept.low, first + len(changed))
        return self._log.section()

    def _with_given_up(self, changed: Slots, kept: KeptNumbers) -> Slots:
        if kept.low <= self._in_use.low and kept.high >= self._in_use.high:
            return changed
        numbers = self._numbers.used
        moved = (numbers > 0) & ((numbers < kept.low) | (numbers >= kept.high))
        moved[changed] = True
        return np.flatnonzero(moved)

    def is_consistent(self) -> bool:
        """Whether each file has as many live rows as slots say; for tests, right after a snapshot."""
        files, numbers = self._log.live_by_range(), self._numbers.used
        places = np.searchsorted([first for first, _ in files], numbers[numbers > 0], side="right") - 1
        found: list[int] = np.bincount(places, minlength=len(files)).tolist()
        return found == [live for _, live in files]

    # -- restoring

    def restored(self, sections: Sequence[RestoredSection]) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
        """Sessions of logs, with their numbers in this one, which are 0 for those of other logs."""
        for found in self._log.restored(sections):
            yield found.rows, found.numbers


def logged_schema(stored: pa.Schema) -> pa.Schema:
    return numbered(stored, NUMBER)
