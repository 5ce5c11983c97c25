"""A row that meets very many rows of a table: pairs come slice by slice, and a barrier may fall in between."""

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.test_static_join import STREAM, Row, batch, less, opened, spec_of, unnamed
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.operators import static_join
from tidegate.operators.contract import GivesLater
from tidegate.operators.static_join import StaticJoinOperator
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    JoinType,
    Node,
    OutputMode,
    Scan,
    Sink,
    StaticJoin,
    StreamSide,
)
from tidegate.plan.physical import Giving, StaticJoinSpec
from tidegate.protocol.rescale import split_items
from tidegate.state.contract import RestoredSection

MOST = 10
TABLE: list[Row] = [(1, number) for number in range(100)] + [(2, 0)]
STREAM_ROWS: list[Row] = [(None, 0), (2, 1), (1, 70), (3, 2), (1, 200), (1, 50), (4, 3)]
KINDS = [JoinType.INNER, JoinType.LEFT_OUTER, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_join, "MOST_PAIRS_AT_ONCE", MOST)
    monkeypatch.setattr(static_join, "SECTION_ROWS", 16)


class Task:
    def __init__(self, spec: StaticJoinSpec, restored: list[RestoredSection] | None = None) -> None:
        operator = opened(spec, restored or [])
        assert isinstance(operator, StaticJoinOperator) and isinstance(operator, GivesLater)
        self.operator = operator

    def process(self, rows: list[Row]) -> list[Row]:
        out: list[pa.RecordBatch] = []
        self.operator.process(batch(rows, STREAM), out.append)
        return rows_of(out)

    def give(self, most: int) -> list[Row]:
        out: list[pa.RecordBatch] = []
        assert 0 < self.operator.give(most, out.append) <= most
        return rows_of(out)

    def all_held(self, most: int = 7) -> list[list[Row]]:
        parts = []
        while self.operator.holds_rows():
            parts.append(self.give(most))
        return parts

    def stored(self) -> dict[str, list[bytes]]:
        """The items of all sections of a name, as they are dealt out at another parallelism."""
        items: dict[str, list[bytes]] = {}
        for section in self.operator.snapshot():
            items.setdefault(section.name, []).extend(msgspec.msgpack.decode(section.encoder(), type=list[bytes]))  # type: ignore[arg-type]
        return items


def restarted(spec: StaticJoinSpec, stored: dict[str, list[bytes]], parallelism: int) -> list[Task]:
    dealt = {name: split_items([items], parallelism) for name, items in stored.items()}
    return [
        Task(
            spec,
            [RestoredSection(name, None, memoryview(msgspec.msgpack.encode(of[at]))) for name, of in dealt.items()],
        )
        for at in range(parallelism)
    ]


def rows_of(out: list[pa.RecordBatch]) -> list[Row]:
    return [tuple(row.values()) for rows in out for row in unnamed(rows).to_pylist()]


