"""Stateful functions over pandas: what they see, keep and give is what Structured Streaming gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.test_transform_with_state import numbered, put, rows_of, sparks_rows, spread, stream

pytestmark = pytest.mark.spark


def described(key: Any, frame: pd.DataFrame) -> str:
    kinds = " ".join(f"{name}:{kind}" for name, kind in frame.dtypes.items())
    return f"{type(key[0]).__name__} {kinds}"


class Running(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.seen = handle.getMapState("seen", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            n = (self.count.get() or (0,))[0]
            for at in range(len(frame)):
                self.seen.updateValue((frame["v"].iloc[at],), (n + at,))
            self.count.update((n + len(frame),))
            numbers = [n + at + 1 for at in range(len(frame))]
            yield pd.DataFrame({"n": numbers, "k": key[0], "said": described(key, frame)})

    def close(self) -> None:
        pass


def running(df: DataFrame) -> DataFrame:
    given = df.withColumn("small", F.col("v").cast("int")).groupBy("k")
    return given.transformWithStateInPandas(Running(), "k string, n long, said string", "Append", "None")


def test_a_processor_over_pandas_sees_and_gives_what_it_does_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", numbered(0, 30))
    ours = rows_of(running(stream(spark, tmp_path / "in")))
    assert ours == sparks_rows(running(stream(spark, tmp_path / "in")), tmp_path / "theirs")


def counted(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        (n,) = state.get
        columns = [list(frame.columns) for frame in frames]
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "said": [f"timed out {columns} {state.exists}"]})
        return
    for frame in frames:
        (n,) = state.getOption or (0,)
        state.update((n + len(frame),))
        numbers = [n + at + 1 for at in range(len(frame))]
        yield pd.DataFrame({"k": key[0], "n": numbers, "said": described(key, frame)})
        if state._timeout_conf == GroupStateTimeout.EventTimeTimeout:
            state.setTimeoutTimestamp(int(frame["ts"].max().timestamp() * 1000) + 5_000)


def grouped(df: DataFrame, timeout: str) -> DataFrame:
    given = df.withWatermark("ts", "10 seconds").withColumn("small", F.col("v").cast("int")).groupBy("k")
    return given.applyInPandasWithState(counted, "k string, n long, said string", "n long", "append", timeout)


def test_group_state_without_timeout(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", numbered(0, 30))
    ours = rows_of(grouped(stream(spark, tmp_path / "in"), GroupStateTimeout.NoTimeout))
    theirs = grouped(stream(spark, tmp_path / "in"), GroupStateTimeout.NoTimeout)
    assert ours == sparks_rows(theirs, tmp_path / "theirs")


def test_group_state_times_out_in_event_time_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    chk = {"checkpointLocation": str(tmp_path / "chk")}

    def query() -> DataFrame:
        return grouped(stream(spark, tmp_path / "in"), GroupStateTimeout.EventTimeTimeout)

    put(tmp_path / "in", spread(0, 30))
    first = rows_of(query(), parallelism=1, **chk)
    put(tmp_path / "in", [("late", 5_000, 1)])
    second = rows_of(query(), parallelism=3, **chk)
    assert sum(first.values()) == 30
    assert sorted(row[:2] for row in second if row[1] < 0) == [(f"key-{n}", -6) for n in range(5)]
    assert first + second == sparks_rows(query(), tmp_path / "theirs")
