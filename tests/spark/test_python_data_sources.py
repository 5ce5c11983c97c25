"""Python data sources at both ends of a query, as PySpark's documentation writes them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import tidegate as tg
from tidegate.model.errors import OptionError, UserCodeFailure

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_query_survives_its_test() -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()


def writer(df: DataFrame, folder: Path) -> tg.DataStreamWriter:
    options = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms"}
    return tg.writeStream(df).option("checkpointLocation", folder / "chk").options(**options)


def numbers(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    rows_and_times = spark.range(rows).selectExpr("id", "timestamp_seconds(id) as t")
    rows_and_times.repartition(4).write.parquet(str(folder / "in"))
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
