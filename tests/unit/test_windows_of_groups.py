"""Groups in event time: late rows, finished groups, output modes and sessions, at any parallelism and restore."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import aggregate, session_aggregate
from tidegate.operators.aggregate import AggregateOperator
from tidegate.operators.build import build_operator
from tidegate.operators.changed_groups import EMIT_INTERVAL_MS
from tidegate.operators.contract import NO_FLOORS, Operator, TaskContext
from tidegate.plan.expressions import Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import AggregateCall, AggregateFunction, EventTime, EventTimeKey, GroupRows, OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

TIMESTAMP = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
ALL = KeyGroupRange(0, 128)
MS = 1000


def spec_of(mode: OutputMode, event_time: EventTimeKey, key: pa.DataType = WINDOW) -> AggregateSpec:
    """Rows (k, window, v); gives (k, window, count, sum, collect_list)."""
    argument = Column(2, "v", pa.int64())
    calls = (
        AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), True),
        AggregateCall(AggregateFunction.SUM, (argument,), pa.int64(), True),
        AggregateCall(AggregateFunction.COLLECT_LIST, (argument,), pa.list_(pa.int64()), True),
    )
    schema = pa.schema(
        [("k", pa.string()), ("w", key), ("n", pa.int64()), ("total", pa.int64()), ("all", pa.list_(pa.int64()))]
    )
    results = tuple(Column(index, field.name, field.type) for index, field in enumerate(schema))
    rows = pa.schema([("k", pa.string()), ("w", key), ("v", pa.int64())])
    return AggregateSpec(2, calls, results, rows, schema, mode, EventTime(1, event_time))


class Running:
    def __init__(
        self,
        spec: AggregateSpec,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = ALL,
        floors: KeyGroupFloors = NO_FLOORS,
    ) -> None:
        self.spec = spec
        self.operator: Operator = build_operator(spec)
        none: Any = None
        self.context = TaskContext(TaskId(VertexId(1), 0), 1, 128, key_groups, ManualClock(), none, none, floors)
        self.operator.open(self.context, restored)
        self.out: list[pa.RecordBatch] = []

    def process(self, rows: Sequence[tuple[str, Any, int]]) -> None:
        """Each row (key, (start, end) in ms, value)."""
        batch = batch_of(self.spec, rows)
        self.operator.process(batch, self.out.append)

    def advance(self, watermark_ms: int) -> None:
        self.operator.on_watermark(watermark_ms)
        while self.operator.fire(1, self.out.append):
            pass

    def taken(self) -> list[tuple[Any, ...]]:
        """(key, window in ms, count, sum, values) of what came out since the last call."""
        rows = [row for batch in self.out for row in batch.to_pylist()]
        self.out.clear()
        return sorted((row["k"], _in_ms(row["w"]), row["n"], row["total"], tuple(sorted(row["all"]))) for row in rows)

    def flushed(self) -> list[tuple[Any, ...]]:
        self.operator.before_barrier(self.out.append)
        return self.taken()

    def stored(self) -> list[RestoredSection]:
        return restored_from(self.operator.snapshot())


def batch_of(spec: AggregateSpec, rows: Sequence[tuple[str, Any, int]]) -> pa.RecordBatch:
    if pa.types.is_struct(spec.input_schema.field(1).type):
        windows: list[Any] = [None if w is None else {"start": w[0] * MS, "end": w[1] * MS} for _, w, _ in rows]
    else:
        windows = [None if w is None else w * MS for _, w, _ in rows]
    columns = [[key for key, _, _ in rows], windows, [value for _, _, value in rows]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, spec.input_schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.input_schema)


def _in_ms(window: Any) -> Any:
    if window is None:
        return None
    if isinstance(window, dict):
        return _in_ms(window["start"]), _in_ms(window["end"])
    return round(window.timestamp() * 1000)


def windowed(mode: OutputMode) -> Running:
    return Running(spec_of(mode, EventTimeKey.WINDOW))


# -- append


def test_a_window_comes_out_once_when_the_watermark_reaches_its_end() -> None:
    running = windowed(OutputMode.APPEND)
    running.process([("a", (0, 10), 1), ("b", (0, 10), 2), ("a", (10, 20), 3), ("a", (0, 10), 4)])
    running.advance(9)
    assert running.flushed() == []
    running.advance(10)
    assert running.taken() == [("a", (0, 10), 2, 5, (1, 4)), ("b", (0, 10), 1, 2, (2,))]
    running.advance(19)
    assert running.flushed() == []
    running.advance(20)
    assert running.taken() == [("a", (10, 20), 1, 3, (3,))]
    running.advance(1000)
    assert running.flushed() == []


def test_a_late_row_is_dropped_and_counted_and_a_row_of_an_open_window_is_not() -> None:
    running = windowed(OutputMode.APPEND)
    running.process([("a", (0, 10), 1), ("a", (10, 20), 1)])
    running.advance(10)
    running.taken()
    running.process([("a", (0, 10), 5), ("a", (10, 20), 7), ("z", (0, 10), 9)])
    assert running.context.late_rows.count == 2
    running.advance(20)
    assert running.taken() == [("a", (10, 20), 2, 8, (1, 7))]


def test_a_timestamp_may_be_the_key_and_without_one_a_group_is_never_finished() -> None:
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.TIMESTAMP, TIMESTAMP))
    running.process([("a", 5, 1), ("a", 6, 2), ("a", None, 3)])
    running.advance(5)
    assert running.taken() == [("a", 5, 1, 1, (1,))]
    running.process([("a", 5, 1), ("a", None, 1)])
    running.advance((1 << 63) - 1)
    assert running.taken() == [("a", 6, 1, 2, (2,))]
    assert running.context.late_rows.count == 1


def test_state_is_gone_once_its_windows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "_FEW_GROUPS", 8)
    running = windowed(OutputMode.APPEND)
    sizes = []
    for start in range(0, 2000, 10):
        running.process([(f"k{at}", (start, start + 10), at) for at in range(20)])
        running.advance(start)
        sizes.append(running.operator.state_bytes())
    assert len(running.taken()) == 199 * 20
    assert max(sizes[100:]) <= max(sizes[:20])


def test_many_windows_are_emitted_in_slices_between_which_a_snapshot_may_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "LEAST_FIRED_GROUPS", 2)
    running = windowed(OutputMode.APPEND)
    running.process([("a", (at, at + 10), at) for at in range(7)])
    running.operator.on_watermark(15)
    assert running.operator.fire(1, running.out.append)
    first = running.taken()
    after = Running(running.spec, running.stored())
    after.advance(15)
    assert [row[1] for row in first + after.taken()] == [(at, at + 10) for at in range(6)]
    after.advance(16)
    assert [row[1] for row in after.taken()] == [(6, 16)]


# -- update and complete


def test_update_mode_shows_changes_before_it_forgets_finished_windows() -> None:
    running = windowed(OutputMode.UPDATE)
    running.process([("a", (0, 10), 1)])
    running.advance(10)
    assert running.taken() == [("a", (0, 10), 1, 1, (1,))]
    running.process([("a", (0, 10), 1), ("a", (10, 20), 2)])
    assert running.flushed() == [("a", (10, 20), 1, 2, (2,))]
    assert running.context.late_rows.count == 1
    running.advance(20)
    assert running.taken() == []


def test_complete_mode_shows_every_group_each_time_and_no_row_is_late() -> None:
    running = windowed(OutputMode.COMPLETE)
    running.process([("a", (0, 10), 1)])
    running.advance(100)
    assert running.flushed() == [("a", (0, 10), 1, 1, (1,))]
    running.process([("a", (0, 10), 2), ("b", (0, 10), 3)])
    whole = [("a", (0, 10), 2, 3, (1, 2)), ("b", (0, 10), 1, 3, (3,))]
    assert running.flushed() == whole
    assert running.flushed() == whole
    running.operator.end_of_input(running.out.append)
    assert running.taken() == whole
    assert running.flushed() == []


def test_without_keys_there_is_one_group_also_before_the_first_row() -> None:
    call = AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), True)
    schema = pa.schema([("n", pa.int64())])
    spec = AggregateSpec(0, (call,), (Column(0, "n", pa.int64()),), pa.schema([("x", pa.bool_())]), schema)
    owner, other = Running(spec, key_groups=KeyGroupRange(0, 64)), Running(spec, key_groups=KeyGroupRange(64, 128))
    for running, expected in ((owner, [{"n": 0}]), (other, [])):
        running.operator.before_barrier(running.out.append)
        assert [row for batch in running.out for row in batch.to_pylist()] == expected
    after = Running(spec, owner.stored())
    after.operator.before_barrier(after.out.append)
    assert after.out == [], "it was shown before"
    rows = pa.RecordBatch.from_arrays([pa.array([True] * 3)], schema=spec.input_schema)
    after.operator.process(rows, after.out.append)
    after.operator.before_barrier(after.out.append)
    assert after.out[-1].to_pylist() == [{"n": 3}]


# -- restored elsewhere


@pytest.mark.parametrize("event_time", [EventTimeKey.WINDOW, EventTimeKey.SESSION])
def test_groups_go_on_in_whichever_subtask_owns_their_keys_now(event_time: EventTimeKey) -> None:
    spec = spec_of(OutputMode.APPEND, event_time)
    r = random.Random(7)
    before = [(f"k{r.randrange(40)}", (start := r.randrange(50) * 10, start + 10), r.randrange(9)) for _ in range(300)]
    after = [(f"k{r.randrange(40)}", (start := r.randrange(50) * 10, start + 10), r.randrange(9)) for _ in range(300)]
    whole = Running(spec)
    whole.process(before)
    stored = whole.stored()
    whole.process(after)
    whole.advance(300)
    parts = [Running(spec, stored, groups) for groups in (KeyGroupRange(0, 43), KeyGroupRange(43, 128))]
    key_count = 1 if event_time is EventTimeKey.SESSION else 2
    for row in after:
        group = int(key_group_of(hash_rows(batch_of(spec, [row]), key_count), 128)[0])
        parts[0 if group < 43 else 1].process([row])
    for part in parts:
        part.advance(300)
    expected = whole.taken()
    assert expected and sorted(parts[0].taken() + parts[1].taken()) == expected


def test_a_key_group_that_was_further_elsewhere_stays_further_here() -> None:
    spec = spec_of(OutputMode.APPEND, EventTimeKey.WINDOW)
    rows = [(f"k{at}", (0, 10), 1) for at in range(50)]
    groups = key_group_of(hash_rows(batch_of(spec, rows), 2), 128)
    ahead = [row for row, group in zip(rows, groups, strict=True) if group < 64]
    running = Running(spec, floors=KeyGroupFloors([(KeyGroupRange(0, 64), 10)]))
    running.advance(MIN_WATERMARK_MS)
    running.process(rows)
    assert running.context.late_rows.count == len(ahead) > 0
    running.advance(10)
    assert len(running.taken()) == 50 - len(ahead)


# -- sessions


def merged(rows: Sequence[tuple[str, tuple[int, int], int]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for key in sorted({row[0] for row in rows}):
        session: list[Any] | None = None
        for _, (start, end), value in sorted(row for row in rows if row[0] == key):
            if session is not None and start <= session[1]:
                session[1] = max(session[1], end)
                session[2].append(value)
                continue
            session = [start, end, [value]]
            found.append((key, session))
    return sorted((key, (s[0], s[1]), len(s[2]), sum(s[2]), tuple(sorted(s[2]))) for key, s in found)


def test_a_row_between_two_sessions_makes_them_one() -> None:
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
    running.process([("a", (0, 10), 1), ("a", (15, 25), 2), ("b", (0, 10), 7)])
    running.process([("a", (9, 19), 3)])
    running.advance(24)
    assert running.taken() == [("b", (0, 10), 1, 7, (7,))]
    running.advance(25)
    assert running.taken() == [("a", (0, 25), 3, 6, (1, 2, 3))]


def test_windows_that_just_touch_are_one_session() -> None:
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
    running.process([("a", (0, 10), 1), ("a", (10, 20), 2), ("a", (21, 31), 3)])
    running.advance(100)
    assert [row[1] for row in running.taken()] == [(0, 20), (21, 31)]


@pytest.mark.parametrize("seed", range(6))
def test_sessions_are_those_of_all_rows_at_once_whatever_order_they_come_in(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 4)
    r = random.Random(seed)
    spec = spec_of(OutputMode.APPEND, EventTimeKey.SESSION)
    rows = [
        (f"k{r.randrange(5)}", (start := r.randrange(3000), start + r.choice([5, 10, 40])), r.randrange(100))
        for _ in range(400)
    ]
    running = Running(spec)
    at = 0
    while at < len(rows):
        count = r.randrange(1, 60)
        running.process(rows[at : at + count])
        at += count
        if r.random() < 0.2:
            running = Running(spec, running.stored())
    running.advance(10_000)
    assert running.taken() == merged(rows)
    assert running.operator.snapshot() == [] or pa.ipc.open_stream(running.stored()[0].data).read_all().num_rows == 0


def test_sessions_of_rows_nearly_in_order_come_out_as_event_time_passes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 4)
    r = random.Random(3)
    rows = []
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
    found = []
    for now in range(0, 5000, 20):
        part = [(f"k{r.randrange(4)}", (s := now + r.randrange(60), s + 30), r.randrange(9)) for _ in range(4)]
        rows += part
        running.process(part)
        running.advance(now)
        found += running.taken()
    assert found and running.context.late_rows.count == 0
    running.advance(10_000)
    assert sorted(found + running.taken()) == merged(rows)


def test_a_late_session_row_is_dropped_and_counted() -> None:
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
    running.advance(50)
    running.process([("a", (30, 50), 1), ("a", (31, 51), 2)])
    assert running.context.late_rows.count == 1
    running.advance(60)
    assert running.taken() == [("a", (31, 51), 1, 2, (2,))]


def test_complete_mode_shows_all_sessions_and_only_those_there_are_now() -> None:
    running = Running(spec_of(OutputMode.COMPLETE, EventTimeKey.SESSION))
    running.process([("a", (0, 10), 1), ("a", (20, 30), 2)])
    running.advance(1000)
    assert len(running.flushed()) == 2
    running.process([("a", (5, 25), 3)])
    assert running.flushed() == [("a", (0, 30), 3, 6, (1, 2, 3))]


def test_a_session_merge_in_the_middle_of_many_keys_touches_only_its_own() -> None:
    running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
    keys = [f"k{at}" for at in range(100)]
    running.process([(key, (0, 10), 1) for key in keys] + [(key, (20, 30), 2) for key in keys])
    running.process([("k50", (9, 21), 4)])
    running.advance(1000)
    found = running.taken()
    assert ("k50", (0, 30), 3, 7, (1, 2, 4)) in found
    assert len(found) == 199
    assert np.sum([row[3] for row in found]) == 304


def test_where_groups_come_once_per_epoch_only_those_that_go_come_before_the_barrier() -> None:
    spec = replace(spec_of(OutputMode.UPDATE, EventTimeKey.WINDOW), group_rows=GroupRows.ONCE_PER_EPOCH)
    running = Running(spec)
    running.process([("a", (0, 10), 1), ("b", (0, 20), 2)])
    running.advance(10)
    assert running.taken() == [("a", (0, 10), 1, 1, (1,))]
    running.process([("b", (0, 20), 3)])
    assert running.flushed() == [("b", (0, 20), 2, 5, (2, 3))]
    running.advance(20)
    assert running.flushed() == [], "it has not changed since it was shown"


def test_in_update_mode_a_step_between_barriers_shows_a_bounded_number_of_changed_groups() -> None:
    running = windowed(OutputMode.UPDATE)
    clock, operator = running.context.clock, running.operator
    assert isinstance(clock, ManualClock) and isinstance(operator, AggregateOperator)
    running.process([(f"k{at}", (0, 10), 1) for at in range(40)])
    clock.advance(EMIT_INTERVAL_MS)
    sizes, last = [], {}
    for at in range(3):
        running.process([(f"k{at}", (0, 10), 1)])
        operator.give(18, running.out.append)
        rows = running.taken()
        sizes.append(len(rows))
        last |= {row[0]: row[3] for row in rows}
    assert sizes == [18, 18, 4], "those that changed in front of where it was wait for the next round"
    assert (last["k0"], last["k1"], last["k2"]) == (2, 1, 1)
    assert not operator.holds_rows()
    assert {row[0]: row[3] for row in running.flushed()} == {"k1": 2, "k2": 2}
    assert running.flushed() == []


@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_what_ends_in_1970_or_before_is_late_from_the_start(mode: OutputMode) -> None:
    running = windowed(mode)
    running.process([("a", (-20, -10), 1), ("a", (-10, 0), 1), ("a", (-5, 5), 7)])
    assert running.context.late_rows.count == 2
    running.advance(-3)
    running.advance(5)
    assert running.taken() == [("a", (-5, 5), 1, 7, (7,))]
