"""Unions and repartitionings on Spark: the same rows as Spark's own, and in which order where that is promised."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.model.errors import UnsupportedPlan

pytestmark = pytest.mark.spark

SCHEMA = "k long, v long, ts timestamp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        values = list(range(number * 100, number * 100 + 100))
        columns = {"k": [v % 7 for v in values], "v": values, "ts": [v * 1_000_000 for v in values]}
        table = pa.table(columns).cast(pa.schema([("k", "int64"), ("v", "int64"), ("ts", pa.timestamp("us", "UTC"))]))
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    return tmp_path


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))


def ran(df: DataFrame, folder: Path, *, mode: str = "append") -> list[tuple[object, ...]]:
    writer = tg.writeStream(df).format("parquet").option("checkpointLocation", folder / "chk").outputMode(mode)
    query = writer.option("parallelism", 3).trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    return sorted(tuple(row) for row in df.sparkSession.read.schema(df.schema).parquet(str(folder / "out")).collect())


def batch(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(str(folder / "in"))


def sorted_rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_a_union_gives_the_rows_of_both_sides(spark: SparkSession, folder: Path) -> None:
    def both(df: DataFrame) -> DataFrame:
        return df.where("k < 3").union(df.selectExpr("v", "k", "ts").where("v % 2 = 0"))

    assert ran(both(stream(spark, folder)), folder) == sorted_rows(both(batch(spark, folder)))


def test_a_union_feeds_an_aggregate(spark: SparkSession, folder: Path) -> None:
    def counted(df: DataFrame) -> DataFrame:
        return df.union(df.where("v < 50")).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))

    rows = ran(counted(stream(spark, folder)), folder, mode="update")
    # Update mode may give a group several times: the last is the one with the most rows.
    last = {row[0]: row for row in sorted(rows, key=lambda row: (row[0], row[1]))}
    assert sorted(last.values()) == sorted_rows(counted(batch(spark, folder)))


@pytest.mark.parametrize("how", ["repartition(2)", "repartition(2, 'k')", "repartition('k')", "coalesce(1)"])
def test_repartitioning_changes_no_row(spark: SparkSession, folder: Path, how: str) -> None:
    df = eval(f"df.{how}.selectExpr('k', 'v + 1 as w')", {"df": stream(spark, folder)})
    assert ran(df, folder) == sorted_rows(batch(spark, folder).selectExpr("k", "v + 1 as w"))


def test_repartition_by_range_is_refused(spark: SparkSession, folder: Path) -> None:
    writer = tg.writeStream(stream(spark, folder).repartitionByRange(2, "k")).format("noop")
    with pytest.raises(UnsupportedPlan, match="repartitionByRange"):
        writer.option("ingest", "native").start()
