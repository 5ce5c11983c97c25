"""The same rows and the same DataFrame in Spark's own micro-batches, each of which is a checkpoint.

Says in lines of JSON on standard output what the caller must know; see `benchmarks.processes`.
"""

import time
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.systems.arguments import Arguments, arguments
from benchmarks.systems.rows import python_rows
from benchmarks.systems.session import spark_session
from benchmarks.systems.spark_pipeline import batch, use_rocksdb, wait_for_batch
from benchmarks.systems.telling import tell
from benchmarks.systems.totals import digest_of, keyed_totals


def main() -> None:
    given = arguments()
    slots = given.number("slots", 2)
    spark = spark_session(cores=slots)
    spark.conf.set("spark.sql.shuffle.partitions", slots)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
    if given.text("kind") == "state" or given.text("store") == "rocksdb":
        use_rocksdb(spark)
    # One batch is the whole check; values beyond it are filtered, as for the others.
    per_batch = given.number("check_rows") or given.number("rows_per_batch")
    source = spark.readStream.format("rate-micro-batch")
    rows = source.option("rowsPerBatch", per_batch).option("numPartitions", slots).load()
    if "check_rows" in given:
        rows = rows.where(f"value < {per_batch}")
    totals = python_rows(rows, given) if "kind" in given else keyed_totals(rows, given)
    writer = totals.writeStream.option("checkpointLocation", str(Path(given.text("folder")) / "checkpoints"))
    if "check_rows" in given:
        query = writer.format("memory").queryName("totals").outputMode("complete").start()
        wait_for_batch(query, after=-1)
        tell("checked", **digest_of(spark.sql("SELECT k, rows, total FROM totals").toArrow()))
    else:
        query = writer.format("noop").outputMode("update").start()
        measure(query, given)
    query.stop()
    spark.stop()


def measure(query: StreamingQuery, given: Arguments) -> None:
    """From the end of one batch to the end of another."""
    first, _ = wait_for_batch(query, after=-1)
    time.sleep(given.real("warm_up_s"))
    first, started = wait_for_batch(query, after=first)
    tell("measuring")
    last, ended = first, started
    while ended - started < given.real("measure_s"):
        last, ended = wait_for_batch(query, after=last)
    batches = [entry for entry in query.recentProgress if first < entry["batchId"] <= last]
    tell(
        "measured",
        rows=(last - first) * given.number("rows_per_batch"),
        seconds=ended - started,
        checkpoints=[batch(entry, batches[0]) for entry in batches],
    )


if __name__ == "__main__":
    main()
