"""The same pipeline in Spark's own micro-batches, up to the slow operator: each batch is a checkpoint.

Spark refuses a second stateful operator behind one that updates, so the second shuffle and count are left out.
Argument rows_per_batch: so many rows in each batch; without it, what `rows_per_second` brought since the last one.
"""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.systems.arguments import Arguments, arguments
from benchmarks.systems.pipeline import due_rows, rate_source, slowly_counted
from benchmarks.systems.session import spark_session, warm_up_workers
from benchmarks.systems.telling import tell


def main() -> None:
    given = arguments()
    slots = given.number("slots", 2)
    spark = spark_session(cores=slots)
    warm_up_workers(spark, slots)
    spark.conf.set("spark.sql.shuffle.partitions", slots)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
    use_rocksdb(spark)
    if "rows_per_batch" in given:
        source = spark.readStream.format("rate-micro-batch").option("numPartitions", slots)
        rows = source.option("rowsPerBatch", given.number("rows_per_batch")).load()
    else:
        rows = rate_source(spark, given)
    query = (
        slowly_counted(spark, rows, given)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(Path(given.text("folder")) / "checkpoints"))
        .trigger(processingTime=f"{given.number('interval_ms', 0)} milliseconds")
        .start()
    )
    measure(query, given)
    query.stop()
    spark.stop()


def use_rocksdb(spark: SparkSession) -> None:
    """Spark's transformWithState works with no other store. With changelogs: a batch stores what it changed."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")


def measure(query: StreamingQuery, given: Arguments) -> None:
    """From the end of one batch to the end of another; a peak from the start of the query, by whose clock it comes."""
    began_s = time.monotonic()
    first = -1
    if "peak_from_s" not in given:
        wait_for_batch(query, after=-1)
        time.sleep(given.real("warm_up_s"))
        first, began_s = wait_for_batch(query, after=newest(query))
    tell("measuring")
    last, ended_s = first, began_s
    rows = 0.0
    while ended_s - began_s < given.real("measure_s"):
        last, ended_s = wait_for_batch(query, after=last)
        rows = sum(_rows(entry, given) for entry in query.recentProgress if first < entry["batchId"] <= last)
        tell("sample", at_s=ended_s - began_s, rows=rows, pulled=rows)
    batches = [entry for entry in query.recentProgress if first < entry["batchId"] <= last]
    taken = [batch(entry, batches[0]) for entry in batches]
    tell("measured", rows=rows, pulled=rows, seconds=ended_s - began_s, checkpoints=taken)


def batch(entry: Any, first: Any) -> dict[str, object]:
    """What is said of a checkpoint, of a micro-batch."""
    at, began = (datetime.fromisoformat(one["timestamp"]) for one in (entry, first))
    return {
        "id": entry["batchId"],
        "status": "completed",
        "kind": "batch",
        "at_s": (at - began).total_seconds(),
        "ms": entry["durationMs"]["triggerExecution"],
        "inflight_bytes": 0,
        "new_inflight_bytes": 0,
        "state_bytes": sum(one["memoryUsedBytes"] for one in entry["stateOperators"]),
    }


def _rows(entry: Any, given: Arguments) -> float:
    """Those that reached the operator: of a peak, Spark counts also those that its schedule leaves out."""
    if "peak_from_s" not in given:
        return float(entry["numInputRows"])
    source = entry["sources"][0]
    first, last = source["startOffset"], source["endOffset"]
    # Of the first batch it is null, as text.
    return due_rows(given, float(last)) - due_rows(given, 0.0 if first in (None, "null") else float(first))


def newest(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_for_batch(query: StreamingQuery, *, after: int) -> tuple[int, float]:
    while newest(query) <= after:
        if not query.isActive:
            raise SystemExit(f"The query ended by itself: {query.exception()}")
        time.sleep(0.005)
    return newest(query), time.monotonic()


if __name__ == "__main__":
    main()
