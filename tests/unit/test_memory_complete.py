"""Complete mode in the memory sink: the table is the newest rows of every writer of the newest generation."""

import itertools

import pyarrow as pa

from tidegate.connectors.memory import MemorySink, read_memory_table
from tidegate.model.ids import CheckpointId, Generation, TaskId, VertexId
from tidegate.plan.nodes import OutputMode
from tidegate.protocol.commit import permit_logged

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
_names = itertools.count()


def sink_of(mode: OutputMode) -> MemorySink:
    return MemorySink(f"memory_complete_{next(_names)}", SCHEMA, mode)


def committed(sink: MemorySink, epoch: int, generation: int, *parts: tuple[int, dict[str, int]]) -> dict[str, int]:
    """Each part: a subtask and the groups it shows. Gives what the table shows then."""
    committables: list[bytes] = []
    for subtask, groups in parts:
        writer = sink.writer(task=TaskId(VertexId(1), subtask), generation=Generation(generation))
        writer.write(pa.RecordBatch.from_pydict({"k": list(groups), "n": list(groups.values())}, schema=SCHEMA))
        committables += writer.prepare(CheckpointId(epoch)).committables
    sink.committer().commit(committables, permit_logged(CheckpointId(epoch)))
    sink.committer().commit(committables, permit_logged(CheckpointId(epoch)))
    rows = read_memory_table(sink.name).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows), "no group twice"
    return {row["k"]: row["n"] for row in rows}


def test_a_table_without_rows_has_columns_that_pyspark_can_take() -> None:
    sink = sink_of(OutputMode.APPEND)
    sink.prepare_location()
    table = read_memory_table(sink.name)
    assert table.schema == SCHEMA
    assert [(column.num_chunks, len(column)) for column in table.columns] == [(1, 0), (1, 0)]


def test_a_later_epoch_replaces_what_each_writer_showed() -> None:
    sink = sink_of(OutputMode.COMPLETE)
    assert committed(sink, 1, 1, (0, {"a": 1}), (1, {"b": 1})) == {"a": 1, "b": 1}
    assert committed(sink, 2, 1, (0, {"a": 2, "c": 1}), (1, {"b": 1})) == {"a": 2, "b": 1, "c": 1}


def test_a_writer_that_has_shown_its_groups_for_the_last_time_stays_while_others_go_on() -> None:
    sink = sink_of(OutputMode.COMPLETE)
    committed(sink, 1, 1, (0, {"a": 1}), (1, {"b": 1}))
    assert committed(sink, 2, 1, (1, {"b": 5})) == {"a": 1, "b": 5}


def test_a_later_generation_shows_all_groups_by_writers_of_its_own() -> None:
    sink = sink_of(OutputMode.COMPLETE)
    committed(sink, 1, 1, (0, {"a": 1}), (1, {"b": 1}), (2, {"c": 1}))
    assert committed(sink, 2, 2, (0, {"a": 1, "c": 2}), (1, {"b": 1})) == {"a": 1, "b": 1, "c": 2}


def test_a_writer_whose_result_has_become_empty_shows_nothing() -> None:
    sink = sink_of(OutputMode.COMPLETE)
    committed(sink, 1, 1, (0, {"a": 1}), (1, {"b": 1}))
    assert committed(sink, 2, 1, (0, {}), (1, {"b": 1})) == {"b": 1}
    assert committed(sink, 3, 1, (1, {})) == {}


def test_an_empty_batch_is_nothing_to_commit_unless_it_is_a_whole_result() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    counts = {}
    for mode in OutputMode:
        writer = sink_of(mode).writer(task=TaskId(VertexId(1), 0), generation=Generation(1))
        writer.write(empty)
        counts[mode] = [len(writer.prepare(CheckpointId(epoch)).committables) for epoch in (1, 2)]
    assert counts == {OutputMode.APPEND: [0, 0], OutputMode.UPDATE: [0, 0], OutputMode.COMPLETE: [1, 0]}
