"""Every sink keeps the promises of the contract; then what each does in its own way."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import beside_loop, file_sink, staged_sink
from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.console import render_table
from tidegate.connectors.contract import Sink, SinkWriter
from tidegate.connectors.memory import read_memory_table
from tidegate.connectors.noop import NoopCommitter
from tidegate.connectors.registry import open_sink
from tidegate.model.errors import Damaged, OptionError, ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation
from tidegate.plan import nodes
from tidegate.testing.sink_suite import FIRST, SCHEMA, SECOND, SinkSuite, expected, make_rows, permit, prepare
from tidegate.testing.source_suite import row_tuples


def sink_of(format_: str, schema: pa.Schema = SCHEMA, **options: str) -> Sink:
    return open_sink(nodes.Sink(format_, options, schema))


def visible_files(folder: Path) -> list[str]:
    """What Spark reads: it skips hidden files and hidden folders."""
    return sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(("_", ".")))


def read_rows(folder: Path) -> list[tuple[Any, ...]]:
    return [row for name in visible_files(folder) for row in row_tuples(pq.read_table(folder / name))]


class TestParquetSink(SinkSuite):
    def make_sink(self, folder: Path) -> Sink:
        return sink_of("parquet", path=str(folder / "out"))

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return read_rows(folder / "out")


class TestMemorySink(SinkSuite):
    def make_sink(self, folder: Path) -> Sink:
        return sink_of("memory", queryName=str(folder))

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return row_tuples(read_memory_table(str(folder)))


class TestStagedSink(SinkSuite):
    """With a function that is idempotent by file, as a user's is by epoch."""

    def make_sink(self, folder: Path) -> Sink:
        def take(files: Sequence[Path], epoch: CheckpointId) -> None:
            for file in files:
                shutil.copy(file, folder / "taken" / file.name)

        (folder / "taken").mkdir(exist_ok=True)
        sink = staged_sink.from_node(nodes.Sink("foreachBatch", {"checkpointLocation": str(folder)}, SCHEMA))
        staged_sink.call_for_epochs(sink.folder, take)
        return sink

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return read_rows(folder / "taken")


def test_staged_files_stay_until_the_next_epoch_shows_that_theirs_is_recorded(tmp_path: Path) -> None:
    sink = TestStagedSink().make_sink(tmp_path)
    sink.prepare_location()
    writer, committer = sink.writer(task=FIRST, generation=Generation(1)), sink.committer()
    folder = tmp_path / "staging" / "foreachBatch"
    for checkpoint in (1, 2):
        writer.write(make_rows(checkpoint, 1))
        committer.commit(prepare(writer, checkpoint), permit(checkpoint))
        assert len(list(folder.iterdir())) == 1
    committer.discard_uncommitted([], Generation(2))
    assert list(folder.iterdir()) == []


def test_row_groups_of_staged_rows_are_encoded_beside_the_loop_and_waited_for_behind_the_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_sink, "ROW_GROUP_BYTES", 500)
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 1200)
    may_encode = threading.Event()
    write_table = pq.ParquetWriter.write_table

    def held(*args: Any, **kwargs: Any) -> None:
        assert threading.current_thread() is not threading.main_thread(), "a slice would wait for it"
        assert may_encode.wait(10)
        write_table(*args, **kwargs)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", held)
    sink = staged_sink.from_node(nodes.Sink("foreachBatch", {"checkpointLocation": str(tmp_path)}, SCHEMA))
    sink.prepare_location()
    writer = sink.writer(task=FIRST, generation=Generation(1))
    given = 0
    while writer.has_room():
        writer.write(make_rows(given, 10))
        given += 10
    prepared = writer.prepare(CheckpointId(1))
    durable = threading.Thread(target=prepared.make_durable)
    durable.start()
    durable.join(0.05)
    assert durable.is_alive(), "its rows are not in their file"
    may_encode.set()
    durable.join(10)
    (path,) = sink.folder.iterdir()
    assert pq.ParquetFile(path).read().column("c0").to_pylist() == list(range(given))
    writer.close()


