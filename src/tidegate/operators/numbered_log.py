"""A log of rows that are known by numbers: a snapshot writes new rows, and says which older ones changed or are gone.

Numbers grow from file to file, so that a file is a range of them. Knows how many rows of each file are still there, and
gives up files; their owner then hands in again those of their rows that are. Must never give up a file without saying
so, nor write a mark of a row that no older file holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.columnar import Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.log_book import FileUse
from tidegate.operators.numbered_format import FoundRows, LogReader, encoded_gone, encoded_met, encoded_rows
from tidegate.operators.parts import parts_of
from tidegate.operators.row_numbers import Marks, Numbers
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_log import LogFile, Part, RowLog

# A mark is a number: so many of them take the place of one row in the book.
MARKS_PER_ROW: Final = 8
# So many marks are encoded at once.
_PART_MARKS: Final = 1 << 18

# A range of rows as they were when this was made, without their numbers, and the hashes of their keys.
ReadPart: TypeAlias = Callable[[slice], tuple[Sequence[pa.Array], Hashes]]


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """`number_column`: by which it is known how they are written. `array_bytes`: what each has in arrays, if any."""

    number_column: str
    count: int
    read: ReadPart
    array_bytes: Slots | None = None


@dataclass(frozen=True, slots=True)
class KeptNumbers:
    """Rows from `low` to before `high` are still in the log; all others are to be handed in again."""

    low: int
    high: int


@dataclass(slots=True)
class _Entry:
    """Of a file: `first` is the lowest number that a row in it can have. `marks`: None if they are too many to know."""

    first: int
    live: int
    marks: Marks | None


class NumberedLog:
    """`formats`: of numbered rows, by the names of their columns of numbers."""

    def __init__(self, log: RowLog, formats: Mapping[str, RowFormat], context: TaskContext) -> None:
        self._log = log
        self._formats = formats
        self._context = context
        # One for each file of the log.
        self._entries: list[_Entry] = []
        self._next = 1
        self._marks = Marks()
        self._taken_files: list[LogFile] = []
        self._rule_at_barrier = log_book.AT_BARRIER

    # -- snapshots, and what is taken ahead of them

    @property
    def next_number(self) -> int:
        return self._next

    def enough_rows(self) -> int:
        """Fewer would make a file that is written anew with the next ones."""
        return log_book.small_rows(sum(entry.live for entry in self._entries))

    def give_up_ahead(self, marks: Marks, new_rows: int) -> KeptNumbers:
        """As `give_up`, ahead of the next snapshot, which need not do it then."""
        self._rule_at_barrier = log_book.AT_BARRIER_AFTER_AHEAD
        return self._give_up(marks, log_book.rows_ahead(self._uses(), new_rows), log_book.AHEAD)

    def give_up(self, marks: Marks, new_rows: int) -> KeptNumbers:
        """First of a snapshot: takes what was noted of rows in the log, and says which of them it still holds."""
        return self._give_up(marks, new_rows, self._rule_at_barrier)

    def has_many_files(self) -> bool:
        return log_book.has_many_small_files(self._uses())

    def _give_up(self, marks: Marks, new_rows: int, rule: log_book.Rule) -> KeptNumbers:
        log_book.write_backlog(self._log.files)
        self._take_out(marks.gone)
        entries, files = self._entries, self._log.files
        first, last = log_book.kept_files(self._uses(), new_rows, rule)
        for entry in entries[last:]:
            assert entry.marks is not None, "only files whose marks are known are written anew"
            marks = marks.also(entry.marks)
        kept = KeptNumbers(
            low=entries[first].first if first < last else self._next,
            high=entries[last].first if last < len(entries) else self._next,
        )
        self._log.files, self._entries = files[first:last], entries[first:last]
        self._marks = marks.between(kept.low, kept.high)
        return kept

    def _uses(self) -> list[FileUse]:
        return [
            FileUse(file.row_count, entry.live, entry.marks is not None)
            for file, entry in zip(self._log.files, self._entries, strict=True)
        ]

    def append(self, rows: Sequence[FrozenRows]) -> list[int]:
        """Then: new rows, and those that it does not hold any more. The number of the first of each."""
        firsts = []
        parts: list[Part] = []
        begun_at = self._next
        for frozen in rows:
            firsts.append(self._next)
            for part in parts_of(frozen.count, log_book.PART_ROWS, frozen.array_bytes):
                if self._next - begun_at + part.stop - part.start > log_book.FILE_ROWS:
                    self._add_file(parts, begun_at)
                    parts, begun_at = [], self._next
                parts.append(partial(self._encoded, frozen, part, self._next))
                self._next += part.stop - part.start
        if parts or self._marks.count:
            self._add_file(parts, begun_at)
        return firsts

    def taken_files(self) -> list[LogFile]:
        """Those that were begun since the last snapshot, each given once."""
        files, self._taken_files = self._taken_files, []
        return files

    def section(self) -> list[Section]:
        self._taken_files = []
        return [self._log.section()] if self._log.files else []

    def clear(self) -> None:
        self._log.files, self._entries, self._taken_files = [], [], []

    def _add_file(self, rows: Sequence[Part], begun_at: int) -> None:
        """With the marks, if they are not in an earlier one: all of them are of older files."""
        marks, self._marks = self._marks, Marks()
        parts = [*_mark_parts(marks.gone, encoded_gone), *_mark_parts(marks.met, encoded_met), *rows]
        row_count = self._next - begun_at
        self._taken_files.append(self._log.append(parts, row_count + -(-marks.count // MARKS_PER_ROW)))
        self._entries.append(_Entry(begun_at, row_count, _remembered(marks)))

    def _take_out(self, numbers: Numbers) -> None:
        """These rows are not there any more; ascending."""
        if len(numbers) == 0:
            return
        # A file without rows begins where the next one does, so that the last that begins there is meant.
        places = np.searchsorted([entry.first for entry in self._entries], numbers, side="right") - 1
        for place, count in enumerate(np.bincount(places, minlength=len(self._entries)).tolist()):
            self._entries[place].live -= count

    def _encoded(self, frozen: FrozenRows, part: slice, first_number: int) -> Sequence[memoryview]:
        format = self._formats[frozen.number_column]
        return encoded_rows(format, *frozen.read(part), first_number, self._context.max_parallelism)

    def live_by_range(self) -> list[tuple[int, int]]:
        """Of each file, the oldest first, the lowest number and how many rows are there; for tests."""
        return [(entry.first, entry.live) for entry in self._entries]

    # -- restoring

    def restored(self, sections: Sequence[RestoredSection]) -> Iterator[FoundRows]:
        """Those of this log have their numbers, those of other logs have none here and are new."""
        logs = [section for section in sections if section.name == ROW_LOG_SECTION]
        if len(logs) == 1 and logs[0].key_groups == self._log.key_groups:
            yield from self._adopted(logs[0])
            return
        for section in logs:
            reader = self._reader()
            for path in self._log.fetched(section):
                for found in reader.read(path):
                    yield FoundRows(found.number_column, found.rows, np.zeros_like(found.numbers), found.has_met)

    def _adopted(self, section: RestoredSection) -> Iterator[FoundRows]:
        self._log.adopt(section)
        reader, firsts = self._reader(), list[int | None]()
        entries: list[_Entry] = []
        for file in reversed(self._log.files):
            entry = _Entry(0, 0, None)
            for found in reader.read(file.path):
                entry.live += len(found.numbers)
                yield found
            entry.marks = _remembered(reader.marks)
            entries.append(entry)
            firsts.append(reader.first_number)
            self._next = max(self._next, reader.last_number + 1)
        after = self._next
        for entry, first in zip(entries, firsts, strict=True):
            # One without rows begins where the next one does.
            entry.first = after = after if first is None else first
        self._entries = entries[::-1]

    def _reader(self) -> LogReader:
        return LogReader(self._formats, self._log.key_groups)


def _mark_parts(numbers: Numbers, encoded: Callable[[Numbers], Sequence[memoryview]]) -> list[Part]:
    return [partial(encoded, numbers[at : at + _PART_MARKS]) for at in range(0, len(numbers), _PART_MARKS)]


def _remembered(marks: Marks) -> Marks | None:
    return marks if marks.count <= log_book.SMALL_FILE_ROWS else None
