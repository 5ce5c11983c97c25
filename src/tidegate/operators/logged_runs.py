"""The rows that a join keeps, in a log of files: a snapshot writes those that came since the last one.

All rows are in runs too, in memory or in files of their own. Of rows in the log it is written which have met a
partner, and which are gone. Must never look at more rows in a snapshot than lie in runs with new ones, or with rows of
files that are given up.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tidegate.operators.columnar import Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.join_rows import Run
from tidegate.operators.join_side import JoinSide, frozen_rows
from tidegate.operators.numbered_format import numbered
from tidegate.operators.numbered_log import MARKS_PER_ROW, FrozenRows, KeptNumbers, NumberedLog
from tidegate.operators.row_numbers import Changes, Marks, RowNumbers
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_log import LogFile, RowLog


class LoggedRuns:
    """`sides`: by the names of their columns of numbers."""

    def __init__(self, log: RowLog, sides: Mapping[str, JoinSide], context: TaskContext) -> None:
        self._sides = sides
        self._changes = Changes()
        self._log = NumberedLog(log, _formats(sides), context)
        for side in sides.values():
            side.hold_in_log(self._changes)

    @staticmethod
    def is_own(section: RestoredSection) -> bool:
        return section.name == ROW_LOG_SECTION

    def restore(self, sections: Sequence[RestoredSection], on_added: Callable[[], None]) -> list[RestoredSection]:
        """Takes in what is in logs, a bounded number of rows before each call of `on_added`; gives what is not."""
        for found in self._log.restored(sections):
            self._sides[found.number_column].add_stored(found.with_flags(), found.numbers)
            on_added()
        return [section for section in sections if not self.is_own(section)]

    def snapshot(self, context: TaskContext) -> list[Section]:
        self._take(self._log.give_up)
        return self._log.section()

    def _take(self, give_up: Callable[[Marks, int], KeptNumbers], *, at_any_rate: bool = False) -> None:
        marks, new_rows = self._changes.take(), self._new_rows()
        if new_rows or marks.count or at_any_rate:
            kept = give_up(marks, new_rows)
            for _, _, numbers in self._runs():
                numbers.forget_outside(kept.low, kept.high)
            self._append_new()

    def _new_rows(self) -> int:
        return sum(len(numbers.new(run.is_live)) for _, run, numbers in self._runs())

    def _append_new(self) -> None:
        new: list[tuple[RowNumbers, Slots]] = []
        frozen: list[FrozenRows] = []
        for number_column, run, numbers in self._runs():
            places = numbers.new(run.is_live)
            if len(places):
                new.append((numbers, places))
                frozen.append(FrozenRows(number_column, len(places), frozen_rows(run, places)))
        for (numbers, places), first in zip(new, self._log.append(frozen), strict=True):
            numbers.number(places, first)

    # -- ahead of the next snapshot

    def waiting_rows(self) -> int:
        """New ones, and those of which something is noted, as many as make a row."""
        return self._new_rows() + -(-self._changes.count // MARKS_PER_ROW)

    def enough_rows(self) -> int:
        return self._log.enough_rows()

    def changes_again(self) -> bool:
        return False

    def has_many_files(self) -> bool:
        return self._log.has_many_files()

    def take_part(self) -> bool:
        """All at once: rows never change, so they are not copied, and none is written ahead twice."""
        self._take(self._log.give_up_ahead, at_any_rate=self.has_many_files())
        return False

    def taken_files(self) -> list[LogFile]:
        return self._log.taken_files()

    def looked_at(self) -> tuple[int, int]:
        """None is looked at in vain."""
        return 0, 0

    def _runs(self) -> Iterator[tuple[str, Run, RowNumbers]]:
        for number_column, side in self._sides.items():
            for run in side.store.runs:
                assert run.numbers is not None, "its side was told that there is a log"
                yield number_column, run, run.numbers

    def is_consistent(self) -> bool:
        """Whether each file has as many live rows as the rows say; for tests, right after a snapshot."""
        files = self._log.live_by_range()
        live = [numbers.of_row[run.is_live] for _, run, numbers in self._runs()]
        counted = np.zeros(len(files), dtype=np.int64)
        for numbers in live:
            places = np.searchsorted([first for first, _ in files], numbers, side="right") - 1
            if (numbers == 0).any() or (places < 0).any():
                return False
            counted += np.bincount(places, minlength=len(files))
        return counted.tolist() == [live for _, live in files]

    def size_bytes(self) -> int:
        return self._changes.size_bytes()

    def give_up(self) -> None:
        """All rows are in memory, and are stored whole from now on."""
        for side in self._sides.values():
            side.hold_in_log(None)
        self._log.clear()


def _formats(sides: Mapping[str, JoinSide]) -> dict[str, RowFormat]:
    kept = {number_column: side.kept for number_column, side in sides.items()}
    return {name: RowFormat(each.name, each.noun, numbered(each.schema, name)) for name, each in kept.items()}
