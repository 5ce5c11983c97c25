"""A state that is filled once and of which then a share changes with each checkpoint: what is stored, and how long.

Rows come from files: many that fill the state, then a small one per interval, or several. Arguments: kind (user or
totals), state_mb, value_bytes, changed_percent, changed (random or same), interval_ms, files_per_interval, warm_up_s,
measure_s, slots; those that begin with "tidegate." are options of the writer.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import tidegate as tg
from benchmarks.systems.arguments import Arguments, arguments
from benchmarks.systems.session import spark_session, warm_up_workers
from benchmarks.systems.telling import tell
from benchmarks.systems.tidegate_pipeline import checkpoint
from benchmarks.systems.tidegate_totals import counted_rows, running, wait_until
from tidegate.coordinator.views import CheckpointView

# What a group of a count and a sum takes in a checkpoint, about.
_BYTES_PER_GROUP = 32
_ROWS_PER_FILE = 1 << 20
_POOL_BYTES = 1 << 20
_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Keeps(StatefulProcessor):
    """A value of so many bytes for each key, another one with each row. They do not compress."""

    def __init__(self, value_bytes: int) -> None:
        self._value_bytes = value_bytes

    def init(self, handle: Any) -> None:
        self._pool = np.random.default_rng(7).bytes(_POOL_BYTES + self._value_bytes)
        self._value = handle.getValueState("value", "payload binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            start = (row[0] * 31 + row[1] * 17) % _POOL_BYTES
            self._value.update((self._pool[start : start + self._value_bytes],))
        return iter(())

    def close(self) -> None:
        return


def main() -> None:
    given = arguments()
    slots = given.number("slots", 2)
    # The core that stays free for Spark's own jobs is no slot of ours.
    spark = spark_session(cores=slots + 1)
    warm_up_workers(spark, slots)
    changes = Changes(given)
    changes.write_all()
    writer = tg.writeStream(kept(spark, changes.folder, given)).format("noop").outputMode("update")
    with running(writer.option("checkpoint.interval", f"{given.number('interval_ms')}ms"), given) as query:
        measure(query, changes, given)
    spark.stop()


def kept(spark: SparkSession, folder: Path, given: Arguments) -> DataFrame:
    rows = spark.readStream.schema("k long, v long").parquet(str(folder))
    if given.text("kind") == "totals":
        return rows.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
    processor = Keeps(given.number("value_bytes"))
    return rows.groupBy("k").transformWithState(processor, "k long", "Update", "None")


class Changes:
    """The files that the query reads."""

    def __init__(self, given: Arguments) -> None:
        bytes_per_key = _BYTES_PER_GROUP if given.text("kind") == "totals" else given.number("value_bytes")
        self.keys = given.number("state_mb") * 1_000_000 // bytes_per_key
        share = given.real("changed_percent", 1.0) / 100 / given.number("files_per_interval", 1)
        self.changed = max(1, int(self.keys * share))
        self.folder = Path(given.text("folder")) / "rows"
        self.folder.mkdir()
        self.rows = 0
        self._generator = np.random.default_rng(11)
        self._same = given.text("changed", "random") == "same"
        self._first = self._some()
        self._files = 0

    def write_all(self) -> None:
        order = self._generator.permutation(self.keys)
        for start in range(0, self.keys, _ROWS_PER_FILE):
            self._write(order[start : start + _ROWS_PER_FILE])

    def write_some(self) -> None:
        self._write(self._first if self._same else self._some())

    def _some(self) -> "np.ndarray[Any, Any]":
        return self._generator.choice(self.keys, self.changed, replace=False)

    def _write(self, keys: "np.ndarray[Any, Any]") -> None:
        self._files += 1
        values = np.full(len(keys), self._files, np.int64)
        # Under a name that readers pass over until it is whole.
        unfinished = self.folder / f"_{self._files:06}.new"
        pq.write_table(pa.table([keys, values], schema=_SCHEMA), unfinished)
        unfinished.rename(self.folder / f"{self._files:06}.parquet")
        self.rows += len(keys)


def measure(query: tg.StreamingQuery, changes: Changes, given: Arguments) -> None:
    pause_s = given.number("interval_ms") / 1000 / given.number("files_per_interval", 1)
    # From here on memory is watched: filling takes the most of it.
    tell("measuring")
    wait_until(query, lambda: counted_rows(query) >= changes.rows)
    await_checkpoint(query)
    change_for(query, changes, given.real("warm_up_s"), pause_s)
    full = savepoint(query)
    began, began_s, first_rows = datetime.now(UTC), time.monotonic(), counted_rows(query)
    change_for(query, changes, given.real("measure_s"), pause_s)
    seen = [one for one in reversed(query.checkpoints) if one.triggered_at >= began and not one.is_savepoint]
    tell(
        "measured",
        rows=counted_rows(query) - first_rows,
        seconds=time.monotonic() - began_s,
        checkpoints=[checkpoint(view, began) for view in seen],
        full_ms=full.duration_ms,
        full_bytes=full.new_state_bytes,
    )


def change_for(query: tg.StreamingQuery, changes: Changes, seconds: float, pause_s: float) -> None:
    """Writes file after file; the last one has been taken when it returns."""
    ends_s = time.monotonic() + seconds
    while (started_s := time.monotonic()) < ends_s:
        changes.write_some()
        time.sleep(max(0.0, started_s + pause_s - time.monotonic()))
    wait_until(query, lambda: counted_rows(query) >= changes.rows)


def savepoint(query: tg.StreamingQuery) -> CheckpointView:
    """Which stores all of the state, whatever was stored before."""
    query.savepoint()
    wait_until(query, lambda: bool(_savepoints(query)))
    return _savepoints(query)[0]


def _savepoints(query: tg.StreamingQuery) -> list[CheckpointView]:
    return [one for one in query.checkpoints if one.is_savepoint and one.status == "completed"]


def await_checkpoint(query: tg.StreamingQuery) -> None:
    newest = max((one.id for one in query.checkpoints), default=0)
    wait_until(query, lambda: any(one.id > newest and one.status == "completed" for one in query.checkpoints))


if __name__ == "__main__":
    main()
