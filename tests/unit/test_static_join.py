"""A stream joined with a fixed table that every task holds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import static_join
from tidegate.operators.build import build_operator
from tidegate.operators.contract import Operator, TaskContext
from tidegate.plan.expressions import Call, Column
from tidegate.plan.nodes import JoinType, StaticTable, StreamSide
from tidegate.plan.physical import Giving, StaticJoinSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock

STREAM = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TABLE = pa.schema([("id", pa.int64()), ("limit", pa.int64())])
Row = tuple[Any, ...]
ROWS: list[Row] = [(1, 10), (2, 20), (2, 21), (None, 30)]
STREAM_ROWS: list[Row] = [(1, 1), (2, 2), (3, 3), (None, 4)]


def spec_of(
    kind: JoinType,
    table: list[Row],
    *,
    side: StreamSide = StreamSide.LEFT,
    by_key: int = 1,
    condition: Call | None = None,
) -> StaticJoinSpec:
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, TABLE) as written:
        for start in range(0, len(table), 3):
            written.write_batch(batch(table[start : start + 3], TABLE))
    single = kind in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI)
    both = [*STREAM, *TABLE] if side is StreamSide.LEFT else [*TABLE, *STREAM]
    return StaticJoinSpec(
        kind,
        side,
        (Column(0, "k", pa.int64()),)[:by_key],
        StaticTable((Column(0, "id", pa.int64()),)[:by_key], TABLE, bytes(target.getvalue())),
        condition,
        STREAM,
        STREAM if single else pa.schema(both),
    )


def opened(spec: StaticJoinSpec, restored: Sequence[RestoredSection] = ()) -> Operator:
    operator = build_operator(spec)
    none: Any = None
    operator.open(
        TaskContext(TaskId(VertexId(0), 0), 1, 128, KeyGroupRange(0, 128), ManualClock(), none, none), restored
    )
    return operator


def joined(
    kind: JoinType,
    stream: list[Row],
    table: list[Row],
    *,
    side: StreamSide = StreamSide.LEFT,
    by_key: int = 1,
    condition: Call | None = None,
) -> list[Row]:
    spec = spec_of(kind, table, side=side, by_key=by_key, condition=condition)
    operator = opened(replace(spec, giving=Giving.AT_ONCE))
    out: list[pa.RecordBatch] = []
    operator.process(batch(stream, STREAM), out.append)
    assert operator.snapshot() == []
    return [tuple(row.values()) for rows in out for row in unnamed(rows).to_pylist()]


def batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=schema)


def unnamed(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.columns, names=[str(at) for at in range(rows.num_columns)])


def less(left: int, right: int) -> Call:
    return Call("LessThan", (Column(left, "", pa.int64()), Column(right, "", pa.int64())), pa.bool_(), ansi=True)


def test_an_inner_join_gives_every_pair_and_a_null_key_none() -> None:
    assert joined(JoinType.INNER, STREAM_ROWS, ROWS) == [(1, 1, 1, 10), (2, 2, 2, 20), (2, 2, 2, 21)]


def test_an_outer_join_gives_the_others_with_nulls() -> None:
    alone = [(3, 3, None, None), (None, 4, None, None)]
    assert joined(JoinType.LEFT_OUTER, STREAM_ROWS, ROWS)[-2:] == alone
    right = joined(JoinType.RIGHT_OUTER, STREAM_ROWS, ROWS, side=StreamSide.RIGHT)
    assert right == [(1, 10, 1, 1), (2, 20, 2, 2), (2, 21, 2, 2), (None, None, 3, 3), (None, None, None, 4)]


def test_a_semi_join_gives_rows_with_a_partner_once_and_an_anti_join_the_others() -> None:
    assert joined(JoinType.LEFT_SEMI, STREAM_ROWS, ROWS) == [(1, 1), (2, 2)]
    assert joined(JoinType.LEFT_ANTI, STREAM_ROWS, ROWS) == [(3, 3), (None, 4)]


def test_the_condition_decides_who_is_a_partner() -> None:
    stream: list[Row] = [(1, 10), (2, 20)]
    assert joined(JoinType.INNER, stream, ROWS, condition=less(1, 3)) == [(2, 20, 2, 21)]
    assert joined(JoinType.LEFT_ANTI, stream, ROWS, condition=less(1, 3)) == [(1, 10)]
    assert joined(JoinType.LEFT_OUTER, stream, ROWS, condition=less(1, 3)) == [(2, 20, 2, 21), (1, 10, None, None)]


def test_without_keys_every_row_meets_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_join, "MOST_PAIRS_AT_ONCE", 5)
    assert Counter(joined(JoinType.INNER, STREAM_ROWS, ROWS, by_key=0)) == {
        (*one, *other): 1 for one in STREAM_ROWS for other in ROWS
    }
    met = joined(JoinType.LEFT_SEMI, [(1, 29), (1, 30)], ROWS, by_key=0, condition=less(1, 3))
    assert met == [(1, 29)]


def test_an_empty_table_has_no_partners() -> None:
    assert joined(JoinType.INNER, STREAM_ROWS, []) == []
    assert joined(JoinType.LEFT_ANTI, STREAM_ROWS, []) == STREAM_ROWS
    assert joined(JoinType.LEFT_OUTER, [(1, 1)], []) == [(1, 1, None, None)]


@pytest.mark.parametrize(
    ("kind", "side"),
    [
        (JoinType.FULL_OUTER, StreamSide.LEFT),
        (JoinType.RIGHT_OUTER, StreamSide.LEFT),
        (JoinType.LEFT_OUTER, StreamSide.RIGHT),
        (JoinType.LEFT_ANTI, StreamSide.RIGHT),
    ],
)
def test_all_rows_of_the_table_cannot_be_asked_for(kind: JoinType, side: StreamSide) -> None:
    with pytest.raises(UnsupportedPlan, match=kind.value):
        joined(kind, STREAM_ROWS, ROWS, side=side)


_PAIRS = st.lists(st.tuples(st.none() | st.integers(0, 4), st.integers(0, 6)), max_size=12)


@settings(max_examples=100)
@given(kind=st.sampled_from([JoinType.INNER, JoinType.LEFT_OUTER, JoinType.LEFT_SEMI]), stream=_PAIRS, table=_PAIRS)
def test_it_gives_what_two_loops_would(kind: JoinType, stream: list[Row], table: list[Row]) -> None:
    expected = Counter[Row]()
    for row in stream:
        partners = [other for other in table if row[0] is not None and row[0] == other[0] and row[1] < other[1]]
        match kind:
            case JoinType.LEFT_SEMI:
                expected.update([row] if partners else [])
            case _:
                alone = [(*row, None, None)] if kind is JoinType.LEFT_OUTER and not partners else []
                expected.update([*((*row, *other) for other in partners), *alone])
    assert Counter(joined(kind, stream, table, condition=less(1, 3))) == expected
