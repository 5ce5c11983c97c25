"""`spark.read.format("tidegate")`: what a query keeps as DataFrames, without any registration, and the way back."""

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg

pytestmark = pytest.mark.spark

SCHEMA = "k string, ts timestamp, v long"
SRC = Path(tg.__file__).parents[1]
DAY = dt.date(2026, 11, 16)
TOTALS = [("0", 18, 4.5), ("1", 12, 3.0), ("2", 15, 3.75)]


class Keeping(StatefulProcessor):
    """A value, a list and a map of each key, and a timer far ahead."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long, mean decimal(10,2)")
        self.seen = handle.getListState("seen", "v long, at timestamp", ttlDurationMs=3_600_000)
        self.days = handle.getMapState("days", "digit int", "day date, what struct<n:long,tags:array<string>>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            total = (self.total.get() or (0,))[0] + row.v
            self.total.update((total, Decimal(total) / 4))
            self.seen.appendValue((row.v, row.ts))
            self.days.updateValue((row.v % 2,), (DAY, (row.v, ["x"])))
            yield Row(k=key[0], total=total)
        self.handle.registerTimer(4_000_000_000_000)

    def close(self) -> None:
        return


class Beginning(Keeping):
    """Its totals go on from an initial state."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update((initialState.start, None))


class Waiting(StatefulProcessor):
    """No state, and a timer that never comes."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer((1 << 63) - 1)
        return iter(())

    def close(self) -> None:
        return


class Reminding(StatefulProcessor):
    """Tells its total when event time has come to 100 seconds; without a total it fails."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.seen = handle.getListState("seen", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.total.update(((self.total.get() or (0,))[0] + row.v,))
            self.seen.appendValue((row.v,))
            self.handle.registerTimer(100_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], total=self.total.get()[0])

    def close(self) -> None:
        return


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Of the keys 0 to 2, the values 1 to 9, a second each."""
    rows = spark.range(1, 10, 1, 1).select(
        (F.col("id") % 3).cast("string").alias("k"), F.timestamp_seconds("id").alias("ts"), F.col("id").alias("v")
    )
    rows.write.parquet(str(folder))
    return spark.readStream.schema(SCHEMA).parquet(str(folder))


def run(df: DataFrame, location: Path, *, mode: str = "append", **options: Any) -> None:
    writer = tg.writeStream(df).format("noop").outputMode(mode).option("checkpointLocation", str(location))
    query = writer.option("parallelism", 2).options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(90)


def table(spark: SparkSession, path: Path, name: str, **options: str) -> DataFrame:
    return spark.read.format("tidegate").option("table", name).options(**options).load(str(path))


def test_states_of_a_processor_and_its_timers_are_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    kept = stream(spark, tmp_path / "in").groupBy("k").transformWithState(
        Keeping(), "k string, total long", "append", "processingTime"
    )  # fmt: skip
    location = tmp_path / "chk"
    run(kept, location)
    totals = table(spark, location, "state", state="total")
    assert totals.dtypes == [
        ("k", "string"), ("total", "bigint"), ("mean", "decimal(10,2)"), ("key_group", "int"), ("subtask", "int"),
    ]  # fmt: skip
    assert totals.rdd.getNumPartitions() == 2
    assert sorted(totals.select("k", "total", F.col("mean").cast("double")).collect()) == TOTALS
    seen = table(spark, location, "state", state="seen")
    at = F.col("at").cast("long")
    assert sorted(seen.where("k = '1'").select("index", "v", at).collect()) == [(0, 1, 1), (1, 4, 4), (2, 7, 7)]
    assert seen.where("expiration < current_timestamp()").count() == 0
    days = table(spark, location, "state", state="days").where("k = '2'").orderBy("digit")
    assert days.select("digit", "day", "what.n", "what.tags").collect() == [(0, DAY, 8, ["x"]), (1, DAY, 5, ["x"])]
    timers = table(spark, location, "timers", operator="TransformWithState")
    assert sorted(timers.select("k", F.col("time").cast("long")).collect()) == [
        (k, 4_000_000_000) for k in ("0", "1", "2")
    ]  # fmt: skip


def test_timers_of_a_processor_without_state_are_a_dataframe_however_far_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    waiting = stream(spark, tmp_path / "in").groupBy("k").transformWithState(
        Waiting(), "k string", "append", "processingTime"
    )  # fmt: skip
    run(waiting, tmp_path / "chk")
    timers = table(spark, tmp_path / "chk", "timers", operator="TransformWithState")
    assert sorted((row.k, row.time.year) for row in timers.collect()) == [(k, 9999) for k in ("0", "1", "2")]


def test_an_initial_state_is_not_applied_over_the_rows_of_a_written_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    start = spark.createDataFrame([("0", 500), ("1", 700)], "k string, start long").groupBy("k")
    kept = stream(spark, tmp_path / "in").groupBy("k").transformWithState(
        Beginning(), "k string, total long", "append", "processingTime", start
    )  # fmt: skip
    known = spark.createDataFrame([("1", 1_000, None)], "k string, total long, mean decimal(10,2)")
    query = tg.writeStream(kept).format("noop").option("parallelism", 2)
    first = tg.savepoints.from_dataframe(known, path=tmp_path / "first", state="total", query=query)
    run(kept, tmp_path / "chk", **{"restore.from": first})
    totals = table(spark, tmp_path / "chk", "state", state="total")
    assert sorted(totals.select("k", "total").collect()) == [("0", 18), ("1", 1_012), ("2", 15)]


def test_a_savepoint_is_written_from_rows_and_edited_and_a_query_goes_on_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """First for a query that has not run, then by editing what it keeps in RocksDB, with other key groups."""
    kept = stream(spark, tmp_path / "in").groupBy("k").transformWithState(
        Keeping(), "k string, total long", "append", "processingTime"
    )  # fmt: skip
    known = spark.createDataFrame([("1", 1_000, None), ("9", 9, None)], "k string, total long, mean decimal(10,2)")
    query = tg.writeStream(kept).format("noop").option("parallelism", 2)
    first = tg.savepoints.from_dataframe(known, path=tmp_path / "first", state="total", query=query)
    run(kept, tmp_path / "one", **{"restore.from": first, "state.backend": "rocksdb"})
    totals = table(spark, tmp_path / "one", "state", state="total")
    assert sorted(totals.select("k", "total").collect()) == [("0", 18), ("1", 1_012), ("2", 15), ("9", 9)]
    second = tg.savepoints.from_dataframe(
        totals.where("k != '2'").withColumn("total", F.col("total") * 10),
        path=tmp_path / "second",
        state="total",
        based_on=tmp_path / "one",
        max_parallelism=32,
    )
    assert table(spark, Path(second), "state", state="seen").count() == 9
    stream(spark, tmp_path / "more")
    for file in (tmp_path / "more").glob("*.parquet"):
        file.rename(tmp_path / "in" / f"more-{file.name}")
    run(kept, tmp_path / "two", maxParallelism=32, **{"restore.from": second})
    after = table(spark, tmp_path / "two", "state", state="total").select("k", "total", "key_group")
    assert sorted(row[:2] for row in after.collect()) == [("0", 198), ("1", 10_132), ("2", 15), ("9", 90)]
    assert after.where("key_group >= 32").count() == 0
    with pytest.raises(tg.UserError, match="column 'total' of the DataFrame is string, so cast it"):
        wrong = known.withColumn("total", F.col("total").cast("string"))
        tg.savepoints.from_dataframe(wrong, path=tmp_path / "third", state="total", query=query)
    with pytest.raises(tg.UserError, match="Say what the savepoint is for"):
        tg.savepoints.from_dataframe(known, path=tmp_path / "third", state="total")
    assert not (tmp_path / "third").exists()


def test_a_corrected_group_goes_on_from_what_it_was_corrected_to(spark: SparkSession, tmp_path: Path) -> None:
    """Of windows, so that a struct is among the keys; from RocksDB to the heap."""
    counted = (
        stream(spark, tmp_path / "in").groupBy(F.window("ts", "1 minute"), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    )  # fmt: skip
    query = (
        tg.writeStream(counted).format("noop").outputMode("update")
        .options(parallelism=2, checkpointLocation=str(tmp_path / "one"), **{"state.backend": "rocksdb"}).start()
    )  # fmt: skip
    query.processAllAvailable()
    stopped = query.stop(savepoint=str(tmp_path / "stopped"))
    groups = table(spark, Path(stopped), "state")
    assert sorted(groups.select("k", "n", "total").collect()) == [("0", 3, 18), ("1", 3, 12), ("2", 3, 15)]
    twice = groups.unionByName(groups.where("k = '1'"))
    with pytest.raises(PySparkException, match=r"Two rows have the key .*'1'\) in state 'groups' of operator v1.op0"):
        tg.savepoints.from_dataframe(twice, path=tmp_path / "twice", based_on=stopped)
    assert not (tmp_path / "twice" / "manifest.json").exists()
    corrected = F.when(F.col("k") == "1", 1_000).otherwise(F.col("total"))
    path = tg.savepoints.from_dataframe(
        groups.where("k != '2'").withColumn("total", corrected.cast("long")),
        path=tmp_path / "corrected",
        based_on=stopped,
    )
    at = dt.datetime(1970, 1, 1, 0, 0, 5)
    more = spark.createDataFrame([(key, at, 100) for key in "012"], SCHEMA)
    more.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    run(counted, tmp_path / "two", mode="update", **{"restore.from": path})
    after = table(spark, tmp_path / "two", "state")
    assert sorted(after.select("k", "n", "total").collect()) == [("0", 4, 118), ("1", 4, 1_100), ("2", 1, 100)]
    with pytest.raises(tg.UserError, match="State 'groups' .* has the columns window .*: the DataFrame has no"):
        tg.savepoints.from_dataframe(groups.drop("n"), path=tmp_path / "third", based_on=stopped)
    assert not (tmp_path / "third").exists()


def test_dropped_keys_are_gone_with_all_their_state_and_no_timer_fires_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    reminding = (
        stream(spark, tmp_path / "in").withWatermark("ts", "0 seconds").groupBy("k")
        .transformWithState(Reminding(), "k string, total long", "append", "eventTime")
    )  # fmt: skip

    def go_on(out: str, **options: Any) -> list[tuple[str, int]]:
        writer = tg.writeStream(reminding).format("parquet").option("checkpointLocation", str(tmp_path / f"chk-{out}"))
        writer = writer.options(**{"parallelism": 2, "state.backend": "rocksdb", **options})
        assert writer.trigger(availableNow=True).start(str(tmp_path / out)).awaitTermination(90)
        rows = spark.read.schema("k string, total long").parquet(str(tmp_path / out))
        return sorted((row.k, row.total) for row in rows.collect())

    assert go_on("first") == []
    base = tmp_path / "chk-first"
    small = table(spark, base, "state", state="total").where("total < 15").select("k")
    path = tg.savepoints.drop_keys(small, based_on=base, path=tmp_path / "without")
    assert sorted(row.k for row in table(spark, Path(path), "state", state="seen").collect()) == ["0"] * 3 + ["2"] * 3
    timers = table(spark, Path(path), "timers", operator="TransformWithState")
    assert sorted(row.k for row in timers.collect()) == ["0", "2"]
    late = spark.createDataFrame([("5", dt.datetime(1970, 1, 1, 0, 5), 1)], "k string, ts timestamp, v long")
    late.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    assert go_on("second", **{"restore.from": path}) == [("0", 18), ("2", 15), ("5", 1)]

    def refused(keys: DataFrame, **options: Any) -> str:
        with pytest.raises(tg.UserError) as caught:
            tg.savepoints.drop_keys(keys, based_on=base, path=tmp_path / "refused", **options)
        assert not (tmp_path / "refused").exists()
        return str(caught.value)

    keyed = "Operator v1.op0 (TransformWithState) is keyed by k string, but "
    assert refused(spark.range(1).select(F.col("id").alias("k"))) == (
        f"{keyed}column 'k' of the DataFrame is bigint: cast it."
    )
    assert refused(small.withColumn("v", F.lit(1))) == (
        f"{keyed}the DataFrame has the columns k, v: select the keys, all and no more."
    )
    assert "operator is 'other', which is unknown: use one of v1.op0" in refused(small, operator="other")


def test_dropped_keys_of_windows_are_gone_and_all_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    counted = (
        stream(spark, tmp_path / "in").withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("total"))
    )  # fmt: skip
    run(counted, tmp_path / "first", mode="update")
    keys = table(spark, tmp_path / "first", "state").where("k = '0'").select("window", "k")
    path = tg.savepoints.drop_keys(keys, based_on=tmp_path / "first", path=tmp_path / "without")
    assert sorted(row.k for row in table(spark, Path(path), "state").collect()) == ["1", "2"]
    at = dt.datetime(1970, 1, 1, 0, 0, 5)
    more = spark.createDataFrame([("0", at, 100), ("1", at, 100)], SCHEMA)
    more.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    run(counted, tmp_path / "second", mode="update", **{"restore.from": path, "state.backend": "rocksdb"})
    after = table(spark, tmp_path / "second", "state").select("k", "total")
    assert sorted(after.collect()) == [("0", 100), ("1", 112), ("2", 15)]


def test_groups_sessions_keys_and_joined_rows_are_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    rows = stream(spark, tmp_path / "in").withWatermark("ts", "1 hour")
    sessions = rows.groupBy(F.session_window("ts", "10 seconds").alias("session"), "k").agg(
        F.sum("v").alias("total"), F.max("ts").alias("last"), F.avg("v").alias("mean")
    )
    run(sessions, tmp_path / "sessions")
    groups = table(spark, tmp_path / "sessions", "state")
    found = groups.select("k", "total", F.col("last").cast("long"), "mean", F.col("session.start").cast("long"))
    assert sorted(found.collect()) == [("0", 18, 9, 6.0, 3), ("1", 12, 7, 4.0, 1), ("2", 15, 8, 5.0, 2)]
    run(rows.dropDuplicatesWithinWatermark(["k"]), tmp_path / "once")
    keys = table(spark, tmp_path / "once", "state").select("k", F.col("forgotten_at").cast("long"))
    assert sorted(keys.collect()) == [("0", 3_603), ("1", 3_601), ("2", 3_602)]
    other = rows.select(F.col("k").alias("k2"), F.col("ts").alias("ts2"), F.col("v").alias("v2"))
    near = F.expr("k = k2 and ts2 between ts and ts + interval 1 second")
    run(rows.join(other, near), tmp_path / "join")
    left = table(spark, tmp_path / "join", "state", state="left")
    assert sorted(row.v for row in left.collect()) == list(range(1, 10))
    assert {"k", "ts", "has_partner", "key_group", "subtask"} <= set(left.columns)


def test_rows_on_disk_are_the_same_dataframes_and_stay_in_an_edited_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Deduplication with room for few keys, and a processor behind it whose state is edited."""
    many = spark.range(0, 6_000, 1, 4).select(
        (F.col("id") % 3).cast("string").alias("k"), F.timestamp_seconds("id").alias("ts"), F.col("id").alias("v")
    )
    many.write.parquet(str(tmp_path / "in"))
    once = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")).dropDuplicates(["v"])
    kept = tg.named(once, "values seen").groupBy("k").transformWithState(
        Keeping(), "k string, total long", "append", "processingTime"
    )  # fmt: skip
    on_disk = {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "16KiB", "source.parallelism": 1}
    run(kept, tmp_path / "heap")
    run(kept, tmp_path / "rocksdb", **on_disk)
    in_memory, seen = (
        table(spark, tmp_path / backend, "state", operator="values seen").drop("subtask")
        for backend in ("heap", "rocksdb")
    )
    assert seen.dtypes == in_memory.dtypes
    assert sorted(seen.collect()) == sorted(in_memory.collect())
    assert seen.count() == 6_000
    totals = table(spark, tmp_path / "rocksdb", "state", operator="TransformWithState", state="total")
    path = tg.savepoints.from_dataframe(
        totals.withColumn("total", F.lit(0).cast("long")),
        path=tmp_path / "edited",
        operator="TransformWithState",
        state="total",
        based_on=tmp_path / "rocksdb",
    )
    assert table(spark, Path(path), "state", operator="values seen").drop("subtask").exceptAll(seen).count() == 0
    # All of these were seen but one.
    more = many.where("v < 3000").unionByName(many.where("v = 1").withColumn("v", F.lit(7_000).cast("long")))
    more.write.mode("append").parquet(str(tmp_path / "in"))
    run(kept, tmp_path / "on", **on_disk, **{"restore.from": path, "parallelism": 3})
    after = table(spark, tmp_path / "on", "state", operator="TransformWithState", state="total").select("k", "total")
    assert sorted(after.collect()) == [("0", 0), ("1", 7_000), ("2", 0)]
    assert table(spark, tmp_path / "on", "state", operator="values seen").count() == 6_001


