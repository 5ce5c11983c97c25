"""Sessions in a log of files: a snapshot writes those that are new or changed, and the numbers of what they were.

A session has no key that lasts, as rows may make several into one: the log knows it by a number, and by another one
after each change. Must never leave the log with two rows of one session.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.columnar import GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.numbered_format import numbered
from tidegate.operators.numbered_log import MARKS_PER_ROW, FrozenRows, KeptNumbers, NumberedLog, ReadPart
from tidegate.operators.row_numbers import Changes, Marks, Numbers
from tidegate.operators.rows_of_epoch import many_of
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_log import LogFile, RowLog

NUMBER: Final = "number"

# Of a slot: since the last time that rows were taken ahead, or before.
_CHANGED_OF_LATE, _CHANGED = 2, 1


class LoggedSessions:
    """By slot. `format`: of a session as it is stored, without a number.

    `frozen`: of slots, their sessions as they are now; must not take long. `array_bytes`: what each has in arrays, None
    if sessions have none.
    """

    def __init__(
        self,
        log: RowLog,
        format: RowFormat,
        context: TaskContext,
        *,
        frozen: Callable[[Slots], ReadPart],
        array_bytes: Callable[[Slots], Slots | None],
    ) -> None:
        in_log = RowFormat(format.name, format.noun, logged_schema(format.schema))
        self._log = NumberedLog(log, {NUMBER: in_log}, context)
        self._frozen, self._array_bytes = frozen, array_bytes
        self._changes = Changes()
        self._numbers: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._changed: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        # Numbers in use are among these.
        self._in_use = KeptNumbers(0, 0)
        # Of sessions that were written since the last snapshot, the first number, and how many changed since.
        self._first_ahead = 1
        self._changed_again = 0
        self._did_change_again = False
        self._looked_at = (0, 0)

    # -- slots

    def grow_to(self, slot_count: int) -> None:
        self._numbers.grow_to(slot_count)
        self._changed.grow_to(slot_count)

    def touch(self, slots: Slots) -> None:
        """These are there, and have changed; some may be named twice."""
        self._forget(slots)
        self._changed.used[slots] = _CHANGED_OF_LATE

    def end(self, slots: Slots) -> None:
        """These are not there any more."""
        self._forget(slots)
        self._changed.used[slots] = 0

    def is_in_log(self, slots: Slots, numbers: Numbers) -> None:
        """These are there as the log has them under these numbers, if that is not 0."""
        self._numbers.used[slots] = numbers
        self._changed.used[slots] = np.where(numbers == 0, _CHANGED_OF_LATE, 0)

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

    def snapshot(self) -> list[Section]:
        written_ahead = self._log.next_number - self._first_ahead
        self._take(np.flatnonzero(self._changed.used), self._log.give_up)
        self._did_change_again = many_of(self._changed_again, written_ahead)
        self._first_ahead, self._changed_again = self._log.next_number, 0
        return self._log.section()

    def _take(self, changed: Slots, give_up: Callable[[Marks, int], KeptNumbers], *, at_any_rate: bool = False) -> None:
        marks = self._changes.take()
        self._changed_again += int(np.count_nonzero(marks.gone >= self._first_ahead))
        if len(changed) or marks.count or at_any_rate:
            kept = give_up(marks, len(changed))
            changed = self._with_given_up(changed, kept)
            (first,) = self._log.append(
                [FrozenRows(NUMBER, len(changed), self._frozen(changed), self._array_bytes(changed))]
            )
            self._numbers.used[changed] = np.arange(first, first + len(changed))
            self._changed.used[changed] = 0
            self._in_use = KeptNumbers(kept.low, first + len(changed))

    # -- ahead of the next snapshot

    def waiting_rows(self) -> int:
        """Those that changed, and marks, as many as make a row."""
        changed = int(np.count_nonzero(self._changed.used))
        return changed + -(-self._changes.count // MARKS_PER_ROW)

    def enough_rows(self) -> int:
        return self._log.enough_rows()

    def changes_again(self) -> bool:
        written_ahead = self._log.next_number - self._first_ahead
        return self._did_change_again or many_of(self._changed_again, written_ahead)

    def has_many_files(self) -> bool:
        return self._log.has_many_files()

    def take_part(self) -> bool:
        """Some of those that changed, and have not since the last look; whether there are more of them.

        None but marks, while more than half of those that were written since the last snapshot have changed again.
        """
        changed = np.flatnonzero(self._changed.used)
        is_recent = self._changed.used[changed] == _CHANGED_OF_LATE
        waiting = changed[~is_recent]
        if 2 * self._changed_again > self._log.next_number - self._first_ahead:
            waiting = waiting[:0]
        taken = waiting[: log_book.PART_ROWS]
        self._take(taken, self._log.give_up_ahead, at_any_rate=self.has_many_files())
        self._looked_at = len(changed), len(taken)
        if len(taken) < len(waiting):
            return True
        self._changed.used[changed[is_recent]] = _CHANGED
        return False

    def taken_files(self) -> list[LogFile]:
        return self._log.taken_files()

    def looked_at(self) -> tuple[int, int]:
        """At the last look: how many had changed, and how many of them were taken."""
        return self._looked_at

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
        self._first_ahead = self._log.next_number


def logged_schema(stored: pa.Schema) -> pa.Schema:
    return numbered(stored, NUMBER)
