"""Sessions that are not in memory: all of a key's together, as one entry, found by its key and by its first end.

A key is in one place: its sessions are in memory and in the log, or they are here. Those that come back are taken off
the disk and are new to the log. While keys leave, those that are written are still in memory, and are taken back if
anything happens to them. Must never leave a session in both, nor in neither.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.evicted_rows import Ends, open_evicted
from tidegate.operators.expiry import Expiry, end_of
from tidegate.operators.numbered_log import ReadPart
from tidegate.operators.room import Room
from tidegate.operators.sessions import Sessions
from tidegate.operators.stored_rows import RowFormat
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_store import RowStore

# So many keys are written away in a step, if no more were added: a few ms.
_LEAST_WRITTEN: Final = 1 << 12
# Per key that was added: some come while others are left behind, so it must be quicker than they come.
_WRITTEN_PER_ADDED: Final = 4
# Out of those, so many at once, and so many are looked up at once: each is an object of Python for a moment.
_AT_ONCE: Final = 1 << 14
# Fewer are written, if their sessions are so many or so large that those would take more than this.
_PUT_BYTES: Final = 1 << 22

# Of sessions, their columns as they are now.
Copy: TypeAlias = Callable[[Slots], ReadPart]
# Of a key, while some leave.
_STAYS, _LEAVES, _AWAY = 0, 1, 2
_NO_SLOTS: Slots = np.zeros(0, dtype=np.int64)


class SessionsOnDisk:
    """`format`: of sessions as they are stored, the first `key_count` columns the key, then the window."""

    def __init__(
        self,
        store: RowStore,
        format: RowFormat,
        *,
        key_count: int,
        context: TaskContext,
        stays: str | None,
        restored: Sequence[RestoredSection],
    ) -> None:
        self._key_count = key_count
        self._own = range(context.key_groups.first, context.key_groups.last)
        self._stored_schema = format.schema
        self._away_schema = away_schema(format.schema, key_count)
        self._evicted = open_evicted(
            store.entries,
            RowFormat(format.name, format.noun, self._away_schema),
            key_count=key_count,
            max_parallelism=context.max_parallelism,
            ends=Ends(self._first_ends_us, is_in_key=False),
            stays=stays,
            restored=restored,
        )
        self._room = Room(store.memory, lambda: 0 if self._evicted is None else self._evicted.seen_bytes())
        # Of sessions: whether they were in use since some were chosen to leave.
        self._used: GrowingArray[np.bool_] = GrowingArray(np.bool_)
        self._leaving: Slots | None = None
        self._written = 0
        self._put_at_once = _AT_ONCE
        # Of keys, while some leave.
        self._places: GrowingArray[np.uint8] = GrowingArray(np.uint8)

    def grow_to(self, session_count: int) -> None:
        self._used.grow_to(session_count)

    def use(self, slots: Slots) -> None:
        """Of sessions."""
        self._used.used[slots] = True

    def arrays(self) -> list[GrowingArray[Any]]:
        """What stands by session."""
        return [self._used]

    # -- back into memory

    def bring_in(self, index: KeyIndex, first_key: int) -> Iterator[pa.RecordBatch]:
        """The sessions of keys that are new in memory from this one on. They are not here any more."""
        if self._evicted is None or not self._evicted.has_any:
            return
        count = index.count
        for start in range(first_key, count, _AT_ONCE):
            for _, rows in self._evicted.get(index, np.arange(start, min(start + _AT_ONCE, count))):
                self._evicted.remove(rows)
                yield self._sessions_in(rows)

    def may_be_due(self, expiry: Expiry) -> bool:
        """False if no session that is here has ended."""
        return self._evicted is not None and self._evicted.may_be_due(expiry.watermarks_us(), self._own)

    def bring_due(self, expiry: Expiry, most: int) -> pa.RecordBatch | None:
        """Sessions of up to so many keys of which one has ended, while none leaves. They are not here any more."""
        assert self._leaving is None, "those that are in memory too would be there twice"
        if self._evicted is None or not self._evicted.has_any:
            return None
        rows = self._evicted.due(expiry.watermarks_us(), self._own, most)
        if rows is None:
            return None
        self._evicted.remove(rows)
        return self._sessions_in(rows)

    # -- out of it

    def is_leaving(self) -> bool:
        return self._leaving is not None

    def is_full(self, size_bytes: int, key_count: int) -> bool:
        """Whether some are to leave; `size_bytes`: of what the operator holds."""
        return self._evicted is not None and key_count > 0 and self._room.is_full(size_bytes, key_count)

    def begin_leaving(self, size_bytes: int, index: KeyIndex, sessions: Sessions, live: Flags) -> None:
        """Chooses keys until half of what there is room for is left, those first that were not in use for longest."""
        has_any, is_used = np.zeros((2, index.count), dtype=np.bool_)
        has_any[sessions.keys.used[live]] = True
        is_used[sessions.keys.used[live & self._used.used]] = True
        self._used.used[:] = False
        live_count = int(np.count_nonzero(has_any))
        most = self._room.leaving_count(size_bytes, index.count, live_count)
        chosen = np.flatnonzero(has_any & ~is_used)[:most]
        chosen = np.concatenate([chosen, np.flatnonzero(has_any & is_used)[: most - len(chosen)]])
        if self._room.is_worth_it(len(chosen), size_bytes, index.count, live_count):
            self._leaving, self._written = np.sort(chosen), 0
            self._put_at_once = max(1, min(_AT_ONCE, _PUT_BYTES * index.count // max(1, size_bytes)))
            self._places = GrowingArray(np.uint8)
            self._places.grow_to(index.count)
            self._places.used[chosen] = _LEAVES

    def write_leaving(
        self, added: int, index: KeyIndex, sessions: Sessions, live: Flags, copy: Copy
    ) -> tuple[Slots, bool]:
        """Writes a part of them: these sessions are here now, and are to leave memory; whether that was the last part.

        `added`: keys since the last part. `copy`: of sessions, the columns as they are stored.
        """
        assert self._leaving is not None
        count = max(min(_LEAST_WRITTEN, self._put_at_once), _WRITTEN_PER_ADDED * added)
        stop = min(self._written + count, len(self._leaving))
        written = [_NO_SLOTS]
        for at in range(self._written, stop, self._put_at_once):
            part = self._leaving[at : min(at + self._put_at_once, stop)]
            # Whatever happens to a key that was chosen lets it stay: those that are left are as they were.
            leaving = part[self._places.used[part] == _LEAVES]
            if len(leaving) == 0:
                continue
            slots = sessions.of_keys(leaving, live)
            columns, _ = copy(slots)(slice(0, len(slots)))
            self._put_away(index, sessions.keys.used[slots], columns)
            written.append(slots)
        self._written = stop
        return np.concatenate(written), stop == len(self._leaving)

    def _put_away(self, index: KeyIndex, owners: Slots, columns: Sequence[pa.Array]) -> None:
        """All live sessions of some keys, by the key that each is of."""
        assert self._evicted is not None
        firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        keys = owners[firsts]
        kind = self._away_schema.field(self._key_count).type
        each = pa.Array.from_buffers(kind.value_type, len(owners), [None], children=columns[self._key_count :])
        offsets = pa.py_buffer(np.append(firsts, len(owners)).astype(np.int32))
        lists = pa.Array.from_buffers(kind, len(keys), [None, offsets], children=[each])
        hashes, most_seen_bytes = index.hashes[keys], self._room.most_seen_bytes()
        self._evicted.put([*index.gather(keys), lists], hashes, most_seen_bytes=most_seen_bytes)
        self._places.used[keys] = _AWAY

    def stay(self, keys: Slots, index: KeyIndex) -> Slots:
        """Something is about to happen to these keys. Those whose sessions were here already, and are not any more."""
        if self._leaving is None:
            return _NO_SLOTS
        self._places.grow_to(index.count)
        keys = np.unique(keys)
        away: Slots = keys[self._places.used[keys] == _AWAY]
        self._places.used[keys] = _STAYS
        found_count = 0
        for at in range(0, len(away), _AT_ONCE):
            assert self._evicted is not None
            for _, rows in self._evicted.get(index, away[at : at + _AT_ONCE]):
                self._evicted.remove(rows)
                found_count += rows.num_rows
        assert found_count == len(away), "they were written"
        return away

    def staying(self, sessions: Sessions, live: Flags) -> Flags:
        """Sessions that are to be kept in memory."""
        if self._leaving is None:
            return live
        keys = sessions.keys.used
        self._places.grow_to(max(self._places.count, int(keys.max(initial=-1)) + 1))
        flags: Flags = live & (self._places.used[keys] != _AWAY)
        return flags

    def on_compacted(self) -> None:
        """Those that are here are not in memory any more."""
        self._leaving = None

    # -- snapshots

    def snapshot(self) -> list[Section]:
        self._room.try_again()
        return [] if self._evicted is None else self._evicted.snapshot()

    def size_bytes(self) -> int:
        return self._used.used.nbytes + (0 if self._evicted is None else self._evicted.size_bytes())

    # -- entries

    def _sessions_in(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return sessions_in(rows, self._stored_schema, self._key_count)

    def _first_ends_us(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """Of each key, when the first of its sessions ends."""
        lists = columns[self._key_count]
        windows = lists.values.field(0)
        first: npt.NDArray[np.int64] = np.minimum.reduceat(end_of(windows), _offsets_of(lists)[:-1])
        return first


def away_schema(stored: pa.Schema, key_count: int) -> pa.Schema:
    """Of entries: the key, and all of its sessions. `stored`: of sessions as they are stored."""
    fields = list(stored)
    return pa.schema([*fields[:key_count], pa.field("sessions", pa.list_(pa.struct(fields[key_count:])))])


def stored_schema_of(away: pa.Schema, key_count: int) -> pa.Schema:
    """Of sessions, by that of their entries."""
    return pa.schema([*list(away)[:key_count], *away.field(key_count).type.value_type])


def sessions_in(rows: pa.RecordBatch, stored: pa.Schema, key_count: int) -> pa.RecordBatch:
    """One row for each session of these entries."""
    lists = rows.column(key_count)
    owners = slots_array(np.repeat(np.arange(len(lists)), np.diff(_offsets_of(lists))))
    keys = [key.take(owners) for key in rows.columns[:key_count]]
    return pa.RecordBatch.from_arrays([*keys, *lists.flatten().flatten()], schema=stored)


def _offsets_of(lists: pa.ListArray) -> npt.NDArray[np.int32]:
    """Of arrays that were made here, or decoded: from the first value on."""
    assert lists.offset == 0
    return np.frombuffer(lists.buffers()[1], dtype=np.int32)[: len(lists) + 1]
