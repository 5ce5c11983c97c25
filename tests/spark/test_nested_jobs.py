"""Nested columns through whole jobs: files, shuffles, captured batches, restores, explosions, grouping sets."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg

pytestmark = pytest.mark.spark
# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_S = 90.0
ROWS, FILES = 1200, 6
INPUT = "k long, s struct<x: long, y: string>, a array<long>, m map<string, struct<v: long>>, n array<array<string>>"
ROW_COST_S = 0.002  # seconds of work for each slot: it is stopped long before its end


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nested_jobs") / "in"
    spark.range(0, ROWS, 1, FILES).selectExpr(
        "id AS k",
        "if(id % 11 = 0, null, named_struct('x', id % 7, 'y', if(id % 5 = 0, null, concat('y', id % 3)))) AS s",
        "if(id % 13 = 0, null, sequence(1L, id % 4)) AS a",
        "map(concat('key', id), named_struct('v', id), 'none', null) AS m",
        "array(array('x', null), null, array(cast(id as string))) AS n",
    ).write.parquet(str(folder))
    return folder


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(INPUT).parquet(str(folder))


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(ROW_COST_S * batch.num_rows)
        yield batch


def writer(df: DataFrame, folder: Path, *, slots: int, **options: Any) -> tg.DataStreamWriter:
    made = tg.writeStream(df).format("parquet").option("path", folder / "out").option("parallelism", slots)
    made.option("checkpointLocation", folder / "chk").option("checkpoint.interval", "50ms")
    return made.option("network.window", "8kb").option("checkpoint.unaligned", "true").options(**options)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def lines(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def test_nested_columns_survive_a_shuffle_a_capture_and_a_restore_at_another_parallelism(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    """The key of the shuffle is a struct with nulls."""

    def pipeline(rows: DataFrame) -> DataFrame:
        shuffled = rows.repartition("s").where("size(m) = 2")
        return shuffled.select("*", F.transform("a", lambda e: e + F.col("k")).alias("moved"))

    columns = f"{INPUT}, moved array<long>"
    slow = pipeline(stream(spark, source)).mapInArrow(slowly, columns)
    query = writer(slow, tmp_path, slots=2).start()
    until(lambda: len([c for c in query.checkpoints if c.status == "completed" and c.inflight_bytes > 0]) >= 2)
    query.stop(savepoint=True, unaligned=True)
    (stopped_with,) = [c for c in query.checkpoints if c.is_savepoint]
    assert stopped_with.inflight_bytes > 0, "nested batches were captured"
    before = spark.read.schema(columns).parquet(str(tmp_path / "out")).count()
    assert before < ROWS

    query = writer(slow, tmp_path, slots=3).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    expected = pipeline(spark.read.schema(INPUT).parquet(str(source)))
    assert lines(spark.read.schema(columns).parquet(str(tmp_path / "out"))) == lines(expected)


def test_exploded_rows_are_sparks(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    def pipeline(rows: DataFrame) -> DataFrame:
        words = rows.select("k", "s.y", F.posexplode_outer("n").alias("at", "words"))
        return words.select("k", "y", "at", F.explode_outer("words").alias("word")).where("word is null or word <> 'x'")

    query = writer(pipeline(stream(spark, source)), tmp_path, slots=2).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    out = spark.read.schema("k long, y string, at int, word string").parquet(str(tmp_path / "out"))
    assert lines(out) == lines(pipeline(spark.read.schema(INPUT).parquet(str(source))))


def test_grouping_sets_are_counted_as_spark_counts_them(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    def pipeline(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("s.x", "s.y").rollup("x", "y").agg(F.count("*").alias("n"), F.sum("x").alias("total"))

    options = {"checkpoint.interval": "10m"}
    made = writer(pipeline(stream(spark, source)), tmp_path, slots=2, **options).outputMode("update")
    query = made.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    changes = spark.read.schema("x long, y string, n long, total long").parquet(str(tmp_path / "out"))
    # Each change of a group is a row with a higher count; groups of both levels may show the same nulls.
    newest = changes.groupBy("x", "y").agg(F.max("n").alias("n"))
    batch = pipeline(spark.read.schema(INPUT).parquet(str(source)))
    assert lines(newest) == lines(batch.groupBy("x", "y").agg(F.max("n").alias("n")))
    assert {(r.n, r.total) for r in batch.collect()} <= {(r.n, r.total) for r in changes.collect()}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_arrays_are_keys_of_aggregations_deduplication_and_joins(
    spark: SparkSession, source: Path, tmp_path: Path, backend: str
) -> None:
    """With hardly any memory for rows where they can be on disk."""

    def pipeline(rows: DataFrame) -> DataFrame:
        keyed = rows.selectExpr("k", "a", "struct(n[2] AS words, cast(k % 2 AS double) / -2 AS half) AS s")
        once = keyed.dropDuplicates(["a", "s"])
        pairs = once.join(rows.selectExpr("a AS b", "k AS other").where("k % 100 < 3"), F.expr("a = b"))
        return pairs.groupBy("a", F.expr("array(s.half)").alias("halves")).agg(
            F.count("*").alias("n"), F.sum("other").alias("total"), F.count_distinct("a", "s.words").alias("words")
        )

    columns = "a array<long>, halves array<double>, n long, total long, words long"
    on_disk = {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "4KiB"} if backend == "rocksdb" else {}
    # Each checkpoint writes out what four operators have in memory.
    options = {**on_disk, "checkpoint.interval": "200ms"}
    made = writer(pipeline(stream(spark, source)), tmp_path, slots=2, **options).outputMode("update")
    query = made.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    changes = spark.read.schema(columns).parquet(str(tmp_path / "out"))
    newest = changes.groupBy("a", "halves").agg(F.max(F.struct("n", "total", "words")).alias("last"))
    batch = pipeline(spark.read.schema(INPUT).parquet(str(source)))
    assert lines(newest.select("a", "halves", "last.*")) == lines(batch)
