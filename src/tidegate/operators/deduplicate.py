"""The first row of each key passes, the others are dropped.

A key is forgotten as Spark forgets it: when event time has passed it, some time after its first row, or never. Must
never touch single rows in Python, nor let a key pass twice before it is forgotten.
"""

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from tidegate.model.errors import ProtocolViolation
from tidegate.operators.accumulators.contract import Frozen
from tidegate.operators.columnar import Flags, GrowingArray, KeyIndex, Slots, fixed_array, slots_array
from tidegate.operators.compaction import Compacted, Compaction, kept
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.evicted_rows import Ends
from tidegate.operators.expiry import MOST_FOUND, Expiry, end_of
from tidegate.operators.logged_rows import LoggedRows
from tidegate.operators.rows_on_disk import RowsOnDisk, as_wanted
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes, fixed_values_of, hash_rows, validity_of
from tidegate.plan.nodes import ForgetAfterDelay, ForgetByKey
from tidegate.plan.physical import DeduplicateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.heap import refuse_files
from tidegate.state.row_store import RowStore

SECTION_NAME = "deduplicate"

_NEVER_US = np.iinfo(np.int64).max
_US_PER_MS = 1000
# At a time, if some are on disk: a few ms.
_LEAST_FORGOTTEN = 1 << 11
# Below this many forgotten keys, making the index anew costs more than it frees.
_FEW_KEYS = 1 << 12


