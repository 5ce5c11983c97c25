"""Complete results in the order that a query asks for."""

import itertools

import pyarrow as pa
import pytest

from tidegate.connectors.console import ConsoleSink
from tidegate.connectors.memory import MemorySink, read_memory_table
from tidegate.model.ids import CheckpointId, Generation, TaskId, VertexId
from tidegate.plan.kernels.row_order import ordered
from tidegate.plan.nodes import OutputMode, RowOrder, SortKey
from tidegate.protocol.commit import permit_logged

ROWS = pa.table({"k": ["b", None, "a", "b"], "v": [1, 2, None, 3]})
SCHEMA = ROWS.schema
_names = itertools.count()


def by(*keys: tuple[int, str], most_rows: int | None = None) -> RowOrder:
    made = [SortKey(column, is_ascending=way[0] == "+", are_nulls_first=way[1] == "<") for column, way in keys]
    return RowOrder(tuple(made), most_rows)


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        (by((0, "+<")), [(None, 2), ("a", None), ("b", 1), ("b", 3)]),
        (by((0, "+>"), (1, "->")), [("a", None), ("b", 3), ("b", 1), (None, 2)]),
        (by((0, "-<"), (1, "+<")), [(None, 2), ("b", 1), ("b", 3), ("a", None)]),
        (by((1, "->"), most_rows=2), [("b", 3), (None, 2)]),
    ],
)
def test_rows_stand_in_the_order_of_their_keys(order: RowOrder, shown: list[tuple[str, int]]) -> None:
    assert _tuples(ordered(ROWS, order)) == shown


def test_structs_are_ordered_by_their_fields() -> None:
    kind = pa.struct([("start", pa.int64()), ("end", pa.int64())])
    rows = pa.table({"w": pa.array([{"start": 2, "end": 3}, {"start": 1, "end": 9}, {"start": 2, "end": 1}], kind)})
    assert ordered(rows, by((0, "+<"))).column("w").to_pylist()[0] == {"start": 1, "end": 9}
    assert ordered(rows, by((0, "-<"))).column("w").to_pylist()[0] == {"start": 2, "end": 3}


def test_a_memory_table_is_in_order_across_its_writers() -> None:
    sink = MemorySink(f"row_order_{next(_names)}", SCHEMA, OutputMode.COMPLETE, by((1, "+<"), most_rows=3))
    committed = [_written(sink, at, part) for at, part in enumerate((ROWS.slice(0, 2), ROWS.slice(2)))]
    sink.committer().commit(committed, permit_logged(CheckpointId(1)))
    assert _tuples(read_memory_table(sink.name)) == [("a", None), ("b", 1), (None, 2)]


def test_the_console_shows_the_first_rows_of_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink(SCHEMA, shown_rows=1, truncate=None, order=by((1, "->")))
    committed = [_written(sink, at, part) for at, part in enumerate((ROWS.slice(0, 2), ROWS.slice(2)))]
    sink.committer().commit(committed, permit_logged(CheckpointId(1)))
    printed = capsys.readouterr().out
    assert "|b  |3  |" in printed and "|1  |" not in printed and "only showing top 1 row" in printed


def _written(sink: MemorySink | ConsoleSink, subtask: int, rows: pa.Table) -> bytes:
    writer = sink.writer(task=TaskId(VertexId(0), subtask), generation=Generation(1))
    for batch in rows.to_batches():
        writer.write(batch)
    (committable,) = writer.prepare(CheckpointId(1)).committables
    return committable


def _tuples(rows: pa.Table) -> list[tuple[str, int]]:
    return [tuple(row.values()) for row in rows.to_pylist()]
