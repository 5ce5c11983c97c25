"""Rows of slots in a log of files: a snapshot writes those that changed, and refers to older files for the rest.

Knows of each slot in which file its newest row is. The log stays in proportion to the rows that are needed: the oldest
files are given up, and what is still needed of them is written again. A key that left is written as gone, so that no
older row of it counts. A snapshot only notes that what changed until now is owed to it: that is taken part by part,
between steps of the stream, or just before it changes again. Between snapshots rows that changed may be taken ahead of
the next one, each as it is when it is taken. Must never give up a file that has the newest row of a live slot, nor let
a row that is owed change before it is taken.
"""

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.block_marks import BlockMarks
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.log_book import FileUse
from tidegate.operators.log_format import LogFormat
from tidegate.operators.parts import parts_of
from tidegate.operators.rows_of_epoch import RowsOfEpoch
from tidegate.operators.stored_rows import RowFormat
from tidegate.operators.taking import GoneKeys, Taking
from tidegate.plan.key_groups import Hashes, hash_rows
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_log import LogFile, RowLog

# Keys that are gone are in memory until they are written.
_MOST_GONE: Final = 1 << 17

# So many slots are looked at in a step for rows in files that are given up: a ms. Of those of small files, which lie
# here and there, it is so many in the same time.
_LOOKED_AT: Final = 1 << 20
_MARKED: Final = 1 << 17
# Rows that are no more than so many parts are taken in one: freezing so many of all copies all.
_FEW_PARTS: Final = 8

# Bits of a slot. Two stand for a change, by turns: before the last snapshot, which is owed the row, and since then.
_CHANGED, _CHANGED_TOO = 1, 8
_ANY_CHANGE = np.uint8(_CHANGED | _CHANGED_TOO)
_USED, _HERE = np.uint8(2), np.uint8(4)
# Changed since rows were last looked at to be taken ahead.
_RECENT = np.uint8(16)
# For the number of a file: the one that had the slot's row was given up, so that it is in none until it is taken again.
# Older ones may have what it was before.
_GIVEN_UP: Final = -1


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
        """The rows of these slots as they are now, by place among them; must take no longer than for their part."""
        ...

    def array_bytes(self, slots: Slots) -> Slots | None:
        """About what these hold in arrays; None if rows have none."""
        ...