class DeduplicateOperator:
    def __init__(self, spec: DeduplicateSpec) -> None:
        self._spec = spec
        self._index = KeyIndex(_key_types(spec))
        self._format = RowFormat(SECTION_NAME, "a deduplication", stored_schema(spec))
        self._expiry = Expiry()
        self._dead = 0
        self._compaction: Compaction | None = None
        self._store: RowStore | None = None
        self._on_disk: RowsOnDisk | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._expiry.open(context)
        self._store = context.open_rows()
        if self._store is not None and self._store.ahead is not None:
            self._store.ahead.follow(self._log_now)
        if self._store is not None and RowsOnDisk.is_needed(self._store, restored):
            restored = self._open_on_disk(self._store, restored)
        for section in restored:
            refuse_files(section)
            if section.name != SECTION_NAME:
                raise ProtocolViolation(f"Section {section.name!r} is not the state of a deduplication.")
            for stored in self._format.restored(section, context.key_groups):
                slots = self.find_or_add(stored)
                self.restore(slots, stored)
                if self._on_disk is not None:
                    self._on_disk.touch(slots)
                self._leave_what_does_not_fit()

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        rows = self._in_time(rows)
        if rows.num_rows == 0:
            return
        self._before_change()
        count_before = self._index.count
        slots = self.find_or_add(rows)
        if self._on_disk is not None:
            self._on_disk.bring_in(count_before)
        first = _first_rows(slots, self._expiry.live[slots])
        if len(first):
            passing = rows if len(first) == rows.num_rows else rows.take(slots_array(first))
            self._expiry.watch(slots[first], self._forgotten_at_us(passing), self._index.count)
            emit(passing)
        if self._on_disk is not None:
            self._on_disk.use(slots)
            self._on_disk.touch(slots[first])
            self._leave_some(self._on_disk, self._index.count - count_before)

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        pass

    def on_idle(self, emit: Emit) -> None:
        pass

    def on_watermark(self, event_time_ms: int) -> None:
        self._expiry.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Forgets a bounded number of keys. That shows nowhere, so it does not matter how many at a time.

        Those on disk are read, and deleted there, one by one.
        """
        if self._compaction is not None and not self._has_compacted(self._compaction):
            return True
        count = MOST_FOUND if self._on_disk is None else min(max(max_timers, _LEAST_FORGOTTEN), MOST_FOUND)
        found = self._expiry.finished(count, lambda part: self._index.hashes[part])
        self._expiry.end(found.slots)
        self._dead += len(found.slots)
        if self._on_disk is not None:
            self._on_disk.end(found.slots)
        if found.has_more:
            return True
        # Before others come from the disk: there may be many times as many as memory holds.
        if self._dead > max(_FEW_KEYS, self._index.count // 2):
            self._compaction = Compaction(self._index, self._live(), self._arrays())
            return True
        return self._on_disk is not None and self._on_disk.bring_due(self._expiry, count)

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
        self._dead = int(np.count_nonzero(~self._expiry.live))
        if self._on_disk is not None:
            self._on_disk.on_compacted()

    def _arrays(self) -> list[GrowingArray[Any]]:
        """What stands by slot."""
        return [*self._expiry.arrays(), *([] if self._on_disk is None else self._on_disk.arrays())]

    def _before_change(self) -> None:
        if self._compaction is not None:
            self._compaction.values_changed()

    def _live(self) -> Flags:
        """Slots that are to stay in memory."""
        return self._expiry.live if self._on_disk is None else self._on_disk.staying()

    def watermark_behind(self, event_time_ms: int) -> int:
        """Rows pass at once, so none of them is behind it."""
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Section]:
        self._on_disk = as_wanted(self._on_disk, self._store, self._size_bytes(), self._begun_on_disk)
        if self._on_disk is not None:
            self._before_change()
            sections = self._on_disk.snapshot()
            if self._compaction is not None:
                # What is being copied must not change by taking rows later.
                self._on_disk.take_all()
            return sections
        index, hashes = self._index, self._index.hashes
        live = np.flatnonzero(self._expiry.live)
        times = self._expiry.ends_us[live]

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            # Keys and hashes never change, so they are read when encoding.
            columns = [*index.gather(live[part]), fixed_array(pa.int64(), times[part], None)]
            return pa.RecordBatch.from_arrays(columns, schema=self._format.schema), hashes[live[part]]

        return self._format.sections(read, len(live), self._context, index.variable_bytes(live))

    def _log_now(self) -> LoggedRows | None:
        """Not while keys are left behind, which would not know of what is taken."""
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

    # -- keys on disk

    @property
    def index(self) -> KeyIndex:
        return self._index

    def find_or_add(self, keys: pa.RecordBatch) -> Slots:
        slots = self._index.find_or_add(keys)
        nothing = np.zeros(0, dtype=np.int64)
        self._expiry.watch(nothing, nothing, self._index.count)
        if self._on_disk is not None:
            self._on_disk.grow_to(self._index.count)
        return slots

    def restore(self, slots: Slots, rows: pa.RecordBatch) -> None:
        self._expiry.watch(slots, fixed_values_of(rows.column(self._spec.key_count)), self._index.count)

    def frozen(self, slots: Slots) -> Frozen:
        index, times = self._index, self._expiry.ends_us[slots]
        return lambda part: [*index.gather(slots[part]), fixed_array(pa.int64(), times[part], None)]

    def array_bytes(self, slots: Slots) -> Slots | None:
        return self._index.variable_bytes(slots)

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
        """Not while keys are left behind, which would not know of it."""
        if self._compaction is not None:
            return None
        on_disk = self._rows_on_disk(store, ())
        on_disk.begin(self._expiry.live_slots(), self._index.count)
        return on_disk

    def _rows_on_disk(self, store: RowStore, restored: Sequence[RestoredSection]) -> RowsOnDisk:
        return RowsOnDisk(
            store,
            self,
            self._format,
            key_count=self._spec.key_count,
            context=self._context,
            ends=self._ends(),
            stays=None,
            restored=restored,
        )

    def _ends(self) -> Ends | None:
        match self._spec.forget:
            case None:
                return None
            case ForgetByKey(key=key):
                return Ends(lambda columns: end_of(columns[key]), is_in_key=True)
            case ForgetAfterDelay():
                return Ends(lambda columns: fixed_values_of(columns[self._spec.key_count]), is_in_key=False)
            case _:
                assert_never(self._spec.forget)

    def _leave_some(self, disk: RowsOnDisk, added: int) -> None:
        """A step of it, when there are more keys in memory than there is room for."""
        if self._expiry.is_giving_out():
            # Slots that were found would mean other keys.
            return
        if self._compaction is not None:
            self._compaction.hurry(added)
            self._has_compacted(self._compaction)
            return
        if not disk.is_leaving():
            size_bytes = self._size_bytes()
            if not disk.is_full(size_bytes):
                return
            disk.begin_leaving(size_bytes, np.zeros(self._index.count, np.bool_))
        if disk.is_leaving() and disk.write_leaving(added):
            self._compaction = Compaction(self._index, self._live(), self._arrays())

    def _leave_what_does_not_fit(self) -> None:
        """At once, while keys are restored: they may be those of more slots, or of one with all in memory."""
        disk = self._on_disk
        while disk is not None and (self._compaction is not None or disk.must_leave(self._size_bytes())):
            self._leave_some(disk, 0)

    def _size_bytes(self) -> int:
        return self._index.size_bytes() + self._expiry.size_bytes()

    def _in_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._spec.event_time is None or rows.num_rows == 0:
            return rows
        times = end_of(rows.column(self._spec.event_time))
        late = self._expiry.late(times, lambda: hash_rows(rows, self._spec.key_count))
        return self._context.late_rows.dropped(rows, late)

    def _forgotten_at_us(self, rows: pa.RecordBatch) -> Slots:
        match self._spec.forget:
            case None:
                return np.full(rows.num_rows, _NEVER_US)
            case ForgetByKey(key=key):
                return end_of(rows.column(key))
            case ForgetAfterDelay(delay_ms=delay_ms):
                assert self._spec.event_time is not None, "the delay is that of the watermark on this column"
                column = rows.column(self._spec.event_time)
                valid = validity_of(column)
                times = end_of(column)
                # Spark reads a null time here as 0.
                times = times if valid is None else np.where(valid, times, 0)
                return times + delay_ms * _US_PER_MS
            case _:
                assert_never(self._spec.forget)


def stored_schema(spec: DeduplicateSpec) -> pa.Schema:
    """Keys by position, as the names of a Spark plan may repeat, each with the time it is forgotten."""
    keys = [pa.field(f"key_{at}", kind) for at, kind in enumerate(_key_types(spec))]
    return pa.schema([*keys, pa.field("forgotten_at_us", pa.int64())])


def end_key_of(spec: DeduplicateSpec) -> int | None:
    """Which of the keys is the time at which it is forgotten."""
    return spec.forget.key if isinstance(spec.forget, ForgetByKey) else None


def _key_types(spec: DeduplicateSpec) -> list[pa.DataType]:
    return [_plain(field.type) for field in list(spec.schema)[: spec.key_count]]


def _first_rows(slots: Slots, is_known: Flags) -> Slots:
    """The first row of each slot that is not known yet, in the order of the rows."""
    unknown = np.flatnonzero(~is_known)
    if len(unknown) == 0:
        return unknown
    _, at = np.unique(slots[unknown], return_index=True)
    first: Slots = unknown[np.sort(at)]
    return first


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
