"""Python data sources at both ends of a query, as PySpark's documentation writes them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import tidegate as tg
from tidegate.model.errors import OptionError, UserCodeFailure

pytestmark = pytest.mark.spark


def writer(df: DataFrame, folder: Path) -> tg.DataStreamWriter:
    options = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms"}
    return tg.writeStream(df).option("checkpointLocation", folder / "chk").options(**options)


def numbers(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """In four files, so that both slots have some."""
    (folder / "in").mkdir()
    for part in range(4):
        ids = pa.array(range(part, rows, 4), pa.int64())
        times = pa.array([i * 1_000_000 for i in ids.to_pylist()], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"id": ids, "t": times}), folder / "in" / f"{part}.parquet")
    return spark.readStream.schema("id long, t timestamp").parquet(str(folder / "in"))


# -- sinks


def register_sink(spark: SparkSession, kind: str) -> None:
    """Classes made in a function are pickled whole: the workers cannot import this module."""

    class Message(WriterCommitMessage):
        def __init__(self, name: str, rows: int) -> None:
            self.name = name
            self.rows = rows

    class Files:
        """Rows in a hidden file; the commit publishes it, and does so again without harm."""

        def __init__(self, folder: str, fails: str) -> None:
            self.folder = Path(folder)
            self.fails = fails

        def store(self, values: list[Any]) -> Message:
            import uuid

            if self.fails == "write":
                raise ValueError("cannot write")
            name = uuid.uuid4().hex
            (self.folder / f".{name}").write_text(json.dumps(values))
            return Message(name, len(values))

        def commit(self, messages: list[Any], batchId: int) -> None:
            for message in messages:
                if (self.folder / f".{message.name}").exists():
                    (self.folder / f".{message.name}").rename(self.folder / message.name)
            with open(self.folder / "commits", "a") as log:
                log.write(f"{batchId} {sum(message.rows for message in messages)}\n")
            if self.fails == "commit" and not (self.folder / "failed").exists():
                (self.folder / "failed").touch()
                raise ValueError("the commit's answer is lost")

        def abort(self, messages: list[Any], batchId: int) -> None:
            (self.folder / f"aborted-{batchId}").touch()

    class RowWriter(Files, DataSourceStreamWriter):
        def write(self, iterator: Iterator[Row]) -> Message:
            return self.store([[row.id, str(row.t)] for row in iterator])

    class ArrowWriter(Files, DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
            return self.store([[row["id"], str(row["t"])] for batch in iterator for row in batch.to_pylist()])

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"files_{kind}"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            chosen = {"rows": RowWriter, "arrow": ArrowWriter}[kind]
            return chosen(self.options["Path"], self.options.get("fails", ""))

    spark.dataSource.register(Sink)


def published(folder: Path) -> list[list[Any]]:
    return sorted(row for path in folder.glob("?" * 32) for row in json.loads(path.read_text()))


@pytest.mark.parametrize("kind", ["rows", "arrow"])
def test_a_data_source_commits_each_epoch_by_its_messages(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    register_sink(spark, kind)
    (tmp_path / "out").mkdir()
    df = numbers(spark, tmp_path, 500)
    query = writer(df, tmp_path).format(f"files_{kind}").option("path", tmp_path / "out").trigger(availableNow=True)
    query.start().awaitTermination()
    suffix = "" if kind == "rows" else "+00:00"
    expected = [[i, f"1970-01-01 00:{i // 60:02d}:{i % 60:02d}{suffix}"] for i in range(500)]
    assert published(tmp_path / "out") == expected
    commits = [line.split() for line in (tmp_path / "out" / "commits").read_text().splitlines()]
    assert sum(int(rows) for _, rows in commits) == 500


def test_a_commit_that_raised_comes_again_with_the_same_id_and_messages(spark: SparkSession, tmp_path: Path) -> None:
    register_sink(spark, "rows")
    (tmp_path / "out").mkdir()
    df = numbers(spark, tmp_path, 300)
    query = writer(df, tmp_path).format("files_rows").option("path", tmp_path / "out").option("fails", "commit")
    query.trigger(availableNow=True).start().awaitTermination()
    assert [id for id, _ in published(tmp_path / "out")] == list(range(300))
    commits = (tmp_path / "out" / "commits").read_text().splitlines()
    assert commits[0] == commits[1], "again with the same id and the same rows"


def test_an_error_in_write_names_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    register_sink(spark, "rows")
    df = numbers(spark, tmp_path, 3)
    query = writer(df, tmp_path).format("files_rows").option("path", tmp_path).option("fails", "write")
    with pytest.raises(UserCodeFailure, match="write of the data source 'files_rows' raised ValueError: cannot write"):
        query.option("restart.strategy", "none").start().awaitTermination()


def test_a_data_source_without_a_stream_writer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "no_writer"

    spark.dataSource.register(Sink)
    df = numbers(spark, tmp_path, 3)
    with pytest.raises(OptionError, match="The data source 'no_writer' gave no stream writer"):
        writer(df, tmp_path).format("no_writer").start()
    with pytest.raises(OptionError, match="There is no sink for the format 'nobody'"):
        writer(df, tmp_path).format("nobody").start()


# -- sources


def register_source(spark: SparkSession) -> None:
    """Reads numbers up to what the file `until` says, in partitions of 10; notes its commits in `committed`.

    While there is a file `hang`, it does not say how far there is something to read.
    """

    class Numbers(DataSourceStreamReader):
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def initialOffset(self) -> dict[str, int]:
            return {"next": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            import time

            while (self.folder / "hang").exists():
                (self.folder / "hanging").touch()
                time.sleep(0.05)
            return {"next": int((self.folder / "until").read_text())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            firsts = range(start["next"], end["next"], 10)
            return [InputPartition((first, min(first + 10, end["next"]))) for first in firsts]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            from datetime import datetime, timedelta

            first, last = partition.value
            for i in range(first, last):
                yield (i, None if i % 3 == 0 else f"row {i}", datetime(2024, 1, 1) + timedelta(seconds=i))

        def commit(self, end: dict[str, int]) -> None:
            (self.folder / "committed").write_text(str(end["next"]))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "id int, text string, t timestamp"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Numbers(Path(self.options["folder"]))

    spark.dataSource.register(Source)


def expected_numbers(spark: SparkSession, rows: int) -> list[Row]:
    frame = spark.range(rows).selectExpr(
        "cast(id as int) id", "if(id % 3 = 0, null, 'row ' || id) text", "timestamp_seconds(1704067200 + id) t"
    )
    return sorted(frame.collect(), key=lambda row: row.id)


def collected(spark: SparkSession, folder: Path) -> list[Row]:
    return sorted(spark.read.parquet(str(folder / "out")).collect(), key=lambda row: row.id)


def test_a_data_source_is_read_on_from_where_the_last_run_was_and_hears_of_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    register_source(spark)
    df = spark.readStream.format("numbers").option("folder", str(tmp_path)).load()
    for until in (95, 210):
        (tmp_path / "until").write_text(str(until))
        query = writer(df, tmp_path).format("parquet").option("path", tmp_path / "out").start()
        query.processAllAvailable()
        # Told behind the commit, beside the loop.
        for _ in range(3000):
            if (tmp_path / "committed").exists() and (tmp_path / "committed").read_text() == str(until):
                break
            time.sleep(0.01)
        query.stop()
        assert collected(spark, tmp_path) == expected_numbers(spark, until)
        assert (tmp_path / "committed").read_text() == str(until)


def test_available_now_reads_up_to_the_latest_offset_of_the_start(spark: SparkSession, tmp_path: Path) -> None:
    register_source(spark)
    (tmp_path / "until").write_text("57")
    df = spark.readStream.format("numbers").option("folder", str(tmp_path)).load().where("id >= 0")
    writer(df, tmp_path).format("parquet").option("path", tmp_path / "out").trigger(
        availableNow=True
    ).start().awaitTermination()
    assert collected(spark, tmp_path) == expected_numbers(spark, 57)


def test_a_query_can_be_stopped_while_a_source_does_not_answer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidegate.coordinator.coordinator._PATIENCE_WITH_SOURCES_S", 0.5)
    register_source(spark)
    (tmp_path / "until").write_text("57")
    df = spark.readStream.format("numbers").option("folder", str(tmp_path)).load()
    query = writer(df, tmp_path).format("parquet").option("path", tmp_path / "out").start()
    query.processAllAvailable()
    (tmp_path / "hang").touch()
    try:
        while not (tmp_path / "hanging").exists():
            time.sleep(0.01)
        query.stop()
    finally:
        (tmp_path / "hang").unlink()
    assert not query.isActive and query.exception() is None
    assert "ends without a source that has not answered" in caplog.text
    assert collected(spark, tmp_path) == expected_numbers(spark, 57)


def test_a_simple_reader_is_read_between_its_offsets(spark: SparkSession, tmp_path: Path) -> None:
    class Simple(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"next": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
            end = {"next": min(start["next"] + 20, 100)}
            return self.readBetweenOffsets(start, end), end

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:
            return ((i,) for i in range(start["next"], end["next"]))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "simple_numbers"

        def schema(self) -> str:
            return "id int"

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Simple()

    spark.dataSource.register(Source)
    df = spark.readStream.format("simple_numbers").load()
    query = writer(df, tmp_path).format("parquet").option("path", tmp_path / "out").start()
    query.processAllAvailable()
    query.stop()
    assert [row.id for row in collected(spark, tmp_path)] == list(range(100))


def test_a_data_source_that_cannot_stream_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "no_reader"

        def schema(self) -> str:
            return "id int"

    spark.dataSource.register(Source)
    with pytest.raises(OptionError, match="The data source 'no_reader' gave no stream reader"):
        writer(spark.readStream.format("no_reader").load(), tmp_path).format("noop").start()
