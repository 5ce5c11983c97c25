"""Rows of slots in a log of files: a snapshot writes those that changed, and refers to older files for the rest.

Knows of each slot in which file its newest row is. The log stays in proportion to the rows that are needed: the oldest
files are given up, and what is still needed of them is written again. A key that left is written as gone, so that no
older row of it counts. Must never give up a file that has the newest row of a live slot.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.log_book import FileUse
from tidegate.operators.log_format import LogFormat
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes, hash_rows
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_log import LogFile, Part, RowLog

# Keys that are gone are in memory until they are written.
_MOST_GONE: Final = 1 << 17

# The first bit of a byte can be read as a truth value of numpy.
_CHANGED, _USED, _HERE = np.uint8(1), np.uint8(2), np.uint8(4)
_TOUCHED = _USED | _CHANGED | _HERE


class SlottedRows(Protocol):
    """What an operator keeps by slot, as rows that can be written and restored."""

    @property
    def index(self) -> KeyIndex: ...
    def find_or_add(self, keys: pa.RecordBatch) -> Slots:
        """Makes room for what belongs to the keys, here too; by it alone they are not there."""
        ...

    def restore(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Slots that hold nothing yet."""
        ...

    def frozen(self, slots: Slots) -> Callable[[slice], list[pa.Array]]:
        """The rows of these slots as they are now, by place among them; must not take long."""
        ...


