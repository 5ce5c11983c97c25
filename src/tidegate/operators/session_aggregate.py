"""Aggregation by session windows: rows of a key whose windows touch are one group, whatever order they come in.

A session is a slot. A row that reaches into several sessions makes them one. Must never touch single rows in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.accumulators.contract import distinct_slots
from tidegate.operators.aggregate import EMIT_BATCH_ROWS, LEAST_FIRED_GROUPS, plain_type
from tidegate.operators.columnar import GrowingArray, KeyIndex, Slots, fixed_array
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.expiry import Expiry, end_of, start_of
from tidegate.operators.stored_groups import sections_of, stored_batches
from tidegate.plan.kernels import compile_projection
from tidegate.plan.key_groups import hash_rows
from tidegate.plan.nodes import OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section

_FEW_SESSIONS = 1 << 12
_NONE = 0  # slots and keys in the chains are counted from 1


class SessionAggregateOperator:
    """Input: keys, then the window that each row makes by itself, then arguments."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        self._key_count = spec.key_count - 1
        kinds = [plain_type(spec.input_schema.field(index).type) for index in range(self._key_count)]
        self._window_type = spec.input_schema.field(self._key_count).type
        self._index = KeyIndex(kinds)
        self._sessions = _Sessions()
        self._calls = CallStates(spec.calls)
        self._expiry = Expiry()
        keys = [pa.field(f"key_{index}", kind) for index, kind in enumerate([*kinds, self._window_type])]
        self._stored_schema = pa.schema([*keys, *self._calls.stored_fields()])
        calls = [pa.field(f"call_{index}", call.type) for index, call in enumerate(spec.calls)]
        self._row_schema = pa.schema([*keys, *calls])
        self._project = compile_projection(spec.results, spec.schema)
        self._fired: list[Slots] = []
        self._dead = 0
        self._has_ended = False

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._expiry.open(context)
        for section in restored:
            for stored in stored_batches(section, self._stored_schema, context.key_groups):
                self._calls.restore(self._slots_of(stored), stored.columns[self._key_count + 1 :])

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._spec.mode is not OutputMode.COMPLETE and rows.num_rows:
            ends_us = end_of(rows.column(self._key_count))
            late = self._expiry.late(ends_us, lambda: hash_rows(rows, self._key_count))
            rows = self._context.late_rows.dropped(rows, late)
        if rows.num_rows:
            self._calls.add(rows, self._slots_of(rows))
            self._compact_if_due()

    def before_barrier(self, emit: Emit) -> None:
        self._flush(emit)

    def end_of_input(self, emit: Emit) -> None:
        self._flush(emit)
        self._has_ended = True

    def on_idle(self, emit: Emit) -> None:
        return

    def on_watermark(self, event_time_ms: int) -> None:
        if self._spec.mode is not OutputMode.COMPLETE:
            self._expiry.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Emits sessions that nothing can extend any more."""
        if self._spec.mode is OutputMode.COMPLETE:
            return False
        count = min(max(max_timers, LEAST_FIRED_GROUPS), EMIT_BATCH_ROWS)
        found = self._expiry.finished(count, lambda part: self._index.hashes[self._sessions.keys.used[part]])
        if len(found.slots):
            emit(self._project(self._rows_of(found.slots)))
            self._expiry.end(found.slots)
            self._fired.append(found.slots)
        if not found.has_more or sum(len(slots) for slots in self._fired) >= EMIT_BATCH_ROWS:
            self._drop_fired()
        if not found.has_more:
            self._compact_if_due()
        return found.has_more

    def watermark_behind(self, event_time_ms: int) -> int:
        """Sessions that are left end after the watermark, so none of their rows will be late behind it."""
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Section]:
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

    def state_bytes(self) -> int:
        parts = (self._index, self._sessions, self._calls, self._expiry)
        return sum(part.size_bytes() for part in parts)

    def close(self) -> None:
        pass

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
        if len(joined.absorbed):
            self._calls.merge(sources=joined.absorbed, targets=joined.absorbed_by)
            self._expiry.end(joined.absorbed)
            self._drop(joined.absorbed)
        return joined.slot_of_row

    def _drop(self, slots: Slots) -> None:
        """They are not live any more."""
        self._calls.clear(slots)
        self._dead += len(slots)

    def _drop_fired(self) -> None:
        if self._fired:
            self._drop(np.concatenate(self._fired))
            self._fired = []

    def _compact_if_due(self) -> None:
        if self._dead <= max(_FEW_SESSIONS, self._sessions.count // 2) or self._expiry.is_giving_out():
            return
        live = np.flatnonzero(self._expiry.live)
        used_keys = self._sessions.keep(live)
        self._index = self._index.kept(used_keys)
        self._calls.keep(live)
        self._expiry.keep(live)
        self._dead = 0

    # -- groups out

    def _flush(self, emit: Emit) -> None:
        if self._spec.mode is not OutputMode.COMPLETE or self._has_ended:
            return
        live = np.flatnonzero(self._expiry.live)
        for start in range(0, len(live), EMIT_BATCH_ROWS):
            emit(self._project(self._rows_of(live[start : start + EMIT_BATCH_ROWS])))

    def _rows_of(self, slots: Slots) -> pa.RecordBatch:
        windows = _windows(self._sessions.starts_us.used[slots], self._expiry.ends_us[slots], self._window_type)
        keys = self._index.gather(self._sessions.keys.used[slots])
        return pa.RecordBatch.from_arrays([*keys, windows, *self._calls.results(slots)], schema=self._row_schema)


@dataclass(frozen=True, slots=True)
class _Joined:
    """`slots` with `ends_us`: sessions that are new or have grown; `absorbed` ones are part of `absorbed_by` now."""

    slot_of_row: Slots
    slots: Slots
    ends_us: npt.NDArray[np.int64]
    absorbed: Slots
    absorbed_by: Slots


class _Sessions:
    """Which key each session is of and when it starts; the sessions of a key are a chain of slots."""

    def __init__(self) -> None:
        self.keys: GrowingArray[np.int64] = GrowingArray(np.int64)
        self.starts_us: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._next: GrowingArray[np.int64] = GrowingArray(np.int64)
        self._first_of_key: GrowingArray[np.int64] = GrowingArray(np.int64)

    @property
    def count(self) -> int:
        return self.keys.count

    def join(
        self,
        keys: Slots,
        starts_us: npt.NDArray[np.int64],
        row_ends_us: npt.NDArray[np.int64],
        *,
        ends_us: npt.NDArray[np.int64],
        live: npt.NDArray[np.bool_],
    ) -> _Joined:
        """Puts rows, as windows of their own, among the sessions of their keys; what touches becomes one session."""
        key_count = int(keys.max()) + 1
        self._first_of_key.grow_to(max(self._first_of_key.count, key_count))
        touched, _ = distinct_slots(keys, key_count)
        held = self._sessions_of(touched, live)
        all_keys = np.concatenate([self.keys.used[held], keys])
        all_starts = np.concatenate([self.starts_us.used[held], starts_us])
        all_ends = np.concatenate([ends_us[held], row_ends_us])
        order = np.lexsort((all_ends, all_starts, all_keys))
        numbers = _session_numbers(all_keys[order], all_starts[order], all_ends[order])
        session_of = np.empty(len(order), dtype=np.int64)
        session_of[order] = numbers
        firsts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        starts, ends = all_starts[order][firsts], np.maximum.reduceat(all_ends[order], firsts)
        slots, absorbed, absorbed_by = self._slots_for(held, session_of[: len(held)], len(firsts))
        self.keys.used[slots] = all_keys[order][firsts]
        self.starts_us.used[slots] = starts
        self._chain(touched, slots)
        return _Joined(slots[session_of[len(held) :]], slots, ends, absorbed, absorbed_by)

    def keep(self, slots: Slots) -> Slots:
        """Slot i becomes what slots[i] was; gives the keys that are still used, each of which becomes its place."""
        self.keys.keep(slots)
        self.starts_us.keep(slots)
        used, places = np.unique(self.keys.used, return_inverse=True)
        self.keys.used[:] = places
        self._next = GrowingArray(np.int64)
        self._next.grow_to(len(slots))
        self._first_of_key = GrowingArray(np.int64)
        self._first_of_key.grow_to(len(used))
        self._chain(np.arange(len(used)), np.arange(len(slots)))
        return used

    def size_bytes(self) -> int:
        return sum(array.used.nbytes for array in (self.keys, self.starts_us, self._next, self._first_of_key))

    def _sessions_of(self, keys: Slots, live: npt.NDArray[np.bool_]) -> Slots:
        """Live sessions of these keys. A chain is as long as a key has sessions at once, so few steps do."""
        found = [np.zeros(0, dtype=np.int64)]
        at = self._first_of_key.used[keys]
        while len(at := at[at != _NONE]):
            slots = at - 1
            found.append(slots[live[slots]])
            at = self._next.used[slots]
        return np.concatenate(found)

    def _slots_for(self, held: Slots, session_of: Slots, session_count: int) -> tuple[Slots, Slots, Slots]:
        """Each session's slot: that of one it held already, or a new one; then the others it held, and by whom."""
        slots = np.full(session_count, -1, dtype=np.int64)
        slots[session_of] = held
        is_new = slots < 0
        added = int(np.count_nonzero(is_new))
        slots[is_new] = np.arange(self.count, self.count + added)
        count = self.count + added
        for array in (self.keys, self.starts_us, self._next):
            array.grow_to(count)
        is_absorbed = slots[session_of] != held
        return slots, held[is_absorbed], slots[session_of[is_absorbed]]

    def _chain(self, keys: Slots, slots: Slots) -> None:
        """These are all sessions of these keys."""
        self._first_of_key.used[keys] = _NONE
        if len(slots) == 0:
            return
        ordered = slots[np.argsort(self.keys.used[slots], kind="stable")]
        owners = self.keys.used[ordered]
        is_last = np.append(owners[1:] != owners[:-1], True)
        self._next.used[ordered] = np.where(is_last, _NONE, np.append(ordered[1:], -1) + 1)
        is_first = np.append(True, owners[1:] != owners[:-1])
        self._first_of_key.used[owners[is_first]] = ordered[is_first] + 1


def _session_numbers(keys: Slots, starts_us: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64]) -> Slots:
    """A session number for each window, which are in order of key and start.

    A new session begins where a window starts after all windows of its key before it have ended.
    """
    is_new_key = np.append(True, keys[1:] != keys[:-1])
    # The furthest end so far, per key: by rank, so that key and end together fit into 64 bits.
    ranked = np.sort(ends_us)
    ranks = np.searchsorted(ranked, ends_us)
    furthest = np.maximum.accumulate(np.cumsum(is_new_key) * len(keys) + ranks) % len(keys)
    is_new = is_new_key
    is_new[1:] |= starts_us[1:] > ranked[furthest[:-1]]
    numbers: Slots = np.cumsum(is_new) - 1
    return numbers


def _windows(starts_us: npt.NDArray[np.int64], ends_us: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    children = [fixed_array(field.type, values, None) for field, values in zip(kind, (starts_us, ends_us), strict=True)]
    return pa.Array.from_buffers(kind, len(starts_us), [None], children=children)