def expected(kind: JoinType) -> Counter[Any]:
    found = Counter[Any]()
    for row in STREAM_ROWS:
        partners = [other for other in TABLE if row[0] == other[0] and row[1] < other[1]]
        match kind:
            case JoinType.LEFT_SEMI:
                found.update([row] if partners else [])
            case JoinType.LEFT_ANTI:
                found.update([] if partners else [row])
            case _:
                alone = [(*row, None, None)] if kind is JoinType.LEFT_OUTER and not partners else []
                found.update([*((*row, *other) for other in partners), *alone])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_made_in_slices_and_the_answer_is_that_of_one_step(
    kind: JoinType, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    same_keys = static_join.same_keys

    def counting(left: pa.RecordBatch, right: pa.RecordBatch, key_count: int) -> Any:
        seen.append(left.num_rows)
        return same_keys(left, right, key_count)

    monkeypatch.setattr(static_join, "same_keys", counting)
    task = Task(spec_of(kind, TABLE, condition=less(1, 3)))
    assert task.process(STREAM_ROWS) == [] and seen == []
    assert task.operator.room() == 0
    parts = task.all_held()
    assert max(seen) == 7
    assert Counter(row for part in parts for row in part) == expected(kind)
    assert task.operator.room() > 0 and task.operator.snapshot() == []


def test_rows_do_not_overtake_those_that_are_held() -> None:
    task = Task(spec_of(JoinType.INNER, TABLE))
    task.process([(1, 0)])
    assert task.process([(2, 1)]) == []
    assert task.all_held()[-1][-1] == (2, 1, 2, 0)


def test_few_pairs_come_at_once_and_so_do_all_that_belong_to_the_epoch_of_their_rows() -> None:
    few = Task(spec_of(JoinType.INNER, TABLE[:MOST]))
    assert len(few.process([(1, 0)])) == MOST and not few.operator.holds_rows()
    all_ = Task(replace(spec_of(JoinType.INNER, TABLE), giving=Giving.AT_ONCE))
    assert len(all_.process([(1, 0)])) == 100 and not all_.operator.holds_rows()


def test_event_time_waits_for_the_rows_that_are_held() -> None:
    task = Task(spec_of(JoinType.INNER, TABLE))
    assert task.operator.watermark_behind(5) == 5
    task.process([(1, 0)])
    assert task.operator.watermark_behind(60) == 5
    task.all_held()
    assert task.operator.watermark_behind(60) == 60


@pytest.mark.parametrize("gives", [*range(8), 20, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_a_barrier_in_between_loses_nothing_and_gives_nothing_twice_at_any_parallelism(
    kind: JoinType, gives: int
) -> None:
    spec = spec_of(kind, TABLE, condition=less(1, 3))
    task = Task(spec)
    task.process(STREAM_ROWS[:-1])
    task.process(STREAM_ROWS[-1:])
    found = [row for _ in range(gives) for row in task.give(7)]
    stored = task.stored()
    for tasks in ([task], *(restarted(spec, stored, parallelism) for parallelism in (1, 2, 3))):
        again = [row for each in tasks for part in each.all_held() for row in part]
        assert Counter(found + again) == expected(kind)


def test_pairs_that_are_left_of_a_row_are_those_of_the_table_with_which_it_was_begun() -> None:
    spec = spec_of(JoinType.LEFT_OUTER, TABLE)
    task = Task(spec)
    task.process([(1, 5), (2, 6), (1, 7)])
    found = task.give(7)
    other = spec_of(JoinType.LEFT_OUTER, [(1, -1)])
    (again,) = restarted(other, task.stored(), 1)
    (twice,) = restarted(other, again.stored(), 1)
    for each in (again, twice):
        rows = [row for part in each.all_held() for row in part]
        begun = Counter((1, 5, *row) for row in TABLE if row[0] == 1)
        assert Counter(found + rows) == begun + Counter([(2, 6, None, None), (1, 7, 1, -1)])


def test_what_is_held_fits_only_a_query_with_such_rows() -> None:
    task = Task(spec_of(JoinType.INNER, TABLE))
    task.process([(1, 0), (1, 1)])
    narrow = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    with pytest.raises(IncompatibleCheckpoint, match="int64, int64"):
        restarted(replace(spec_of(JoinType.INNER, TABLE), stream_schema=narrow), task.stored(), 1)


def test_a_table_on_the_left_is_joined_in_slices_too() -> None:
    task = Task(spec_of(JoinType.RIGHT_OUTER, TABLE, side=StreamSide.RIGHT))
    task.process([(1, 5), (3, 6)])
    task.give(7)
    (again,) = restarted(spec_of(JoinType.RIGHT_OUTER, TABLE, side=StreamSide.RIGHT), task.stored(), 1)
    rows = [row for part in again.all_held() for row in part]
    assert rows == [(*row, 1, 5) for row in TABLE[7:100]] + [(None, None, 3, 6)]


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_behind_an_aggregation_that_shows_groups_anew_an_epochs_rows_stay_together(mode: OutputMode) -> None:
    k, v = Column(0, "k", pa.int64()), Column(1, "v", pa.int64())
    total = AggregateCall(AggregateFunction.SUM, (v,), pa.int64(), ansi=True)
    scan = Scan("rate", {}, STREAM)
    assert giving_behind(Aggregate(scan, (k,), (total,), (k, v), STREAM), mode) is Giving.AT_ONCE
    assert giving_behind(scan, OutputMode.APPEND) is Giving.IN_SLICES


def giving_behind(node: Node, mode: OutputMode) -> Giving:
    spec = spec_of(JoinType.INNER, TABLE)
    join = StaticJoin(node, spec.stream_side, spec.type, spec.keys, spec.table, None, spec.schema)
    plan = lower(join, Sink("noop", {}, spec.schema, mode), parallelism=2, max_parallelism=128)
    (made,) = [each for vertex in plan.vertices for each in vertex.operators if isinstance(each, StaticJoinSpec)]
    return made.giving
