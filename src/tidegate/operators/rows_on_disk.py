"""Rows of slots in memory and on disk: what is in use is in memory, what does not fit is written away by key.

Each live row that is in memory is, as it was at the last snapshot, in the log or among those that were written away.
What the log says of a key counts: what was written away of it before is older.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, Slots
from tidegate.operators.contract import TaskContext
from tidegate.operators.evicted_rows import Ends, EvictedRows, open_evicted
from tidegate.operators.expiry import Expiry
from tidegate.operators.logged_rows import LoggedRows, SlottedRows
from tidegate.operators.room import Room
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import ROCKSDB_SECTION, ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_store import RowStore

# So many rows are written away in a step, if no more were added: a few ms.
_LEAST_WRITTEN: Final = 1 << 12
# Per row that was added: some come while others are left behind, so it must be quicker than they come.
_WRITTEN_PER_ADDED: Final = 4
# Out of those, so many at once: each is an object of Python for a moment.
_PUT_AT_ONCE: Final = 1 << 14
# Fewer if these take more bytes than so many, of which there are some copies for a moment: some ten ms.
_PUT_BYTES: Final = 1 << 22
# So many keys are looked up at once.
_LOOKED_UP: Final = 1 << 14


class RowsOnDisk:
    """`ends`: when rows end, if they do. `stays`: why all rows are kept in memory, if they are."""

    def __init__(
        self,
        store: RowStore,
        rows: SlottedRows,
        format: RowFormat,
        *,
        key_count: int,
        context: TaskContext,
        ends: Ends | None,
        stays: str | None,
        restored: Sequence[RestoredSection],
    ) -> None:
        self._store = store
        self._rows = rows
        self._ends = ends
        self._own = range(context.key_groups.first, context.key_groups.last)
        self._stored: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._logged = LoggedRows(store.log, rows, format, key_count, context)
        self._leaving: Slots | None = None
        self._written = 0
        self._put_at_once = _PUT_AT_ONCE
        self._room = Room(store.memory, lambda: 0 if self._evicted is None else self._evicted.seen_bytes())
        self._evicted = open_evicted(
            store.entries,
            format,
            key_count=key_count,
            max_parallelism=context.max_parallelism,
            ends=ends,
            stays=stays,
            restored=restored,
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
            for found, rows in self._evicted.get(self._rows.index, slots):
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
            self._evicted.delete(self._rows.index, stored, self._ends_beside_keys(stored))
            self._stored.used[stored] = False

    def _ends_beside_keys(self, slots: Slots) -> Slots | None:
        """As they were when their rows were written: a row whose key does not say its end keeps it."""
        if self._ends is None or self._ends.is_in_key:
            return None
        return self._ends.of(self._rows.frozen(slots)(slice(0, len(slots))))

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
        return self._evicted is not None and self._room.is_full(size_bytes, self._rows.index.count)

    def must_leave(self, size_bytes: int) -> bool:
        """Whether some are to leave, or are about to. Even when none is left, what holds them takes some bytes."""
        return self.is_leaving() or (self._rows.index.count > 0 and self.is_full(size_bytes))

    def begin_leaving(self, size_bytes: int, pinned: Flags) -> None:
        """Chooses rows until half of what there is room for is left, those first that were not in use for longest.

        None that is pinned.
        """
        key_count, live_count = self._rows.index.count, int(np.count_nonzero(self._logged.live()))
        chosen = self._logged.take_unused(self._room.leaving_count(size_bytes, key_count, live_count))
        chosen = chosen[~pinned[chosen]]
        if self._room.is_worth_it(len(chosen), size_bytes, key_count, live_count):
            self._leaving, self._written = chosen, 0
            self._put_at_once = max(1, min(_PUT_AT_ONCE, _PUT_BYTES * key_count // max(1, size_bytes)))

    def write_leaving(self, added: int) -> bool:
        """A part of them; whether all are written. `added`: rows since the last part."""
        assert self._leaving is not None and self._evicted is not None
        count = max(min(_LEAST_WRITTEN, self._put_at_once), _WRITTEN_PER_ADDED * added)
        stop = min(self._written + count, len(self._leaving))
        for at in range(self._written, stop, self._put_at_once):
            self._put_away(self._evicted, self._leaving[at : min(at + self._put_at_once, stop)])
        self._written = stop
        return stop == len(self._leaving)

    def _put_away(self, evicted: EvictedRows, slots: Slots) -> None:
        """Those that are not in use: one that has changed since they were chosen is, and stays."""
        slots = slots[self._logged.is_here(slots) & self._logged.is_unused(slots) & ~self._is_away(slots)]
        if len(slots) == 0:
            return
        rows = self._rows.frozen(slots)(slice(0, len(slots)))
        evicted.put(rows, self._rows.index.hashes[slots], most_seen_bytes=self._room.most_seen_bytes())
        self._logged.put_elsewhere(slots)
        self._stored.used[slots] = True

    def _is_away(self, slots: Slots) -> Flags:
        """Whether their rows are written away as they are now."""
        is_newest = ~self._logged.changed(slots) & ~self._logged.is_in_log(slots)
        flags: Flags = self._stored.used[slots] & is_newest
        return flags

    # -- snapshots

    def snapshot(self) -> list[Section]:
        self._room.try_again()
        away = [] if self._evicted is None else self._evicted.snapshot()
        return [*self._logged.snapshot(), *away]

    def take_all(self) -> None:
        """What is owed to the last snapshot, at once instead of by the steps of its sections."""
        self._logged.take_all()

    @property
    def logged(self) -> LoggedRows:
        return self._logged

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
