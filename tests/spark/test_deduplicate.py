"""dropDuplicates and dropDuplicatesWithinWatermark: the same rows as Spark's own."""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.connectors.memory import read_memory_table

pytestmark = pytest.mark.spark

SCHEMA = "k long, ts timestamp, x double, s string"
TIME = pa.timestamp("us", "UTC")
ARROW_SCHEMA = pa.schema([("k", pa.int64()), ("ts", TIME), ("x", pa.float64()), ("s", pa.string())])
START_S = 1_700_000_000
FILES, ROWS = 4, 400
PATIENCE_S = 90.0
_names = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each row three times, a few seconds apart; event time goes up from file to file; some values are null."""
    folder = tmp_path_factory.mktemp("duplicates") / "in"
    for number in range(FILES):
        ids = [id // 3 for id in range(number * ROWS // FILES, (number + 1) * ROWS // FILES)]
        columns = [
            [None if id % 19 == 0 else id for id in ids],
            [(START_S + id * FILES * 60 * 3 // ROWS) * 1_000_000 for id in ids],
            [[0.0, -0.0, float("nan"), None, 1.5][at % 5] for at in range(len(ids))],
            [None if id % 7 == 0 else f"s{id % 11}" for id in ids],
        ]
        add_file(folder, number, columns)
    return folder


def add_file(folder: Path, number: int, columns: list[list[Any]]) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.parquet"
    pq.write_table(pa.table(columns, names=ARROW_SCHEMA.names).cast(ARROW_SCHEMA), file)
    # Files are read by age, which is then the order of event time.
    os.utime(file, (START_S + number, START_S + number))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(folder))


def ran(df: DataFrame, parallelism: int) -> Counter[tuple[Any, ...]]:
    name = f"deduplicated_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).trigger(availableNow=True)
    query = writer.option("parallelism", parallelism).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    return rows_of(zip(*(column.to_pylist() for column in read_memory_table(name).columns), strict=True))


def ran_by_spark(df: DataFrame) -> Counter[tuple[Any, ...]]:
    name = f"by_spark_{next(_names)}"
    df.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    return rows_of(df.sparkSession.table(name).collect())


def rows_of(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(plain(value) for value in row) for row in rows)


def plain(value: Any) -> Any:
    # By text, -0.0 is not 0.0 and NaN is NaN.
    return int(value.timestamp()) if hasattr(value, "timestamp") else repr(value)


# Which of several rows is the first depends on who reads which file, so that each selects what its keys decide.
PIPELINES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all columns": lambda df: df.withWatermark("ts", "20 seconds").select("k", "ts", "s").dropDuplicates(),
    "without a watermark": lambda df: df.select("s", "k").dropDuplicates(["k", "s"]),
    "distinct": lambda df: df.select("s").distinct(),
    "keys at the end": lambda df: (
        df.withWatermark("ts", "20 seconds").select("s", "k", "ts").dropDuplicates(["ts", "k"]).select("k", "ts")
    ),
    "floating point": lambda df: df.select("x").dropDuplicates(["x"]),
    # Without null keys, which come again after the delay: whether Spark knows them still depends on its batches.
    "within the watermark": lambda df: (
        df.where("k is not null")
        .withWatermark("ts", "20 seconds")
        .dropDuplicatesWithinWatermark(["k", "s"])
        .select("k", "s")
    ),
    "windows after it": lambda df: (
        df.withWatermark("ts", "20 seconds")
        .select("k", "ts")
        .dropDuplicates(["k", "ts"])
        .groupBy(F.window("ts", "30 seconds"))
        .count()
        .select("window.start", "count")
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_duplicates_are_dropped_as_by_spark(spark: SparkSession, folder: Path, name: str) -> None:
    expected = ran_by_spark(PIPELINES[name](stream(spark, folder)))
    assert len(expected) > 2
    assert ran(PIPELINES[name](stream(spark, folder)), 3) == expected
    if name == "all columns":
        assert ran(PIPELINES[name](stream(spark, folder)), 1) == expected


def rows(*pairs: tuple[int, int]) -> list[list[Any]]:
    """Keys with their times in seconds."""
    keys, times = zip(*pairs, strict=True)
    return [list(keys), [(START_S + at) * 1_000_000 for at in times], [None] * len(keys), [None] * len(keys)]


def test_a_resumed_query_knows_what_passed_and_drops_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    df = stream(spark, tmp_path / "in").withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"]).select("k", "ts")
    dropped = []
    first, second = rows((1, 0), (1, 0), (2, 100), (3, 95)), rows((2, 100), (3, 95), (4, 90), (5, 91), (1, 0))
    for number, (columns, parallelism) in enumerate([(first, 3), (second, 1)]):
        add_file(tmp_path / "in", number, columns)
        writer = tg.writeStream(df).format("parquet").option("checkpointLocation", tmp_path / "chk")
        writer.option("parallelism", parallelism).option("checkpoint.unaligned", "true")
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(PATIENCE_S), query.status
        progress = query.lastProgress
        assert progress is not None
        dropped.append(sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"]))
    found = [(row.k, int(row.ts.timestamp()) - START_S) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == [(1, 0), (2, 100), (3, 95), (5, 91)]
    assert dropped == [0, 2]


def test_a_key_comes_again_after_the_delay_of_the_watermark_and_not_before_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In runs one after the other, as between them it is certain how far event time is: at 90 seconds."""
    (tmp_path / "in").mkdir()
    df = stream(spark, tmp_path / "in").withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["k"])
    df = df.select("k", "ts")
    first, second = rows((1, 81), (2, 79), (3, 85), (9, 100)), rows((1, 92), (2, 93), (3, 94), (4, 91))
    for number, columns in enumerate([first, second]):
        add_file(tmp_path / "in", number, columns)
        theirs = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "spark_chk"))
        query = theirs.trigger(availableNow=True).start(str(tmp_path / "spark_out"))
        assert query.awaitTermination(int(PATIENCE_S))
        ours = tg.writeStream(df).format("parquet").option("checkpointLocation", tmp_path / "chk")
        started = ours.option("parallelism", number + 1).trigger(availableNow=True).start(str(tmp_path / "out"))
        assert started.awaitTermination(PATIENCE_S), started.status
    expected = rows_of(spark.read.parquet(str(tmp_path / "spark_out")).collect())
    assert rows_of(spark.read.parquet(str(tmp_path / "out")).collect()) == expected
    assert [key for key, _ in expected.elements()].count("2") == 2, "the first one's delay was over"
    assert [key for key, _ in expected.elements()].count("1") == 1, "the first one's delay was not over"
