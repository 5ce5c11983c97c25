"""Throughput of the built-in aggregation, and the time from start() to the first row.

Generated rows, 10,000 keys, a shuffle, count and sum per key, no output; two slots, a checkpoint every second. Times on
shared machines vary: each figure is given with its spread over several windows of one run.
"""

import argparse
import statistics
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg

KEYS = 10_000
SLOTS = 2
# More than any machine gives: the source is never what limits.
ROWS_PER_SECOND = 2_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master(f"local[{SLOTS + 1}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    run(spark, seconds=3.0)  # warms up: Python workers, imports, the JVM's compiler
    first_row_ms, rates, checkpoints_ms = run(spark, seconds=given.seconds)
    spark.stop()
    print(f"start() to first row, warm session   {first_row_ms / 1000:.2f} s")
    print(
        f"count and sum, {KEYS:,} keys, {SLOTS} slots  {statistics.median(rates) / 1e6:.1f} M rows/s "
        f"(from {min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f} M, one-second windows, n={len(rates)})"
    )
    if checkpoints_ms:
        print(
            f"checkpoints meanwhile, every second  median {statistics.median(checkpoints_ms):.0f} ms, "
            f"longest {max(checkpoints_ms):.0f} ms, n={len(checkpoints_ms)}"
        )


def run(spark: SparkSession, *, seconds: float) -> tuple[float, list[float], list[float]]:
    """The time to the first row, rows/s in windows of a second, and the durations of the checkpoints, in ms."""
    source = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    totals = (
        source.select((F.col("value") % KEYS).alias("k"), F.col("value").alias("v"))
        .groupBy("k")
        .agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
    )
    started = time.monotonic()
    query = (
        tg.writeStream(totals)
        .format("noop")
        .outputMode("update")
        .option("parallelism", SLOTS)
        .option("checkpoint.interval", "1s")
        .start()
    )
    while not _source_rows(query):
        time.sleep(0.005)
    first_row_ms = (time.monotonic() - started) * 1000
    rates: list[float] = []
    last_rows, last_time = _source_rows(query), time.monotonic()
    while time.monotonic() - started < seconds + first_row_ms / 1000:
        time.sleep(1.0)
        rows, now = _source_rows(query), time.monotonic()
        rates.append((rows - last_rows) / (now - last_time))
        last_rows, last_time = rows, now
    checkpoints_ms = [c.duration_ms for c in query.checkpoints if c.status == "completed"]
    query.stop()
    return first_row_ms, rates[1:] or rates, checkpoints_ms


def _source_rows(query: tg.StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["numInputRows"])


if __name__ == "__main__":
    main()
