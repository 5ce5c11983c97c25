"""Slow user code behind an aggregation: a step hands it about a slice of groups, and so does a barrier.

What comes out is what came out if all were handed over at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_task import CHANNELS, Made, gate_of
from tidegate.connectors.contract import Prepared
from tidegate.model.elements import Batch, EndOfInput, Watermark
from tidegate.model.ids import CheckpointId, KeyGroupRange, TaskId, VertexId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.changed_groups import EMIT_INTERVAL_MS, SECTION_NAME
from tidegate.operators.contract import TaskContext
from tidegate.operators.join_side import arrived_section
from tidegate.operators.stored_groups import SECTION_NAME as GROUPS_SECTION
from tidegate.plan.expressions import Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import (
    AggregateCall,
    AggregateFunction,
    EventTime,
    EventTimeKey,
    GroupRows,
    OutputMode,
    UdfShape,
)
from tidegate.plan.physical import AggregateSpec, EvalPythonSpec, Giving, MapInArrowSpec, OperatorSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.testing.threads import NamedUserCode
from tidegate.worker.gate import Gate
from tidegate.worker.slices import ProbingSizer
from tidegate.worker.state_backends import RocksBackends
from tidegate.worker.task import SLICE_TARGET_MS

INT, TIMESTAMP = pa.int64(), pa.timestamp("us", "UTC")
INPUT = pa.schema([("k", INT), ("at", TIMESTAMP)])
GROUPS = pa.schema([("k", INT), ("at", TIMESTAMP), ("n", INT)])
OUTPUT = pa.schema([*GROUPS, ("r", INT)])
COUNT = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT, True)
RESULTS = tuple(Column(at, field.name, field.type) for at, field in enumerate(GROUPS))
AT_MS = 10
ALL = KeyGroupRange(0, 128)
MANY = 3_000
ROW_MS = 1.0
# Some calls are made before it is known what they cost, and a step may do two things.
LONGEST_MS = 3 * SLICE_TARGET_MS

UPDATE = AggregateSpec(2, (COUNT,), RESULTS, INPUT, GROUPS, OutputMode.UPDATE)
WINDOWS = replace(UPDATE, event_time=EventTime(1, EventTimeKey.TIMESTAMP))
APPEND = replace(WINDOWS, mode=OutputMode.APPEND)
ONCE = replace(UPDATE, group_rows=GroupRows.ONCE_PER_EPOCH)


def udf(shape: UdfShape, giving: Giving = Giving.AT_ONCE) -> EvalPythonSpec:
    return EvalPythonSpec(b"twice", "twice", shape, (Column(2, "n", INT),), 1, OUTPUT, giving)


CODE: dict[str, EvalPythonSpec | MapInArrowSpec] = {
    "udf": udf(UdfShape.BATCH),
    "iterator udf": udf(UdfShape.ITERATOR),
    "mapInArrow": MapInArrowSpec(b"whole", "whole", OUTPUT),
}


def batch_of(keys: Sequence[int]) -> pa.RecordBatch:
    times = pa.array([AT_MS * 1000] * len(keys), TIMESTAMP)
    return pa.RecordBatch.from_arrays([pa.array(keys, INT), times], schema=INPUT)


class Shown:
    """A sink that notes (key, count) in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        counts = rows.column("n").to_pylist()
        assert rows.column("r").to_pylist() == [2 * count for count in counts]
        self.rows += zip(rows.column("k").to_pylist(), counts, strict=True)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        return Prepared((), lambda: None)

    def close(self) -> None: ...


