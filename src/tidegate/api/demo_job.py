"""The overloaded job of `tidegate demo`: far more rows than the keyed function behind the shuffle can take."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tidegate.api.query import StreamingQuery
from tidegate.api.writer import writeStream

SLOTS = 2
_ROW_COST_S = 0.001
_PAYLOAD_BYTES = 200


def open_session() -> SparkSession:
    """A quiet local session with one core more than the slots."""
    builder = SparkSession.builder.master(f"local[{SLOTS + 1}]").appName("tidegate-demo")
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def start_overloaded(spark: SparkSession, *, name: str, unaligned: str) -> StreamingQuery:
    return (
        writeStream(_overloaded(spark))
        .format("noop")
        .option("parallelism", SLOTS)
        .option("checkpoint.interval", "2s")
        .option("checkpoint.unaligned", unaligned)
        .option("network.window", "256kb")
        .option("network.debloat", "false")  # full windows are what the three kinds of checkpoint differ in
        .queryName(name)
        .start()
    )


def _overloaded(spark: SparkSession) -> DataFrame:
    class SlowCount(StatefulProcessor):
        """A lookup, a model, a call to somewhere: a millisecond a row."""

        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[tuple[int, int]]:
            n = self._count.get()[0] if self._count.exists() else 0
            for _ in rows:
                time.sleep(_ROW_COST_S)
                n += 1
            self._count.update((n,))
            yield (key[0], n)

        def close(self) -> None:
            return

    def with_payload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = pa.repeat(pa.scalar("x" * _PAYLOAD_BYTES), batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch.column(0), payload], ["k", "payload"])

    source = spark.readStream.format("rate").option("rowsPerSecond", 1_000_000).load()
    rows = source.selectExpr("value % 1000 as k").mapInArrow(with_payload, "k long, payload string")
    return rows.groupBy("k").transformWithState(SlowCount(), "k long, n long", "Append", "None")
