"""`explode` in slices: a row that becomes very many holds up nothing, and a barrier may fall amid it."""

from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.contract import GivesLater, TaskContext
from tidegate.operators.row_makers import ExplodeOperator
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    EmptyCollections,
    ExplodedAs,
    Generate,
    OutputMode,
    Scan,
    Sink,
)
from tidegate.plan.physical import GenerateSpec, Giving
from tidegate.state.contract import Redistribution, RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.threads import NamedUserCode

LISTS = pa.list_(pa.int64())
INPUT = pa.schema([("id", pa.int64()), ("many", LISTS)])
OUTPUT = pa.schema([("id", pa.int64()), ("one", pa.int64())])
MANY = 100_000


def spec(of_empty: EmptyCollections = EmptyCollections.NO_ROW, giving: Giving = Giving.IN_SLICES) -> GenerateSpec:
    return GenerateSpec(Column(1, "many", LISTS), ExplodedAs.VALUE, of_empty, (0,), OUTPUT, giving)


class Made:
    def __init__(self, of: GenerateSpec | None = None, restored: "list[RestoredSection] | None" = None) -> None:
        self.operator = ExplodeOperator(of or spec())
        none: Any = None
        context = TaskContext(
            TaskId(VertexId(0), 0), 1, 128, KeyGroupRange(0, 128), ManualClock(), NamedUserCode(), none
        )
        self.operator.open(context, restored or [])
        self.given: list[tuple[int, int | None]] = []
        self.largest = 0

    def take(self, *rows: tuple[int, list[int]]) -> None:
        columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], LISTS)]
        self.operator.process(pa.record_batch(columns, INPUT), self.emit)

    def emit(self, rows: pa.RecordBatch) -> None:
        self.largest = max(self.largest, rows.num_rows)
        self.given += zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)

    def give_all(self, max_rows: int) -> None:
        while self.operator.give(max_rows, self.emit):
            pass

    def stored(self) -> list[RestoredSection]:
        sections = self.operator.snapshot()
        assert all(section.redistribution is Redistribution.SPLIT for section in sections)
        return [RestoredSection(section.name, None, memoryview(section.encode())) for section in sections]


def test_what_a_row_makes_comes_in_slices() -> None:
    made = Made()
    assert isinstance(made.operator, GivesLater)
    made.take((1, list(range(MANY))), (2, [7]))
    assert made.given == []
    assert made.operator.room() == 0
    made.give_all(1000)
    assert made.largest == 1000
    assert made.given == [(1, at) for at in range(MANY)] + [(2, 7)]
    assert made.operator.room() > 0


def test_a_few_rows_come_at_once_when_one_has_shown_what_they_take() -> None:
    made = Made()
    made.take((1, [1, 2]), (2, []), (3, [3]))
    assert made.given == [(1, 1)]
    made.give_all(1000)
    made.take((4, [4, 5]), (5, []), (6, [6]))
    assert made.given == [(1, 1), (1, 2), (3, 3), (4, 4), (4, 5), (6, 6)]
    assert not made.operator.holds_rows()


def test_rows_that_make_none_show_nothing() -> None:
    made = Made()
    made.take((1, []), (2, []))
    assert made.given == []
    assert not made.operator.holds_rows()
    made.take((3, [3, 4]))
    made.give_all(1000)
    assert made.given == [(3, 3), (3, 4)]


def test_what_small_batches_made_comes_together() -> None:
    made = Made()
    for at in range(10):
        made.take((at, [0, 1, 2]))
    before = len(made.given)
    assert made.operator.give(20, made.emit) == 20
    assert made.given == [(at, of) for at in range(10) for of in range(3)][: before + 20]


@pytest.mark.parametrize("given_before", [0, 1, 39, 40, 41, 60, 99])
@pytest.mark.parametrize("of_empty", EmptyCollections)
def test_a_snapshot_amid_a_batch_holds_the_rest_and_no_more(of_empty: EmptyCollections, given_before: int) -> None:
    rows: list[tuple[int, list[int]]] = [(1, list(range(40))), (2, []), (3, list(range(60)))]
    whole = Made(spec(of_empty))
    whole.take(*rows)
    whole.give_all(1000)
    made = Made(spec(of_empty))
    made.take(*rows)
    if given_before:
        made.operator.give(given_before, made.emit)
    again = Made(spec(of_empty), restored=made.stored())
    again.give_all(7)
    assert made.given + again.given == whole.given


def test_without_rows_to_give_nothing_is_stored() -> None:
    made = Made()
    made.take((1, list(range(100))))
    made.give_all(1000)
    assert made.operator.snapshot() == []


def test_event_time_waits_for_the_rest_of_a_batch() -> None:
    made = Made()
    assert made.operator.watermark_behind(50) == 50
    made.take((1, list(range(100))))
    assert made.operator.watermark_behind(80) == 50
    made.give_all(1000)
    assert made.operator.watermark_behind(80) == 80


def test_batches_from_an_operator_in_front_keep_their_order() -> None:
    made = Made()
    made.take((1, list(range(100))))
    made.take((2, [0]))
    made.give_all(30)
    assert made.given == [(1, at) for at in range(100)] + [(2, 0)]


@pytest.mark.parametrize(
    ("mode", "giving"), [(OutputMode.COMPLETE, Giving.AT_ONCE), (OutputMode.UPDATE, Giving.AT_ONCE)]
)
def test_behind_an_aggregation_that_shows_groups_anew_an_epochs_rows_stay_together(
    mode: OutputMode, giving: Giving
) -> None:
    scan = Scan("rate", {}, INPUT)
    id, many = Column(0, "id", pa.int64()), Column(1, "many", LISTS)
    count = AggregateCall(AggregateFunction.FIRST, (many,), LISTS, ansi=True)
    grouped = Aggregate(scan, (id,), (count,), (id, Column(1, "many", LISTS)), INPUT)
    made = Generate(grouped, many, ExplodedAs.VALUE, EmptyCollections.NO_ROW, (0,), OUTPUT)
    plan = lower(made, Sink("noop", {}, OUTPUT, mode), parallelism=2, max_parallelism=128)
    (generate,) = [each for vertex in plan.vertices for each in vertex.operators if isinstance(each, GenerateSpec)]
    assert generate.giving is giving


def test_at_once_means_before_the_next_barrier() -> None:
    made = Made(spec(giving=Giving.AT_ONCE))
    made.take((1, list(range(MANY))))
    assert len(made.given) == MANY
    assert not made.operator.holds_rows()
