"""Generated rows, a shuffle by key, count and sum per key, no output: Tidegate's side of the throughput benchmark.

Says in lines of JSON on standard output what the caller must know; see `benchmarks.processes`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

import tidegate as tg
from benchmarks.systems.arguments import Arguments, arguments
from benchmarks.systems.pipeline import UNLIMITED_ROWS_PER_S
from benchmarks.systems.rows import python_rows
from benchmarks.systems.session import spark_session, warm_up_workers
from benchmarks.systems.telling import tell
from benchmarks.systems.tidegate_pipeline import checkpoint
from benchmarks.systems.totals import digest_of, keyed_totals
from tidegate.connectors.memory import read_memory_table

# Well below the time in which a query takes as many checkpoints as it remembers.
LOOK_EVERY_S = 1.0


def main() -> None:
    given = arguments()
    slots = given.number("slots", 2)
    # The core that stays free for Spark's own jobs is no slot of ours.
    spark = spark_session(cores=slots + 1)
    warm_up_workers(spark, slots)
    rows = spark.readStream.format("rate").option("rowsPerSecond", UNLIMITED_ROWS_PER_S).load()
    if "check_rows" not in given:
        measure(given, python_rows(rows, given) if "kind" in given else keyed_totals(rows, given))
    else:
        expected = given.number("check_rows")
        check(given, keyed_totals(rows.where(f"value < {expected}"), given), expected)
    spark.stop()


def measure(given: Arguments, totals: DataFrame) -> None:
    interval = f"{given.number('interval_ms', 1000)}ms"
    writer = tg.writeStream(totals).format("noop").outputMode("update").option("checkpoint.interval", interval)
    with running(writer, given) as query:
        next_count(query)
        time.sleep(given.real("warm_up_s"))
        first_rows, started = next_count(query)
        began = datetime.now(UTC)
        tell("measuring")
        seen = watch_checkpoints(query, began, seconds=given.real("measure_s"))
        rows, ended = next_count(query)
        seen |= taken_since(query, began)
        taken = [checkpoint(view, began) for _, view in sorted(seen.items())]
        tell("measured", rows=rows - first_rows, seconds=ended - started, checkpoints=taken)


def watch_checkpoints(query: tg.StreamingQuery, began: datetime, *, seconds: float) -> dict[int, tg.CheckpointView]:
    """A query remembers the newest few hundred; with short intervals more are taken while it is measured."""
    ends = time.monotonic() + seconds
    seen: dict[int, tg.CheckpointView] = {}
    while (left_s := ends - time.monotonic()) > 0:
        time.sleep(min(LOOK_EVERY_S, left_s))
        seen |= taken_since(query, began)
    return seen


def taken_since(query: tg.StreamingQuery, began: datetime) -> dict[int, tg.CheckpointView]:
    return {view.id: view for view in query.checkpoints if view.triggered_at >= began}


def check(given: Arguments, totals: DataFrame, expected_rows: int) -> None:
    writer = tg.writeStream(totals).format("memory").queryName("totals").outputMode("complete")
    with running(writer.option("checkpoint.interval", "1s"), given) as query:
        wait_until(query, lambda: counted_rows(query) >= expected_rows)
        # Some reader may still have rows of its own to give.
        while (found := digest_at_next_checkpoint(query))["rows"] < expected_rows:
            pass
    tell("checked", **found)


def digest_at_next_checkpoint(query: tg.StreamingQuery) -> dict[str, int]:
    newest = max((checkpoint.id for checkpoint in query.checkpoints), default=0)
    wait_until(query, lambda: any(c.id > newest and c.status == "completed" for c in query.checkpoints))
    return digest_of(read_memory_table("totals"))  # which has a view in Spark only when the query is over


@contextmanager
def running(writer: tg.DataStreamWriter, given: Arguments) -> Iterator[tg.StreamingQuery]:
    settings = {
        "parallelism": str(given.number("slots", 2)),
        "checkpointLocation": str(Path(given.text("folder")) / "checkpoints"),
        **given.options("tidegate."),
    }
    for name, value in settings.items():
        writer = writer.option(name, value)
    query = writer.start()
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
