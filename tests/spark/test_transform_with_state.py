"""transformWithState: states, timers, late rows and initial state give what Structured Streaming gives."""

import datetime as dt
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure

pytestmark = pytest.mark.spark

SCHEMA = "k string, ts timestamp, v long"
_names = itertools.count()
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def put(folder: Path, rows: Iterable[tuple[str, int, int]]) -> None:
    """One more file of (key, seconds, value)."""
    folder.mkdir(exist_ok=True)
    keys, seconds, values = zip(*rows, strict=True)
    table = pa.table(
        {
            "k": pa.array(keys, pa.string()),
            "ts": pa.array([dt.datetime.fromtimestamp(at, dt.UTC) for at in seconds], pa.timestamp("us", "UTC")),
            "v": pa.array(values, pa.int64()),
        }
    )
    pq.write_table(table, folder / f"{len(list(folder.iterdir())):05}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def rows_of(df: DataFrame, *, mode: str = "append", **options: Any) -> Counter[tuple[Any, ...]]:
    name = f"stateful_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(mode).option("parallelism", 3)
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return Counter(tuple(row.values()) for row in read_memory_table(name).to_pylist())


def sparks_rows(df: DataFrame, checkpoint: Path, *, mode: str = "append") -> Counter[tuple[Any, ...]]:
    spark, name = df.sparkSession, f"stateful_{next(_names)}"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        writer = df.writeStream.format("memory").queryName(name).outputMode(mode)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(180)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        spark.conf.set("spark.sql.shuffle.partitions", "4")
    return Counter(tuple(row) for row in spark.table(name).collect())


class Everything(StatefulProcessor):
    """Per row: how many of the key so far, by a value, a list and a map, and what the typed state gives back."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))
        self.seen = handle.getListState("seen", "v long, at timestamp, note string")
        self.by_digit = handle.getMapState("by_digit", "digit int", "n long, values array<long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.count.get() or (0,))[0] + 1
            self.count.update((n,))
            self.seen.appendValue((row.v, row.ts, 7))
            digit = (row.v % 3,)
            before = self.by_digit.getValue(digit)
            self.by_digit.updateValue(
                digit, (1, [row.v]) if before is None else (before.n + 1, [*before.values, row.v])
            )
            listed = list(self.seen.get())
            mapped = dict(self.by_digit.iterator())
            yield Row(
                k=key[0],
                n=n,
                listed=len(listed),
                mapped=sum(entry[0] for entry in mapped.values()),
                digits=",".join(str(key[0]) for key in sorted(self.by_digit.keys())),
                times=f"{timerValues.getCurrentProcessingTimeInMs()} {timerValues.getCurrentWatermarkInMs()}",
                note=f"{listed[-1][2]!r} {row.ts.tzinfo} {self.by_digit.containsKey((9,))}",
            )
            if n == 4:
                self.seen.clear()
                self.by_digit.removeKey(digit)

    def close(self) -> None:
        pass


EVERYTHING = "k string, n long, listed long, mapped long, digits string, times string, note string"


def everything(df: DataFrame) -> DataFrame:
    return df.groupBy("k").transformWithState(Everything(), EVERYTHING, "Append", "None")


def numbered(first: int, count: int) -> list[tuple[str, int, int]]:
    return [(f"key-{n % 7}", n, n // 7) for n in range(first, first + count)]


def test_value_list_and_map_state_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    # In one file: of two, which two slots read at once, the rows of a key could come in either order.
    put(tmp_path / "in", numbered(0, 100))
    ours = rows_of(everything(stream(spark, tmp_path / "in")))
    assert sum(ours.values()) == 100
    assert ours == sparks_rows(everything(stream(spark, tmp_path / "in")), tmp_path / "theirs")


def test_value_list_and_map_state_in_rocksdb_are_as_on_the_heap(spark: SparkSession, tmp_path: Path) -> None:
    # One file: rows of several may come in another order, which these states tell.
    put(tmp_path / "in", numbered(0, 100))
    on_heap = rows_of(everything(stream(spark, tmp_path / "in")))
    assert sum(on_heap.values()) == 100
    assert on_heap == rows_of(everything(stream(spark, tmp_path / "in")), **{"state.backend": "rocksdb"})


class Alarms(StatefulProcessor):
    """A timer five seconds behind each row; one of each pair is deleted again."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getListState("rows", "v long")
        self.labels = handle.getMapState("labels", "at long", "label string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at_ms = int(row.ts.timestamp() * 1000) + 5_000
            self.handle.registerTimer(at_ms)
            self.labels.updateValue((at_ms,), (f"row {row.v}",))
            self.rows.appendValue((row.v,))
            if row.v % 2:
                self.handle.deleteTimer(at_ms)
            assert (at_ms in list(self.handle.listTimers())) == (row.v % 2 == 0)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        assert at_ms <= timerValues.getCurrentWatermarkInMs()
        label = self.labels.getValue((at_ms,))
        self.labels.removeKey((at_ms,))
        yield Row(k=key[0], at=at_ms, label=label.label)

    def close(self) -> None:
        pass


def alarms(df: DataFrame) -> DataFrame:
    late = df.withWatermark("ts", "10 seconds").groupBy("k")
    return late.transformWithState(Alarms(), "k string, at long, label string", "Append", "EventTime")


def spread(first: int, count: int) -> list[tuple[str, int, int]]:
    return [(f"key-{n % 5}", 1_000 + n, n) for n in range(first, first + count)]


def test_event_time_timers_fire_for_the_rows_for_which_sparks_do(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", spread(0, 100))
    put(tmp_path / "in", spread(100, 50))
    ours = rows_of(alarms(stream(spark, tmp_path / "in")))
    # Event time ends ten seconds before the newest row, and a timer is five behind its row.
    assert len(ours) == len([n for n in range(150) if n % 2 == 0 and n + 5 <= 149 - 10])
    assert ours == sparks_rows(alarms(stream(spark, tmp_path / "in")), tmp_path / "theirs")


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_timers_lists_and_maps_survive_a_restart_at_another_parallelism(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    chk = {"checkpointLocation": str(tmp_path / "chk"), "state.backend": backend}
    put(tmp_path / "in", spread(0, 100))
    first = rows_of(alarms(stream(spark, tmp_path / "in")), parallelism=2, **chk)
    put(tmp_path / "in", spread(100, 50))
    second = rows_of(alarms(stream(spark, tmp_path / "in")), parallelism=3, **chk)
    whole = rows_of(alarms(stream(spark, tmp_path / "in")))
    assert first and second
    assert first + second == whole


def test_rows_behind_the_watermark_are_dropped_in_event_time_only(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", [("a", 1_000, 1), ("a", -5, 2)])
    df = stream(spark, tmp_path / "in").withWatermark("ts", "0 seconds").groupBy("k")

    def counted(mode: str) -> DataFrame:
        return df.transformWithState(CountRows(), "k string, v long", "Append", mode)

    assert rows_of(counted("EventTime")) == Counter([("a", 1)])
    assert rows_of(counted("EventTime")) == sparks_rows(counted("EventTime"), tmp_path / "theirs")
    assert rows_of(counted("None")) == Counter([("a", 1), ("a", 2)])


class CountRows(StatefulProcessor):
    def init(self, handle: Any) -> None:
        return

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return (Row(k=key[0], v=row.v) for row in rows)

    def close(self) -> None:
        pass


class StartsWith(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.start = handle.getListState("start", "v long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.start.appendValue((initialState.start,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], v=row.v, start=sum(entry[0] for entry in self.start.get()))

    def close(self) -> None:
        pass


def started(df: DataFrame) -> DataFrame:
    initial = df.sparkSession.createDataFrame(
        [("key-1", 10), ("key-2", 20), ("key-1", 5), ("nobody", 1)], "k string, start long"
    )
    schema = "k string, v long, start long"
    return df.groupBy("k").transformWithState(StartsWith(), schema, "Append", "None", initial.groupBy("k"))


def test_an_initial_state_is_there_before_the_first_row_and_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", numbered(0, 21))
    ours = rows_of(started(stream(spark, tmp_path / "in")))
    assert ours[("key-1", 0, 15)] == 1
    assert ours == sparks_rows(started(stream(spark, tmp_path / "in")), tmp_path / "theirs")


def test_an_initial_state_is_applied_once_whatever_the_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    chk = {"checkpointLocation": str(tmp_path / "chk")}
    put(tmp_path / "in", numbered(0, 14))
    assert set(rows_of(started(stream(spark, tmp_path / "in")), parallelism=1, **chk)) >= {("key-1", 0, 15)}
    put(tmp_path / "in", numbered(14, 14))
    second = rows_of(started(stream(spark, tmp_path / "in")), parallelism=3, **chk)
    assert set(second) >= {("key-1", 2, 15), ("key-2", 3, 20), ("key-3", 2, 0)}


def chained(df: DataFrame) -> DataFrame:
    """The output's own event time goes on to an aggregate over windows of it."""
    given = df.withWatermark("ts", "10 seconds").groupBy("k")
    schema = "k string, at timestamp"
    return given.transformWithState(Repeat(), schema, "Append", "EventTime", eventTimeColumnName="at")


class Repeat(StatefulProcessor):
    def init(self, handle: Any) -> None:
        return

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return (Row(k=key[0], at=row.ts + dt.timedelta(seconds=self.shift_s)) for row in rows)

    shift_s = 0

    def close(self) -> None:
        pass


def test_an_event_time_column_passes_rows_that_are_not_older_than_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", spread(0, 20))
    ours = rows_of(chained(stream(spark, tmp_path / "in")).select("k", F.col("at").cast("long").alias("at")))
    assert ours == Counter((k, at) for k, at, _ in spread(0, 20))


class Ticks(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.ticks = handle.getValueState("ticks", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 50)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = (self.ticks.get() or (0,))[0] + 1
        self.ticks.update((n,))
        if n < 3:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 50)
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        pass


def test_processing_time_timers_fire_by_the_clock_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", [("a", 0, 1), ("b", 0, 1)])
    df = stream(spark, tmp_path / "in").groupBy("k")
    ticking = df.transformWithState(Ticks(), "k string, n int", "Append", "ProcessingTime")
    name = f"stateful_{next(_names)}"
    query = tg.writeStream(ticking).format("memory").queryName(name).option("checkpoint.interval", "100ms").start()

    def seen() -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in read_memory_table(name).to_pylist())

    expected = Counter((k, n) for k in "ab" for n in (1, 2, 3))
    wait_until(lambda: seen() == expected)
    query.stop()


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


class Gaps(StatefulProcessor):
    """Twice the row's interval, and which row of the key it is."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.count.get() or (0,))[0] + 1
            self.count.update((n,))
            yield Row(k=key[0], twice=row.gap * 2, n=n)


def test_intervals_pass_through_rows_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", [("a", 5, 1), ("b", -7, 2), ("a", 3, 3)])
    rows = stream(spark, tmp_path / "in").selectExpr("k", "ts - timestamp'1970-01-01 00:00:00' AS gap")
    df = rows.groupBy("k").transformWithState(
        Gaps(), "k string, twice interval day to second, n long", "append", "none"
    )
    expected = sparks_rows(df, tmp_path / "spark")
    assert expected == {("a", _s(10), 1): 1, ("b", _s(-14), 1): 1, ("a", _s(6), 2): 1}
    assert rows_of(df) == expected


def _s(seconds: int) -> dt.timedelta:
    return dt.timedelta(seconds=seconds)


class Noting(StatefulProcessor):
    """Notes when it is closed; fails where it is told to, in workers: the driver tries out `init` and `close`."""

    def __init__(self, folder: Path, name: str, *, fails_in: str = "", raises_in_close: bool = False) -> None:
        self.folder = folder
        self.name = name
        self.fails_in = fails_in
        self.raises_in_close = raises_in_close
        self.driver = os.getpid()

    def init(self, handle: Any) -> None:
        if self.fails_in == "init" and os.getpid() != self.driver:
            raise ValueError(f"{self.name} cannot be opened")
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if self.fails_in == "rows" and not (self.folder / "failed").exists():
            (self.folder / "failed").touch()
            raise ValueError("once")
        n = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        if os.getpid() == self.driver:
            return
        (self.folder / f"closed {self.name}").touch()
        if self.raises_in_close:
            raise RuntimeError("nor can it be closed")


def counted(df: DataFrame, processor: StatefulProcessor) -> DataFrame:
    return df.groupBy("k").transformWithState(processor, "k string, n long", "append", "none")


def test_what_is_open_is_closed_if_another_processor_cannot_be_opened(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", [("a", 0, 1)])
    first = counted(stream(spark, tmp_path / "in"), Noting(tmp_path, "first", raises_in_close=True))
    both = counted(first, Noting(tmp_path, "second", fails_in="init"))
    with pytest.raises(UserCodeFailure, match="second cannot be opened"):
        rows_of(both, **{"restart.strategy": "none"})
    assert (tmp_path / "closed first").exists()


def test_a_processor_that_cannot_be_closed_either_does_not_end_its_slot(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", [(key, 0, 1) for key in "abcab"])
    df = counted(stream(spark, tmp_path / "in"), Noting(tmp_path, "it", fails_in="rows", raises_in_close=True))
    assert rows_of(df) == Counter({("a", 2): 1, ("b", 2): 1, ("c", 1): 1})
    assert (tmp_path / "failed").exists() and (tmp_path / "closed it").exists()


class OfAVersion(StatefulProcessor):
    """Counts in the state `kept`, and in `s` if its schema is given."""

    def __init__(self, schema: str | None) -> None:
        self.schema = schema

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n long")
        self.s = None if self.schema is None else handle.getValueState("s", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.kept.get() or (0,))[0] + sum(1 for _ in rows)
        self.kept.update((n,))
        if self.s is not None:
            self.s.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        return


def test_a_state_that_one_version_left_out_does_not_come_back_with_another_type(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run(schema: str | None) -> None:
        put(tmp_path / "in", [("a", 0, 1)])
        writer = tg.writeStream(counted(stream(spark, tmp_path / "in"), OfAVersion(schema))).format("noop")
        query = writer.option("checkpointLocation", tmp_path / "chk").option("parallelism", 2)
        assert query.trigger(availableNow=True).start().awaitTermination(90)

    for schema in ("n long", None, None):
        run(schema)
    with pytest.raises(IncompatibleCheckpoint, match="has state 's' as"):
        run("n string")
    run("n long")