def test_a_savepoint_with_another_max_parallelism_goes_on_to_the_same_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Deduplication and windows whose rows were on disk, for fewer key groups, more slots and state in memory."""

    def add(first: int, last: int) -> None:
        ids = spark.range(first, last, 1, 1).select(
            (F.col("id") % 50).cast("string").alias("k"), F.timestamp_seconds("id").alias("ts"), F.col("id").alias("v")
        )
        ids.write.mode("append").parquet(str(tmp_path / "in"))

    def writer(name: str) -> tg.DataStreamWriter:
        to = tg.writeStream(totals).format("parquet").option("path", str(tmp_path / f"out-{name}"))
        return to.option("checkpointLocation", str(tmp_path / f"chk-{name}"))

    def rows(name: str) -> list[tuple[Any, ...]]:
        found = spark.read.parquet(str(tmp_path / f"out-{name}")).collect()
        return sorted((row.window, row.k, row.total, sorted(row.seen)) for row in found)

    add(1, 3_001)
    once = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")).withWatermark("ts", "20 minutes")
    seen = F.collect_set("v").alias("seen")
    totals = (
        once.dropDuplicates(["k", "v", "ts"])
        .groupBy(F.window("ts", "10 minutes"), "k")
        .agg(F.sum("v").alias("total"), seen)
    )
    on_disk = {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "16KiB", "parallelism": "2"}
    query = writer("before").options(**on_disk).trigger(processingTime="500 milliseconds").start()
    deadline_s = time.monotonic() + 60
    # Event time goes on once the slot without a file is idle.
    while not list((tmp_path / "out-before").glob("*.parquet")):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    stopped = query.stop(savepoint=str(tmp_path / "stopped"))
    with pytest.raises(tg.UserError, match="Without a DataFrame a savepoint can only be given other key groups"):
        tg.savepoints.from_dataframe(path=tmp_path / "refused", based_on=stopped)
    with pytest.raises(tg.UserError, match="state goes with the rows of a DataFrame, and there is none"):
        tg.savepoints.from_dataframe(path=tmp_path / "refused", state="keys", based_on=stopped, max_parallelism=7)
    assert not (tmp_path / "refused").exists()
    path = tg.savepoints.from_dataframe(path=tmp_path / "regrouped", based_on=stopped, max_parallelism=7)
    keys, same_keys = (table(spark, Path(each), "state", operator="Deduplicate") for each in (stopped, path))
    assert same_keys.where("key_group < 7").count() == keys.count() >= 1_000
    # A quarter of what comes was there already.
    add(2_001, 6_001)
    on = writer("after").options(parallelism=3, maxParallelism=7, **{"restore.from": path})
    assert on.trigger(availableNow=True).start().awaitTermination(90)
    assert writer("whole").option("parallelism", 2).trigger(availableNow=True).start().awaitTermination(90)
    before, after = rows("before"), rows("after")
    assert before and after and sorted(before + after) == rows("whole")


def test_checkpoints_tasks_and_refusals(spark: SparkSession, tmp_path: Path) -> None:
    location = tmp_path / "chk"
    run(stream(spark, tmp_path / "in").groupBy("k").count(), location, mode="update")
    (checkpoint,) = table(spark, location, "checkpoints").where("status = 'completed'").limit(1).collect()
    tasks = table(spark, location, "tasks", checkpoint=str(checkpoint.id))
    assert tasks.where("name like 'Aggregate%'").count() == 2
    assert table(spark, Path(checkpoint.path), "tasks").count() == tasks.count()
    assert table(spark, location, "inflight").count() == 0
    with pytest.raises(AnalysisException, match="'state' is 'none', but operator v1.op0 .* has groups: use one"):
        table(spark, location, "state", state="none")
    files = list(Path(checkpoint.path).glob("*.state"))
    groups = table(spark, location, "state")
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PySparkException, match=r"State file checkpoints/.*\.state is damaged"):
        groups.collect()


WITHOUT_ACTIVATION = """
import shutil, subprocess, sys
import tidegate as tg
from pyspark.sql import SparkSession

