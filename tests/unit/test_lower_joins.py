"""How deduplications and joins are cut into vertices, and what is said of them."""

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.joins import keyed_row
from tidegate.plan.lower import describe, fingerprint, lower
from tidegate.plan.nodes import (
    Deduplicate,
    EndsByEventTime,
    EndsByKey,
    Filter,
    ForgetAfterDelay,
    ForgetByKey,
    JoinInput,
    JoinType,
    Node,
    Scan,
    Sink,
    StaticJoin,
    StaticTable,
    StreamJoin,
    StreamSide,
)
from tidegate.plan.physical import (
    FIRST_INPUT,
    SECOND_INPUT,
    DeduplicateSpec,
    HashPartitioning,
    JobPlan,
    ProjectSpec,
    RowEnd,
    StreamJoinSpec,
)

ROWS = pa.schema([("v", pa.int64()), ("k", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
KEY, TIME = Column(1, "k", pa.string()), Column(2, "ts", pa.timestamp("us", "UTC"))
SCAN = Scan("rate", {}, ROWS)
NEXT = Call("Add", (Column(0, "v", pa.int64()), Literal(1, pa.int64())), pa.int64(), ansi=True)


def lowered(node: Node) -> JobPlan:
    return lower(node, Sink("noop", {}, node.schema), parallelism=2, max_parallelism=16)


def joined(left: JoinInput, right: JoinInput) -> StreamJoin:
    return StreamJoin(JoinType.LEFT_OUTER, left, right, None, pa.schema([*ROWS, *ROWS]))


def test_a_key_that_is_a_column_travels_once() -> None:
    row = keyed_row([KEY, NEXT], ROWS)
    assert row.schema.names == ["k", "_key1", "v", "ts"]
    assert row.columns == (2, 0, 3)
    assert [column.name for column in row.back(ROWS).columns if isinstance(column, Column)] == ["v", "k", "ts"]


def test_keys_in_front_are_left_as_they_are() -> None:
    assert keyed_row([Column(0, "v", pa.int64())], ROWS).is_as_it_was()
    assert not keyed_row([KEY], ROWS).is_as_it_was()


def test_a_deduplication_stands_behind_a_hash_edge_and_gives_rows_as_they_were() -> None:
    plan = lowered(Deduplicate(SCAN, (1, 2), 2, ForgetByKey(1), ROWS))
    assert [edge.partitioning for edge in plan.edges] == [HashPartitioning(2)]
    spec, back = plan.vertices[1].operators
    assert isinstance(spec, DeduplicateSpec) and isinstance(back, ProjectSpec)
    assert (spec.key_count, spec.event_time, spec.schema.names) == (2, 1, ["k", "ts", "v"])
    assert back.schema == ROWS
    assert "Deduplicate by [k, ts], until ts has passed" in describe(plan)


@pytest.mark.parametrize(("forget", "said"), [(None, "for ever"), (ForgetAfterDelay(5000), "for 5000 ms")])
def test_it_is_said_when_keys_are_forgotten(forget: ForgetAfterDelay | None, said: str) -> None:
    assert said in describe(lowered(Deduplicate(SCAN, (0,), 2, forget, ROWS)))


def test_the_sides_of_a_join_are_its_two_inputs() -> None:
    left = JoinInput(SCAN, (KEY,), None, 2, EndsByEventTime(-5000))
    right = JoinInput(Filter(SCAN, Literal(True, pa.bool_()), ROWS), (KEY,), None, 2, None)
    plan = lowered(joined(left, right))
    assert [(edge.sender, edge.input) for edge in plan.edges] == [(0, FIRST_INPUT), (1, SECOND_INPUT)]
    assert {edge.partitioning for edge in plan.edges} == {HashPartitioning(1)}
    (spec,) = plan.vertices[2].operators
    assert isinstance(spec, StreamJoinSpec)
    assert (spec.left.end, spec.right.end) == (RowEnd(2, -5000), None)
    assert spec.left.columns == (1, 0, 2)
    assert "left kept until ts has passed by 5000 ms, right kept for ever" in describe(plan)


def test_rows_that_end_by_a_key_end_by_the_place_of_that_key() -> None:
    side = JoinInput(SCAN, (KEY, TIME), None, 2, EndsByKey(1))
    (spec,) = lowered(joined(side, side)).vertices[2].operators
    assert isinstance(spec, StreamJoinSpec)
    assert spec.left.end == RowEnd(1, 0) and spec.left.event_time == 1


def test_stored_rows_fit_the_same_keys_and_columns_whatever_the_condition() -> None:
    def shape(node: StreamJoin | Deduplicate) -> list[str]:
        return fingerprint(lowered(node))

    side = JoinInput(SCAN, (KEY,), None, 2, EndsByEventTime(-5000))
    longer = JoinInput(SCAN, (KEY,), None, 2, EndsByEventTime(-9000))
    other = JoinInput(SCAN, (NEXT,), None, 2, EndsByEventTime(-5000))
    assert shape(joined(side, side)) == shape(joined(side, longer))
    assert shape(joined(side, side)) != shape(joined(other, other))
    kept = Deduplicate(SCAN, (0,), 2, ForgetAfterDelay(1), ROWS)
    assert shape(kept) == shape(Deduplicate(SCAN, (0,), 2, ForgetAfterDelay(2), ROWS))
    assert shape(kept) != shape(Deduplicate(SCAN, (0,), 2, None, ROWS))


def test_a_join_with_a_table_is_chained() -> None:
    table = StaticTable((), pa.schema([("n", pa.int64())]), b"12345")
    node = StaticJoin(SCAN, StreamSide.LEFT, JoinType.INNER, (), table, None, pa.schema([*ROWS, ("n", pa.int64())]))
    plan = lowered(node)
    assert [vertex.name for vertex in plan.vertices] == ["Source[rate] -> StaticJoin(inner) -> Sink[noop]"]
    assert "stream on the left, table of 5 bytes" in describe(plan)


def test_keys_that_cannot_be_compared_are_refused() -> None:
    schema = pa.schema([("k", pa.map_(pa.int64(), pa.int64()))])
    with pytest.raises(UnsupportedPlan, match="'k'"):
        lowered(Deduplicate(Scan("rate", {}, schema), (0,), None, None, schema))
    key = Column(0, "k", pa.struct([("inner", pa.map_(pa.string(), pa.int64()))]))
    table = StaticTable((key,), pa.schema([("k", key.type)]), b"")
    with pytest.raises(UnsupportedPlan, match="'k'"):
        lowered(StaticJoin(SCAN, StreamSide.LEFT, JoinType.INNER, (key,), table, None, ROWS))