class Running:
    """A task of an aggregation and a function that takes `row_ms` for each row."""

    def __init__(
        self,
        spec: AggregateSpec,
        code: OperatorSpec,
        restored: "dict[int, list[RestoredSection]] | None" = None,
        *,
        key_groups: KeyGroupRange = ALL,
        backends: RocksBackends | None = None,
    ) -> None:
        self.row_ms = ROW_MS
        self.longest_ms = 0.0
        self.most_rows = self.fed = 0
        self.shown = Shown()
        self.operators: list[Any] = [build_operator(spec), build_operator(code)]
        self.gate: Gate = gate_of(CHANNELS[0])
        self.made = Made(gate=self.gate, operators=self.operators, has_output=False, sink=self.shown)
        self.made.task.giving_sizer = ProbingSizer(SLICE_TARGET_MS)
        user_code = NamedUserCode(functions={"twice": self.twice, "whole": self.whole})
        none: Any = None
        context = TaskContext(TaskId(VertexId(1), 0), 1, 128, key_groups, self.made.clock, user_code, none)
        if backends is not None:
            context = replace(context, open_rows=lambda: backends.open_rows(key_groups))
        for at, operator in enumerate(self.operators):
            operator.open(context, (restored or {}).get(at, []))
        self._arrived = self._barriers = 0

    @property
    def clock(self) -> ManualClock:
        return self.made.clock

    def twice(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._work(batch.num_rows)
            yield pa.record_batch([pa.array([2 * n for n in batch.column(0).to_pylist()], INT)], ["r"])

    def whole(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._work(batch.num_rows)
            results = pa.array([2 * n for n in batch.column("n").to_pylist()], INT)
            yield pa.RecordBatch.from_arrays([*batch.columns, results], schema=OUTPUT)

    def _work(self, row_count: int) -> None:
        self.fed += row_count
        self.clock.advance(self.row_ms * row_count)

    def arrive(self, *elements: Any) -> None:
        for element in elements:
            self.made.arrive(CHANNELS[0], self._arrived, element)
            self._arrived += 1

    def process(self, keys: Sequence[int]) -> None:
        self.arrive(Batch(batch_of(keys)))

    def step(self) -> bool:
        started_ms, fed = self.clock.monotonic_ms(), self.fed
        moved = self.made.task.step()
        self.longest_ms = max(self.longest_ms, self.clock.monotonic_ms() - started_ms)
        self.most_rows = max(self.most_rows, self.fed - fed)
        return moved

    def run(self) -> None:
        """Until nothing is left to do for now."""
        while self.step() or self.step():
            pass

    def run_until_shown(self, count: int) -> None:
        for _ in range(2 * count):
            if len(self.shown.rows) >= count:
                return
            self.step()
        raise AssertionError(f"only {len(self.shown.rows)} came out")

    def settle(self) -> None:
        """Until all that changed is shown."""
        self.run()
        while self.operators[0]._changed.any:
            self.clock.advance(EMIT_INTERVAL_MS)
            self.run()

    def barrier(self) -> "dict[int, list[RestoredSection]]":
        """What the snapshot holds, by operator."""
        self._barriers += 1
        self.made.barrier(CHANNELS[0], CheckpointId(self._barriers), before=self._arrived)
        restored: dict[int, list[RestoredSection]] = {}
        for at, section in self.made.taken[-1].sections:
            restored.setdefault(at, []).extend(restored_from([section]))
        return restored

    @property
    def sync_ms(self) -> float:
        return self.made.taken[-1].sync_ms


def newest(rows: Sequence[tuple[int, int]]) -> dict[int, int]:
    last: dict[int, int] = {}
    for key, count in rows:
        assert count >= last.get(key, 0), "a newer row never comes before an older one"
        last[key] = count
    return last


# -- append


@pytest.mark.parametrize("name", CODE)
def test_finished_windows_go_into_a_slow_function_slice_by_slice(name: str) -> None:
    running = Running(APPEND, replace(CODE[name], giving=Giving.IN_SLICES))
    running.process(range(MANY))
    running.run()
    running.arrive(Watermark(AT_MS))
    running.run()
    running.barrier()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)]
    assert running.most_rows <= 2 * 16
    assert running.longest_ms <= LONGEST_MS


def test_a_barrier_between_two_slices_of_finished_windows_loses_none_and_shows_none_twice() -> None:
    code = udf(UdfShape.ITERATOR, Giving.IN_SLICES)
    running = Running(APPEND, code)
    running.process(range(MANY))
    running.run()
    running.arrive(Watermark(AT_MS))
    running.run_until_shown(MANY // 3)
    restored = running.barrier()
    assert running.sync_ms < LONGEST_MS
    assert len(running.shown.rows) < MANY // 2
    again = Running(APPEND, code, restored)
    again.arrive(Watermark(AT_MS))
    again.run()
    again.barrier()
    assert sorted(running.shown.rows + again.shown.rows) == [(key, 1) for key in range(MANY)]


# -- update


@pytest.mark.parametrize("name", CODE)
def test_changed_groups_go_into_a_slow_function_slice_by_slice(name: str) -> None:
    running = Running(UPDATE, CODE[name])
    running.process(range(MANY))
    running.run()
    assert running.fed == 0
    running.clock.advance(EMIT_INTERVAL_MS)
    running.run()
    running.barrier()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)]
    assert running.most_rows <= 2 * 16
    assert running.longest_ms <= LONGEST_MS


