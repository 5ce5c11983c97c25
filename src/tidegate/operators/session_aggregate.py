"""Aggregation by session windows: rows of a key whose windows touch are one group, whatever order they come in.

A session is a slot. A row that reaches into several sessions makes them one. Must never touch single rows in Python.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.aggregate import EMIT_BATCH_ROWS, LEAST_FIRED_GROUPS, plain_type
from tidegate.operators.columnar import KeyIndex, Slots, fixed_array
from tidegate.operators.compaction import MOST_BEGINNINGS
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.expiry import Expiry, end_of, start_of
from tidegate.operators.logged_sessions import LoggedSessions
from tidegate.operators.numbered_log import ReadPart
from tidegate.operators.session_compaction import SessionCompaction
from tidegate.operators.sessions import Sessions
from tidegate.operators.stored_groups import row_format, sections_of, stored_batches
from tidegate.plan.kernels import compile_projection
from tidegate.plan.key_groups import Hashes, hash_rows
from tidegate.plan.nodes import OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_log import RowLog

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
        self._beginnings = 0
        self._has_ended = False
        self._has_shown_all = False
        self._log: RowLog | None = None
        self._logged: LoggedSessions | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._expiry.open(context)
        self._log = log = context.open_log()
        if log is not None and (log.is_wanted(0) or any(LoggedSessions.is_own(section) for section in restored)):
            self._logged = LoggedSessions(log, row_format(self._stored_schema), context)
            restored = self._open_logged(self._logged, restored)
        for section in restored:
            for stored in stored_batches(section, self._stored_schema, context.key_groups):
                slots = self._restore(stored)
                if self._logged is not None:
                    self._logged.touch(slots)

    def _open_logged(self, logged: LoggedSessions, restored: Sequence[RestoredSection]) -> list[RestoredSection]:
        """Restores what was in logs; gives what was not."""
        for stored, numbers in logged.restored(restored):
            logged.is_in_log(self._restore(stored), numbers)
        return [section for section in restored if not logged.is_own(section)]

    def _restore(self, stored: pa.RecordBatch) -> Slots:
        # Stored sessions of a key do not touch, so that each gets a slot of its own.
        slots = self._slots_of(stored)
        self._calls.restore(slots, stored.columns[self._key_count + 1 :])
        return slots

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._spec.mode is not OutputMode.COMPLETE and rows.num_rows:
            ends_us = end_of(rows.column(self._key_count))
            late = self._expiry.late(ends_us, lambda: hash_rows(rows, self._key_count))
            rows = self._context.late_rows.dropped(rows, late)
        if rows.num_rows:
            # Not true of the sessions any more, so that it is begun anew.
            self._compaction = None
            slots = self._slots_of(rows)
            self._calls.add(rows, slots)
            if self._logged is not None:
                self._logged.touch(slots)

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
        count = min(max(max_timers, LEAST_FIRED_GROUPS), EMIT_BATCH_ROWS)
        found = self._expiry.finished(count, lambda part: self._index.hashes[self._sessions.keys.used[part]])
        if len(found.slots):
            emit(self._project(self._rows_of(found.slots)))
            self._expiry.end(found.slots)
            if self._logged is not None:
                self._logged.end(found.slots)
            self._fired.append(found.slots)
        if not found.has_more or sum(len(slots) for slots in self._fired) >= EMIT_BATCH_ROWS:
            self._drop_fired()
        if found.has_more:
            return True
        if self._dead > max(_FEW_SESSIONS, self._sessions.count // 2):
            return not self._has_begun_and_compacted()
        return False

    def watermark_behind(self, event_time_ms: int) -> int:
        """Sessions that are left end after the watermark, so none of their rows will be late behind it."""
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None

    def _log_or_not(self) -> None:
        """From now on sessions are stored by what changed, or whole again."""
        if self._log is None or self._log.is_wanted(self._size_bytes()) == (self._logged is not None):
            return
        self._compaction = None
        if self._logged is not None:
            self._log.files, self._logged = [], None
        else:
            self._logged = LoggedSessions(self._log, row_format(self._stored_schema), self._context)
            self._logged.grow_to(self._sessions.count)
            self._logged.touch(self._expiry.live_slots())

    def snapshot(self) -> list[Section]:
        self._log_or_not()
        if self._logged is not None:
            # By what is told of slots here, it would not be true any more.
            self._compaction = None
            return self._logged.snapshot(self._frozen)
        index, calls, window_type = self._index, self._calls.freeze(), self._window_type
        keys, starts = self._sessions.keys.frozen(), self._sessions.starts_us.frozen()
        ends, live = self._expiry.frozen_ends_us(), self._expiry.frozen_live()
        return sections_of(
            lambda part: [*index.gather(keys[part]), _windows(starts[part], ends[part], window_type), *calls(part)],
            index.hashes[keys],
            live,
            self._stored_schema,
            self._context,
        )

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
        return self._size_bytes() + (0 if self._logged is None else self._logged.size_bytes())

    def _size_bytes(self) -> int:
        return sum(part.size_bytes() for part in (self._index, self._sessions, self._calls, self._expiry))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    # -- sessions

    def _slots_of(self, rows: pa.RecordBatch) -> Slots:
        """The session of each row, after those that the rows join have become one."""
        window = rows.column(self._key_count)
        keys = self._index.find_or_add(rows)
        joined = self._sessions.join(
            keys, start_of(window), end_of(window), ends_us=self._expiry.ends_us, live=self._expiry.live
        )
        self._calls.grow_to(self._sessions.count)
        self._expiry.watch(joined.slots, joined.ends_us, self._sessions.count)
        if self._logged is not None:
            self._logged.grow_to(self._sessions.count)
            self._logged.end(joined.absorbed)
        if len(joined.absorbed):
            self._calls.merge(sources=joined.absorbed, targets=joined.absorbed_by)
            self._expiry.end(joined.absorbed)
            self._calls.clear(joined.absorbed)
            self._sessions.free(joined.absorbed)
        return joined.slot_of_row

    def _drop_fired(self) -> None:
        if self._fired:
            fired = np.concatenate(self._fired)
            self._fired = []
            self._calls.clear(fired)
            self._dead += len(fired)

    def _has_begun_and_compacted(self) -> bool:
        """Whether it did it all, as it was begun too often."""
        self._beginnings += 1
        arrays = [*self._expiry.arrays(), *self._calls.arrays()]
        if self._logged is not None:
            arrays += self._logged.arrays()
        self._compaction = SessionCompaction(self._index, self._sessions, self._expiry.live, arrays)
        if self._beginnings <= MOST_BEGINNINGS:
            return False
        while not self._has_compacted(self._compaction):
            pass
        return True

    def _has_compacted(self, compaction: SessionCompaction) -> bool:
        """Does a part of it; whether that was the last."""
        if not compaction.advance():
            return False
        self._compaction, self._beginnings, self._dead = None, 0, 0
        self._index, self._sessions = compaction.index, compaction.sessions
        compaction.values.put_in_place()
        self._calls.keep(compaction.slots)
        return True

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
