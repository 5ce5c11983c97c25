"""Sessions in a log of files: a snapshot writes those that are new or changed, and the numbers of what they were.

A session has no key that lasts, as rows may make several into one: the log knows it by a number, and by another one
after each change. Between snapshots sessions may be taken ahead of the next one, part by part. Must never leave the log
with two rows of one session.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.columnar import Flags, GrowingArray, Slots
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
# So many slots are looked at in a step for sessions that are to be taken: a ms.
_LOOKED_AT: Final = 1 << 20


@dataclass(slots=True)
class _Round:
    """Of taking ahead. `kept`: what the log held on to when it began, None if nothing is to be written.

    `first`: later rows have this number at least. `has_given_up`: sessions from `looked_to` on may have a number that
    the log does not hold any more. `takes_changed`: whether those that changed are taken.
    """

    kept: KeptNumbers | None
    first: int
    has_given_up: bool
    takes_changed: bool
    looked_to: int = 0
    looked_at: int = 0
    taken: int = 0

    def is_given_up(self, numbers: Numbers) -> Flags:
        if self.kept is None or not self.has_given_up:
            return np.zeros(len(numbers), dtype=np.bool_)
        is_outside: Flags = (numbers < self.kept.low) | ((numbers >= self.kept.high) & (numbers < self.first))
        return is_outside & (numbers > 0)


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
        self._round: _Round | None = None
        # Of the round: sessions that have the next numbers, for a file that is not begun yet.
        self._taken: list[FrozenRows] = []
        self._taken_rows = 0
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
        """What stands by slot; whoever copies it takes nothing ahead meanwhile."""
        self._end_round()
        return [self._numbers, self._changed]

    def size_bytes(self) -> int:
        return self._numbers.used.nbytes + self._changed.used.nbytes + self._changes.size_bytes()

    def _forget(self, slots: Slots) -> None:
        in_log = np.unique(slots[self._numbers.used[slots] > 0])
        numbers = self._numbers.used[in_log]
        self._changes.note_gone(numbers if self._round is None else numbers[~self._round.is_given_up(numbers)])
        self._numbers.used[in_log] = 0

    # -- snapshots

    def snapshot(self) -> list[Section]:
        self._end_round()
        written_ahead = self._log.next_number - self._first_ahead
        self._take(np.flatnonzero(self._changed.used))
        self._did_change_again = many_of(self._changed_again, written_ahead)
        self._first_ahead, self._changed_again = self._log.next_number, 0
        return self._log.section()

    def _take(self, changed: Slots) -> None:
        marks = self._taken_marks()
        if len(changed) or marks.count:
            kept = self._log.give_up(marks, len(changed))
            changed = self._with_given_up(changed, kept)
            (first,) = self._log.append(
                [FrozenRows(NUMBER, len(changed), self._frozen(changed), self._array_bytes(changed))]
            )
            self._numbers.used[changed] = np.arange(first, first + len(changed))
            self._changed.used[changed] = 0
            self._in_use = KeptNumbers(kept.low, first + len(changed))

    def _taken_marks(self) -> Marks:
        marks = self._changes.take()
        self._changed_again += int(np.count_nonzero(marks.gone >= self._first_ahead))
        return marks

    def _with_given_up(self, changed: Slots, kept: KeptNumbers) -> Slots:
        if not self._gives_up(kept):
            return changed
        numbers = self._numbers.used
        moved = (numbers > 0) & ((numbers < kept.low) | (numbers >= kept.high))
        moved[changed] = True
        return np.flatnonzero(moved)

    def _gives_up(self, kept: KeptNumbers) -> bool:
        return kept.low > self._in_use.low or kept.high < self._in_use.high

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
        """Some of those that changed, and have not since the last look, and of those in files that are given up.

        Of the former none, while more than half of those that were written since the last snapshot have changed again.
        """
        if self._round is None:
            self._round = self._new_round()
        ahead = self._round
        self._take_ahead(self._next_slots(ahead))
        if ahead.looked_to < self._changed.count:
            return True
        self._end_round()
        return False

    def _new_round(self) -> _Round:
        takes_changed = 2 * self._changed_again <= self._log.next_number - self._first_ahead
        marks, waiting = self._taken_marks(), 0
        if takes_changed:
            waiting = min(log_book.PART_ROWS, int(np.count_nonzero(self._changed.used == _CHANGED)))
        if not (waiting or marks.count or self.has_many_files()):
            return _Round(None, self._log.next_number, False, takes_changed)
        kept = self._log.give_up_ahead(marks, waiting)
        return _Round(kept, self._log.next_number, self._gives_up(kept), takes_changed)

    def _next_slots(self, ahead: _Round) -> Slots:
        """Those that are to be taken, up to a part; to whoever looks next, the others have not changed of late."""
        start, stop = ahead.looked_to, min(ahead.looked_to + _LOOKED_AT, self._changed.count)
        changed = self._changed.used[start:stop]
        is_wanted: Flags = ahead.is_given_up(self._numbers.used[start:stop])
        if ahead.takes_changed:
            is_wanted |= changed == _CHANGED
        found = np.flatnonzero(is_wanted)
        if len(found) > log_book.PART_ROWS:
            stop = start + int(found[log_book.PART_ROWS])
            found, changed = found[: log_book.PART_ROWS], changed[: stop - start]
        ahead.looked_to = stop
        ahead.looked_at += int(np.count_nonzero(changed))
        ahead.taken += int(np.count_nonzero(changed[found]))
        changed[changed == _CHANGED_OF_LATE] = _CHANGED
        return found + start

    def _take_ahead(self, slots: Slots) -> None:
        """As they are now. They get their numbers, and a file once there are enough, or no more of them."""
        if len(slots) == 0:
            return
        if self._taken_rows + len(slots) > log_book.FILE_ROWS:
            self._write_taken()
        first = self._log.next_number + self._taken_rows
        self._taken.append(FrozenRows(NUMBER, len(slots), self._frozen(slots), self._array_bytes(slots)))
        self._taken_rows += len(slots)
        self._numbers.used[slots] = np.arange(first, first + len(slots))
        self._changed.used[slots] = 0

    def _write_taken(self) -> None:
        taken, self._taken, self._taken_rows = self._taken, [], 0
        self._log.append(taken)

    def _end_round(self) -> None:
        """What it has not come to has changed, for those that look next."""
        if self._round is None:
            return
        ahead, self._round = self._round, None
        if ahead.kept is not None:
            numbers = self._numbers.used[ahead.looked_to :]
            given_up = np.flatnonzero(ahead.is_given_up(numbers)) + ahead.looked_to
            self._numbers.used[given_up] = 0
            self._changed.used[given_up] = _CHANGED
            self._write_taken()
            self._in_use = KeptNumbers(ahead.kept.low, self._log.next_number)
        self._looked_at = ahead.looked_at, ahead.taken

    def taken_files(self) -> list[LogFile]:
        return self._log.taken_files()

    def looked_at(self) -> tuple[int, int]:
        """In the last round: how many had changed, and how many of them were taken."""
        return self._looked_at

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
