"""Which files of a log of rows are kept, so that the log stays in proportion to the rows that are needed.

Knows how many rows of each file are needed, and nothing of rows. Files are given up from the oldest on: what a file
says of rows that are gone can only be about older ones. Must never leave more unwritten rows in memory than it says.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidegate.model.errors import DidNotHappen
from tidegate.state.row_log import LogFile

# A part is encoded between two steps of the stream: a few ms.
PART_ROWS: Final = 1 << 15
# Giving up a file writes at most so many rows again.
FILE_ROWS: Final = 1 << 18
# Files with fewer rows are written anew with the next ones, for there would be too many; so are those that are small
# beside all rows that there are.
SMALL_FILE_ROWS: Final = 1 << 12
_FILES_OF_ALL_ROWS: Final = 128
# Fewer rows that nobody needs are not worth a file less.
_FEW_ROWS: Final = 1 << 14
# Rows are in memory while no checkpoint lets them be written.
_MOST_UNWRITTEN_ROWS: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class FileUse:
    """`row_count`: of all rows in it, `live_count`: of those that are needed.

    `is_remembered`: what it says of older files is known still, so that it can be written anew.
    """

    row_count: int
    live_count: int
    is_remembered: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """With more rows in the log for each that is needed than `stored_per_live`, the oldest files are given up.

    `small_files`: fewer at the end are not written anew, unless it is little more beside all that is written.
    """

    stored_per_live: int
    small_files: int


AT_BARRIER: Final = Rule(stored_per_live=2, small_files=1)
AHEAD: Final = Rule(stored_per_live=2, small_files=8)
# Where files are given up ahead of the barrier: there, only if there was no time to.
AT_BARRIER_AFTER_AHEAD: Final = Rule(stored_per_live=3, small_files=32)


def kept_files(files: Sequence[FileUse], changed_rows: int, rule: Rule = AT_BARRIER) -> tuple[int, int]:
    """From the first of them to before the last; the oldest files are given up, and the newest if they are small."""
    first = first_kept(files, changed_rows, rule)
    moved_rows = sum(file.live_count for file in files[:first])
    live_rows = sum(file.live_count for file in files) + changed_rows
    return first, first + last_kept(files[first:], changed_rows + moved_rows, live_rows, rule)


def first_kept(files: Sequence[FileUse], changed_rows: int, rule: Rule = AT_BARRIER) -> int:
    """Those before it are given up, once what is needed of them is written again."""
    live_rows = sum(file.live_count for file in files) + changed_rows
    stored_rows = sum(file.row_count for file in files) + changed_rows
    first, moved_rows = 0, 0
    while first < len(files) and (
        files[first].live_count == 0
        or (stored_rows > rule.stored_per_live * live_rows + _FEW_ROWS and moved_rows < max(changed_rows, FILE_ROWS))
    ):
        stored_rows -= files[first].row_count - files[first].live_count
        moved_rows += files[first].live_count
        first += 1
    return first


def last_kept(files: Sequence[FileUse], written_rows: int, live_rows: int, rule: Rule = AT_BARRIER) -> int:
    """Those from there on are written anew with so many other rows; of all that there are, `live_rows` are needed."""
    last, rows, most_rows = len(files), written_rows, small_rows(live_rows)
    # Each is small beside those behind it, so that a row is written again a few times only.
    while (
        last > 0 and files[last - 1].row_count < min(most_rows, 2 * max(rows, 1) + 1) and files[last - 1].is_remembered
    ):
        last -= 1
        rows += files[last].live_count
    is_little_more = 2 * (rows - written_rows) <= written_rows
    return last if is_little_more or len(files) - last >= rule.small_files else len(files)


def rows_ahead(files: Sequence[FileUse], changed_rows: int) -> int:
    """Of what is written ahead, by which files count as small: if there are many of them, by that of the last too."""
    return max(changed_rows, files[-1].live_count) if has_many_small_files(files) else changed_rows


def has_many_small_files(files: Sequence[FileUse]) -> bool:
    """So many at the end that could be one, that they are written anew also if no row has changed."""
    if len(files) < AHEAD.small_files:
        return False
    live_rows = sum(file.live_count for file in files)
    return len(files) - last_kept(files, files[-1].live_count, live_rows) >= AHEAD.small_files


def small_rows(live_rows: int) -> int:
    """Files with fewer are small, while so many rows are needed."""
    return max(SMALL_FILE_ROWS, live_rows // _FILES_OF_ALL_ROWS)


def write_backlog(files: Sequence[LogFile]) -> None:
    """Checkpoints that are aborted leave their rows in memory: so many, and no more."""
    unwritten = [file for file in files if not file.is_written()]
    if sum(file.row_count for file in unwritten) > _MOST_UNWRITTEN_ROWS:
        write_all(unwritten)


def write_all(files: Sequence[LogFile]) -> None:
    """As far as that is possible now: who stores them tries again, and it is a checkpoint's failure then."""
    for file in files:
        with suppress(DidNotHappen):
            deque(file.steps(), maxlen=0)
