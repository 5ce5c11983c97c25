"""Generated rows, a shuffle by key, count and sum per key, no output: Tidegate's side of the throughput benchmark.

Says in lines of JSON on standard output what the caller must know; see `benchmarks.runs`.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from benchmarks.systems.telling import tell
from benchmarks.systems.totals import Arguments, arguments, digest_of, keyed_totals, spark_session

# More than any machine gives: the source is never what limits.
ROWS_PER_SECOND = 2_000_000_000


def main() -> None:
    given = arguments(argparse.ArgumentParser(description=__doc__))
    # The core that stays free for Spark's own jobs is no slot of ours.
    spark = spark_session(cores=given.slots + 1)
    # Python workers that have imported what they need: on a busy machine that alone may outlast the wait for slots.
    spark.range(0, given.slots, 1, given.slots).mapInArrow(lambda batches: batches, "id long").count()
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    if given.check_rows is None:
        measure(given, keyed_totals(rows, given))
    else:
        check(given, spark, keyed_totals(rows.where(f"value < {given.check_rows}"), given), given.check_rows)
    spark.stop()


def measure(given: Arguments, totals: DataFrame) -> None:
    writer = tg.writeStream(totals).format("noop").outputMode("update").option("checkpoint.interval", "1s")
    with running(writer, given) as query:
        next_count(query)
        time.sleep(given.warm_up_s)
        first_rows, started = next_count(query)
        tell("measuring")
        time.sleep(given.measure_s)
        rows, ended = next_count(query)
        checkpoints_ms = [round(c.duration_ms) for c in query.checkpoints if c.status == "completed"]
        tell("measured", rows=rows - first_rows, seconds=ended - started, checkpoints_ms=checkpoints_ms)


def check(given: Arguments, spark: SparkSession, totals: DataFrame, expected_rows: int) -> None:
    writer = tg.writeStream(totals).format("memory").queryName("totals").outputMode("complete")
    with running(writer.option("checkpoint.interval", "1s"), given) as query:
        wait_until(query, lambda: counted_rows(query) >= expected_rows)
        # Some reader may still have rows of its own to give.
        while (found := digest_at_next_checkpoint(query, spark))["rows"] < expected_rows:
            pass
    tell("checked", **found)


def digest_at_next_checkpoint(query: tg.StreamingQuery, spark: SparkSession) -> dict[str, int]:
    newest = max((checkpoint.id for checkpoint in query.checkpoints), default=0)
    wait_until(query, lambda: any(c.id > newest and c.status == "completed" for c in query.checkpoints))
    return digest_of(spark.sql("SELECT k, rows, total FROM totals").toArrow())


@contextmanager
def running(writer: tg.DataStreamWriter, given: Arguments) -> Iterator[tg.StreamingQuery]:
    location = str(Path(given.folder) / "checkpoints")
    query = writer.option("parallelism", given.slots).option("checkpointLocation", location).start()
    try:
        yield query
    finally:
        query.stop()


def next_count(query: tg.StreamingQuery) -> tuple[int, float]:
    """Rows that were aggregated, at the moment when the slots report the next ones."""
    before = counted_rows(query)
    wait_until(query, lambda: counted_rows(query) != before)
    return counted_rows(query), time.monotonic()


def wait_until(query: tg.StreamingQuery, holds: Callable[[], bool]) -> None:
    """The caller of this process ends it when it takes too long."""
    while not holds():
        if not query.isActive:
            raise SystemExit(f"The query ended by itself: {query.exception()}")
        time.sleep(0.002)


def counted_rows(query: tg.StreamingQuery) -> int:
    progress = query.lastProgress
    if progress is None:
        return 0
    # Combined in the very step in which they are generated, before they are sent to the task of their key.
    sources = {source["task"] for source in progress["sources"]}
    return sum(int(task["rowsIn"]) for task in progress["tasks"] if task["task"] in sources)


if __name__ == "__main__":
    main()