def test_a_writer_whose_row_group_could_not_be_encoded_leaves_no_staged_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is a barrier that hears of the failure first."""
    monkeypatch.setattr(staged_sink, "ROW_GROUP_BYTES", 500)

    def failing(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", failing)
    sink = TestStagedSink().open(tmp_path)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    failed = threading.Event()
    writer.call_when_done(failed.set)
    writer.write(make_rows(0, 100))
    assert failed.wait(10)
    with pytest.raises(OSError, match="no space left"):
        writer.prepare(CheckpointId(1))
    writer.close()
    assert list(sink.folder.iterdir()) == []


def test_a_large_epoch_of_staged_rows_rolls_into_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_sink, "ROW_GROUP_BYTES", 500)
    monkeypatch.setattr(staged_sink, "_ROLL_AT_BYTES", 1500)
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 0)
    sink = TestStagedSink().open(tmp_path)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for first in range(0, 1000, 10):
        writer.write(make_rows(first, 10))
    committables = prepare(writer, 1)
    assert len(committables) > 2
    sink.committer().commit(committables, permit(1))
    assert sorted(TestStagedSink().visible_rows(tmp_path)) == sorted(expected((0, 1000)))


def test_a_staged_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = TestStagedSink().open(tmp_path)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 3))
    committables = prepare(writer, 1)
    next((tmp_path / "staging" / "foreachBatch").iterdir()).unlink()
    with pytest.raises(Damaged, match="3 rows of epoch 1 cannot be given out"):
        sink.committer().commit(committables, permit(1))


def test_staged_epochs_need_a_local_checkpoint_location() -> None:
    with pytest.raises(OptionError, match="choose a local or mounted folder"):
        sink_of("foreachBatch", checkpointLocation="s3://bucket/chk")


def test_final_names_tell_epoch_task_and_generation(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=SECOND, generation=Generation(3))
    writer.write(make_rows(0, 1))
    sink.committer().commit(prepare(writer, 7), permit(7))
    (name,) = visible_files(tmp_path)
    assert name.startswith("part-00000007-v1.1-g3-0-")
    assert name.endswith(".parquet")


def test_the_hidden_folder_is_gone_after_the_last_commit(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 1))
    committables = prepare(writer, 1)
    assert visible_files(tmp_path / "_tidegate") != []
    sink.committer().commit(committables, permit(1))
    assert not (tmp_path / "_tidegate").exists()


def test_an_empty_epoch_makes_no_file_at_all(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 0))
    assert prepare(writer, 1) == []
    assert list(tmp_path.iterdir()) == []


def test_small_writes_of_an_epoch_become_one_row_group(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for i in range(50):
        writer.write(make_rows(i, 1))
    sink.committer().commit(prepare(writer, 1), permit(1))
    (name,) = visible_files(tmp_path)
    assert pq.read_metadata(tmp_path / name).num_row_groups == 1


def test_a_large_epoch_rolls_into_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sink, "_MOST_OF_ONE_FOLDER_BYTES", 1000)
    monkeypatch.setattr(file_sink, "_ROLL_AT_BYTES", 3000)
    # How far the thread has come decides when a file is full: here it is waited for each time.
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 0)
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for i in range(100):
        writer.write(make_rows(i * 10, 10))
    committables = prepare(writer, 1)
    assert len(committables) > 2
    sink.committer().commit(committables, permit(1))
    assert sorted(read_rows(tmp_path)) == sorted(expected((0, 1000)))


def test_a_prepared_file_that_vanished_is_named_and_nothing_is_pretended(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    committables = prepare(writer, 1)
    (hidden,) = (tmp_path / "_tidegate").iterdir()
    hidden.unlink()
    with pytest.raises(Damaged, match=hidden.name):
        sink.committer().commit(committables, permit(1))


def test_an_epoch_is_never_committed_with_an_earlier_checkpoint(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    with pytest.raises(ProtocolViolation):
        sink.committer().commit(prepare(writer, 2), permit(1))
    assert visible_files(tmp_path) == []


def test_discarding_removes_old_leftovers_from_the_disk(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    prepare(writer, 1)
    sink.committer().discard_uncommitted([], Generation(2))
    assert list(tmp_path.iterdir()) == []


def test_discarding_spares_another_query_that_writes_into_the_same_folder(tmp_path: Path) -> None:
    mine = sink_of("parquet", path=str(tmp_path), checkpointLocation="/chk/mine")
    other = sink_of("parquet", path=str(tmp_path), checkpointLocation="/chk/other")
    writer = other.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    committables = prepare(writer, 1)
    mine.committer().discard_uncommitted([], Generation(9))
    other.committer().commit(committables, permit(1))
    assert sorted(read_rows(tmp_path)) == sorted(expected((0, 5)))


def test_foreign_files_stay_beside_the_new_ones(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_batches([make_rows(100, 5)]), tmp_path / "part-00000001.parquet")
    sink = sink_of("parquet", path=str(tmp_path))
    sink.prepare_location()
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    sink.committer().discard_uncommitted([], Generation(2))
    writer = sink.writer(task=FIRST, generation=Generation(2))
    writer.write(make_rows(0, 5))
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert sorted(read_rows(tmp_path)) == sorted(expected((0, 5), (100, 5)))


def test_files_are_synced_before_they_count_as_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    committables = prepare(writer, 1)
    (hidden,) = (tmp_path / "_tidegate").iterdir()
    assert synced == [str(hidden), str(tmp_path / "_tidegate")]
    sink.committer().commit(committables, permit(1))
    assert synced[2:] == [str(tmp_path)]


def test_timestamps_are_written_in_microseconds_of_utc(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    sink = sink_of("parquet", schema, path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(pa.record_batch([pa.array([1_700_000_000_123_456], schema.field(0).type)], schema=schema))
    sink.committer().commit(prepare(writer, 1), permit(1))
    (name,) = visible_files(tmp_path)
    column = pq.ParquetFile(tmp_path / name).schema.column(0)
    assert column.physical_type == "INT64"
    assert "timeUnit=microseconds" in str(column.logical_type)
    assert "isAdjustedToUTC=true" in str(column.logical_type)


@pytest.mark.parametrize(
    ("option", "codec"),
    [("snappy", "SNAPPY"), ("gzip", "GZIP"), ("ZSTD", "ZSTD"), ("lz4", "LZ4"), ("none", "UNCOMPRESSED")],
)
def test_the_compression_is_the_one_asked_for(tmp_path: Path, option: str, codec: str) -> None:
    sink = sink_of("parquet", path=str(tmp_path), compression=option)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    sink.committer().commit(prepare(writer, 1), permit(1))
    (name,) = visible_files(tmp_path)
    assert pq.read_metadata(tmp_path / name).row_group(0).column(0).compression == codec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'path'"),
        ({"path": "/x", "compresion": "gzip"}, r"no option 'compresion' \(did you mean 'compression'\?\)"),
        ({"path": "/x", "compression": "zst"}, r"did you mean 'zstd'\?"),
        ({"path": "/x", "partitionBy": "day"}, "partitionBy names 'day', which is no column"),
        ({"path": "/x", "partitionBy": "id\0text"}, "every column"),
        ({"path": "/x", "sink.compact": "much"}, "sink.compact"),
        ({"path": "/x", "sink.compact.epochs": "0"}, "sink.compact.epochs"),
        ({"path": "s3://bucket/x"}, "remote"),
    ],
)
def test_wrong_options_of_the_parquet_sink_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sink_of("parquet", **options)


def test_an_output_path_that_is_a_file_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OptionError, match="is a file"):
        sink_of("parquet", path=str(tmp_path / "out")).prepare_location()
    assert (tmp_path / "out").read_text() == "precious"


def test_an_output_of_structured_streaming_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(OptionError, match="_spark_metadata"):
        sink_of("parquet", path=str(tmp_path)).prepare_location()


def test_a_committable_says_how_many_rows_it_holds(tmp_path: Path) -> None:
    sink = sink_of("parquet", path=str(tmp_path))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    (data,) = prepare(writer, 4)
    committable = msgspec.msgpack.decode(data, type=FileCommittable)
    assert (committable.rows, committable.checkpoint) == (5, 4)


def test_a_new_query_of_the_same_name_starts_with_an_empty_memory_table() -> None:
    sink = sink_of("memory", queryName="again")
    sink.prepare_location()
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    sink.committer().commit(prepare(writer, 1), permit(1))
    sink.committer().discard_uncommitted([], Generation(2))
    assert read_memory_table("again").num_rows == 5
    sink.committer().discard_uncommitted([], Generation(1))
    assert read_memory_table("again").num_rows == 0


def test_an_unknown_memory_table_is_named_with_the_nearest() -> None:
    sink_of("memory", queryName="totals").prepare_location()
    with pytest.raises(OptionError, match=r"'total' \(did you mean 'totals'\?\)"):
        read_memory_table("total")


def test_the_memory_sink_needs_a_query_name() -> None:
    with pytest.raises(OptionError, match="queryName"):
        sink_of("memory")


def test_the_console_prints_each_epoch_once_as_spark_does(capsys: pytest.CaptureFixture[str]) -> None:
    sink = sink_of("console", numRows="2")
    writers = [sink.writer(task=task, generation=Generation(1)) for task in (FIRST, SECOND)]
    committer = sink.committer()
    writers[0].write(make_rows(8, 5))
    writers[0].write(make_rows(20, 5))
    writers[1].write(make_rows(30, 1))
    committables = [committable for writer in writers for committable in prepare(writer, 3)]
    assert capsys.readouterr().out == ""
    committer.commit(committables, permit(3))
    committer.commit(committables, permit(3))
    assert capsys.readouterr().out == (
        "-------------------------------------------\n"
        "Batch: 3\n"
        "-------------------------------------------\n"
        "+---+-----+\n"
        "| id| text|\n"
        "+---+-----+\n"
        "|  8|row 8|\n"
        "|  9|row 9|\n"
        "+---+-----+\n"
        "only showing top 2 rows\n\n"
    )


def test_cells_are_drawn_and_shortened_as_spark_does() -> None:
    table = pa.table(
        {
            "t": pa.array(["x" * 30, None]),
            "b": pa.array([True, False]),
            "ts": pa.array([1_700_000_000_120_000, 1_700_000_000_000_000], pa.timestamp("us", "UTC")),
            "l": pa.array([[1, None], []], pa.list_(pa.int64())),
            "s": pa.array([{"a": 1, "b": "z"}, None]),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "bin": pa.array([b"\x01\xff", b""]),
        }
    )
    assert render_table(table, truncate=20).splitlines()[3] == (
        "|" + "x" * 17 + "...| true|2023-11-14 22:13:...|[1, NULL]|{1, z}|{k -> 1}|[01 FF]|"
    )
    assert "|2023-11-14 22:13:20.12|" in render_table(table, truncate=None).splitlines()[3]
    assert render_table(table, truncate=None).splitlines()[4].startswith("|NULL   ")


def test_wrong_options_of_the_console_are_named() -> None:
    with pytest.raises(OptionError, match="numRows"):
        sink_of("console", numRows="many")
    with pytest.raises(OptionError, match="truncate"):
        sink_of("console", truncate="maybe")


def test_noop_counts_committed_rows_once() -> None:
    sink = sink_of("noop")
    committer = sink.committer()
    assert isinstance(committer, NoopCommitter)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 5))
    first = prepare(writer, 1)
    writer.write(make_rows(0, 3))
    second = prepare(writer, 2)
    assert committer.rows == 0
    committer.commit(first, permit(1))
    committer.commit(first, permit(1))
    committer.commit(second, permit(2))
    committer.commit(first, permit(1))
    assert committer.rows == 8


def test_an_unknown_sink_format_is_named_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'parqet' \(did you mean 'parquet'\?\).*console, .*memory, noop, parquet"):
        sink_of("parqet")


def test_writing_and_committing_parquet_does_not_import_pandas(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "import pyarrow as pa\n"
        "from tidegate.connectors.registry import open_sink\n"
        "from tidegate.model.ids import *\n"
        "from tidegate.plan.nodes import Sink\n"
        "from tidegate.protocol.commit import permit_logged\n"
        "schema = pa.schema([('id', pa.int64())])\n"
        "sink = open_sink(Sink('parquet', {'path': sys.argv[1]}, schema))\n"
        "sink.prepare_location()\n"
        "writer = sink.writer(task=TaskId(VertexId(0), 0), generation=Generation(1))\n"
        "ids = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])\n"
        "writer.write(pa.RecordBatch.from_arrays([ids], schema=schema))\n"
        "prepared = writer.prepare(CheckpointId(1))\n"
        "prepared.make_durable()\n"
        "sink.committer().commit(prepared.committables, permit_logged(CheckpointId(1)))\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=True)
    assert pq.read_table(tmp_path / "out").num_rows == 2


class EpochCalls:
    """The rows that a foreachBatch function gets, by epoch."""

    def __init__(self, folder: Path, mode: nodes.OutputMode) -> None:
        options = {"checkpointLocation": str(folder)}
        self.sink = staged_sink.from_node(nodes.Sink("foreachBatch", options, SCHEMA, mode))
        self.sink.prepare_location()
        staged_sink.call_for_epochs(self.sink.folder, self._take)
        self.calls: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.committer = self.sink.committer()

    def _take(self, files: Sequence[Path], epoch: CheckpointId) -> None:
        rows = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
        self.calls.append((int(epoch), sorted(rows)))

    def files(self) -> int:
        return len(list(self.sink.folder.glob("*.parquet")))


def table_rows(*starts: int) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for start in starts for row in make_rows(start, 2).to_pylist())


def two_complete_results(folder: Path) -> tuple[EpochCalls, SinkWriter, SinkWriter]:
    """Of two tasks, which both have shown their groups in the first epoch."""
    calls = EpochCalls(folder, nodes.OutputMode.COMPLETE)
    first = calls.sink.writer(task=FIRST, generation=Generation(1))
    second = calls.sink.writer(task=SECOND, generation=Generation(1))
    first.write(make_rows(10, 2))
    second.write(make_rows(20, 2))
    calls.committer.commit([*prepare(first, 1), *prepare(second, 1)], permit(1))
    return calls, first, second


def test_in_complete_mode_an_epoch_is_the_newest_rows_of_every_task(tmp_path: Path) -> None:
    calls, _, second = two_complete_results(tmp_path)
    # The first one's input has ended: it has shown its groups for the last time.
    for checkpoint, start in ((2, 30), (3, 40)):
        second.write(make_rows(start, 2))
        calls.committer.commit(prepare(second, checkpoint), permit(checkpoint))
    calls.committer.commit([], permit(4))
    assert calls.calls == [(1, table_rows(10, 20)), (2, table_rows(10, 30)), (3, table_rows(10, 40))]
    assert calls.files() == 2, "what was replaced is gone"


def test_in_complete_mode_a_task_whose_result_has_become_empty_keeps_no_rows_in_the_table(tmp_path: Path) -> None:
    calls, first, second = two_complete_results(tmp_path)
    first.write(make_rows(0, 0))
    calls.committer.commit(prepare(first, 2), permit(2))
    second.write(make_rows(0, 0))
    calls.committer.commit(prepare(second, 3), permit(3))
    calls.committer.commit([*prepare(first, 4), *prepare(second, 4)], permit(4))
    assert calls.calls == [(1, table_rows(10, 20)), (2, table_rows(20)), (3, [])]


@pytest.mark.parametrize("mode", [nodes.OutputMode.APPEND, nodes.OutputMode.UPDATE])
def test_an_empty_batch_makes_no_staged_file_unless_it_is_a_whole_result(
    tmp_path: Path, mode: nodes.OutputMode
) -> None:
    calls = EpochCalls(tmp_path, mode)
    writer = calls.sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(0, 0))
    calls.committer.commit(prepare(writer, 1), permit(1))
    assert (calls.calls, calls.files()) == ([], 0)


def test_in_complete_mode_rows_of_a_failed_checkpoint_are_replaced_by_those_of_the_next(tmp_path: Path) -> None:
    calls = EpochCalls(tmp_path, nodes.OutputMode.COMPLETE)
    writer = calls.sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(10, 2))
    failed = prepare(writer, 1)
    writer.write(make_rows(20, 2))
    calls.committer.commit([*failed, *prepare(writer, 2)], permit(2))
    assert calls.calls == [(2, table_rows(20))]


def test_in_complete_mode_an_epoch_comes_again_as_it_was_and_goes_when_the_next_generation_shows_all(
    tmp_path: Path,
) -> None:
    calls, _, second = two_complete_results(tmp_path)
    second.write(make_rows(30, 2))
    unrecorded = prepare(second, 2)
    calls.committer.commit(unrecorded, permit(2))
    after_a_crash = EpochCalls(tmp_path, nodes.OutputMode.COMPLETE)
    after_a_crash.committer.discard_uncommitted(unrecorded, Generation(2))
    after_a_crash.committer.commit(unrecorded, permit(2))
    assert after_a_crash.calls == calls.calls[1:] == [(2, table_rows(10, 30))]
    only = after_a_crash.sink.writer(task=FIRST, generation=Generation(2))
    only.write(make_rows(50, 2))
    after_a_crash.committer.commit(prepare(only, 3), permit(3))
    assert after_a_crash.calls[-1] == (3, table_rows(50))
    assert after_a_crash.files() == 1


@pytest.mark.parametrize(
    ("mode", "expected_calls"),
    [
        (nodes.OutputMode.APPEND, [(2, table_rows(10, 20))]),
        (nodes.OutputMode.UPDATE, [(1, table_rows(10)), (2, table_rows(20))]),
    ],
)
def test_rows_of_a_failed_checkpoint_come_before_newer_ones_of_the_same_groups(
    tmp_path: Path, mode: nodes.OutputMode, expected_calls: list[tuple[int, list[tuple[Any, ...]]]]
) -> None:
    calls = EpochCalls(tmp_path, mode)
    writer = calls.sink.writer(task=FIRST, generation=Generation(1))
    writer.write(make_rows(10, 2))
    failed = prepare(writer, 1)
    writer.write(make_rows(20, 2))
    calls.committer.commit([*failed, *prepare(writer, 2)], permit(2))
    assert calls.calls == expected_calls
