"""What the programming guide shows behind the query: sinks, triggers, tables and the running query."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tests.spark.guide_examples.user_code import RowWriter, row_appender
from tests.spark.same_answers.engines import Input
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import OptionError, UnsupportedPlan

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


def test_foreach_batch_persists_and_writes_to_two_places(given: Input, tmp_path: Path) -> None:
    def to_both(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        batch.write.mode("append").parquet(str(tmp_path / "first"))
        batch.write.mode("append").json(str(tmp_path / "second"))
        batch.unpersist()

    words = given.stream("words")
    _finished(tg.writeStream(words).foreachBatch(to_both))
    expected = _sorted(given.batch("words"))
    assert _sorted(given.spark.read.parquet(str(tmp_path / "first"))) == expected
    assert _sorted(given.spark.read.schema(words.schema).json(str(tmp_path / "second"))) == expected


@pytest.mark.parametrize("kind", ["function", "object"])
def test_foreach_takes_every_row_once(kind: str, given: Input, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    writer = row_appender(str(folder)) if kind == "function" else RowWriter(str(folder))
    _finished(tg.writeStream(given.stream("words")).foreach(writer))
    written = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert sorted(written) == sorted([row.timestamp.isoformat(), row.word] for row in given.batch("words").collect())


def test_files_and_tables_hold_every_row(given: Input, tmp_path: Path) -> None:
    """The guide's table API: a stream to a table, the table as a batch and as a stream, and that to another table."""
    spark = given.spark
    spark.sql(f"CREATE DATABASE guide LOCATION '{tmp_path / 'warehouse'}'")
    try:
        writer = tg.writeStream(given.stream("words")).option("checkpointLocation", tmp_path / "first")
        query = writer.trigger(availableNow=True).toTable("guide.myTable")
        assert query.awaitTermination(PATIENCE_S)
        expected = _sorted(given.batch("words"))
        assert _sorted(spark.read.table("guide.myTable")) == expected

        copied = spark.readStream.table("guide.myTable").select("word")
        writer = tg.writeStream(copied).option("checkpointLocation", tmp_path / "second").format("json")
        assert writer.trigger(availableNow=True).toTable("guide.newTable").awaitTermination(PATIENCE_S)
        assert _sorted(spark.read.table("guide.newTable")) == sorted((word,) for _, word in expected)

        again = tg.writeStream(given.stream("devices")).option("checkpointLocation", tmp_path / "third")
        with pytest.raises(OptionError, match="has the columns timestamp timestamp, word string"):
            again.toTable("guide.myTable")
        with pytest.raises(OptionError, match="checkpointLocation"):
            tg.writeStream(copied).toTable("guide.nothing")
        assert not spark.catalog.tableExists("guide.nothing")
    finally:
        spark.sql("DROP DATABASE guide CASCADE")


def test_a_query_goes_on_with_the_table_that_it_made_whatever_may_be_null_in_it(given: Input, tmp_path: Path) -> None:
    """Elements of `split` are never null; in a table of files everything may be."""
    spark = given.spark
    spark.sql(f"CREATE DATABASE nulls LOCATION '{tmp_path / 'warehouse'}'")
    try:
        pieces = given.stream("words").select("word", F.split("word", "a").alias("pieces"))
        for _ in range(2):
            writer = tg.writeStream(pieces).option("checkpointLocation", tmp_path / "chk").trigger(availableNow=True)
            assert writer.toTable("nulls.pieces").awaitTermination(PATIENCE_S)
        found = spark.table("nulls.pieces")
        assert sorted(row.word for row in found.collect()) == sorted(row.word for row in given.batch("words").collect())
        assert found.where(F.array_join("pieces", "a") != F.col("word")).count() == 0
    finally:
        spark.sql("DROP DATABASE nulls CASCADE")


def test_a_running_query_can_be_looked_at(given: Input, capsys: pytest.CaptureFixture[str]) -> None:
    counts = given.stream("devices").groupBy("deviceType").count()
    writer = tg.writeStream(counts).outputMode("complete").format("console").queryName("looked_at")
    query = writer.trigger(processingTime="2 seconds").start()
    query.processAllAvailable()
    assert query.isActive and query.name == "looked_at" and query.id and query.runId
    assert query.exception() is None
    assert query.status["message"] == "running"
    assert query.recentProgress and query.lastProgress is not None and query.lastProgress["name"] == "looked_at"
    assert tg.queries(given.spark) == [query]
    query.explain()
    shown = capsys.readouterr().out
    assert "== Tidegate runs ==" in shown and "pump|" in shown
    assert "checkpoint every 2000 ms, aligned, switching after 1000 ms, exactly once" in shown
    query.stop()
    assert query.awaitTermination(5) and not tg.queries(given.spark)


@pytest.mark.parametrize("source", ["rate", "rate-micro-batch"])
def test_sources_for_testing_run(source: str, spark: SparkSession) -> None:
    name = source.replace("-", "_")
    options = {"rowsPerSecond": 50} if source == "rate" else {"rowsPerBatch": 20}
    df = spark.readStream.format(source).options(**options).load().selectExpr("value % 5 AS rest")
    writer = tg.writeStream(df).format("memory").queryName(name).option("checkpoint.interval", "200ms")
    query = writer.option("parallelism", 1).start()
    deadline_s = time.monotonic() + PATIENCE_S
    # There is always more, so that all of it is never processed.
    while read_memory_table(name).num_rows < 20:
        assert query.isActive and time.monotonic() < deadline_s
        time.sleep(0.1)
    query.stop()
    assert {row.rest for row in spark.table(name).collect()} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("trigger", [{"once": True}, {"continuous": "1 second"}], ids=["once", "continuous"])
def test_triggers_of_batches_are_refused(trigger: dict[str, Any], given: Input) -> None:
    with pytest.raises(OptionError, match="availableNow=True"):
        tg.writeStream(given.stream("words")).trigger(**trigger)


def test_observe_and_cleaning_of_sources_are_refused(given: Input) -> None:
    from pyspark.sql.functions import count, lit

    observed = given.stream("words").observe("metric", count(lit(1)).alias("rows"))
    with pytest.raises(UnsupportedPlan, match="CollectMetrics: remove observe"):
        tg.writeStream(observed).format("noop").start()
    folder = str(given.folder / "words")
    cleaned = given.spark.readStream.schema(given.schemas["words"]).option("cleanSource", "delete").parquet(folder)
    with pytest.raises(OptionError, match="cleanSource"):
        tg.writeStream(cleaned).format("noop").start()


def _finished(writer: tg.DataStreamWriter) -> None:
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)


def _sorted(df: DataFrame) -> list[Row]:
    return sorted(df.collect())
