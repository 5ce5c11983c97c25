"""Source, map, shuffle, a slow keyed operator: what the systems on Spark have in common.

Arguments: slots, keys, row_bytes, delay_us (the wait per row), hot_share (of rows that have key 0), rows_per_second,
quiet_share with peak_from_s and peak_to_s (the part of the rate outside of the peak), warm_up_s, measure_s,
interval_ms.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.systems.arguments import Arguments
from benchmarks.systems.worker_figures import WorkerFigures

# More than any machine gives: the source is never what limits.
UNLIMITED_ROWS_PER_S = 2_000_000_000
KEY_BYTES = 8
# Of values that the schedule of a peak takes or leaves out together.
_BLOCK = 100
# A timer wakes a tenth or a quarter of a millisecond late; a pause for something else is not made up for.
_MADE_UP_FOR_S = 0.005


class SlowCount(StatefulProcessor):
    """Counts per key, and sleeps for a while at each row, as the Flink job does."""

    def __init__(self, *, delay_us: int, folder: str) -> None:
        self._delay_s = delay_us / 1e6
        self._folder = folder
        self._fail_once = os.path.join(folder, "fail-once")

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")
        self._figures = WorkerFigures.of_process(self._folder)
        self._has_run = False
        self._due_s = 0.0

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        if not self._has_run:
            self._has_run = True
            stamp(self._folder, "first-row")
        n = self._count.get()[0] if self._count.exists() else 0
        for _ in rows:
            if self._delay_s:
                self._wait()
            n += 1
            yield Row(k2=key[0] % 100, n=1)
        self._count.update((n,))
        if self._figures.is_due() and os.path.exists(self._fail_once):
            os.remove(self._fail_once)
            stamp(self._folder, "failed")
            raise ValueError("the benchmark asked for it")

    def _wait(self) -> None:
        """What a timer woke too late is made up for by the next rows, so that a row takes as long in every system."""
        now_s = time.monotonic()
        self._due_s = max(self._due_s, now_s - _MADE_UP_FOR_S) + self._delay_s
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)

    def close(self) -> None:
        return


def stamp(folder: str, event: str) -> None:
    """Leaves behind when it happened, by the clock that all processes of a machine share."""
    at_s = time.monotonic()
    with open(os.path.join(folder, f"{event}-{os.getpid()}-{at_s:.6f}.stamp"), "x"):
        pass


def stamps(folder: str, event: str) -> list[float]:
    names = (name for name in os.listdir(folder) if name.startswith(f"{event}-") and name.endswith(".stamp"))
    return sorted(float(name.removesuffix(".stamp").rpartition("-")[2]) for name in names)


def slowly_counted(spark: SparkSession, source: DataFrame, given: Arguments) -> DataFrame:
    """`source` gives `value`: 0, 1, 2, ..."""
    return (
        _scheduled(source, given)
        .select(_key(given).alias("k"))
        .mapInArrow(_with_payload(given.number("row_bytes", 200) - KEY_BYTES), "k long, payload string")
        .groupBy("k")
        .transformWithState(
            SlowCount(delay_us=given.number("delay_us"), folder=given.text("folder")),
            "k2 long, n long",
            "Update",
            "None",
        )
    )


def rate_source(spark: SparkSession, given: Arguments) -> DataFrame:
    rate = given.number("rows_per_second") or UNLIMITED_ROWS_PER_S
    return spark.readStream.format("rate").option("rowsPerSecond", rate).load()


def due_rows(given: Arguments, at_s: float) -> float:
    """How many rows the schedule of a peak has given by then."""
    rate, first_s, last_s = given.real("rows_per_second"), given.real("peak_from_s"), given.real("peak_to_s")
    in_peak_s = min(max(at_s - first_s, 0.0), last_s - first_s)
    return rate * (in_peak_s + given.real("quiet_share") * (at_s - in_peak_s))


def _scheduled(source: DataFrame, given: Arguments) -> DataFrame:
    """Outside of the peak only each so-manieth row is taken: value k is due at k / rate, so values tell the time."""
    if "peak_from_s" not in given:
        return source
    rate, every = given.number("rows_per_second"), round(1 / given.real("quiet_share"))
    first, last = (int(rate * given.real(name)) for name in ("peak_from_s", "peak_to_s"))
    value = F.col("value")
    # By blocks, so that every subtask of a source that deals values out in turn keeps its part.
    return source.where((value.between(first, last)) | ((value / _BLOCK).cast("long") % every == 0))


def _key(given: Arguments) -> Any:
    value, keys = F.col("value"), given.number("keys", 1000)
    # Rows that are taken by blocks would have the same few keys each time, and slots unequal shares of them.
    turned = value + (value / keys).cast("long") * _BLOCK if "peak_from_s" in given else value
    key = turned % keys
    hot = round(given.real("hot_share") * 100)
    return F.when(F.col("value") % 100 < hot, F.lit(0)).otherwise(key) if hot else key


def _with_payload(payload_bytes: int) -> Any:
    def with_payload(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payload = pa.repeat(pa.scalar("x" * payload_bytes), batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch.column(0), payload], ["k", "payload"])

    return with_payload