found = subprocess.run([shutil.which("python3"), "-c", "import tidegate"], capture_output=True, text=True)
assert "No module named 'tidegate'" in found.stderr, found
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def run(session, location):
    rows = session.readStream.schema("v long").json("in")
    writer = tg.writeStream(rows.groupBy("v").count()).format("noop").outputMode("update")
    writer.option("checkpointLocation", location).trigger(availableNow=True).start().awaitTermination()

for session, location in ((spark, "first"), (spark, "second"), (spark.newSession(), "third")):
    run(session, location)
    groups = session.read.format("tidegate").option("table", "state").load(location)
    assert sorted((row["v"], row["count"]) for row in groups.collect()) == [(1, 2), (2, 1)]
print("all read")
"""


def test_a_session_that_has_started_a_query_reads_them_also_where_sparks_own_python_lacks_tidegate(
    tmp_path: Path,
) -> None:
    """As with an environment that nobody has activated: `python3` on the PATH is another one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"v": 1}\n{"v": 1}\n{"v": 2}\n')
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import os, sys\nsys.path = [one for one in sys.path if not os.path.isdir(os.path.join(one, 'tidegate'))]\n"
    )
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(SRC)}
    environment.pop("PYSPARK_PYTHON", None)
    user = subprocess.run(
        [sys.executable, "-c", WITHOUT_ACTIVATION],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert user.stdout.endswith("all read\n"), user.stderr[-3000:]
    assert " replaced a " not in user.stderr, "Spark's warning"
