"""The edges of event time: before 1970, behind a stop, and sessions whose gap depends on the row, as in Spark."""

import datetime as dt
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg
from tests.spark.same_answers.engines import (
    LAST_ID,
    Against,
    Input,
    Pipeline,
    comparable,
    sparks_rows,
    tidegates_rows_after_a_fall,
    write_files,
)
from tidegate.connectors.memory import read_memory_table

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark

SCHEMA = "id long, k string, ts timestamp"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PATIENCE_S = 240
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_GAP = "case when id % 4 = 0 then '90 seconds' when id % 4 = 1 then '0 seconds' when k = 'a' then '-5 seconds' "
_GAP += "else '10 seconds' end"
_names = itertools.count()


@pytest.fixture(autouse=True)
def no_query_survives_its_test() -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()


class PassOn(StatefulProcessor):
    def init(self, handle: Any) -> None:
        return

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(id=row.id)

    def close(self) -> None:
        return


def write(folder: Path, number: int, *seconds: float) -> None:
    folder.mkdir(exist_ok=True)
    ids = [number * 100 + at for at in range(len(seconds))]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "k": pa.array(["a" if at % 2 else "b" for at in ids]),
        "ts": pa.array([EPOCH + dt.timedelta(seconds=second) for second in seconds], pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), folder / f"{number}.parquet")


def events(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(folder)).withWatermark("ts", "10 seconds")


def _near(df: DataFrame, how: str) -> DataFrame:
    right = df.select(F.col("id").alias("other"), F.col("k").alias("k2"), F.col("ts").alias("ts2"))
    condition = "k = k2 and ts2 between ts - interval 5 seconds and ts + interval 5 seconds"
    return df.join(right, F.expr(condition), how).select("id", "other")


EARLY: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "windows": ("append", lambda df: df.groupBy(F.window("ts", "1 minute")).agg(F.count("*"), F.max("id"))),
    "windows in update mode": ("update", lambda df: df.groupBy(F.window("ts", "1 minute")).agg(F.count("*"))),
    "a timestamp as key": ("update", lambda df: df.groupBy("ts").agg(F.count("*"))),
    "sessions": ("append", lambda df: df.groupBy(F.session_window("ts", "20 seconds"), "k").agg(F.count("*"))),
    "sessions by a computed gap": (
        "append",
        lambda df: df.groupBy(F.session_window("ts", F.expr(_GAP)), "k").agg(F.count("*"), F.min("id")),
    ),
    "dropDuplicates": ("append", lambda df: df.dropDuplicates(["id", "ts"]).select("id")),
    "dropDuplicates by another column": ("append", lambda df: df.dropDuplicates(["id"]).select("id")),
    "within watermark": ("append", lambda df: df.dropDuplicatesWithinWatermark(["id"]).select("id")),
    "inner join": ("append", lambda df: _near(df, "inner")),
    "left outer join": ("append", lambda df: _near(df, "left_outer")),
    "transformWithState": (
        "append",
        lambda df: df.groupBy("k").transformWithState(PassOn(), "id long", "Append", "EventTime"),
    ),
}


def test_event_time_begins_in_1970_and_gaps_may_be_computed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, -3600, -61, -60, -0.001, 0, 0.000001, 0.5, 3, 59.5, 61)
    write(tmp_path / "in", 1, 130, 131, 300)
    expected = sparks_answers(spark, tmp_path / "in")
    found = {
        name: once(build(events(spark, tmp_path / "in")), mode, tmp_path / name, slots=2)
        for name, (mode, build) in EARLY.items()
    }
    assert found == expected


def test_a_fall_does_not_hold_event_time_back(spark: SparkSession, tmp_path: Path) -> None:
    """One task has seen the latest event time before the fall, another sees lower ones behind it."""
    seconds = [98.5, 109.9, *(100 + at % 5 for at in range(LAST_ID - 1))]
    times = [EPOCH + dt.timedelta(seconds=second) for second in seconds]
    ids = pa.array(range(LAST_ID + 1), pa.int64())
    write_files(tmp_path / "events", pa.table({"id": ids, "ts": pa.array(times, pa.timestamp("us", "UTC"))}), files=8)
    given = Input(tmp_path, {"events": "id long, ts timestamp"}, spark)
    pipeline = Pipeline(
        "windows",
        lambda tables: tables("events").withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 second")).count(),
        against=Against.STREAMING,
    )
    expected = sparks_rows(pipeline, given)
    assert len(expected) == 1
    folder = tmp_path / "fall"
    folder.mkdir()
    assert tidegates_rows_after_a_fall(pipeline, given, folder, slots=2, slots_afterwards=3) == expected


def sparks_answers(spark: SparkSession, folder: Path) -> dict[str, list[Any]]:
    """All at once, which takes less time."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    queries = {}
    for name, (mode, build) in EARLY.items():
        writer = build(events(spark, folder)).writeStream.format("memory").queryName(f"edge_{next(_names)}")
        queries[name] = writer.outputMode(mode).trigger(availableNow=True).start()
    for query in queries.values():
        assert query.awaitTermination(PATIENCE_S)
    return {name: _rows(spark.table(str(query.name)).toArrow(), EARLY[name][0]) for name, query in queries.items()}


def once(df: DataFrame, mode: str, location: Path, *, slots: int) -> list[Any]:
    name = f"edge_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(mode).option("parallelism", slots)
    query = writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return _rows(read_memory_table(name), mode)


def _rows(table: pa.Table, mode: str) -> list[Any]:
    return comparable(table, keys=1 if mode == "update" else 0)
