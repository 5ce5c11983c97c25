"""Grouped aggregation over columns: one slot per group, running values in arrays by slot.

Append mode emits a group once, when event time has passed its end; complete mode emits all groups at each barrier.
Update mode emits changed groups slice by slice, a round of them every `EMIT_INTERVAL_MS`, and at the barrier as many
as a slice takes; if the sink wants each once per epoch, all of them at the barrier alone. Must never touch single rows
in Python.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators import parts
from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.changed_groups import SECTION_NAME as CHANGED_SECTION
from tidegate.operators.changed_groups import SHOWING_MS, ChangedGroups, Pace
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots
from tidegate.operators.compaction import Compacted, Compaction, kept
from tidegate.operators.contract import Emit, TaskContext, WithoutDeadlines
from tidegate.operators.evicted_rows import Ends
from tidegate.operators.expiry import Expiry, Finished, end_of
from tidegate.operators.logged_rows import LoggedRows
from tidegate.operators.rows_on_disk import RowsOnDisk, as_wanted
from tidegate.operators.stored_groups import row_format, sections_of, stored_batches
from tidegate.plan.kernels import compile_projection
from tidegate.plan.key_groups import fixed_values_of, hash_rows
from tidegate.plan.nodes import GroupRows, OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.row_store import RowStore

# Bounds one output batch, so that offsets of strings fit and the receiver can take it in slices.
EMIT_BATCH_ROWS = 1 << 16
# A step costs some tenths of a ms whatever it brings out, which must not be a handful of groups; but of long arrays.
LEAST_FIRED_GROUPS = 1 << 12
# Below this, leaving finished groups behind is not worth a copy of the live ones.
_FEW_GROUPS = 1 << 12
_WANTED_ROWS = 1 << 16


class _ShownFirst(Enum):
    """What leaves memory was shown before; that may take longer than a step."""

    NOT_NEEDED = auto()
    UNDER_WAY = auto()  # until then no rows are taken
    DONE = auto()


class AggregateOperator(WithoutDeadlines):
    """`GivesLater`: what it holds are groups that changed and are due to be shown."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        keys = _key_fields(spec)
        self._index = KeyIndex([field.type for field in keys])
        self._calls = CallStates(spec.calls, spec.partials)
        self._stored_schema = pa.schema([*keys, *self._calls.stored_fields()])
        calls = [pa.field(f"call_{index}", call.type) for index, call in enumerate(spec.calls)]
        self._row_schema = pa.schema([*keys, *calls])
        self._project = compile_projection(spec.results, spec.schema)
        self._expiry = None if end_key_of(spec) is None else Expiry()
        # Whether groups that changed come out between barriers too.
        is_once_per_epoch = spec.group_rows is GroupRows.ONCE_PER_EPOCH
        self._is_shown_in_between = spec.mode is OutputMode.UPDATE and not is_once_per_epoch
        self._changed = ChangedGroups(pa.schema(keys))
        # Whether the barrier has left some of them, which are part of its snapshot.
        self._is_some_unshown = False
        self._pace = Pace(EMIT_BATCH_ROWS)
        self._shown_first = _ShownFirst.NOT_NEEDED
        self._ending: Finished | None = None
        self._is_firing = False
        self._fired: list[Slots] = []
        self._dead = 0
        self._compaction: Compaction | None = None
        self._has_ended = False
        self._has_shown_all = False
        self._store: RowStore | None = None
        self._on_disk: RowsOnDisk | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._changed.open(context.clock.monotonic_ms())
        if self._expiry is not None:
            self._expiry.open(context)
        self._store = context.open_rows()
        if self._store is not None and self._store.ahead is not None:
            self._store.ahead.follow(self._log_now)
        if self._store is not None and RowsOnDisk.is_needed(self._store, restored):
            restored = self._open_on_disk(self._store, restored)
        changed = [section for section in restored if section.name == CHANGED_SECTION]
        for section in restored:
            if section.name == CHANGED_SECTION:
                continue
            for stored in stored_batches(section, self._stored_schema, context.key_groups):
                slots = self._slots_of(stored)
                self._calls.restore(slots, stored.columns[self._spec.key_count :])
                self._touch(slots)
                self._leave_what_does_not_fit()
        if self._spec.mode is OutputMode.UPDATE:
            for section in changed:
                self._restore_changed(section)
        if self._spec.key_count == 0 and 0 in context.key_groups and self._index.count == 0:
            # Without keys there is one group, also when no row came.
            self._add_only_group()

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        rows = self._in_time(rows)
        if rows.num_rows:
            self._before_change()
            count_before = self._index.count
            slots = self._slots_of(rows)
            if self._on_disk is not None:
                self._on_disk.bring_in(count_before)
                self._on_disk.before_change(slots)
            self._calls.add(rows, slots)
            self._touch(slots)
            self._mark_changed(slots)
            if self._on_disk is not None:
                self._leave_some(self._on_disk, self._index.count - count_before, emit)

    def before_barrier(self, emit: Emit) -> None:
        match self._spec.mode:
            case OutputMode.APPEND:
                return
            case OutputMode.UPDATE if self._is_shown_in_between:
                self._show_for_a_while(emit)
                self._is_some_unshown = self._changed.any
            case OutputMode.UPDATE:
                self._show_all_changed(emit)
            case OutputMode.COMPLETE:
                self._show_all(emit)

    def end_of_input(self, emit: Emit) -> None:
        if self._spec.mode is OutputMode.COMPLETE:
            self._show_all(emit)
        # From now on groups that changed are due, whoever takes them.
        self._has_ended = True

    def take_has_shown_all(self) -> bool:
        has_shown, self._has_shown_all = self._has_shown_all, False
        return has_shown

    def on_idle(self, emit: Emit) -> None:
        return

    # -- changed groups, given later

    def room(self) -> int:
        return 0 if self._shown_first is _ShownFirst.UNDER_WAY else _WANTED_ROWS

    def holds_rows(self) -> bool:
        if self._spec.mode is not OutputMode.UPDATE or not self._changed.any:
            return False
        if self._has_ended or self._shown_first is _ShownFirst.UNDER_WAY:
            return True
        # What is finished comes first, and shows what changed of it.
        if self._is_firing or not self._is_shown_in_between:
            return False
        return self._context.clock.monotonic_ms() >= self._changed.due_at_ms

    def give(self, max_rows: int, emit: Emit) -> int:
        if not self.holds_rows():
            return 0
        shown = 0
        while self._changed.any and not shown:
            shown = self._show_some(max_rows, emit)
        return shown

    def next_deadline_ms(self) -> float | None:
        """None also when they are due: they then wait for what wakes the slot anyway."""
        if not self._is_shown_in_between or not self._changed.any:
            return None
        due_at_ms = self._changed.due_at_ms
        return due_at_ms if due_at_ms > self._context.clock.monotonic_ms() else None

    # -- event time

    def on_watermark(self, event_time_ms: int) -> None:
        if self._expiry is not None:
            self._expiry.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Emits groups that are finished, or in update mode drops them, which has shown them before."""
        self._is_firing = self._fire(max_timers, emit)
        return self._is_firing

    def _fire(self, max_timers: int, emit: Emit) -> bool:
        if self._expiry is None:
            return False
        if self._compaction is not None and not self._has_compacted(self._compaction):
            return True
        if not self._calls.has_tidied_up():
            return True
        count = fired_at_once(max_timers, self._calls, self._index.count, self._index.variable_size_bytes())
        found = self._ending
        if found is None:
            found = self._expiry.finished(count, lambda part: self._index.hashes[part])
        if len(found.slots):
            if not self._has_shown_last(found, emit):
                self._ending = found
                return True
            self._ending = None
            self._expiry.end(found.slots)
            if self._on_disk is not None:
                self._on_disk.end(found.slots)
            self._fired.append(found.slots)
            if sum(len(slots) for slots in self._fired) >= EMIT_BATCH_ROWS:
                self._clear_fired()
        if found.has_more:
            return True
        self._clear_fired()
        # Before others come from the disk: there may be many times as many as memory holds.
        if self._dead > max(_FEW_GROUPS, self._index.count // 2):
            self._compaction = Compaction(self._index, self._live(), self._arrays())
            return True
        return self._on_disk is not None and self._on_disk.bring_due(self._expiry, count)

    def watermark_behind(self, event_time_ms: int) -> int:
        """Groups that are left end after the watermark, so none of their rows will be late behind it."""
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Section]:
        groups = self._groups_snapshot()
        return [*groups, *self._changed.sections(self._index, self._context)] if self._is_some_unshown else groups

    def _groups_snapshot(self) -> list[Section]:
        self._on_disk = as_wanted(self._on_disk, self._store, self._size_bytes(), self._begun_on_disk)
        if self._on_disk is not None:
            self._before_change()
            sections = self._on_disk.snapshot()
            if self._compaction is not None:
                # What is being copied must not change by taking rows later.
                self._on_disk.take_all()
            return sections
        index, calls = self._index, self._calls.freeze()
        live = np.ones(index.count, np.bool_) if self._expiry is None else self._expiry.frozen_live()
        # Keys and hashes never change, so they are read when encoding; running values are those of this moment.
        return sections_of(
            lambda part: [*index.gather(part), *calls(part)],
            index.hashes,
            live,
            self._stored_schema,
            self._context,
            self.array_bytes(None),
        )

    def _log_now(self) -> LoggedRows | None:
        """Not while groups are left behind, which would not know of what is taken."""
        if self._compaction is not None:
            return None
        self._on_disk = as_wanted(self._on_disk, self._store, self._size_bytes(), self._begun_on_disk)
        return None if self._on_disk is None else self._on_disk.logged

    def state_bytes(self) -> int:
        disk_bytes = 0 if self._on_disk is None else self._on_disk.size_bytes()
        return self._size_bytes() + disk_bytes

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # -- rows on disk

    @property
    def index(self) -> KeyIndex:
        return self._index

    def find_or_add(self, keys: pa.RecordBatch) -> Slots:
        slots = self._index.find_or_add(keys)
        nothing = np.zeros(0, dtype=np.int64)
        self._make_room(nothing, nothing)
        return slots

    def restore(self, slots: Slots, rows: pa.RecordBatch) -> None:
        if self._expiry is not None:
            self._expiry.watch(slots, self._ends_of(rows), self._index.count)
        self._calls.restore(slots, rows.columns[self._spec.key_count :])

    def frozen(self, slots: Slots) -> Frozen:
        index, calls = self._index, self._calls.freeze(slots)
        # Keys never change, so they are read when encoding; running values are those of this moment.
        return lambda part: [*index.gather(slots[part]), *calls(part)]

    def array_bytes(self, slots: Slots | None) -> Slots | None:
        """Of these slots, or of all."""
        return parts.summed(self._index.variable_bytes(slots), self._calls.array_bytes(slots))

    def _open_on_disk(self, store: RowStore, restored: Sequence[RestoredSection]) -> list[RestoredSection]:
        """Restores what was on disk; what was not."""
        self._on_disk = self._rows_on_disk(store, restored)
        self._on_disk.restore(restored, self._leave_what_does_not_fit)
        live = self._live()
        if not live.all():
            self._take_over(kept(self._index, np.flatnonzero(live), self._arrays()))
        self._leave_what_does_not_fit()
        return [section for section in restored if not RowsOnDisk.is_own(section)]

    def _begun_on_disk(self, store: RowStore) -> RowsOnDisk | None:
        """Not while groups are left behind, which would not know of it."""
        if self._compaction is not None:
            return None
        on_disk, count = self._rows_on_disk(store, ()), self._index.count
        on_disk.begin(np.arange(count) if self._expiry is None else self._expiry.live_slots(), count)
        return on_disk

    def _rows_on_disk(self, store: RowStore, restored: Sequence[RestoredSection]) -> RowsOnDisk:
        end_key = end_key_of(self._spec)
        return RowsOnDisk(
            store,
            self,
            row_format(self._stored_schema),
            key_count=self._spec.key_count,
            context=self._context,
            ends=None if end_key is None else Ends(lambda keys: end_of(keys[end_key]), is_in_key=True),
            stays=stays_because(self._spec),
            restored=restored,
        )

    def is_consistent(self) -> bool:
        return self._on_disk is None or self._on_disk.is_consistent()

    def _touch(self, slots: Slots) -> None:
        if self._on_disk is not None:
            self._on_disk.touch(slots)

    def _leave_some(self, disk: RowsOnDisk, added: int, emit: Emit) -> None:
        """A step of it, when there are more groups in memory than there is room for."""
        if self._fired or self._ending is not None or (self._expiry is not None and self._expiry.is_giving_out()):
            # Slots that were found would mean other groups.
            return
        if self._compaction is not None:
            self._compaction.hurry(added)
            self._has_compacted(self._compaction)
            return
        if not disk.is_leaving():
            if not self._calls.has_tidied_up():
                # What groups held that have left is in memory still.
                return
            size_bytes = self._size_bytes()
            if not disk.is_full(size_bytes):
                self._shown_first = _ShownFirst.NOT_NEEDED
                return
            if not self._has_shown_first(emit):
                return
            disk.begin_leaving(size_bytes, self._changed.flags.used)
        if disk.is_leaving() and disk.write_leaving(added):
            self._compaction = Compaction(self._index, self._live(), self._arrays())

    def _has_shown_first(self, emit: Emit) -> bool:
        """Only groups that were shown leave memory: whether they were, all but the newest."""
        if self._is_shown_in_between and self._shown_first is not _ShownFirst.DONE:
            self._show_for_a_while(emit)
            if self._changed.any:
                self._shown_first = _ShownFirst.UNDER_WAY
                return False
        self._shown_first = _ShownFirst.NOT_NEEDED
        return True

    def _leave_what_does_not_fit(self) -> None:
        """At once, while groups are restored: they may be those of more slots, or of one with all in memory."""
        disk = self._on_disk
        while disk is not None and (self._compaction is not None or disk.must_leave(self._size_bytes())):
            self._leave_some(disk, 0, lambda _: None)

    def _size_bytes(self) -> int:
        expiry_bytes = 0 if self._expiry is None else self._expiry.size_bytes()
        return self._index.size_bytes() + self._calls.size_bytes() + expiry_bytes

    # -- rows in

    def _in_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows of groups that are finished."""
        if self._expiry is None or rows.num_rows == 0:
            return rows
        late = self._expiry.late(self._ends_of(rows), lambda: hash_rows(rows, self._spec.key_count))
        self._count_combined(rows, late)
        return self._context.late_rows.dropped(rows, late)

    def _count_combined(self, rows: pa.RecordBatch, late: Flags) -> None:
        """A row that was combined from several counts for all of them: here for all but the one it is."""
        partials = self._spec.partials
        if partials is not None and partials.row_counts is not None and late.any():
            row_counts = fixed_values_of(rows.column(partials.row_counts))
            self._context.late_rows.count += int((row_counts[late].astype(np.int64) - 1).sum())

    def _ends_of(self, rows: pa.RecordBatch) -> Slots:
        assert self._spec.event_time is not None
        return end_of(rows.column(self._spec.event_time.position))

    def _slots_of(self, rows: pa.RecordBatch) -> Slots:
        slots = self._index.find_or_add(rows)
        self._make_room(slots, None if self._expiry is None else self._ends_of(rows))
        return slots

    def _make_room(self, slots: Slots, ends_us: Slots | None) -> None:
        """For all keys; those of the slots end then."""
        count = self._index.count
        self._calls.grow_to(count)
        self._changed.grow_to(count)
        if self._expiry is not None and ends_us is not None:
            self._expiry.watch(slots, ends_us, count)
        if self._on_disk is not None:
            self._on_disk.grow_to(count)

    def _add_only_group(self) -> None:
        filler = pa.RecordBatch.from_arrays([pa.nulls(1)], names=["row"])
        slots = self._slots_of(filler)
        self._touch(slots)
        self._mark_changed(slots)

    def _mark_changed(self, slots: Slots) -> None:
        if self._spec.mode is OutputMode.UPDATE:
            self._changed.mark(slots)

    def _restore_changed(self, section: RestoredSection) -> None:
        """Groups that a barrier has found unshown: in memory, whatever their number, until they are shown."""
        for keys in self._changed.restored(section, self._context):
            count_before = self._index.count
            slots = self._slots_of(keys)
            if self._on_disk is not None:
                self._on_disk.bring_in(count_before)
            self._mark_changed(slots)

    # -- groups out

    def _show_all(self, emit: Emit) -> None:
        if not self._has_ended:
            self._emit_all(emit, np.arange(self._index.count))
            self._has_shown_all = self._index.count > 0

    def _show_all_changed(self, emit: Emit) -> None:
        while self._changed.any:
            self._show_some(EMIT_BATCH_ROWS, emit)

    def _show_for_a_while(self, emit: Emit) -> None:
        """Groups that changed, as many as take about a slice; the next steps go on behind them."""
        started_ms, most = self._context.clock.monotonic_ms(), self._pace.probe_groups
        while self._changed.any:
            self._show_some(most, emit)
            if self._context.clock.monotonic_ms() - started_ms >= SHOWING_MS:
                return
            most = self._pace.groups

    def _show_some(self, most: int, emit: Emit) -> int:
        """The next groups that changed, up to so many; how many."""
        self._before_change()
        slots = self._changed.take(min(most, EMIT_BATCH_ROWS), self._context.clock.monotonic_ms())
        if self._shown_first is _ShownFirst.UNDER_WAY and not self._changed.any:
            self._shown_first = _ShownFirst.DONE
        self._show(slots, emit)
        return len(slots)

    def _has_shown_last(self, found: Finished, emit: Emit) -> bool:
        """Groups that go, in update mode those that changed: about a slice of them; whether that was all."""
        if self._spec.mode is not OutputMode.UPDATE:
            self._emit_all(emit, found.slots)
            return True
        changed = self._changed.among(found.slots)
        shown = changed[: self._pace.probe_groups if self._ending is None else self._pace.groups]
        self._changed.on_shown(shown)
        self._show(shown, emit)
        return len(shown) == len(changed)

    def _show(self, slots: Slots, emit: Emit) -> None:
        if len(slots):
            started_ms = self._context.clock.monotonic_ms()
            self._emit_all(emit, slots)
            self._pace.observe(len(slots), self._context.clock.monotonic_ms() - started_ms)

    def _emit_all(self, emit: Emit, slots: Slots) -> None:
        for start in range(0, len(slots), EMIT_BATCH_ROWS):
            emit(self._project(self._rows_of(slots[start : start + EMIT_BATCH_ROWS])))

    def _rows_of(self, slots: Slots) -> pa.RecordBatch:
        columns = [*self._index.gather(slots), *self._calls.results(slots)]
        return row_batch(columns, self._row_schema, len(slots))

    def _clear_fired(self) -> None:
        if not self._fired:
            return
        fired = np.concatenate(self._fired)
        self._fired = []
        self._calls.clear(fired)
        self._dead += len(fired)

    def _live(self) -> Flags:
        """Slots that are to stay in memory."""
        if self._on_disk is not None:
            return self._on_disk.staying()
        assert self._expiry is not None, "groups that do not end stay"
        return self._expiry.live

    def _arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot."""
        expiry = [] if self._expiry is None else self._expiry.arrays()
        on_disk = [] if self._on_disk is None else self._on_disk.arrays()
        return [*self._calls.arrays(), *expiry, *on_disk, self._changed.flags]

    def _before_change(self) -> None:
        if self._compaction is not None:
            self._compaction.values_changed()

    def _has_compacted(self, compaction: Compaction) -> bool:
        """Does a part of it; whether that was the last."""
        compacted = compaction.advance(self._live)
        if compacted is None:
            return False
        self._compaction = None
        self._take_over(compacted)
        return True

    def _take_over(self, compacted: Compacted) -> None:
        self._index = compacted.index
        compacted.values.put_in_place()
        self._changed.on_renumbered(self._index.count)
        self._calls.keep(compacted.slots)
        if self._expiry is not None:
            self._dead = int(np.count_nonzero(~self._expiry.live))
        if self._on_disk is not None:
            self._on_disk.on_compacted()


def fired_at_once(max_timers: int, calls: CallStates, slot_count: int, key_bytes: int) -> int:
    """How many of so many groups, whose keys have so much in arrays and strings, may come out in a step of a few ms."""
    count = min(max(max_timers, LEAST_FIRED_GROUPS), EMIT_BATCH_ROWS)
    most = calls.slots_with_bytes(slot_count, parts.PART_BYTES, key_bytes=key_bytes)
    return count if most is None else min(count, most)


def stored_schema(spec: AggregateSpec) -> pa.Schema:
    """Of groups as they are stored."""
    return pa.schema([*_key_fields(spec), *CallStates(spec.calls, spec.partials).stored_fields()])


def end_key_of(spec: AggregateSpec) -> int | None:
    """Which of the keys says when a group ends. In complete mode every group stays, and no row is late."""
    return None if spec.event_time is None or spec.mode is OutputMode.COMPLETE else spec.event_time.position


def stays_because(spec: AggregateSpec) -> str | None:
    """Why all groups are kept in memory, if they are."""
    return "in complete mode" if spec.mode is OutputMode.COMPLETE else None


def _key_fields(spec: AggregateSpec) -> list[pa.Field]:
    """Positions name the columns: the names of a Spark plan may repeat."""
    fields = [spec.input_schema.field(at) for at in range(spec.key_count)]
    return [pa.field(f"key_{at}", plain_type(field.type)) for at, field in enumerate(fields)]


def row_batch(columns: Sequence[pa.Array], schema: pa.Schema, row_count: int) -> pa.RecordBatch:
    """A batch without columns would have no rows, so it gets one that nobody reads."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(row_count)], names=["row"])


def plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
