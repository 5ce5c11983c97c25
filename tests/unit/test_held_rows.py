"""User code behind what makes very many rows of one: they go in by slices, and a barrier may fall in between."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import held_rows
from tidegate.operators.build import build_operator
from tidegate.operators.contract import GivesLater, TaskContext
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    EvalPython,
    EventTime,
    EventTimeKey,
    MapInArrow,
    OutputMode,
    Scan,
    Sink,
    TransformWithState,
    UdfShape,
)
from tidegate.plan.physical import EvalPythonSpec, Giving, MapInArrowSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.threads import NamedUserCode

INPUT = pa.schema([("v", pa.int64())])
OUTPUT = pa.schema([("v", pa.int64()), ("r", pa.int64())])
MANY = 10_000
UDF = EvalPythonSpec(
    b"twice", "twice", UdfShape.BATCH, (Column(0, "v", pa.int64()),), 1, OUTPUT, giving=Giving.IN_SLICES
)
ITERATOR = replace(UDF, shape=UdfShape.ITERATOR)
MAP = MapInArrowSpec(b"pairs", "pairs", OUTPUT, giving=Giving.IN_SLICES)


SPECS = [UDF, ITERATOR, MAP]


class Made:
    def __init__(self, spec: EvalPythonSpec | MapInArrowSpec, restored: "list[RestoredSection] | None" = None) -> None:
        self.largest_call = 0
        none: Any = None
        code = NamedUserCode(functions={"twice": self.twice, "in_the_end": self.in_the_end, "pairs": self.pairs})
        self.operator: Any = build_operator(spec)
        task = TaskId(VertexId(0), 0)
        self.operator.open(TaskContext(task, 1, 128, KeyGroupRange(0, 128), ManualClock(), code, none), restored or [])
        self.given: list[tuple[int, int]] = []

    def twice(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.largest_call = max(self.largest_call, batch.num_rows)
            yield pa.record_batch([pa.array([2 * v for v in batch.column(0).to_pylist()], pa.int64())], ["r"])

    def in_the_end(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from list(self.twice(batches))

    def pairs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.largest_call = max(self.largest_call, batch.num_rows)
            twice = pa.array([2 * v for v in batch.column(0).to_pylist()], pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), twice], schema=OUTPUT)

    def take(self, count: int) -> None:
        self.operator.process(pa.record_batch([pa.array(range(count), pa.int64())], INPUT), self.emit)

    def emit(self, rows: pa.RecordBatch) -> None:
        self.given += zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)

    def give_all(self, max_rows: int) -> None:
        while self.operator.give(max_rows, self.emit):
            pass

    def stored(self) -> list[RestoredSection]:
        return [RestoredSection(each.name, None, memoryview(each.encode())) for each in self.operator.snapshot()]


@pytest.mark.parametrize("spec", SPECS, ids=["udf", "iterator udf", "mapInArrow"])
def test_a_call_gets_a_slice_however_many_rows_come(spec: EvalPythonSpec | MapInArrowSpec) -> None:
    made = Made(spec)
    assert isinstance(made.operator, GivesLater)
    made.take(MANY)
    assert made.given == []
    assert made.operator.room() == 0
    made.give_all(300)
    assert made.largest_call == 300
    assert made.given == [(v, 2 * v) for v in range(MANY)]


@pytest.mark.parametrize("spec", SPECS, ids=["udf", "iterator udf", "mapInArrow"])
def test_a_snapshot_in_between_holds_the_rows_that_have_not_gone_in(spec: EvalPythonSpec | MapInArrowSpec) -> None:
    made = Made(spec)
    made.take(MANY)
    made.operator.give(300, made.emit)
    made.operator.before_barrier(made.emit)
    again = Made(spec, restored=made.stored())
    again.give_all(1000)
    assert made.given + again.given == [(v, 2 * v) for v in range(MANY)]


@pytest.mark.parametrize("spec", SPECS, ids=["udf", "iterator udf", "mapInArrow"])
def test_small_frames_that_are_held_go_in_together_but_not_with_those_of_other_names(
    spec: EvalPythonSpec | MapInArrowSpec,
) -> None:
    made = Made(spec)
    frames = [pa.record_batch([pa.array(range(at, at + 20), pa.int64())], INPUT) for at in range(0, 200, 20)]
    renamed = [frame.rename_columns(["was"]) for frame in frames[:5]] + frames[5:]
    for frame in renamed:
        made.operator.process(frame, made.emit)
    again = Made(spec, restored=made.stored())
    for each in (made, again):
        assert [each.operator.give(70, each.emit) for _ in range(4)] == [70, 30, 70, 30]
        assert each.given == [(v, 2 * v) for v in range(200)]
        assert each.largest_call == 70


def test_large_frames_that_are_held_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "_GATHERED_BYTES", 100 * 8)
    made = Made(UDF)
    for _ in range(2):
        made.take(200)
    assert [made.operator.give(150, made.emit) for _ in range(3)] == [150, 50, 150]


@pytest.mark.parametrize("spec", SPECS, ids=["udf", "iterator udf", "mapInArrow"])
def test_event_time_waits_for_what_is_held(spec: EvalPythonSpec | MapInArrowSpec) -> None:
    made = Made(spec)
    assert made.operator.watermark_behind(50) == 50
    made.take(MANY)
    assert made.operator.watermark_behind(80) == 50
    made.give_all(MANY)
    made.operator.before_barrier(made.emit)
    assert made.operator.watermark_behind(80) == 80


def test_event_time_waits_for_rows_that_an_iterator_has_taken_and_for_those_behind_them() -> None:
    made = Made(replace(ITERATOR, functions=b"in_the_end"))
    assert made.operator.watermark_behind(50) == 50
    made.take(40)
    made.operator.give(30, made.emit)
    assert made.given == []
    made.operator.before_barrier(made.emit)
    assert made.given == [(v, 2 * v) for v in range(30)]
    assert made.operator.watermark_behind(80) == 50, "ten have not gone in"
    made.operator.give(30, made.emit)
    assert made.operator.watermark_behind(80) == 50, "they have, and wait for the barrier"
    made.operator.before_barrier(made.emit)
    assert made.operator.watermark_behind(80) == 80
    assert made.given == [(v, 2 * v) for v in range(40)]


def test_behind_a_source_the_tasks_own_slices_go_in_at_once() -> None:
    scan = Scan("rate", {}, INPUT)
    udf = EvalPython(scan, b"twice", "twice", UdfShape.BATCH, (Column(0, "v", pa.int64()),), 1, OUTPUT)
    plan = lower(udf, Sink("noop", {}, OUTPUT), parallelism=1, max_parallelism=128)
    (spec,) = plan.vertices[0].operators
    assert isinstance(spec, EvalPythonSpec)
    assert spec.giving is Giving.AT_ONCE


def test_behind_a_processor_that_may_give_very_many_rows_they_go_in_by_slices() -> None:
    keyed = TransformWithState(Scan("rate", {}, INPUT), 1, b"p", INPUT)
    udf = EvalPython(keyed, b"twice", "twice", UdfShape.BATCH, (Column(0, "v", pa.int64()),), 1, OUTPUT)
    mapped = MapInArrow(udf, b"pairs", "pairs", OUTPUT)
    plan = lower(mapped, Sink("noop", {}, OUTPUT, OutputMode.UPDATE), parallelism=1, max_parallelism=128)
    found = [each for each in plan.vertices[-1].operators if isinstance(each, EvalPythonSpec | MapInArrowSpec)]
    assert [each.giving for each in found] == [Giving.IN_SLICES] * 2


@pytest.mark.parametrize(
    ("mode", "giving"), [(OutputMode.APPEND, Giving.IN_SLICES), (OutputMode.UPDATE, Giving.AT_ONCE)]
)
def test_finished_groups_go_into_user_code_by_slices_as_far_as_their_order_allows(
    mode: OutputMode, giving: Giving
) -> None:
    v = Column(0, "v", pa.int64())
    total = AggregateCall(AggregateFunction.SUM, (v,), pa.int64(), ansi=True)
    event_time = EventTime(0, EventTimeKey.TIMESTAMP)
    groups = Aggregate(Scan("rate", {}, INPUT), (v,), (total,), (v,), INPUT, event_time)
    mapped = MapInArrow(groups, b"pairs", "pairs", OUTPUT)
    plan = lower(mapped, Sink("noop", {}, OUTPUT, mode), parallelism=1, max_parallelism=128)
    (found,) = [each for each in plan.vertices[-1].operators if isinstance(each, MapInArrowSpec)]
    assert found.giving is giving
