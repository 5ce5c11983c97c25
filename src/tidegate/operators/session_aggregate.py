"""Aggregation by session windows: rows of a key whose windows touch are one group, whatever order they come in.

A session is a slot. A row that reaches into several sessions makes them one. Must never touch single rows in Python.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators import parts
from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.aggregate import EMIT_BATCH_ROWS, fired_at_once, plain_type, stays_because
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, fixed_array
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.expiry import Expiry, end_of, start_of
from tidegate.operators.logged_sessions import LoggedSessions
from tidegate.operators.numbered_log import ReadPart
from tidegate.operators.rows_on_disk import RowsOnDisk
from tidegate.operators.session_compaction import SessionCompaction
from tidegate.operators.sessions import Sessions
from tidegate.operators.sessions_on_disk import SessionsOnDisk
from tidegate.operators.stored_groups import row_format, sections_of, stored_batches
from tidegate.plan.kernels import compile_projection
from tidegate.plan.key_groups import Hashes, hash_rows
from tidegate.plan.nodes import OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_store import RowStore

_FEW_SESSIONS = 1 << 12


class SessionAggregateOperator:
    """Input: keys, then the window that each row makes by itself, then arguments."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        self._key_count = spec.key_count - 1
        kinds = [plain_type(spec.input_schema.field(index).type) for index in range(self._key_count)]
        self._window_type = spec.input_schema.field(self._key_count).type
        self._index = KeyIndex(kinds)
        self._sessions = Sessions()
        self._calls = CallStates(spec.calls)
        self._expiry = Expiry()
        keys = [pa.field(f"key_{index}", kind) for index, kind in enumerate([*kinds, self._window_type])]
        self._stored_schema = stored_schema(spec)
        calls = [pa.field(f"call_{index}", call.type) for index, call in enumerate(spec.calls)]
        self._row_schema = pa.schema([*keys, *calls])
        self._project = compile_projection(spec.results, spec.schema)
        self._fired: list[Slots] = []
        self._dead = 0
        self._compaction: SessionCompaction | None = None
        self._has_ended = False
        self._has_shown_all = False
        self._store: RowStore | None = None
        self._logged: LoggedSessions | None = None
        self._on_disk: SessionsOnDisk | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._expiry.open(context)
        self._store = store = context.open_rows()
        if store is not None and store.ahead is not None:
            store.ahead.follow(self._log_now)
        if store is not None and RowsOnDisk.is_needed(store, restored):
            self._logged = self._new_log(store)
            self._on_disk = SessionsOnDisk(
                store,
                row_format(self._stored_schema),
                key_count=self._key_count,
                context=context,
                stays=stays_because(self._spec),
                restored=restored,
            )
            restored = self._open_logged(self._logged, restored)
        for section in restored:
            for stored in stored_batches(section, self._stored_schema, context.key_groups):
                self._take_in(stored)
                self._leave_what_does_not_fit()

    def _open_logged(self, logged: LoggedSessions, restored: Sequence[RestoredSection]) -> list[RestoredSection]:
        """Restores what was in logs; gives what was neither there nor on disk."""
        for stored, numbers in logged.restored(restored):
            logged.is_in_log(self._restore(stored), numbers)
            self._leave_what_does_not_fit()
        return [section for section in restored if not RowsOnDisk.is_own(section)]

    def _restore(self, stored: pa.RecordBatch) -> Slots:
        # Stored sessions of a key do not touch, so that each gets a slot of its own.
        slots = self._slots_of(stored)
        self._calls.restore(slots, stored.columns[self._key_count + 1 :])
        return slots

    def _take_in(self, stored: pa.RecordBatch) -> None:
        """Sessions that the log does not have."""
        slots = self._restore(stored)
        if self._logged is not None:
            self._logged.touch(slots)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._spec.mode is not OutputMode.COMPLETE and rows.num_rows:
            ends_us = end_of(rows.column(self._key_count))
            late = self._expiry.late(ends_us, lambda: hash_rows(rows, self._key_count))
            rows = self._context.late_rows.dropped(rows, late)
        if rows.num_rows:
            self._before_change()
            count_before = self._index.count
            slots = self._slots_of(rows)
            self._calls.add(rows, slots)
            if self._logged is not None:
                self._logged.touch(slots)
            if self._on_disk is not None:
                self._on_disk.use(slots)
                self._leave_some(self._on_disk, self._index.count - count_before)

    def before_barrier(self, emit: Emit) -> None:
        self._flush(emit)

    def end_of_input(self, emit: Emit) -> None:
        self._flush(emit)
        self._has_ended = True

    def take_has_shown_all(self) -> bool:
        has_shown, self._has_shown_all = self._has_shown_all, False
        return has_shown

    def on_idle(self, emit: Emit) -> None:
        return

    def on_watermark(self, event_time_ms: int) -> None:
        if self._spec.mode is not OutputMode.COMPLETE:
            self._expiry.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Emits sessions that nothing can extend any more."""
        if self._spec.mode is OutputMode.COMPLETE:
            return False
        if self._compaction is not None and not self._has_compacted(self._compaction):
            return True
        if not self._calls.has_tidied_up():
            return True
        count = self._fired_at_once(max_timers)
        found = self._expiry.finished(count, lambda part: self._index.hashes[self._sessions.keys.used[part]])
        if len(found.slots):
            if self._on_disk is not None:
                self._stay(self._on_disk, self._sessions.keys.used[found.slots])
            emit(self._project(self._rows_of(found.slots)))
            self._expiry.end(found.slots)
            if self._logged is not None:
                self._logged.end(found.slots)
            self._fired.append(found.slots)
        if not found.has_more or sum(len(slots) for slots in self._fired) >= EMIT_BATCH_ROWS:
            self._drop_fired()
        if found.has_more:
            return True
        # Before others come from the disk: there may be many times as many as memory holds.
        if self._dead > max(_FEW_SESSIONS, self._sessions.count // 2):
            self._begin_compaction()
            return True
        return self._on_disk is not None and self._has_brought_due(self._on_disk, count)

    def _fired_at_once(self, max_timers: int) -> int:
        # A key is stored once, and comes out with each of its sessions.
        key_bytes = self._index.variable_size_bytes() * self._sessions.count // max(1, self._index.count)
        return fired_at_once(max_timers, self._calls, self._sessions.count, key_bytes)

    def _has_brought_due(self, disk: SessionsOnDisk, most: int) -> bool:
        """Whether there may be sessions in memory now that have ended."""
        if not disk.may_be_due(self._expiry):
            return False
        if disk.is_leaving() or disk.is_full(self._size_bytes(), self._index.count):
            # Some are in memory and on disk until they have left; and with those that end others of their keys come.
            self._leave_some(disk, 0)
            return True
        stored = disk.bring_due(self._expiry, most)
        if stored is None:
            return False
        self._take_in(stored)
        return True

    def watermark_behind(self, event_time_ms: int) -> int:
        """Sessions that are left end after the watermark, so none of their rows will be late behind it."""
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None

    def _log_or_not(self) -> None:
        """From now on sessions are stored by what changed, or whole again."""
        if self._store is None or self._store.log.is_wanted(self._size_bytes()) == (self._logged is not None):
            return
        if self._logged is not None:
            self._store.log.files, self._logged = [], None
        else:
            self._logged = self._new_log(self._store)
            self._logged.grow_to(self._sessions.count)
            self._logged.touch(self._expiry.live_slots())

    def _new_log(self, store: RowStore) -> LoggedSessions:
        return LoggedSessions(
            store.log,
            row_format(self._stored_schema),
            self._context,
            frozen=self._frozen,
            array_bytes=self._array_bytes,
        )

    def _log_now(self) -> LoggedSessions | None:
        """Not while sessions are left behind, which would not know of what is taken."""
        if self._compaction is not None:
            return None
        self._log_or_not()
        return self._logged

    def snapshot(self) -> list[Section]:
        # By what is told of slots here, what was copied of them would not be true any more.
        self._before_change()
        self._log_or_not()
        if self._logged is not None:
            away = [] if self._on_disk is None else self._on_disk.snapshot()
            return [*self._logged.snapshot(), *away]
        index, calls, window_type = self._index, self._calls.freeze(), self._window_type
        keys, starts = self._sessions.keys.frozen(), self._sessions.starts_us.frozen()
        ends, live = self._expiry.frozen_ends_us(), self._expiry.frozen_live()
        return sections_of(
            lambda part: [*index.gather(keys[part]), _windows(starts[part], ends[part], window_type), *calls(part)],
            index.hashes[keys],
            live,
            self._stored_schema,
            self._context,
            parts.summed(index.variable_bytes(keys), self._calls.array_bytes()),
        )

    def _array_bytes(self, slots: Slots) -> Slots | None:
        return parts.summed(self._index.variable_bytes(self._sessions.keys.used[slots]), self._calls.array_bytes(slots))

    def _frozen(self, slots: Slots) -> ReadPart:
        index, calls, window_type = self._index, self._calls.freeze(slots), self._window_type
        keys, starts = self._sessions.keys.used[slots], self._sessions.starts_us.used[slots]
        ends = self._expiry.ends_us[slots]

        def read(part: slice) -> tuple[list[pa.Array], Hashes]:
            # Keys never change, so they are read when encoding; the rest is as it was at this moment.
            windows = _windows(starts[part], ends[part], window_type)
            return [*index.gather(keys[part]), windows, *calls(part)], index.hashes[keys[part]]

        return read

    def state_bytes(self) -> int:
        logged_bytes = 0 if self._logged is None else self._logged.size_bytes()
        return self._size_bytes() + logged_bytes + (0 if self._on_disk is None else self._on_disk.size_bytes())

    def _size_bytes(self) -> int:
        return sum(part.size_bytes() for part in (self._index, self._sessions, self._calls, self._expiry))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # -- sessions

    def _slots_of(self, rows: pa.RecordBatch) -> Slots:
        """The session of each row, after those that the rows join have become one."""
        window = rows.column(self._key_count)
        keys = self._keys_of(rows)
        joined = self._sessions.join(
            keys, start_of(window), end_of(window), ends_us=self._expiry.ends_us, live=self._expiry.live
        )
        self._calls.grow_to(self._sessions.count)
        self._expiry.watch(joined.slots, joined.ends_us, self._sessions.count)
        if self._on_disk is not None:
            self._on_disk.grow_to(self._sessions.count)
        if self._logged is not None:
            self._logged.grow_to(self._sessions.count)
            self._logged.end(joined.absorbed)
        if len(joined.absorbed):
            self._calls.merge(sources=joined.absorbed, targets=joined.absorbed_by)
            self._expiry.end(joined.absorbed)
            self._calls.clear(joined.absorbed)
            self._sessions.free(joined.absorbed)
        return joined.slot_of_row

    def _keys_of(self, rows: pa.RecordBatch) -> Slots:
        """The key of each row, once all of its sessions are in memory."""
        count_before = self._index.count
        keys = self._index.find_or_add(rows)
        if self._on_disk is not None:
            for stored in self._on_disk.bring_in(self._index, count_before):
                self._take_in(stored)
            self._stay(self._on_disk, keys)
        return keys

    def _drop_fired(self) -> None:
        if self._fired:
            fired = np.concatenate(self._fired)
            self._fired = []
            self._calls.clear(fired)
            self._dead += len(fired)

    def _before_change(self) -> None:
        if self._compaction is not None:
            self._compaction.changed()

    def _begin_compaction(self) -> None:
        self._compaction = SessionCompaction(self._index, self._sessions, self._staying, self._arrays)

    def _staying(self) -> Flags:
        """Sessions that are to stay in memory."""
        live = self._expiry.live
        return live if self._on_disk is None else self._on_disk.staying(self._sessions, live)

    def _arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot."""
        kept = [part for part in (self._logged, self._on_disk) if part is not None]
        return [*self._expiry.arrays(), *self._calls.arrays(), *(array for part in kept for array in part.arrays())]

    def _has_compacted(self, compaction: SessionCompaction) -> bool:
        """Does a part of it; whether that was the last."""
        if not compaction.advance():
            return False
        self._compaction, self._dead = None, 0
        self._index, self._sessions = compaction.index, compaction.sessions
        compaction.values.put_in_place()
        self._calls.keep(compaction.slots)
        if self._on_disk is not None:
            self._on_disk.on_compacted()
        return True

    # -- sessions on disk

    def _stay(self, disk: SessionsOnDisk, keys: Slots) -> None:
        """Something is about to happen to these."""
        taken_back = disk.stay(keys, self._index)
        if len(taken_back):
            assert self._logged is not None, "there is a log wherever there is a disk"
            self._logged.touch(self._sessions.of_keys(taken_back, self._expiry.live))

    def _leave_some(self, disk: SessionsOnDisk, added: int) -> None:
        """A step of it, when there are more sessions in memory than there is room for."""
        if self._fired or self._expiry.is_giving_out():
            # Slots that were found would mean other sessions.
            return
        if self._compaction is not None:
            self._compaction.hurry(added)
            self._has_compacted(self._compaction)
            return
        live = self._expiry.live
        if not disk.is_leaving():
            if not self._calls.has_tidied_up():
                # What sessions held that have left is in memory still.
                return
            size_bytes = self._size_bytes()
            if not disk.is_full(size_bytes, self._index.count):
                return
            disk.begin_leaving(size_bytes, self._index, self._sessions, live)
        if disk.is_leaving():
            written, was_last = disk.write_leaving(added, self._index, self._sessions, live, self._frozen)
            assert self._logged is not None, "there is a log wherever there is a disk"
            self._logged.end(written)
            if was_last:
                self._begin_compaction()

    def _leave_what_does_not_fit(self) -> None:
        """At once, while sessions are restored: they may be those of more slots, or of one with all in memory."""
        disk = self._on_disk
        while disk is not None and (
            self._compaction is not None or disk.is_leaving() or disk.is_full(self._size_bytes(), self._index.count)
        ):
            self._leave_some(disk, 0)

    # -- groups out

    def _flush(self, emit: Emit) -> None:
        if self._spec.mode is not OutputMode.COMPLETE or self._has_ended:
            return
        live = np.flatnonzero(self._expiry.live)
        for start in range(0, len(live), EMIT_BATCH_ROWS):
            emit(self._project(self._rows_of(live[start : start + EMIT_BATCH_ROWS])))
        self._has_shown_all = len(live) > 0

    def _rows_of(self, slots: Slots) -> pa.RecordBatch:
        windows = _windows(self._sessions.starts_us.used[slots], self._expiry.ends_us[slots], self._window_type)
        keys = self._index.gather(self._sessions.keys.used[slots])
        return pa.RecordBatch.from_arrays([*keys, windows, *self._calls.results(slots)], schema=self._row_schema)


def stored_schema(spec: AggregateSpec) -> pa.Schema:
    """Of sessions as they are stored: keys, the window, running values."""
    kinds = [plain_type(spec.input_schema.field(index).type) for index in range(spec.key_count - 1)]
    kinds.append(spec.input_schema.field(spec.key_count - 1).type)
    keys = [pa.field(f"key_{index}", kind) for index, kind in enumerate(kinds)]
    return pa.schema([*keys, *CallStates(spec.calls).stored_fields()])


def _windows(starts_us: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    children = [fixed_array(field.type, values, None) for field, values in zip(kind, (starts_us, ends_us), strict=True)]
    return pa.Array.from_buffers(kind, len(starts_us), [None], children=children)
