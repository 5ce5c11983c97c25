"""`.option("engine", "microbatch")`: the same query, run by Structured Streaming itself."""

import logging
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg

pytestmark = pytest.mark.spark


def test_structured_streaming_runs_the_query_as_it_was_asked_for(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark.range(100).write.parquet(str(tmp_path / "in"))
    df = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).groupBy("id").count()
    seen: list[tuple[int, int]] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, batch.count()))

    writer = tg.writeStream(df).foreachBatch(take).outputMode("complete").queryName("batches")
    writer.option("engine", "microbatch").option("checkpointLocation", tmp_path / "chk").option("parallelism", 2)
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert isinstance(query, StreamingQuery) and query.name == "batches"
    assert seen == [(0, 100)]
    assert (tmp_path / "chk" / "offsets" / "0").exists(), "Spark's checkpoint, not ours"
    assert "these options mean nothing: parallelism." in caplog.text


def test_a_processing_time_is_sparks_trigger_and_no_option_without_meaning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df = spark.readStream.format("rate").load()
    writer = tg.writeStream(df).format("noop").option("engine", "microbatch")
    writer.option("checkpointLocation", tmp_path / "chk").trigger(processingTime="100 milliseconds")
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        writer.start().stop()
    assert "mean nothing" not in caplog.text