class LoggedRows:
    """`format` is that of a row, its first `key_count` columns the key."""

    def __init__(self, log: RowLog, rows: SlottedRows, format: RowFormat, key_count: int, context: TaskContext) -> None:
        self._log = log
        self._rows = rows
        self._format = LogFormat.of(format, key_count)
        self._context = context
        self._flags: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        # Slots that changed since the last snapshot, and those that are owed to it: they change places with each.
        self._changed = BlockMarks(self._flags, _CHANGED)
        self._owed = BlockMarks(self._flags, _CHANGED_TOO)
        # The file in which the slot's row is as it was last written; 0 if no file has one that counts.
        self._numbers: GrowingArray[np.int32] = GrowingArray(np.int32)
        self._live_in: dict[int, int] = {}
        self._gone: list[GoneKeys] = []
        self._gone_in: dict[int, list[GoneKeys]] = {}
        # Of small files at the end of the log, the slots whose rows they were written with.
        self._slots_in: dict[int, Slots] = {}
        self._taking: Taking | None = None
        # A round of taking ahead of the next snapshot, what the last one saw, and files that nobody has asked for.
        self._round: Taking | None = None
        # The number of the first of the small files that the round gives up, until it has; else 0.
        self._gives_up_from = 0
        self._looked_at = (0, 0)
        self._taken_files: list[LogFile] = []
        self._epoch = RowsOfEpoch(log.next_number)
        self._rule_at_barrier = log_book.AT_BARRIER

    # -- slots

    def grow_to(self, slot_count: int) -> None:
        self._flags.grow_to(slot_count)
        self._numbers.grow_to(slot_count)
        self._changed.grow_to(slot_count)
        self._owed.grow_to(slot_count)

    def before_change(self, slots: Slots) -> None:
        """Before the rows of these change: those that are owed to a snapshot are taken as they are."""
        if self._taking is None or not self._taking.is_owed:
            return
        owed = slots[(self._flags.used[slots] & self._owed.bit) != 0]
        if len(owed):
            self._take(self._taking, np.unique(owed))

    def touch(self, slots: Slots) -> None:
        """These are there, and have changed."""
        self._flags.used[slots] = _USED | _HERE | _RECENT | self._changed.bit
        self._changed.mark(slots)

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
        flags: Flags = (self._flags.used[slots] & _ANY_CHANGE) != 0
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
        self._flags.used[slots] &= ~_ANY_CHANGE

    def forget(self, slots: Slots) -> None:
        """Whatever the log has of them does not count any more, but for a snapshot that was taken before."""
        self.before_change(slots)
        logged = slots[self._numbers.used[slots] != 0]
        if len(logged) == 0:
            return
        self._take_out(logged)
        self._gone.append((self._gone_keys(logged), self._rows.index.hashes[logged]))
        if _count(self._gone) >= _MOST_GONE:
            self.take_all()
            # A row of such a key that is taken from now on must be in a later file.
            self._end_round()
            self._write_gone()

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
        """What stands by slot; slots that are left behind must not be in the log.

        Whoever copies it calls `take_all` after each snapshot, for taking changes it, and takes nothing ahead.
        """
        self.take_all()
        self._end_round()
        return [self._flags, self._numbers]

    def on_compacted(self) -> None:
        """Slots have other numbers now."""
        self._changed.on_renumbered(self._flags.count)
        self._owed.on_renumbered(self._flags.count)
        self._owed.clear()
        self._find_slots_of_small_files()

    def is_consistent(self) -> bool:
        """Whether each file has as many live rows as slots say; for tests."""
        in_file = np.bincount(np.maximum(self._numbers.used, 0), minlength=1)
        counted = {number: int(in_file[number]) if number < len(in_file) else 0 for number in self._live_in}
        return counted == self._live_in and sum(counted.values()) == int(in_file[1:].sum())

    def size_bytes(self) -> int:
        return self._flags.used.nbytes + self._numbers.used.nbytes

    # -- snapshots

    def snapshot(self) -> list[Section]:
        """What changed until now is owed to it: it is taken by the section's steps, or by `take_all`."""
        self.take_all()
        self._end_round()
        log_book.write_backlog(self._log.files)
        self._drop_empty_files()
        self._epoch = self._epoch.next(self._log.next_number)
        self._taken_files = []
        if self._changed.is_empty() and not self._gone:
            return [self._log.section()] if self._log.files else []
        self._changed, self._owed = self._owed, self._changed
        self._owe_small_files()
        gone, self._gone = self._gone if self._log.files else [], []
        self._taking = taking = Taking(self._advance, tuple(self._log.files), gone)
        return [self._log.section(taking)]

    def take_all(self) -> None:
        """What is owed to the last snapshot, at once."""
        if self._taking is not None:
            deque(self._taking.steps(), maxlen=0)

    def _drop_empty_files(self) -> None:
        """The oldest, if nothing in them is needed."""
        files = self._log.files
        first = next((at for at, file in enumerate(files) if self._live_in[file.number]), len(files))
        self._drop(files[:first])
        self._log.files = files[first:]

    def _owe_small_files(self) -> None:
        """The rows of small files at the end are written anew, as if they had changed."""
        slots = self._give_up_small_files(self._owed.count(), self._rule_at_barrier)
        self._flags.used[slots] |= self._owed.bit
        self._owed.mark(slots)

    def _give_up_small_files(self, written_rows: int, rule: log_book.Rule) -> Slots:
        """Those at the end that are small beside so many other rows; the slots whose rows they have."""
        files = self._log.files
        last = log_book.last_kept(self._uses(files), written_rows, self._live_count(), rule)
        found = [np.zeros(0, dtype=np.int64)]
        for file in files[last:]:
            slots = self._slots_in[file.number]
            found.append(slots[self._numbers.used[slots] == file.number])
            self._numbers.used[found[-1]] = _GIVEN_UP
        # Older files may hold rows of these.
        self._gone = [gone for file in files[last:] for gone in self._gone_in[file.number]] + self._gone
        self._drop(files[last:])
        self._log.files = files[:last]
        return np.concatenate(found)

    def _drop(self, files: Sequence[LogFile]) -> None:
        for file in files:
            del self._live_in[file.number]
            self._gone_in.pop(file.number, None)
            self._slots_in.pop(file.number, None)

    def _uses(self, files: Sequence[LogFile]) -> list[FileUse]:
        known = self._gone_in.keys() & self._slots_in.keys()
        return [FileUse(file.row_count, self._live_in[file.number], file.number in known) for file in files]

    def _live_count(self) -> int:
        return sum(self._live_in.values())

    # -- ahead of the next snapshot

    def waiting_rows(self) -> int:
        """About how many have changed, or are gone."""
        return self._changed.count() + _count(self._gone)

    def enough_rows(self) -> int:
        """Fewer would make a file that is written anew with the next ones."""
        return log_book.small_rows(self._live_count())

    def changes_again(self) -> bool:
        return self._epoch.changes_again()

    def has_many_files(self) -> bool:
        return log_book.has_many_small_files(self._uses(self._log.files))

    def take_part(self) -> bool:
        """A part of a round: rows that changed, and have not since the last round, as they are now.

        Then of those in the oldest files. Whether there is more to do in this round.
        """
        if self._taking is not None:
            # If its checkpoint is over, nobody else takes what is owed to it.
            self._advance(self._taking)
            return True
        if self._round is None:
            self._rule_at_barrier = log_book.AT_BARRIER_AFTER_AHEAD
            self._drop_empty_files()
            self._round = Taking(self._advance_round, tuple(self._log.files), [])
            self._gives_up_from = self._first_small_file()
        self._advance_round(self._round)
        return self._round is not None

    def taken_files(self) -> list[LogFile]:
        """To which nothing will be added, each given once."""
        if self._round is not None:
            self._taken_files += self._round.take_whole_files()
        files, self._taken_files = self._taken_files, []
        return files

    def looked_at(self) -> tuple[int, int]:
        """In the last round: how many rows that had changed, and how many of them were taken."""
        return self._looked_at

    def _advance_round(self, ahead: Taking) -> None:
        slot_count = self._flags.count
        if self._gives_up_from:
            self._give_up_some()
            ahead.kept = tuple(self._log.files)
        elif ahead.is_owed:
            found, ahead.looked_to = self._changed.take(ahead.looked_to, log_book.PART_ROWS)
            ahead.looked_at += len(found)
            self._take_ahead(ahead, self._worth_taking(found))
            if ahead.looked_to == slot_count:
                ahead.is_owed, ahead.looked_to = False, 0
                ahead.moves_until = self._given_up_until(ahead, log_book.AHEAD)
        elif ahead.moves_until and ahead.looked_to < slot_count:
            self._take_ahead(ahead, self._some_of_given_up(ahead))
        else:
            self._end_round()

    def _first_small_file(self) -> int:
        """The number of the first that is written anew with what a round takes, by what its first part would; or 0."""
        found, _ = self._changed.take(0, log_book.PART_ROWS)
        self._changed.mark(found)
        is_chosen = self._chosen(found, copy(self._epoch))
        files, uses = self._log.files, self._uses(self._log.files)
        written_rows = log_book.rows_ahead(uses, int(np.count_nonzero(is_chosen)))
        if not written_rows:
            return 0
        last = log_book.last_kept(uses, written_rows, self._live_count(), log_book.AHEAD)
        return files[last].number if last < len(files) else 0

    def _give_up_some(self) -> None:
        """Rows of the last file count as changed from here on: the round takes them, or the next snapshot does."""
        file = self._log.files[-1]
        slots = self._slots_in[file.number]
        some, self._slots_in[file.number] = slots[:_MARKED], slots[_MARKED:]
        moved = some[self._numbers.used[some] == file.number]
        flags = self._flags.used[moved]
        # What was written as it is has not changed of late.
        flags[(flags & self._changed.bit) == 0] &= ~_RECENT
        self._flags.used[moved] = flags | self._changed.bit
        self._changed.mark(moved)
        self._numbers.used[moved] = _GIVEN_UP
        self._live_in[file.number] -= len(moved)
        if len(slots) > _MARKED:
            return
        # Older files may hold rows of these.
        self._gone = self._gone_in[file.number] + self._gone
        self._drop([file])
        self._log.files = self._log.files[:-1]
        if file.number == self._gives_up_from:
            self._gives_up_from = 0

    def _worth_taking(self, changed: Slots) -> Slots:
        """Those that have not changed since the last look, and are not written ahead too often."""
        is_chosen = self._chosen(changed, self._epoch)
        self._flags.used[changed] &= ~_RECENT
        # The others have changed still.
        self._changed.mark(changed[~is_chosen])
        chosen: Slots = changed[is_chosen]
        return chosen

    def _chosen(self, changed: Slots, epoch: RowsOfEpoch) -> Flags:
        """Rows of files that were given up do not count there: they are written again whether or not they change."""
        numbers = self._numbers.used[changed]
        can_be, is_given_up = (self._flags.used[changed] & _RECENT) == 0, numbers == _GIVEN_UP
        is_chosen: Flags = epoch.chosen(can_be & ~is_given_up, numbers) | (can_be & is_given_up)
        return is_chosen

    def _take_ahead(self, ahead: Taking, slots: Slots) -> None:
        # A key may have left since the last part, after its row was taken, and be back: each needs a file of its own.
        ahead.gone, self._gone = self._gone if self._log.files else [], []
        self._take(ahead, slots)

    def _end_round(self) -> None:
        """Whatever was taken by now is in its files."""
        if self._round is not None:
            ahead, self._round = self._round, None
            self._gives_up_from = 0
            self._note_taken(ahead)
            self._taken_files += ahead.take_whole_files()
            self._looked_at = ahead.looked_at, ahead.row_count

    # -- taking what is owed

    def _advance(self, taking: Taking) -> None:
        """A part of what is owed; then of what is needed of the oldest files: later snapshots do without them."""
        slot_count = self._flags.count
        if taking.is_owed:
            takes_all = slot_count <= _FEW_PARTS * log_book.PART_ROWS
            slots, taking.looked_to = self._owed.take(taking.looked_to, slot_count if takes_all else log_book.PART_ROWS)
            self._take(taking, slots)
            if taking.looked_to == slot_count:
                taking.is_owed, taking.looked_to = False, 0
                taking.moves_until = self._given_up_until(taking, self._rule_at_barrier)
        elif taking.moves_until and taking.looked_to < slot_count:
            self._take(taking, self._some_of_given_up(taking))
        else:
            self._end_taking(taking)

    def _take(self, taking: Taking, slots: Slots) -> None:
        """As they are now."""
        if taking.gone:
            self._add_file(taking)
        if len(slots) == 0:
            return
        self._take_out(slots)
        # Those that are owed have not changed since, and those that are taken ahead are not owed.
        self._flags.used[slots] &= ~_ANY_CHANGE
        frozen, hashes = self._rows.frozen(slots), self._rows.index.hashes
        for part in parts_of(len(slots), log_book.PART_ROWS, self._rows.array_bytes(slots)):
            if not taking.has_room(part.stop - part.start):
                self._add_file(taking)
            number = taking.add(partial(self._encoded, frozen, hashes, slots[part], part), slots[part])
            self._numbers.used[slots[part]] = number
            self._live_in[number] += part.stop - part.start

    def _take_out(self, slots: Slots) -> None:
        """Their rows in the log are not needed any more."""
        if not self._log.files:
            return
        before_first = self._log.files[0].number - 1
        counts = np.bincount(np.maximum(self._numbers.used[slots] - before_first, 0))
        for place in np.flatnonzero(counts[1:]):
            self._live_in[before_first + 1 + int(place)] -= int(counts[1 + place])
        self._numbers.used[slots] = 0

    def _add_file(self, taking: Taking) -> None:
        # In the first of them, so that a row of such a key in any of them counts.
        gone, taking.gone = taking.gone, []
        taking.begin_file(self._log, [partial(self._encoded_gone, *keys) for keys in gone], _count(gone))
        self._live_in[taking.added[-1].number] = 0
        self._remember_gone(taking.added[-1], gone)

    def _given_up_until(self, taking: Taking, rule: log_book.Rule) -> int:
        """The number of the last of the oldest files whose rows are written again; 0 if none are."""
        uses = self._uses(taking.kept)
        first = log_book.first_kept(uses, taking.row_count, rule)
        return taking.kept[first - 1].number if any(use.live_count for use in uses[:first]) else 0

    def _some_of_given_up(self, taking: Taking) -> Slots:
        """Slots whose rows are in the oldest files, without those that changed since: the next one is owed them."""
        start, stop = taking.looked_to, min(taking.looked_to + _LOOKED_AT, self._flags.count)
        # What is in no file becomes the greatest number.
        is_old = (self._numbers.used[start:stop] - 1).view(np.uint32) < taking.moves_until
        found = np.flatnonzero(is_old & ((self._flags.used[start:stop] & self._changed.bit) == 0))
        if len(found) > log_book.PART_ROWS:
            found, stop = found[: log_book.PART_ROWS], start + int(found[log_book.PART_ROWS])
        taking.looked_to = stop
        return found + start

    def _end_taking(self, taking: Taking) -> None:
        self._taking = None
        self._epoch.first_number = self._log.next_number
        self._note_taken(taking)

    def _note_taken(self, taking: Taking) -> None:
        taking.is_taken = True
        small_rows = log_book.small_rows(self._live_count())
        for file, slots in zip(taking.added, taking.slots, strict=True):
            if file.row_count < small_rows:
                self._slots_in[file.number] = np.concatenate([np.zeros(0, np.int64), *slots])
            else:
                # Those before it are not at the end any more.
                self._slots_in = {}
        taking.slots = []

    def _find_slots_of_small_files(self) -> None:
        files, small_rows = self._log.files, log_book.small_rows(self._live_count())
        first = len(files)
        while first and files[first - 1].row_count < small_rows:
            first -= 1
        self._slots_in = {}
        if first < len(files):
            found = np.flatnonzero(self._numbers.used >= files[first].number)
            numbers = self._numbers.used[found]
            self._slots_in = {file.number: found[numbers == file.number] for file in files[first:]}

    def _write_gone(self) -> None:
        """A file of keys that are gone, at once."""
        gone, self._gone = self._gone if self._log.files else [], []
        if gone:
            file = self._log.append([partial(self._encoded_gone, *keys) for keys in gone], _count(gone))
            self._live_in[file.number] = 0
            self._remember_gone(file, gone)
            self._slots_in[file.number] = np.zeros(0, dtype=np.int64)
            log_book.write_all([file])
            self._taken_files.append(file)

    def _encoded(
        self, frozen: Callable[[slice], list[pa.Array]], hashes: Hashes, slots: Slots, part: slice
    ) -> Sequence[memoryview]:
        return self._format.encoded(frozen(part), hashes[slots], self._context.max_parallelism)

    def _encoded_gone(self, keys: pa.RecordBatch, hashes: Hashes) -> Sequence[memoryview]:
        return self._format.encoded_gone(keys, hashes, self._context.max_parallelism)

    def _remember_gone(self, file: LogFile, gone: list[GoneKeys]) -> None:
        """Which they are, so that it can be written anew with later ones; if they are few."""
        if _count(gone) <= log_book.SMALL_FILE_ROWS:
            self._gone_in[file.number] = gone

    def _gone_keys(self, slots: Slots) -> pa.RecordBatch:
        return self._format.gone_keys(self._rows.index.gather(slots), len(slots))

    # -- restoring

    def restore(self, sections: Sequence[RestoredSection], on_log: Callable[[], None]) -> None:
        """Leaves slots of keys that are gone, which are not live. `on_log`: whenever one of several logs is read.

        Not before it is: its keys must stay in memory so that older rows of them are passed over.
        """
        logs = [section for section in sections if section.name == ROW_LOG_SECTION]
        if len(logs) == 1 and logs[0].key_groups == self._log.key_groups:
            self._log.adopt(logs[0])
            for file in reversed(self._log.files):
                self._take_in_file(file)
            self._find_slots_of_small_files()
            self._epoch = RowsOfEpoch(self._log.next_number)
            return
        for section in logs:
            for path in self._log.fetched(section):
                self._replay(path, lambda slots: self.touch(slots))
            on_log()

    def _take_in_file(self, file: LogFile) -> None:
        self._live_in[file.number] = 0

        def found(slots: Slots) -> None:
            self._flags.used[slots] = _HERE | _USED
            self._numbers.used[slots] = file.number
            self._live_in[file.number] += len(slots)

        self._remember_gone(file, self._replay(file.path, found))

    def _replay(self, path: Path, found: Callable[[Slots], None]) -> list[GoneKeys]:
        """Takes in the rows of keys that no later file spoke of; the keys that it says are gone."""
        gone: list[GoneKeys] = []
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


def _count(gone: Sequence[GoneKeys]) -> int:
    return sum(keys.num_rows for keys, _ in gone)