@pytest.mark.parametrize("name", CODE)
def test_a_barrier_waits_for_about_a_slice_of_changed_groups_and_stores_which_are_left(name: str) -> None:
    running = Running(UPDATE, CODE[name])
    running.process(range(MANY))
    running.run()
    restored = running.barrier()
    assert running.sync_ms <= LONGEST_MS
    before = list(running.shown.rows)
    assert 0 < len(before) < 100
    running.settle()
    running.barrier()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)], "each once: it did not change again"
    again = Running(UPDATE, CODE[name], restored)
    again.settle()
    again.barrier()
    assert sorted(before + again.shown.rows) == [(key, 1) for key in range(MANY)]


def test_what_a_barrier_leaves_is_shown_at_once_and_not_after_a_while() -> None:
    running = Running(UPDATE, CODE["udf"])
    running.process(range(100))
    running.run()
    running.barrier()
    at_barrier = len(running.shown.rows)
    assert running.operators[0].next_deadline_ms() is None
    assert running.step()
    assert len(running.shown.rows) > at_barrier


def test_groups_that_take_no_time_are_all_shown_at_the_barrier_and_are_no_part_of_the_snapshot() -> None:
    running = Running(UPDATE, CODE["udf"])
    running.row_ms = 0.0
    running.process(range(MANY))
    running.run()
    restored = running.barrier()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)]
    assert {section.name for section in restored[0]} == {GROUPS_SECTION}


def test_groups_that_suddenly_take_a_thousand_times_as_long_are_met_by_an_eighth() -> None:
    running = Running(UPDATE, CODE["udf"])
    running.row_ms = 0.001
    for _ in range(6):
        running.process(range(MANY))
        running.run()
        running.barrier()
    cheap = running.operators[0]._pace.groups
    assert cheap > MANY
    running.row_ms = 1.0
    running.process(range(MANY))
    running.run()
    fed = running.fed
    running.barrier()
    assert running.fed - fed == cheap // 8
    fed = running.fed
    running.barrier()
    assert running.fed - fed <= SLICE_TARGET_MS


def test_a_group_that_takes_longer_than_a_slice_comes_alone() -> None:
    running = Running(UPDATE, CODE["udf"])
    running.row_ms = 200.0
    running.process(range(30))
    running.run()
    running.barrier()
    running.step()
    most = 0
    while running.operators[0]._changed.any:
        fed = running.fed
        running.step()
        running.barrier()
        most = max(most, running.fed - fed)
    assert most <= 2, "one in the step, one at the barrier"
    assert newest(running.shown.rows) == dict.fromkeys(range(30), 1)


def test_rows_that_come_while_groups_are_shown_are_taken_in_turn_with_them() -> None:
    running = Running(UPDATE, CODE["udf"])
    running.process(range(MANY))
    running.run()
    running.clock.advance(EMIT_INTERVAL_MS)
    for _ in range(20):
        running.process([0, MANY - 1])
    for _ in range(50):
        running.step()
    assert running.gate.is_empty()
    assert len(running.shown.rows) < MANY
    running.settle()
    assert newest(running.shown.rows) == {key: 21 if key in (0, MANY - 1) else 1 for key in range(MANY)}


def test_finished_windows_that_changed_are_shown_slice_by_slice_before_they_go() -> None:
    running = Running(WINDOWS, CODE["udf"])
    running.process(range(MANY))
    running.run()
    running.arrive(Watermark(AT_MS))
    for _ in range(20):
        running.step()
    restored = running.barrier()
    assert running.sync_ms <= LONGEST_MS
    before = list(running.shown.rows)
    assert len(before) < MANY // 2
    running.run()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)]
    assert running.longest_ms <= LONGEST_MS
    again = Running(WINDOWS, CODE["udf"], restored)
    again.arrive(Watermark(AT_MS))
    again.run()
    assert sorted(before + again.shown.rows) == [(key, 1) for key in range(MANY)]
    for each in (running, again):
        each.clock.advance(EMIT_INTERVAL_MS)
        assert not each.step()
        assert {section.name for section in each.barrier()[0]} == {GROUPS_SECTION}


def test_windows_that_were_shown_go_many_at_a_time_however_slow_the_function_is() -> None:
    running = Running(WINDOWS, CODE["udf"])
    running.process(range(MANY))
    running.settle()
    assert running.operators[0]._pace.groups < 20
    running.arrive(Watermark(AT_MS))
    steps = 0
    while running.step():
        steps += 1
    assert steps < 20
    assert len(running.shown.rows) == MANY


