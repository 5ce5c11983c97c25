"""The same rows and the same DataFrame in Spark's own micro-batches, each of which is a checkpoint.

Says in lines of JSON on standard output what the caller must know; see `benchmarks.runs`.
"""

import argparse
import time
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.systems.telling import tell
from benchmarks.systems.totals import Arguments, arguments, digest_of, keyed_totals, spark_session


def main() -> None:
    given = arguments(argparse.ArgumentParser(description=__doc__))
    spark = spark_session(cores=given.slots)
    spark.conf.set("spark.sql.shuffle.partitions", given.slots)
    # One batch is the whole check; values beyond it are filtered, as for the others.
    per_batch = given.rows_per_batch if given.check_rows is None else given.check_rows
    source = spark.readStream.format("rate-micro-batch")
    rows = source.option("rowsPerBatch", per_batch).option("numPartitions", given.slots).load()
    if given.check_rows is not None:
        rows = rows.where(f"value < {given.check_rows}")
    totals = keyed_totals(rows, given)
    writer = totals.writeStream.option("checkpointLocation", str(Path(given.folder) / "checkpoints"))
    if given.check_rows is None:
        query = writer.format("noop").outputMode("update").start()
        measure(query, given)
    else:
        query = writer.format("memory").queryName("totals").outputMode("complete").start()
        wait_for_batch(query, after=-1)
        tell("checked", **digest_of(spark.sql("SELECT k, rows, total FROM totals").toArrow()))
    query.stop()
    spark.stop()


def measure(query: StreamingQuery, given: Arguments) -> None:
    """From the end of one batch to the end of another."""
    first, _ = wait_for_batch(query, after=-1)
    time.sleep(given.warm_up_s)
    first, started = wait_for_batch(query, after=first)
    tell("measuring")
    last, ended = first, started
    while ended - started < given.measure_s:
        last, ended = wait_for_batch(query, after=last)
    batches = [entry for entry in query.recentProgress if first < entry["batchId"] <= last]
    tell(
        "measured",
        rows=(last - first) * given.rows_per_batch,
        seconds=ended - started,
        checkpoints_ms=[entry["durationMs"]["triggerExecution"] for entry in batches],
    )


def wait_for_batch(query: StreamingQuery, *, after: int) -> tuple[int, float]:
    while (progress := query.lastProgress) is None or progress["batchId"] <= after:
        if not query.isActive:
            raise SystemExit(f"The query ended by itself: {query.exception()}")
        time.sleep(0.005)
    return int(progress["batchId"]), time.monotonic()


if __name__ == "__main__":
    main()
