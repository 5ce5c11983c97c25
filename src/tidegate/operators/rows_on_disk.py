"""Rows of slots in memory and on disk: what is in use is in memory, what does not fit is written away by key.

Each live row that is in memory is, as it was at the last snapshot, in the log or among those that were written away.
What the log says of a key counts: what was written away of it before is older.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.evicted_rows import EndsOf, EvictedRows
from tidegate.operators.expiry import Expiry
from tidegate.operators.logged_rows import LoggedRows, SlottedRows
from tidegate.operators.row_codec import can_encode
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import ROCKSDB_SECTION, ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.heap import refuse_files
from tidegate.state.row_store import RowStore

# So many rows are written away in a step, if no more were added: a few ms.
_LEAST_WRITTEN: Final = 1 << 12
# Per row that was added: some come while others are left behind, so it must be quicker than they come.
_WRITTEN_PER_ADDED: Final = 4
# Out of those, so many at once: each is an object of Python for a moment.
_PUT_AT_ONCE: Final = 1 << 14
# So many keys are looked up at once.
_LOOKED_UP: Final = 1 << 14
# While some rows are copied there are more of them in memory, and while a snapshot is written.
_MEMORY_PARTS: Final = 2
# The part of the memory that knowing which keys were written away may take. A row in memory takes 40 times as much as
# knowing of a key does; and reading for a key that was never written away takes as long as writing ten rows.
_SEEN_SHARE: Final = 0.5
# If fewer than one in so many can be written away it is not worth it, until there are so much more.
_LEAST_PART: Final = 16
_GROWTH: Final = 1.25
# What finding a key takes beside the key.
_TABLE_BYTES: Final = 24


def can_leave_memory(schema: pa.Schema, *, key_count: int, stays: str | None) -> bool:
    return stays is None and key_count > 0 and all(can_encode(field.type) for field in schema)


class RowsOnDisk:
    """`ends_of`: of keys, when they end, if they do. `stays`: why all rows are kept in memory, if they are."""

    def __init__(
        self,
        store: RowStore,
        rows: SlottedRows,
        format: RowFormat,
        *,
        key_count: int,
        context: TaskContext,
        ends_of: EndsOf | None,
        stays: str | None,
        restored: Sequence[RestoredSection],
    ) -> None:
        self._store = store
        self._rows = rows
        self._own = range(context.key_groups.first, context.key_groups.last)
        self._stored: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._logged = LoggedRows(store.log, rows, format, key_count, context)
        self._evicted: EvictedRows | None = None
        self._leaving: Slots | None = None
        self._written = 0
        self._tried_bytes = 0.0
        entries = [section for section in restored if section.name == ROCKSDB_SECTION]
        can_leave = can_leave_memory(format.schema, key_count=key_count, stays=stays)
        if can_leave and store.entries is not None:
            self._evicted = EvictedRows(
                store.entries,
                format.schema,
                key_count=key_count,
                max_parallelism=context.max_parallelism,
                ends_of=ends_of,
                restored=entries,
            )
        elif can_leave and entries:
            refuse_files(entries[0])
        elif entries:
            raise IncompatibleCheckpoint(
                f"The checkpoint holds {format.noun} with rows on disk, and this query keeps them in memory "
                f"({stays or 'there is no form for them on disk'}): start with the query it was."
            )

    @staticmethod
    def is_needed(store: RowStore, restored: Sequence[RestoredSection]) -> bool:
        """From the beginning; otherwise once there is enough in memory that it is wanted."""
        return store.log.is_wanted(0) or any(RowsOnDisk.is_own(section) for section in restored)

    @staticmethod
    def is_own(section: RestoredSection) -> bool:
        return section.name in (ROW_LOG_SECTION, ROCKSDB_SECTION)

    def restore(self, sections: Sequence[RestoredSection], leave: Callable[[], None]) -> None:
        """Once the operator has room for rows. Leaves slots that are not live. `leave`: what there is no room for."""
        self._logged.restore(sections, leave)
        if self._evicted is not None and self._evicted.has_any:
            # They may be there too, as they were before.
            self._stored.used[:] = True

    # -- slots

    def grow_to(self, slot_count: int) -> None:
        self._logged.grow_to(slot_count)
        self._stored.grow_to(slot_count)

    def bring_in(self, first_slot: int) -> None:
        """The rows of keys that are new in memory from this slot on, if they were written away."""
        if self._evicted is None or not self._evicted.has_any:
            return
        count = self._rows.index.count
        for start in range(first_slot, count, _LOOKED_UP):
            slots = np.arange(start, min(start + _LOOKED_UP, count))
            found, rows = self._evicted.get(self._rows.index, slots)
            if rows is not None:
                self._take_in(found, rows)

    def before_change(self, slots: Slots) -> None:
        """Before the rows of these change."""
        self._logged.before_change(slots)

    def touch(self, slots: Slots) -> None:
        """These are there, and have changed."""
        self._logged.touch(slots)

    def use(self, slots: Slots) -> None:
        """These are in use, and have not changed."""
        self._logged.use(slots)

    def end(self, slots: Slots) -> None:
        """These are not there any more; their keys still are."""
        self._logged.end(slots)
        stored = slots[self._stored.used[slots]]
        if len(stored) and self._evicted is not None:
            self._evicted.delete(self._rows.index, stored)
            self._stored.used[stored] = False

    def bring_due(self, expiry: Expiry, most: int) -> bool:
        """Rows that have ended and are not in memory, up to so many; whether there were any.

        When all that have ended in memory were told to `end`: those could be found again.
        """
        if self._evicted is None or not self._evicted.has_any:
            return False
        rows = self._evicted.due(expiry.watermarks_us(), self._own, most)
        if rows is None:
            return False
        self._take_in(self._rows.find_or_add(rows), rows)
        return True

    def _take_in(self, slots: Slots, rows: pa.RecordBatch) -> None:
        self._rows.restore(slots, rows)
        self._logged.mark_here(slots)
        self._stored.used[slots] = True

    def staying(self) -> Flags:
        """Slots that are to be kept: live, and not among those that are leaving and written."""
        live = self._logged.live()
        if self._leaving is not None:
            leaving = self._leaving[: self._written]
            live[leaving[self._is_away(leaving) & self._logged.is_unused(leaving)]] = False
        return live

    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot; while it is copied, `take_all` follows each snapshot."""
        return [*self._logged.arrays(), self._stored]

    def on_compacted(self) -> None:
        """Slots have other numbers now; those that left were found by `staying`, and nothing changed since."""
        self._leaving = None
        self._logged.on_compacted()

    # -- room

    def is_leaving(self) -> bool:
        return self._leaving is not None

    def is_full(self, size_bytes: int) -> bool:
        """Whether some rows are to leave; `size_bytes`: of what the operator holds."""
        if self._evicted is None:
            return False
        return self._taken_bytes(size_bytes) > max(self._most_bytes(), self._tried_bytes)

    def must_leave(self, size_bytes: int) -> bool:
        """Whether some are to leave, or are about to. Even when none is left, what holds them takes some bytes."""
        return self.is_leaving() or (self._rows.index.count > 0 and self.is_full(size_bytes))

    def begin_leaving(self, size_bytes: int, pinned: Flags) -> None:
        """Chooses rows until half of what there is room for is left, those first that were not in use for longest.

        None that is pinned.
        """
        taken_bytes = self._taken_bytes(size_bytes)
        live_count = int(np.count_nonzero(self._logged.live()))
        staying_count = int(live_count * self._most_bytes() / taken_bytes) // 2
        chosen = self._logged.take_unused(live_count - staying_count)
        chosen = chosen[~pinned[chosen]]
        if len(chosen) * _LEAST_PART < live_count:
            self._tried_bytes = _GROWTH * taken_bytes
            return
        self._leaving, self._written, self._tried_bytes = chosen, 0, 0.0

    def _most_bytes(self) -> int:
        seen_bytes = 0 if self._evicted is None else min(self._evicted.seen_bytes(), self._most_seen_bytes())
        return (self._store.memory.share_bytes() - seen_bytes) // _MEMORY_PARTS

    def _most_seen_bytes(self) -> int:
        return int(self._store.memory.share_bytes() * _SEEN_SHARE)

    def _taken_bytes(self, size_bytes: int) -> int:
        # Arrays have room for up to as much again.
        return 2 * size_bytes + _TABLE_BYTES * self._rows.index.count

    def write_leaving(self, added: int) -> bool:
        """A part of them; whether all are written. `added`: rows since the last part."""
        assert self._leaving is not None and self._evicted is not None
        stop = self._written + max(_LEAST_WRITTEN, _WRITTEN_PER_ADDED * added)
        part = self._leaving[self._written : stop]
        part = part[self._logged.is_here(part) & self._logged.is_unused(part) & ~self._is_away(part)]
        for at in range(0, len(part), _PUT_AT_ONCE):
            self._put_away(self._evicted, part[at : at + _PUT_AT_ONCE])
        self._written = min(stop, len(self._leaving))
        return self._written == len(self._leaving)

    def _put_away(self, evicted: EvictedRows, slots: Slots) -> None:
        rows, hashes = self._rows.frozen(slots)(slice(0, len(slots))), self._rows.index.hashes[slots]
        evicted.put(rows, hashes, most_seen_bytes=self._most_seen_bytes())
        self._logged.put_elsewhere(slots)
        self._stored.used[slots] = True

    def _is_away(self, slots: Slots) -> Flags:
        """Whether their rows are written away as they are now."""
        is_newest = ~self._logged.changed(slots) & ~self._logged.is_in_log(slots)
        flags: Flags = self._stored.used[slots] & is_newest
        return flags

    # -- snapshots

    def snapshot(self) -> list[Section]:
        self._tried_bytes = 0.0
        away = [] if self._evicted is None else self._evicted.snapshot()
        return [*self._logged.snapshot(), *away]

    def take_all(self) -> None:
        """What is owed to the last snapshot, at once instead of by the steps of its sections."""
        self._logged.take_all()

    def begin(self, slots: Slots, slot_count: int) -> None:
        """These are there, out of so many, and were stored whole so far."""
        self.grow_to(slot_count)
        self.touch(slots)

    def give_up(self) -> None:
        """All rows are in memory, and are stored whole from now on."""
        # What is owed to a snapshot that is under way is not said to change any more.
        self._logged.take_all()
        self._store.log.files = []

    def is_consistent(self) -> bool:
        return self._logged.is_consistent()

    def size_bytes(self) -> int:
        away_bytes = 0 if self._evicted is None else self._evicted.size_bytes()
        return self._logged.size_bytes() + self._stored.used.nbytes + away_bytes


def as_wanted(
    on_disk: RowsOnDisk | None, store: RowStore | None, size_bytes: int, begun: Callable[[RowStore], RowsOnDisk | None]
) -> RowsOnDisk | None:
    """For a snapshot of an operator that holds so much: by what it is stored from now on, or None if whole.

    `begun`: with all that is there; None if that cannot be now.
    """
    if store is None or store.log.is_wanted(size_bytes) == (on_disk is not None):
        return on_disk
    if on_disk is None:
        return begun(store)
    on_disk.give_up()
    return None