class LoggedRows:
    """`format` is that of a row, its first `key_count` columns the key."""

    def __init__(self, log: RowLog, rows: SlottedRows, format: RowFormat, key_count: int, context: TaskContext) -> None:
        self._log = log
        self._rows = rows
        self._format = LogFormat.of(format, key_count)
        self._context = context
        self._flags: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        # The file in which the slot's row is as it was last written; 0 if in none.
        self._numbers: GrowingArray[np.int32] = GrowingArray(np.int32)
        self._live_in: dict[int, int] = {}
        self._gone: list[tuple[pa.RecordBatch, Hashes]] = []
        self._gone_in: dict[int, list[tuple[pa.RecordBatch, Hashes]]] = {}

    # -- slots

    def grow_to(self, slot_count: int) -> None:
        self._flags.grow_to(slot_count)
        self._numbers.grow_to(slot_count)

    def touch(self, slots: Slots) -> None:
        """These are there, and have changed."""
        self._flags.used[slots] = _TOUCHED

    def use(self, slots: Slots) -> None:
        """These are in use, and have not changed."""
        self._flags.used[slots] |= _USED

    def live(self) -> Flags:
        flags: Flags = (self._flags.used & _HERE) != 0
        return flags

    def is_here(self, slots: Slots) -> Flags:
        flags: Flags = (self._flags.used[slots] & _HERE) != 0
        return flags

    def changed(self, slots: Slots) -> Flags:
        """Those whose row in the log, if any, is not the newest."""
        flags: Flags = (self._flags.used[slots] & _CHANGED) != 0
        return flags

    def is_in_log(self, slots: Slots) -> Flags:
        flags: Flags = self._numbers.used[slots] > 0
        return flags

    def end(self, slots: Slots) -> None:
        """These are not there any more; their keys still are."""
        self.forget(slots)
        self._flags.used[slots] = 0

    def put_elsewhere(self, slots: Slots) -> None:
        """Their rows as they are now are kept by somebody else."""
        self.forget(slots)
        self._flags.used[slots] &= ~_CHANGED

    def forget(self, slots: Slots) -> None:
        """Whatever the log has of them does not count any more."""
        logged = slots[self._numbers.used[slots] > 0]
        if len(logged) == 0:
            return
        self._take_out(logged)
        self._gone.append((self._gone_keys(logged), self._rows.index.hashes[logged]))
        if sum(keys.num_rows for keys, _ in self._gone) >= _MOST_GONE:
            log_book.write_all(self._append(np.zeros(0, dtype=np.int64)))

    def mark_here(self, slots: Slots) -> None:
        """These are there as they were last kept by somebody else."""
        self._flags.used[slots] = _HERE | _USED

    def take_unused(self, most: int) -> Slots:
        """Up to so many live slots, those first that were not touched since the last call."""
        flags = self._flags.used
        is_here = (flags & _HERE) != 0
        unused = np.flatnonzero(is_here & ((flags & _USED) == 0))
        chosen = unused[:most]
        if len(chosen) < most:
            chosen = np.concatenate([chosen, np.flatnonzero(is_here & ((flags & _USED) != 0))[: most - len(chosen)]])
        flags &= ~_USED
        return chosen

    def is_unused(self, slots: Slots) -> Flags:
        """Since they were taken."""
        flags: Flags = (self._flags.used[slots] & _USED) == 0
        return flags

    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot; slots that are left behind must not be in the log."""
        return [self._flags, self._numbers]

    def is_consistent(self) -> bool:
        """Whether each file has as many live rows as slots say; for tests."""
        in_file = np.bincount(self._numbers.used, minlength=1)
        counted = {number: int(in_file[number]) if number < len(in_file) else 0 for number in self._live_in}
        return counted == self._live_in and sum(counted.values()) == int(in_file[1:].sum())

    def size_bytes(self) -> int:
        return self._flags.used.nbytes + self._numbers.used.nbytes

    # -- snapshots

    def snapshot(self) -> list[Section]:
        log_book.write_backlog(self._log.files)
        changed = np.flatnonzero((self._flags.used & _CHANGED).view(np.bool_))
        if len(changed) or self._gone:
            self._take_out(changed)
            self._append(self._with_given_up(changed))
            self._flags.used[changed] &= ~_CHANGED
        return [self._log.section()] if self._log.files else []

    def _take_out(self, slots: Slots) -> None:
        """Their rows in the log are not needed any more."""
        if not self._log.files:
            return
        before_first = self._log.files[0].number - 1
        counts = np.bincount(np.maximum(self._numbers.used[slots] - before_first, 0))
        for place in np.flatnonzero(counts[1:]):
            self._live_in[before_first + 1 + int(place)] -= int(counts[1 + place])
        self._numbers.used[slots] = 0

    def _with_given_up(self, changed: Slots) -> Slots:
        """With the slots whose rows are in files that are given up: the oldest, and the newest if they are small."""
        files = self._log.files
        first, last = self._kept_files(len(changed))
        if first == 0 and last == len(files):
            return changed
        numbers = self._numbers.used
        moved = np.zeros(len(numbers), dtype=np.bool_)
        if first:
            moved |= (numbers > 0) & (numbers <= files[first - 1].number)
        if last < len(files):
            moved |= numbers >= files[last].number
            # Older files may hold rows of these.
            self._gone = [gone for file in files[last:] for gone in self._gone_in[file.number]] + self._gone
        for file in (*files[:first], *files[last:]):
            del self._live_in[file.number]
            self._gone_in.pop(file.number, None)
        self._log.files = files[first:last]
        numbers[moved] = 0
        moved[changed] = True
        return np.flatnonzero(moved)

    def _kept_files(self, changed_rows: int) -> tuple[int, int]:
        """From the first of them to before the last."""
        numbered = [(file.number, file.row_count) for file in self._log.files]
        uses = [FileUse(rows, self._live_in[number], number in self._gone_in) for number, rows in numbered]
        return log_book.kept_files(uses, changed_rows)

    def _append(self, slots: Slots) -> list[LogFile]:
        """New files, with the rows of these slots and the keys that are gone; they are still to be written."""
        gone, self._gone = self._gone if self._log.files else [], []
        frozen, hashes = self._rows.frozen(slots), self._rows.index.hashes
        files = []
        for start in range(0, max(len(slots), 1 if gone else 0), log_book.FILE_ROWS):
            stop = min(start + log_book.FILE_ROWS, len(slots))
            # In the first of them, so that a row of such a key in any of them counts.
            parts: list[Part] = [partial(self._encoded_gone, keys, hashed) for keys, hashed in gone]
            for at in range(start, stop, log_book.PART_ROWS):
                part = slice(at, min(at + log_book.PART_ROWS, stop))
                parts.append(partial(self._encoded, frozen, hashes, slots[part], part))
            file = self._log.append(parts, stop - start + sum(keys.num_rows for keys, _ in gone))
            self._numbers.used[slots[start:stop]] = file.number
            self._live_in[file.number] = stop - start
            self._remember_gone(file, gone)
            files.append(file)
            gone = []
        return files

    def _encoded(
        self, frozen: Callable[[slice], list[pa.Array]], hashes: Hashes, slots: Slots, part: slice
    ) -> Sequence[memoryview]:
        return self._format.encoded(frozen(part), hashes[slots], self._context.max_parallelism)

    def _encoded_gone(self, keys: pa.RecordBatch, hashes: Hashes) -> Sequence[memoryview]:
        return self._format.encoded_gone(keys, hashes, self._context.max_parallelism)

    def _remember_gone(self, file: LogFile, gone: list[tuple[pa.RecordBatch, Hashes]]) -> None:
        """Which they are, so that it can be written anew with later ones; if they are few."""
        if sum(keys.num_rows for keys, _ in gone) <= log_book.SMALL_FILE_ROWS:
            self._gone_in[file.number] = gone

    def _gone_keys(self, slots: Slots) -> pa.RecordBatch:
        return self._format.gone_keys(self._rows.index.gather(slots), len(slots))

    # -- restoring

    def restore(self, sections: Sequence[RestoredSection]) -> None:
        """Leaves slots of keys that are gone, which are not live."""
        logs = [section for section in sections if section.name == ROW_LOG_SECTION]
        if len(logs) == 1 and logs[0].key_groups == self._log.key_groups:
            self._log.adopt(logs[0])
            for file in reversed(self._log.files):
                self._take_in_file(file)
            return
        for section in logs:
            for path in self._log.fetched(section):
                self._replay(path, lambda slots: self.touch(slots))

    def _take_in_file(self, file: LogFile) -> None:
        self._live_in[file.number] = 0

        def found(slots: Slots) -> None:
            self._flags.used[slots] = _HERE | _USED
            self._numbers.used[slots] = file.number
            self._live_in[file.number] += len(slots)

        self._remember_gone(file, self._replay(file.path, found))

    def _replay(self, path: Path, found: Callable[[Slots], None]) -> list[tuple[pa.RecordBatch, Hashes]]:
        """Takes in the rows of keys that no later file spoke of; the keys that it says are gone."""
        gone: list[tuple[pa.RecordBatch, Hashes]] = []
        for is_gone, rows in self._format.read(path, self._log.key_groups):
            if is_gone:
                gone.append((rows, hash_rows(rows, self._format.key_count)))
                continue
            count_before = self._rows.index.count
            slots = self._rows.find_or_add(rows)
            new = np.flatnonzero(slots >= count_before)
            if len(new):
                self._rows.restore(slots[new], rows.take(slots_array(new)))
                found(slots[new])
        for keys, _ in gone:
            self._rows.find_or_add(keys)
        return gone