def test_the_end_of_the_input_brings_out_what_changed_slice_by_slice_and_a_barrier_may_fall_in_between() -> None:
    running = Running(UPDATE, CODE["mapInArrow"])
    running.process(range(MANY))
    running.arrive(EndOfInput())
    running.run_until_shown(MANY // 3)
    running.barrier()
    assert running.sync_ms <= LONGEST_MS
    assert not running.made.task.has_ended
    running.run()
    assert running.made.task.has_ended
    assert sorted(running.shown.rows) == [(key, 1) for key in range(MANY)]
    assert running.longest_ms <= LONGEST_MS


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_was_not_shown_goes_to_the_new_owner_of_its_key(parallelism: int) -> None:
    stored: list[RestoredSection] = []
    shown: list[tuple[int, int]] = []
    for at in range(2):
        own = range_of(at, parallelism=2, max_parallelism=128)
        old = Running(UPDATE, CODE["udf"], key_groups=own)
        old.process([key for key in range(500) if own.first <= key_group(key) < own.last])
        old.run()
        stored += old.barrier()[0]
        shown += old.shown.rows
    assert {section.name for section in stored} == {GROUPS_SECTION, SECTION_NAME}
    assert len(shown) < 100
    for at in range(parallelism):
        own = range_of(at, parallelism=parallelism, max_parallelism=128)
        new = Running(UPDATE, CODE["udf"], {0: stored}, key_groups=own)
        new.settle()
        assert all(own.first <= key_group(key) < own.last for key, _ in new.shown.rows)
        shown += new.shown.rows
    assert sorted(shown) == [(key, 1) for key in range(500)]


def key_group(key: int) -> int:
    return int(key_group_of(hash_rows(batch_of([key]), 2), 128)[0])


def test_a_savepoint_for_other_key_groups_finds_what_was_not_shown_by_its_name() -> None:
    assert arrived_section(GROUPS_SECTION) == SECTION_NAME


# -- each group once per epoch


def test_where_a_group_comes_once_per_epoch_all_that_changed_comes_at_the_barrier_and_counts_as_its_time() -> None:
    running = Running(ONCE, CODE["udf"])
    running.process(range(200))
    running.run()
    running.clock.advance(10 * EMIT_INTERVAL_MS)
    running.run()
    assert running.fed == 0
    restored = running.barrier()
    assert sorted(running.shown.rows) == [(key, 1) for key in range(200)]
    assert running.sync_ms == 200 * ROW_MS
    assert {section.name for section in restored[0]} == {GROUPS_SECTION}


# -- more groups than fit into memory


def test_groups_that_must_be_shown_before_they_leave_memory_hold_up_input_but_no_barrier(tmp_path: Path) -> None:
    backends = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 18)
    running = Running(UPDATE, CODE["udf"], backends=backends)
    operator, count = running.operators[0], 20_000
    for start in range(0, count, 500):
        running.process(range(start, start + 500))
    has_waited, left_in_memory = False, []
    while not running.gate.is_empty() or operator.holds_rows():
        running.step()
        left_in_memory.append(operator.index.count)
        if operator.room() == 0 and not has_waited:
            has_waited = True
            running.barrier()
            assert running.sync_ms <= LONGEST_MS
    assert has_waited
    assert max(left_in_memory) < count // 2, "input waits, so that memory does not fill up"
    assert running.longest_ms <= LONGEST_MS
    running.settle()
    assert newest(running.shown.rows) == dict.fromkeys(range(count), 1)
    backends.close()


# -- whatever happens

events = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(st.integers(0, 60), min_size=1, max_size=80)),
        st.tuples(st.just("steps"), st.integers(1, 8)),
        st.tuples(st.just("time"), st.sampled_from([1, 50, 100])),
        st.tuples(st.just("cost"), st.sampled_from([0.0, 0.01, 1.0, 30.0])),
        st.tuples(st.just("barrier"), st.none()),
        st.tuples(st.just("restore"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(drawn=events, name=st.sampled_from(sorted(CODE)))
def test_in_the_end_every_group_was_shown_as_it_is(drawn: list[tuple[str, Any]], name: str) -> None:
    running, counts, committed = Running(UPDATE, CODE[name]), dict[int, int](), list[tuple[int, int]]()
    stored: Any = None
    at_barrier = dict[int, int]()
    for event, value in drawn:
        match event:
            case "rows":
                running.process(value)
                for key in value:
                    counts[key] = counts.get(key, 0) + 1
            case "steps":
                for _ in range(value):
                    running.step()
            case "time":
                running.clock.advance(value)
            case "cost":
                running.row_ms = value
            case "barrier":
                # Rows in flight would be captured, which is not played here.
                while not running.gate.is_empty():
                    running.step()
                stored, at_barrier = running.barrier(), dict(counts)
                committed += running.shown.rows
                running.shown.rows = []
            case _:
                running = Running(UPDATE, CODE[name], stored)
                counts = dict(at_barrier)
    running.settle()
    running.barrier()
    assert newest(committed + running.shown.rows) == counts
