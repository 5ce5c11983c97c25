"""An aggregation and a deduplication whose groups do not fit into memory give what a batch query gives."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.connectors.memory import read_memory_table

pytestmark = pytest.mark.spark

ROWS = 12_000
KEYS = 3_000
SCHEMA = "k long, name string, ts timestamp, v double"
ON_DISK = {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "16KiB", "checkpoint.interval": "200ms"}
_names = itertools.count()


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> str:
    number = F.col("id")
    rows = spark.range(ROWS).select(
        (number * 7919 % KEYS).alias("k"),
        F.concat(F.lit("name "), number % 5).alias("name"),
        F.timestamp_seconds(number / 100).alias("ts"),
        (number % 10 / 4).alias("v"),
    )
    rows.repartitionByRange(6, "ts").sortWithinPartitions("ts").write.parquet(str(tmp_path / "in"))
    return str(tmp_path / "in")


def rows_of(df: DataFrame, *, mode: str) -> Counter[tuple[Any, ...]]:
    name = f"on_disk_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(mode).option("parallelism", 2)
    query = writer.options(**ON_DISK).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return counted(row.values() for row in read_memory_table(name).to_pylist())


def counted(rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    """Arrays in order: Spark promises none."""
    return Counter(tuple(tuple(sorted(value)) if isinstance(value, list) else value for value in row) for row in rows)


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("name").alias("most"))


def expected(df: DataFrame) -> Counter[tuple[Any, ...]]:
    return counted(df.collect())


def arrays(rows: DataFrame) -> DataFrame:
    names = F.collect_set("name").alias("names"), F.collect_list("v").alias("values")
    return rows.groupBy("k").agg(F.count("*").alias("n"), *names, F.count_distinct("v", "name").alias("pairs"))


@pytest.mark.parametrize("aggregated", [totals, arrays])
def test_groups_that_do_not_fit_come_out_as_a_batch_query_gives_them(
    spark: SparkSession, folder: str, aggregated: Callable[[DataFrame], DataFrame]
) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    newest = {row[0]: row for row in sorted(rows_of(aggregated(stream), mode="update"), key=lambda row: row[1])}
    assert Counter(newest.values()) == expected(aggregated(spark.read.schema(SCHEMA).parquet(folder)))


def sessions(rows: DataFrame, gap: str) -> DataFrame:
    grouped = rows.groupBy(F.session_window("ts", gap).alias("w"), "k")
    return grouped.agg(F.count("*").alias("n"), F.sum("v").alias("total")).select("w.start", "w.end", "k", "n", "total")


def test_sessions_in_a_log_come_out_as_a_batch_query_gives_them(spark: SparkSession, folder: str) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    found = rows_of(sessions(stream.withWatermark("ts", "1 hour"), "20 seconds"), mode="complete")
    assert in_ms(found) == in_ms(expected(sessions(spark.read.schema(SCHEMA).parquet(folder), "20 seconds")))


def test_sessions_that_do_not_fit_come_out_once_they_have_ended(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    """Each key comes every thirty seconds, for two minutes."""
    ordered = str(tmp_path / "ordered")
    spark.read.parquet(folder).coalesce(1).sortWithinPartitions("ts").write.parquet(ordered)
    stream = spark.readStream.schema(SCHEMA).parquet(ordered)
    found = in_ms(rows_of(sessions(stream.withWatermark("ts", "10 seconds"), "15 seconds"), mode="append"))
    # Filtered here, as Spark would filter rows by the end of the session that each is by itself.
    every = in_ms(expected(sessions(spark.read.schema(SCHEMA).parquet(folder), "15 seconds")))
    last_ms = ROWS * 10 - 10 - 10_000
    assert found == Counter({row: count for row, count in every.items() if row[1] <= last_ms})
    assert found.total() > 8_000


def in_ms(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The window's times as whole numbers, with a zone or without one."""
    return Counter(
        {
            (round(start.timestamp() * 1000), round(end.timestamp() * 1000), *rest): count
            for (start, end, *rest), count in rows.items()
        }
    )


@pytest.mark.parametrize("is_within_watermark", [False, True])
def test_keys_that_do_not_fit_pass_once(spark: SparkSession, folder: str, is_within_watermark: bool) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    if is_within_watermark:
        first = stream.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["k"])
    else:
        first = stream.dropDuplicates(["k"])
    passed = rows_of(first.select("k"), mode="append")
    assert passed == Counter((key,) for key in range(KEYS))
