"""Joins two streams by key: each row is joined with the rows of the other side that are kept, and kept itself.

Rows are kept until event time shows that no partner can come any more; those of an outer side that had none are
given out then. Must never give a pair twice, nor touch single rows in Python.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.model.errors import ProtocolViolation
from tidegate.operators.columnar import Flags, Slots
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.expiry import Expiry, end_of
from tidegate.operators.held_arrivals import Arrival, HeldArrivals
from tidegate.operators.held_pairs import PAIRS_SECTION, HeldPairs
from tidegate.operators.join_rows import (
    PAIRS_AT_ONCE,
    Pairs,
    Run,
    by_hash,
    flags_array,
    pairs_of,
    same_keys,
    taken,
    true_flags,
)
from tidegate.operators.join_side import JoinSide, kept_schema
from tidegate.operators.logged_runs import LoggedRuns
from tidegate.operators.numbered_format import numbered
from tidegate.operators.runs_on_disk import RunsOnDisk
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import hash_rows
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import Giving, StreamJoinSpec
from tidegate.protocol.watermarks import FIRST_EVENT_TIME_MS, MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.heap import refuse_files
from tidegate.state.row_store import RunStore

LEFT_SECTION: Final = "join-left"
RIGHT_SECTION: Final = "join-right"
LEFT_NUMBER: Final = "left_number"
RIGHT_NUMBER: Final = "right_number"

# Finding what is due looks at all rows kept, so that removing fewer at a time would cost more than it spreads.
LEAST_REMOVED_ROWS: Final = 1 << 12
# So many pairs come at once: holding them would cost more than it spreads.
MOST_PAIRS_AT_ONCE: Final = PAIRS_AT_ONCE
MOST_WANTED_ROWS: Final = 1 << 16


class StreamJoinOperator:
    """`TwoInputOperator` and `GivesLater`: the pairs of a slice that finds very many are held.

    Whether a row had a partner is known only when all its pairs are. So the rows of an outer or a semi join arrive
    first: their pairs are looked at bit by bit, then the rows are kept, and pairs are given after that.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        self._spec = spec
        self._left = JoinSide(spec.left, LEFT_SECTION, keeps_alone=_keeps_left(spec.type))
        self._right = JoinSide(spec.right, RIGHT_SECTION, keeps_alone=_keeps_right(spec.type))
        columns = [*self._left.output_fields(), *self._right.output_fields()]
        # Positions name the columns: the names of a Spark plan may repeat.
        self._pair_schema = pa.schema([pa.field(str(at), column.type) for at, column in enumerate(columns)])
        self._condition = None if spec.condition is None else compile_expression(spec.condition)
        # How late rows are found, and when kept ones are done with: both by the watermark of their key group.
        self._time = Expiry()
        self._watermark_ms = FIRST_EVENT_TIME_MS
        self._arrivals = HeldArrivals()
        self._held = HeldPairs(spec.schema)
        self._passed_ms = MIN_WATERMARK_MS
        self._store: RunStore | None = None
        self._logged: LoggedRuns | None = None
        self._on_disk: RunsOnDisk | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._context = context
        self._time.open(context)
        self._store = store = context.open_runs()
        if store is not None and store.ahead is not None:
            store.ahead.follow(self._log_now)
        if store is not None and store.files is not None:
            self._on_disk = RunsOnDisk(store.files, store.memory, (self._left.store, self._right.store))
        if store is not None and (store.log.is_wanted(0) or any(LoggedRuns.is_own(section) for section in restored)):
            self._logged = LoggedRuns(store.log, self._sides(), context)
            restored = self._logged.restore(restored, self._leave_all)
        for section in restored:
            refuse_files(section)
            self._restore(section)
            self._leave_all()

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
        if self.holds_rows():
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
                if len(alone):
                    self._emit_alone(side, run.batch(), alone, emit)
                left -= len(places)
                if left == 0:
                    return True
            side.store.tidy()
        self._move_some()
        return False

    def watermark_behind(self, event_time_ms: int) -> int:
        """As Spark: rows that may still come out are newer than what both sides keep, and than the input."""
        if not self.holds_rows():
            self._passed_ms = self._behind_kept(event_time_ms)
        return self._passed_ms

    def room(self) -> int:
        return 0 if self.holds_rows() else MOST_WANTED_ROWS

    def give(self, max_rows: int, emit: Emit) -> int:
        if not self._held.is_empty():
            return self._held.give(max_rows, emit)
        return 0 if self._arrivals.is_empty() else self._look_further(max_rows, emit)

    def holds_rows(self) -> bool:
        return not (self._held.is_empty() and self._arrivals.is_empty())

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

    def _log_or_not(self) -> None:
        """From now on rows are stored by what changed, or whole again; not while some that were found are held."""
        if self._store is None or self.holds_rows():
            return
        kept_bytes = self._left.store.size_bytes() + self._right.store.size_bytes()
        if self._store.log.is_wanted(kept_bytes) == (self._logged is not None):
            return
        if self._logged is not None:
            self._logged.give_up()
            self._logged = None
        else:
            self._logged = LoggedRuns(self._store.log, self._sides(), self._context)

    def _log_now(self) -> LoggedRuns | None:
        self._log_or_not()
        return self._logged

    def snapshot(self) -> list[Section]:
        self._log_or_not()
        kept = (self._left, self._right) if self._logged is None else (self._logged,)
        parts = (*kept, self._arrivals, self._held)
        return [section for part in parts for section in part.snapshot(self._context)]

    def state_bytes(self) -> int:
        parts = (self._left.store, self._right.store, self._arrivals, self._held)
        log_bytes = 0 if self._logged is None else self._logged.size_bytes()
        return sum(part.size_bytes() for part in parts) + log_bytes

    def close(self) -> None:
        if self._on_disk is not None:
            self._on_disk.close()
        if self._store is not None:
            self._store.close()

    # -- rows in

    def _join(self, rows: pa.RecordBatch, own: JoinSide, other: JoinSide, emit: Emit) -> None:
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=own.spec.schema)
        rows = self._with_a_chance(self._in_time(rows, own), own, emit)
        if rows.num_rows == 0:
            return
        arrival = Arrival(*by_hash(rows, own.spec.key_count), own, other)
        if self._spec.type is not JoinType.INNER and self.holds_rows():
            # Those before it have not been kept, and the rows that they have found must stay where they are.
            self._arrivals.hold(arrival)
        elif self._spec.giving is Giving.AT_ONCE or not self._are_many(arrival):
            for pairs in pairs_of(arrival.found):
                self._join_pairs(arrival, pairs, emit)
            self._keep(arrival)
        elif self._spec.type is JoinType.INNER:
            self._hold_pairs(arrival)
            self._keep(arrival)
        else:
            self._arrivals.hold(arrival)

    def _are_many(self, arrival: Arrival) -> bool:
        """Whether its pairs come later, or have to, because others do."""
        return not self._held.is_empty() or arrival.pair_count > MOST_PAIRS_AT_ONCE

    def _look_further(self, most: int, emit: Emit) -> int:
        """At up to so many pairs of the first rows that arrived, which are kept once all were looked at."""
        arrival, count = self._arrivals.first(), 0
        if not arrival.is_done():
            pairs, count = arrival.next_pairs(min(most, PAIRS_AT_ONCE))
            self._look_at(arrival, pairs, emit)
        if arrival.is_done():
            self._arrivals.drop_first()
            if self._spec.type is not JoinType.LEFT_SEMI:
                self._hold_pairs(arrival)
            self._keep(arrival)
        return max(1, count)

    def _hold_pairs(self, arrival: Arrival) -> None:
        self._held.hold(partial(self._made, arrival.rows, arrival.own), arrival.hashes, arrival.found)

    def _keep(self, arrival: Arrival) -> None:
        kept = arrival.kept()
        kept.own.store.add(kept.rows, kept.hashes, kept.own.ends_us(kept.rows), kept.has_partner)
        self._move_some()

    def _leave_all(self) -> None:
        if self._on_disk is not None:
            self._on_disk.leave_all()

    def _move_some(self) -> None:
        """Between memory and disk, when nothing that was found in a run is still to be marked there."""
        if self._on_disk is not None:
            self._on_disk.step()

    def _in_time(self, rows: pa.RecordBatch, own: JoinSide) -> pa.RecordBatch:
        if own.spec.event_time is None or rows.num_rows == 0:
            return rows
        times = end_of(rows.column(own.spec.event_time))
        late = self._time.late(times, lambda: hash_rows(rows, own.spec.key_count))
        return self._context.late_rows.dropped(rows, late)

    def _with_a_chance(self, rows: pa.RecordBatch, own: JoinSide, emit: Emit) -> pa.RecordBatch:
        """Without the rows that the condition excludes whatever they meet; those of an outer side come out alone."""
        if own.only_if is None or rows.num_rows == 0:
            return rows
        has_chance = true_flags(own.only_if(own.output_columns(rows)))
        if has_chance.all():
            return rows
        if own.keeps_alone:
            self._emit_alone(own, rows, np.flatnonzero(~has_chance), emit)
        return taken(rows, np.flatnonzero(has_chance))

    def _made(self, rows: pa.RecordBatch, own: JoinSide, pairs: Pairs) -> tuple[pa.RecordBatch, Slots]:
        """What is given of these pairs, and the row of the slice that each came from."""
        both, matches = self._matched(rows, own, pairs)
        if not matches.all():
            both = both.filter(flags_array(matches))
        return self._as_output(both.columns), pairs.probing[matches]

    def _matched(self, rows: pa.RecordBatch, own: JoinSide, pairs: Pairs) -> tuple[pa.RecordBatch, Flags]:
        mine, theirs = taken(rows, pairs.probing), taken(pairs.run.batch(), pairs.places)
        both = self._paired(own, mine, theirs)
        matches = same_keys(mine, theirs, own.spec.key_count)
        if self._condition is not None:
            matches = self._meeting_condition(both, matches)
        return both, matches

    def _join_pairs(self, arrival: Arrival, pairs: Pairs, emit: Emit) -> None:
        """Gives them."""
        both, matches = self._matched(arrival.rows, arrival.own, pairs)
        if not matches.any():
            return
        if self._spec.type is JoinType.LEFT_SEMI:
            self._emit_semi(arrival, pairs, matches, emit)
        else:
            shown = both if matches.all() else both.filter(flags_array(matches))
            emit(self._as_output(shown.columns))
        _mark(arrival, pairs, matches)

    def _look_at(self, arrival: Arrival, pairs: Pairs, emit: Emit) -> None:
        """Notes who has a partner; a semi join gives no more than that."""
        matches = self._matches(arrival.rows, arrival.own, pairs)
        if self._spec.type is JoinType.LEFT_SEMI:
            self._emit_semi(arrival, pairs, matches, emit)
        _mark(arrival, pairs, matches)

    def _matches(self, rows: pa.RecordBatch, own: JoinSide, pairs: Pairs) -> Flags:
        if self._condition is not None:
            return self._matched(rows, own, pairs)[1]
        keys = list(range(own.spec.key_count))
        mine, theirs = taken(rows.select(keys), pairs.probing), taken(pairs.run.batch().select(keys), pairs.places)
        return same_keys(mine, theirs, own.spec.key_count)

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

    def _paired(self, own: JoinSide, mine: pa.RecordBatch, theirs: pa.RecordBatch) -> pa.RecordBatch:
        left, right = (mine, theirs) if own is self._left else (theirs, mine)
        columns = [*self._left.output_columns(left).columns, *self._right.output_columns(right).columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._pair_schema)

    # -- rows out

    def _emit_semi(self, arrival: Arrival, pairs: Pairs, matches: Flags, emit: Emit) -> None:
        """Left rows that meet their first partner. Shown once and never again, they need not be kept."""
        if arrival.own is self._left:
            probing = pairs.probing[matches]
            shown = np.unique(probing[~arrival.is_shown[probing]])
            left = taken(arrival.rows, shown)
            arrival.is_shown[shown] = True
        else:
            shown = np.unique(pairs.places[matches])
            left = taken(pairs.run.batch(), shown)
            pairs.run.remove(shown)
        if left.num_rows:
            emit(self._as_output(self._left.output_columns(left).columns))

    def _emit_alone(self, side: JoinSide, rows: pa.RecordBatch, places: Slots, emit: Emit) -> None:
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

    def _sides(self) -> dict[str, JoinSide]:
        """By what their rows are called in a log."""
        return {LEFT_NUMBER: self._left, RIGHT_NUMBER: self._right}

    def _restore(self, section: RestoredSection) -> None:
        left, right = self._left, self._right
        if section.name == PAIRS_SECTION:
            self._held.restore(section, self._context)
            return
        for own, other in ((left, right), (right, left)):
            if section.name == own.kept.name:
                own.restore(section, self._context)
                return
            if section.name == own.arrived.name:
                self._arrivals.restore(section, own, other, self._context)
                return
        raise ProtocolViolation(f"Section {section.name!r} is not the state of a join.")


def logged_schemas(spec: StreamJoinSpec) -> list[pa.Schema]:
    """Of the rows of both sides in a log."""
    sides = ((spec.left, LEFT_NUMBER), (spec.right, RIGHT_NUMBER))
    return [numbered(kept_schema(side), number_column) for side, number_column in sides]


def _mark(arrival: Arrival, pairs: Pairs, matches: Flags) -> None:
    arrival.has_partner[pairs.probing[matches]] = True
    pairs.run.meet(pairs.places[matches])


def _keeps_left(kind: JoinType) -> bool:
    return kind in (JoinType.LEFT_OUTER, JoinType.FULL_OUTER)


def _keeps_right(kind: JoinType) -> bool:
    return kind in (JoinType.RIGHT_OUTER, JoinType.FULL_OUTER)
