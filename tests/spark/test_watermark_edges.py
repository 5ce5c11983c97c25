"""The edges of event time: before 1970, behind a stop, and sessions whose gap depends on the row, as in Spark."""

import datetime as dt
import itertools
import time
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tests.spark.same_answers.engines import (
    LAST_ID,
    Against,
    Input,
    Pipeline,
    comparable,
    sparks_rows,
    tidegates_rows_after_a_fall,
    write_files,
)
from tidegate.connectors.memory import read_memory_table

pytestmark = pytest.mark.spark

SCHEMA = "id long, k string, ts timestamp"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PATIENCE_S = 240
_GAP = "case when id % 4 = 0 then '90 seconds' when id % 4 = 1 then '0 seconds' when k = 'a' then '-5 seconds' "
_GAP += "else '10 seconds' end"
_names = itertools.count()


def write(folder: Path, number: int, *seconds: float) -> None:
    folder.mkdir(exist_ok=True)
    ids = [number * 100 + at for at in range(len(seconds))]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "k": pa.array(["a" if at % 2 else "b" for at in ids]),
        "ts": pa.array([EPOCH + dt.timedelta(seconds=second) for second in seconds], pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), folder / f"{number}.parquet")


def raw(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(folder))


def _near(df: DataFrame, how: str) -> DataFrame:
    right = df.select(F.col("id").alias("other"), F.col("k").alias("k2"), F.col("ts").alias("ts2"))
    condition = "k = k2 and ts2 between ts - interval 5 seconds and ts + interval 5 seconds"
    return df.join(right, F.expr(condition), how).select("id", "other")


def answers(df: DataFrame, other: DataFrame) -> DataFrame:
    """Many queries in one, which takes less time: which one it was, and its rows as text."""
    window = F.window("ts", "1 minute")
    queries = {
        "windows": df.groupBy(window).agg(F.count("*").alias("n")).select("window.start", "n"),
        "sessions by a computed gap": _sessions(df, _GAP),
        "dropDuplicates by another column": df.dropDuplicates(["id"]).select("id"),
        "left outer join": _near(df, "left_outer"),
        "a watermark behind a union": other.groupBy(window).agg(F.count("*").alias("n")).select("window.start", "n"),
    }
    texts = [
        rows.select(F.lit(name).alias("query"), F.concat_ws(" ", *(F.col(at).cast("string") for at in rows.columns)))
        for name, rows in queries.items()
    ]
    return reduce(DataFrame.union, texts)


def _sessions(df: DataFrame, gap: str) -> DataFrame:
    window = F.session_window("ts", F.expr(gap))
    sessions = df.groupBy(window, "k").agg(F.count("*").alias("n"), F.min("id").alias("first"))
    return sessions.select("session_window.start", "session_window.end", "k", "n", "first")


def test_event_time_begins_in_1970_gaps_are_computed_and_unions_end_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, -3600, -61, -60, -0.001, 0, 0.000001, 0.5, 3, 59.5, 61)
    write(tmp_path / "in", 1, 130, 131, 300)
    write(tmp_path / "behind", 2, 20, 70)
    united = raw(spark, tmp_path / "in").union(raw(spark, tmp_path / "behind")).withWatermark("ts", "10 seconds")
    df = answers(raw(spark, tmp_path / "in").withWatermark("ts", "10 seconds"), united)
    expected = by_spark(df)
    assert by_tidegate(df, tmp_path / "chk") == expected


def test_a_fall_does_not_hold_event_time_back(spark: SparkSession, tmp_path: Path) -> None:
    """One task has seen the latest event time before the fall, another sees lower ones behind it."""
    seconds = [98.5, 109.9, *(100 + at % 5 for at in range(LAST_ID - 1))]
    times = [EPOCH + dt.timedelta(seconds=second) for second in seconds]
    ids = pa.array(range(LAST_ID + 1), pa.int64())
    write_files(tmp_path / "events", pa.table({"id": ids, "ts": pa.array(times, pa.timestamp("us", "UTC"))}), files=8)
    given = Input(tmp_path, {"events": "id long, ts timestamp"}, spark)
    pipeline = Pipeline(
        "windows",
        lambda tables: tables("events").withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 second")).count(),
        against=Against.STREAMING,
    )
    expected = sparks_rows(pipeline, given)
    assert len(expected) == 1
    folder = tmp_path / "fall"
    folder.mkdir()
    assert tidegates_rows_after_a_fall(pipeline, given, folder, slots=2, slots_afterwards=3) == expected


def by_spark(df: DataFrame) -> list[Any]:
    spark, name = df.sparkSession, f"edge_{next(_names)}"
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        query = df.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "4")
    return comparable(spark.table(name).toArrow(), keys=0)


def by_tidegate(df: DataFrame, location: Path) -> list[Any]:
    name = f"edge_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).option("parallelism", 2)
    query = writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return comparable(read_memory_table(name), keys=0)


def counting_by_minute(df: DataFrame) -> tuple[str, tg.StreamingQuery]:
    """The name of its table, and the query."""
    counts = df.groupBy(F.window("ts", "1 minute")).count().select("window.start", "count")
    name = f"union_{next(_names)}"
    writer = tg.writeStream(counts).format("memory").queryName(name).outputMode("append").option("parallelism", 2)
    return name, writer.option("checkpoint.interval", "100ms").start()


def test_in_a_union_a_stream_without_rows_holds_the_others_event_time_back(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark's policy `min`: its rows of long ago count, though the other stream has passed their window."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write(tmp_path / "a", 0, 1, 2)
    a, b = (raw(spark, tmp_path / name).withWatermark("ts", "0 seconds") for name in ("a", "b"))
    name, query = counting_by_minute(a.union(b))
    query.processAllAvailable()
    write(tmp_path / "a", 1, 10_000)
    query.processAllAvailable()
    time.sleep(1.5)  # by then b's slots are idle
    write(tmp_path / "b", 2, 3, 4, 5)
    query.processAllAvailable()
    write(tmp_path / "b", 3, 10_000)
    query.processAllAvailable()
    write(tmp_path / "b", 4, 10_001)  # a watermark follows its row, and closes windows with the next look
    query.processAllAvailable()
    query.stop()
    assert [row["count"] for row in read_memory_table(name).to_pylist()] == [5]


def test_in_a_union_a_stream_without_a_watermark_holds_nothing_back(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 1, 2)
    write(tmp_path / "b", 1, 3)
    marked, plain = raw(spark, tmp_path / "a").withWatermark("ts", "0 seconds"), raw(spark, tmp_path / "b")
    name, query = counting_by_minute(marked.union(plain))
    query.processAllAvailable()
    write(tmp_path / "a", 2, 10_000)
    write(tmp_path / "b", 3, 10_000)
    query.processAllAvailable()
    deadline = time.monotonic() + 30
    while not (found := read_memory_table(name).to_pylist()) and time.monotonic() < deadline:
        write(tmp_path / "b", int(time.monotonic() * 10), 10_002)  # it never becomes idle
        time.sleep(0.2)
    query.stop()
    assert [row["count"] for row in found] == [3]
