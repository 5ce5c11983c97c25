"""Joins two streams by key: each row is joined with the rows of the other side that are kept, and kept itself.

Rows are kept until event time shows that no partner can come any more; those of an outer side that had none are
given out then. Must never give a pair twice, nor touch single rows in Python.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import ProtocolViolation
from tidegate.operators.columnar import Flags, Slots, fixed_array
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.expiry import Expiry, end_of
from tidegate.operators.held_pairs import PAIRS_SECTION, HeldPairs
from tidegate.operators.join_rows import (
    PAIRS_AT_ONCE,
    Candidates,
    Pairs,
    RowStore,
    Run,
    by_hash,
    flags_array,
    pairs_of,
    same_keys,
    taken,
    true_flags,
)
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import Hashes, fixed_values_of, hash_rows
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import Giving, JoinInputSpec, StreamJoinSpec
from tidegate.protocol.watermarks import FIRST_EVENT_TIME_MS, MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import RestoredSection, Section

LEFT_SECTION: Final = "join-left"
RIGHT_SECTION: Final = "join-right"

# Finding what is due looks at all rows kept, so that removing fewer at a time would cost more than it spreads.
LEAST_REMOVED_ROWS: Final = 1 << 12
# So many pairs come at once: holding them would cost more than it spreads.
MOST_PAIRS_AT_ONCE: Final = PAIRS_AT_ONCE
MOST_WANTED_ROWS: Final = 1 << 16

_NEVER_US: Final = np.iinfo(np.int64).max
_US_PER_MS: Final = 1000
_HAS_PARTNER: Final = "has_partner"


class StreamJoinOperator:
    """`TwoInputOperator` and `GivesLater`: an inner join holds the pairs of a slice that finds very many.

    Those of the other joins come at once: whether a row had a partner is known only when all are made, and has to be
    in the next snapshot.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        self._spec = spec
        self._left = _Side(spec.left, LEFT_SECTION, keeps_alone=_keeps_left(spec.type))
        self._right = _Side(spec.right, RIGHT_SECTION, keeps_alone=_keeps_right(spec.type))
        columns = [*self._left.output_fields(), *self._right.output_fields()]
        # Positions name the columns: the names of a Spark plan may repeat.
        self._pair_schema = pa.schema([pa.field(str(at), column.type) for at, column in enumerate(columns)])
        self._condition = None if spec.condition is None else compile_expression(spec.condition)
        # How late rows are found, and when kept ones are done with: both by the watermark of their key group.
        self._time = Expiry()
        self._watermark_ms = FIRST_EVENT_TIME_MS
        self._holds = spec.type is JoinType.INNER and spec.giving is Giving.IN_SLICES
        self._held = HeldPairs(spec.schema)

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._time.open(context)
        for section in restored:
            if section.name == PAIRS_SECTION:
                self._held.restore(section, context)
            else:
                self._side_of(section).restore(section, context)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self._join(rows, self._left, self._right, emit)

    def process_right(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self._join(rows, self._right, self._left, emit)

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        pass

    def on_idle(self, emit: Emit) -> None:
        pass

    def on_watermark(self, event_time_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, event_time_ms)
        self._time.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Removes rows that can find no partner any more, a bounded number of them at a time."""
        if not self._held.is_empty():
            # They may be among the partners that were found.
            return True
        left = max(max_timers, LEAST_REMOVED_ROWS)
        for side in (self._left, self._right):
            if side.spec.end is None:
                continue
            for run, places in side.store.due(self._is_due):
                places = places[:left]
                alone = places[~run.has_partner[places]] if side.keeps_alone else places[:0]
                run.remove(places)
                run.find_first_end()
                self._emit_alone(side, run.rows, alone, emit)
                left -= len(places)
                if left == 0:
                    return True
            side.store.tidy()
        return False

    def watermark_behind(self, event_time_ms: int) -> int:
        """As Spark: rows that may still come out are newer than what both sides keep, and than the input."""
        return self._held.watermark_behind(self._behind_kept(event_time_ms))

    def room(self) -> int:
        return MOST_WANTED_ROWS if self._held.is_empty() else 0

    def give(self, max_rows: int, emit: Emit) -> int:
        return self._held.give(max_rows, emit)

    def holds_rows(self) -> bool:
        return not self._held.is_empty()

    def on_time(self, now_ms: float) -> None:
        return

    def next_deadline_ms(self) -> float | None:
        return None

    def _behind_kept(self, event_time_ms: int) -> int:
        if event_time_ms in (MIN_WATERMARK_MS, MAX_WATERMARK_MS):
            return event_time_ms
        aheads = [side.spec.end.ahead_ms for side in (self._left, self._right) if side.spec.end is not None]
        return max(MIN_WATERMARK_MS, event_time_ms + min([0, *aheads]))

    def next_timer_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Section]:
        sides = [*self._left.snapshot(self._context), *self._right.snapshot(self._context)]
        return [*sides, *self._held.snapshot(self._context)]

    def state_bytes(self) -> int:
        return self._left.store.size_bytes() + self._right.store.size_bytes() + self._held.size_bytes()

    def close(self) -> None:
        pass

    # -- rows in

    def _join(self, rows: pa.RecordBatch, own: "_Side", other: "_Side", emit: Emit) -> None:
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=own.spec.schema)
        rows = self._with_a_chance(self._in_time(rows, own), own, emit)
        if rows.num_rows == 0:
            return
        rows, hashes = by_hash(rows, own.spec.key_count)
        has_partner = np.zeros(rows.num_rows, dtype=np.bool_)
        found = list(other.store.found(hashes))
        if self._holds and self._are_many(found):
            self._held.hold(partial(self._made, rows, own), hashes, found)
        else:
            for pairs in pairs_of(found):
                self._join_pairs(rows, own, other, pairs, has_partner, emit)
        kept = self._to_keep(own, has_partner)
        if kept is not None:
            rows, hashes, has_partner = taken(rows, kept), hashes[kept], has_partner[kept]
        own.store.add(rows, hashes, own.ends_us(rows), has_partner)

    def _are_many(self, found: Sequence[Candidates]) -> bool:
        """Whether these pairs come later, or have to, because others do."""
        return not self._held.is_empty() or sum(each.count for each in found) > MOST_PAIRS_AT_ONCE

    def _in_time(self, rows: pa.RecordBatch, own: "_Side") -> pa.RecordBatch:
        if own.spec.event_time is None or rows.num_rows == 0:
            return rows
        times = end_of(rows.column(own.spec.event_time))
        late = self._time.late(times, lambda: hash_rows(rows, own.spec.key_count))
        return self._context.late_rows.dropped(rows, late)

    def _with_a_chance(self, rows: pa.RecordBatch, own: "_Side", emit: Emit) -> pa.RecordBatch:
        """Without the rows that the condition excludes whatever they meet; those of an outer side come out alone."""
        if own.only_if is None or rows.num_rows == 0:
            return rows
        has_chance = true_flags(own.only_if(own.output_columns(rows)))
        if has_chance.all():
            return rows
        if own.keeps_alone:
            self._emit_alone(own, rows, np.flatnonzero(~has_chance), emit)
        return taken(rows, np.flatnonzero(has_chance))

    def _to_keep(self, own: "_Side", has_partner: Flags) -> Slots | None:
        """Which of the rows are needed later; None for all. A left semi join shows each left row once."""
        if self._spec.type is JoinType.LEFT_SEMI and own is self._left and has_partner.any():
            return np.flatnonzero(~has_partner)
        return None

    def _made(self, rows: pa.RecordBatch, own: "_Side", pairs: Pairs) -> tuple[pa.RecordBatch, Slots]:
        """What an inner join gives of these pairs, and the row of the slice that each came from."""
        both, matches = self._matched(rows, own, pairs)
        if not matches.all():
            both = both.filter(flags_array(matches))
        return self._as_output(both.columns), pairs.probing[matches]

    def _matched(self, rows: pa.RecordBatch, own: "_Side", pairs: Pairs) -> tuple[pa.RecordBatch, Flags]:
        mine, theirs = taken(rows, pairs.probing), taken(pairs.run.rows, pairs.places)
        both = self._paired(own, mine, theirs)
        matches = same_keys(mine, theirs, own.spec.key_count)
        if self._condition is not None:
            matches = self._meeting_condition(both, matches)
        return both, matches

    def _join_pairs(
        self, rows: pa.RecordBatch, own: "_Side", other: "_Side", pairs: Pairs, has_partner: Flags, emit: Emit
    ) -> None:
        both, matches = self._matched(rows, own, pairs)
        if not matches.any():
            return
        probing, places = pairs.probing[matches], pairs.places[matches]
        if self._spec.type is JoinType.LEFT_SEMI:
            self._emit_semi(rows, own, pairs.run, probing, places, has_partner, emit)
        else:
            both = both if matches.all() else both.filter(flags_array(matches))
            emit(self._as_output(both.columns))
        has_partner[probing] = True
        pairs.run.has_partner[places] = True

    def _meeting_condition(self, both: pa.RecordBatch, matches: Flags) -> Flags:
        """Evaluated for equal keys only: it may raise for rows that Spark never brings together."""
        assert self._condition is not None
        if not matches.any():
            return matches
        if matches.all():
            return true_flags(self._condition(both))
        met = matches.copy()
        met[matches] = true_flags(self._condition(both.filter(flags_array(matches))))
        return met

    def _paired(self, own: "_Side", mine: pa.RecordBatch, theirs: pa.RecordBatch) -> pa.RecordBatch:
        left, right = (mine, theirs) if own is self._left else (theirs, mine)
        columns = [*self._left.output_columns(left).columns, *self._right.output_columns(right).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._pair_schema)

    # -- rows out

    def _emit_semi(
        self,
        rows: pa.RecordBatch,
        own: "_Side",
        run: Run,
        probing: Slots,
        places: Slots,
        has_partner: Flags,
        emit: Emit,
    ) -> None:
        """Left rows that meet their first partner."""
        if own is self._left:
            shown = np.unique(probing[~has_partner[probing]])
            left = taken(rows, shown)
        else:
            shown = np.unique(places)
            left = taken(run.rows, shown)
            # Shown once and never again: it need not be kept.
            run.remove(shown)
        if left.num_rows:
            emit(self._as_output(self._left.output_columns(left).columns))

    def _emit_alone(self, side: "_Side", rows: pa.RecordBatch, places: Slots, emit: Emit) -> None:
        for start in range(0, len(places), PAIRS_AT_ONCE):
            part = taken(rows, places[start : start + PAIRS_AT_ONCE])
            own = side.output_columns(part).columns
            missing = self._right if side is self._left else self._left
            nulls = [pa.nulls(part.num_rows, column.type) for column in missing.output_fields()]
            emit(self._as_output([*own, *nulls] if side is self._left else [*nulls, *own]))

    def _as_output(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)

    def _is_due(self, run: Run) -> Flags:
        if self._time.late(np.array([run.first_end_us]), lambda: run.hashes[:1]).any() or self._has_floors():
            return self._time.late(run.ends_us, lambda: run.hashes)
        return np.zeros(len(run.ends_us), dtype=np.bool_)

    def _has_floors(self) -> bool:
        return self._context.floors.pending(self._watermark_ms)

    def _side_of(self, section: RestoredSection) -> "_Side":
        for side in (self._left, self._right):
            if side.format.name == section.name:
                return side
        raise ProtocolViolation(f"Section {section.name!r} is not the state of a join.")


class _Side:
    """One input, what is kept of it, and how that is stored. `keeps_alone`: rows without a partner come out too."""

    def __init__(self, spec: JoinInputSpec, section: str, *, keeps_alone: bool) -> None:
        self.spec = spec
        self.keeps_alone = keeps_alone
        self.store = RowStore()
        self.row_schema = pa.schema([pa.field(f"column_{at}", kind) for at, kind in enumerate(spec.schema.types)])
        self.format = RowFormat(section, "a join", self.row_schema.append(pa.field(_HAS_PARTNER, pa.bool_())))
        self.only_if = None if spec.only_if is None else compile_expression(spec.only_if)

    def output_fields(self) -> list[pa.Field]:
        return [self.spec.schema.field(at) for at in self.spec.columns]

    def output_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(list(self.spec.columns))

    def ends_us(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        end = self.spec.end
        if end is None:
            return np.full(rows.num_rows, _NEVER_US)
        times = end_of(rows.column(end.column))
        return np.where(times == _NEVER_US, times, times - end.ahead_ms * _US_PER_MS)

    def snapshot(self, context: TaskContext) -> list[Section]:
        return [section for run in self.store.runs for section in self._run_sections(run, context)]

    def restore(self, section: RestoredSection, context: TaskContext) -> None:
        width = len(self.row_schema)
        for stored in self.format.restored(section, context.key_groups):
            # The flag goes along, behind the columns of the row.
            stored, hashes = by_hash(stored, self.spec.key_count)
            rows = pa.RecordBatch.from_arrays(stored.columns[:width], schema=self.spec.schema)
            has_partner = fixed_values_of(stored.column(width)).view(np.bool_)
            self.store.add(rows, hashes, self.ends_us(rows), has_partner)

    def _run_sections(self, run: Run, context: TaskContext) -> list[Section]:
        # Rows of a run never change, so they are read when encoding; the flags are those of this moment.
        live, rows, hashes = np.flatnonzero(run.is_live), run.rows, run.hashes
        flags = run.has_partner[live]

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            columns = [*taken(rows, live[part]).columns, fixed_array(pa.bool_(), flags[part], None)]
            return pa.RecordBatch.from_arrays(columns, schema=self.format.schema), hashes[live[part]]

        return self.format.sections(read, len(live), context)


def _keeps_left(kind: JoinType) -> bool:
    return kind in (JoinType.LEFT_OUTER, JoinType.FULL_OUTER)


def _keeps_right(kind: JoinType) -> bool:
    return kind in (JoinType.RIGHT_OUTER, JoinType.FULL_OUTER)
