"""An aggregation and a deduplication whose groups do not fit into memory give what a batch query gives."""

import itertools
from collections import Counter
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
    return Counter(tuple(row.values()) for row in read_memory_table(name).to_pylist())


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("name").alias("most"))


def expected(df: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in df.collect())


def test_groups_that_do_not_fit_come_out_as_a_batch_query_gives_them(spark: SparkSession, folder: str) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    newest = {row[0]: row for row in sorted(rows_of(totals(stream), mode="update"), key=lambda row: row[1])}
    assert Counter(newest.values()) == expected(totals(spark.read.schema(SCHEMA).parquet(folder)))


def test_sessions_in_a_log_come_out_as_a_batch_query_gives_them(spark: SparkSession, folder: str) -> None:
    def sessions(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy(F.session_window("ts", "20 seconds").alias("w"), "k")
        return grouped.agg(F.count("*").alias("n"), F.sum("v").alias("total")).select(
            "w.start", "w.end", "k", "n", "total"
        )

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    found = rows_of(sessions(stream.withWatermark("ts", "1 hour")), mode="complete")
    assert in_ms(found) == in_ms(expected(sessions(spark.read.schema(SCHEMA).parquet(folder))))


def in_ms(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The window's times as whole numbers, with a zone or without one."""
    return Counter(
        {
            (round(start.timestamp() * 1000), round(end.timestamp() * 1000), *rest): count
            for (start, end, *rest), count in rows.items()
        }
    )


def test_keys_that_do_not_fit_pass_once(spark: SparkSession, folder: str) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    passed = rows_of(stream.dropDuplicates(["k"]).select("k"), mode="append")
    assert passed == Counter((key,) for key in range(KEYS))
