"""A DataFrame without a stream: Spark scans it once, Tidegate runs what has state and writes the rows exactly once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import JobFailure, UnsupportedPlan

pytestmark = pytest.mark.spark

PATIENCE_S = 90


def orders(spark: SparkSession, folder: Path, rows: int = 600) -> DataFrame:
    made = spark.range(0, rows, 1, 4).selectExpr("id", "id % 7 as k", "cast(id % 5 as string) as item")
    made.write.mode("append").parquet(str(folder / "in"))
    return spark.read.parquet(str(folder / "in"))


def run(df: DataFrame, folder: Path, mode: str = "append", **options: Any) -> tg.StreamingQuery:
    writer = tg.writeStream(df).format("parquet").outputMode(mode).option("checkpointLocation", folder / "chk")
    settings = {"parallelism": 2, "checkpoint.interval": "100ms", "restart.delay": "50ms", **options}
    query = writer.options(**settings).start(str(folder / "out"))
    assert query.awaitTermination(PATIENCE_S)
    return query


def written(folder: Path) -> list[tuple[Any, ...]]:
    tables = [pq.read_table(path) for path in (folder / "out").glob("*.parquet")]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def collected(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_what_spark_scans_joins_and_computes_is_written_once_and_a_second_run_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    items = spark.createDataFrame([("0", "ink"), ("1", "pen"), ("2", "pad")], "item string, name string")
    df = orders(spark, tmp_path).join(items, "item").select("id", F.soundex("name").alias("s")).where("id > 10")
    run(df, tmp_path)
    expected = collected(df)
    assert written(tmp_path) == expected
    orders(spark, tmp_path, rows=50)
    run(df, tmp_path)
    assert written(tmp_path) == expected, "what was scanned once is the whole input"


def test_after_an_error_midway_every_row_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    stone = str(tmp_path / "stone")

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        for batch in batches:
            if batch.num_rows and not Path(stone).exists():
                Path(stone).touch()
                raise RuntimeError("stumbled")
            yield batch

    counted = orders(spark, tmp_path).groupBy("k").count()
    query = run(counted.mapInArrow(stumble, "k long, count long"), tmp_path, "update")
    assert Path(stone).exists()
    assert query.exception() is None
    last = dict(sorted(written(tmp_path)))
    assert last == dict(collected(counted))


def test_groups_come_in_update_mode_and_all_of_them_in_order_in_complete_mode(
    spark: SparkSession, tmp_path: Path
) -> None:
    counted = orders(spark, tmp_path).groupBy("item").agg(F.count_distinct("k").alias("n"), F.sum("id").alias("total"))
    run(counted, tmp_path, "update")
    assert {row[0]: row for row in sorted(written(tmp_path))} == {row[0]: row for row in collected(counted)}
    ordered = counted.orderBy(F.desc("total")).limit(3)
    query = tg.writeStream(ordered).format("memory").queryName("bounded_order").outputMode("complete").start()
    assert query.awaitTermination(PATIENCE_S)
    shown = [tuple(row.values()) for row in read_memory_table("bounded_order").to_pylist()]
    assert shown == [tuple(row) for row in ordered.collect()]


class Last(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._most = handle.getValueState("most", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        most = max(row.id for row in rows)
        if self._most.exists():
            most = max(most, self._most.get()[0])
        self._most.update((most,))
        yield Row(k=key[0], most=most)

    def close(self) -> None:
        return


def test_a_stateful_function_gets_the_rows_of_its_key(spark: SparkSession, tmp_path: Path) -> None:
    df = orders(spark, tmp_path).groupBy("k").transformWithState(Last(), "k long, most long", "Update", "None")
    run(df, tmp_path)
    assert dict(written(tmp_path)) == {k: 600 - 7 + (k - 600 % 7) % 7 for k in range(7)}


def test_a_scan_that_fails_ends_the_query_with_sparks_reason(spark: SparkSession, tmp_path: Path) -> None:
    broken = orders(spark, tmp_path).selectExpr("if(id < 300, id, cast(raise_error('no such order') as long)) as id")
    with pytest.raises(JobFailure, match="Spark's scan"):
        run(broken, tmp_path, **{"restart.strategy": "none"})


@pytest.mark.parametrize(
    ("make", "mode", "sentence"),
    [
        (lambda df: df.groupBy("k").count(), "append", "use outputMode('update')"),
        (lambda df: df.select("id"), "complete", "complete needs an aggregation"),
        (lambda df: df.dropDuplicates(["k"]), "append", "dropDuplicates or distinct"),
        (lambda df: df.select("k").distinct(), "append", "dropDuplicates or distinct"),
        (lambda df: df.join(df.groupBy("k").count(), "k"), "update", "aggregate behind the join"),
    ],
)
def test_what_would_come_out_otherwise_than_in_a_batch_is_refused(
    spark: SparkSession, tmp_path: Path, make: Any, mode: str, sentence: str
) -> None:
    with pytest.raises(UnsupportedPlan) as refusal:
        run(make(orders(spark, tmp_path)), tmp_path, mode)
    assert sentence in str(refusal.value)
    assert not (tmp_path / "chk").exists()


def test_native_ingest_refuses_a_scan_that_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPlan, match="leave out ingest=native"):
        run(spark.range(3).toDF("id"), tmp_path, ingest="native")
