"""Aggregations, windows and output modes: the same DataFrame, run by Tidegate and by Spark, gives the same rows."""

import datetime as dt
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import OptionError, UnsupportedPlan

pytestmark = pytest.mark.spark

SCHEMA = (
    "id long, k string, small int, flag boolean, v long, x double, "
    "price decimal(7, 2), big decimal(24, 3), ts timestamp"
)
FILES = 6
ROWS = 3000
_names = itertools.count()


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Event time goes up from file to file by a minute each, and moves about within one; every value may be null."""
    folder = tmp_path_factory.mktemp("windows") / "in"
    seconds = f"id * {FILES * 60} div {ROWS} + (id * 7919) % 11"
    values = {
        "k": "concat('k', (id * 31) % 5)",
        "small": "cast((id * 17) % 7 - 3 as int)",
        "flag": "(id * 13) % 5 <> 0",
        "v": "(id * 7907) % 1000 - 500",
        "x": "((id * 104729) % 4001 - 2000) / 8.0D",
        "price": "cast((id * 37) % 2000 - 900 as decimal(12, 2)) / 8",
        "big": "cast(id * 1234567890123 as decimal(24, 3)) / 7",
    }
    columns = [
        F.expr(f"if(id % {n} = 0, null, {value})").alias(name) for n, (name, value) in enumerate(values.items(), 5)
    ]
    rows = spark.range(0, ROWS, 1, FILES).select(
        "id", *columns, F.expr(f"timestamp_seconds(1700000000 + {seconds})").alias("ts")
    )
    typed = rows.selectExpr(
        "id",
        "k",
        "small",
        "flag",
        "v",
        "x",
        "cast(price as decimal(7, 2)) price",
        "cast(big as decimal(24, 3)) big",
        "ts",
    )
    typed.write.parquet(str(folder))
    # Read in this order, no row is late, however many tasks read: each goes forward in event time.
    for number, file in enumerate(sorted(folder.glob("part-*"))):
        os.utime(file, (1_600_000_000 + number, 1_600_000_000 + number))
    return folder


@dataclass(frozen=True)
class Pipeline:
    """`key_count`: by how many of the first columns rows of update mode replace one another."""

    make: Callable[[DataFrame], DataFrame]
    mode: str = "append"
    key_count: int = 0
    watermark: str | None = "20 seconds"
    conf: tuple[tuple[str, str], ...] = ()


def grouped(*calls: str, by: str = "k", mode: str = "update", conf: tuple[tuple[str, str], ...] = ()) -> Pipeline:
    return Pipeline(
        lambda df: df.groupBy(F.expr(by)).agg(*map(F.expr, calls)), mode, key_count=1, watermark=None, conf=conf
    )


def windowed(*calls: str, mode: str = "append", slide: str | None = None) -> Pipeline:
    return Pipeline(
        lambda df: df.groupBy(F.window("ts", "30 seconds", slide), "k").agg(*map(F.expr, calls)), mode, key_count=2
    )


def overall(*calls: str, mode: str) -> Pipeline:
    return Pipeline(lambda df: df.agg(*map(F.expr, calls)), mode, watermark=None)


PIPELINES: dict[str, Pipeline] = {
    "counts and sums": grouped("count(*)", "count(v)", "sum(v)", "sum(x)", "sum(small)"),
    "sums of decimals": grouped("sum(price)", "sum(big)"),
    "averages": grouped("avg(v)", "avg(x)", "avg(small)"),
    "averages of decimals": grouped("avg(big)"),
    "extremes of numbers": grouped("min(v)", "max(x)", "min(small)", "max(flag)", "min(ts)", "max(date(ts))"),
    "extremes of text and decimals": grouped("min(k)", "max(k)", "min(price)", "max(big)", by="small"),
    "min_by and max_by": grouped("min_by(id, id)", "max_by(k, id)", "max_by(ts, id)", "min_by(id, x + id / 1e7D)"),
    "statistics": grouped("stddev(x)", "stddev_pop(x)", "variance(x)", "var_pop(x)", "skewness(x)", "kurtosis(x)"),
    "correlation": grouped("corr(x, v)", "covar_pop(x, v)", "covar_samp(x, v)"),
    "collected": grouped("sort_array(collect_list(v))", "sort_array(collect_set(small))"),
    "bits": grouped("bit_and(v)", "bit_or(v)", "bit_xor(v)", "bool_and(flag)", "bool_or(flag)"),
    "conditions": grouped(
        "count(*) filter (where v > 0)",
        "sum(100 div v) filter (where v <> 0)",
        "max(k) filter (where flag)",
        "sum(price) filter (where flag)",
        "count_if(v > 100)",
    ),
    "approximate": grouped("approx_count_distinct(id)", "approx_count_distinct(ts, 0.2)", "approx_count_distinct(x)"),
    "results of results": grouped("sum(v) / count(v)", "max(v) - min(v) as range"),
    "first of equal values": grouped("first(k)", "last(k, true)", "any_value(k)"),
    "no functions": Pipeline(lambda df: df.groupBy("k", "small").agg(F.expr("1")), "update", 2, None),
    "all rows": overall("count(*)", "sum(v)", mode="update"),
    "all rows, only counted": overall("count(*)", mode="update"),
    "all rows, complete": overall("count(*)", "max(ts)", mode="complete"),
    "no rows at all": Pipeline(
        lambda df: df.where("id < 0").agg(F.expr("count(*)"), F.expr("sum(v)")), "update", 0, None
    ),
    "rollup": Pipeline(
        lambda df: df.dropna(subset=["k", "flag"]).rollup("k", "flag").agg(F.expr("count(*)"), F.expr("sum(v)")),
        "update",
        2,
        None,
    ),
    "groups, complete": grouped("count(*)", "sum(v)", mode="complete"),
    "structs as keys": grouped("count(*)", by="struct(k, flag)"),
    "tumbling": windowed("count(*)", "sum(v)", "max(x)", "min(k)"),
    "tumbling, update": windowed("count(*)", "avg(v)", mode="update"),
    "tumbling, complete": windowed("count(*)", "sum(v)", mode="complete"),
    "sliding": windowed("count(*)", "sum(v)", slide="10 seconds"),
    "sliding, update": windowed("max(v)", mode="update", slide="10 seconds"),
    "tumbling over all": Pipeline(lambda df: df.groupBy(F.window("ts", "1 minute")).count()),
    "offset windows": Pipeline(lambda df: df.groupBy(F.window("ts", "1 minute", "1 minute", "7 seconds")).count()),
    "event time as key": Pipeline(lambda df: df.groupBy("ts", "flag").count()),
    "sessions": Pipeline(
        lambda df: df.where("v > 300").groupBy(F.session_window("ts", "3 seconds"), "k").agg(F.expr("sum(v)"))
    ),
    "sessions, complete": Pipeline(
        lambda df: df.where("v > 300").groupBy("k", F.session_window("ts", "4 seconds")).count(), "complete"
    ),
    # Structured Streaming has no sessions without other keys, a batch has.
    "sessions over all": Pipeline(
        lambda df: df.where("v > 470").groupBy(F.session_window("ts", "2 seconds")).count(), "complete"
    ),
    "collected in windows": windowed("sort_array(collect_list(id))"),
    "statistics in windows": windowed("stddev(x)", "approx_count_distinct(small)", "sum(v) filter (where flag)"),
    "window_time": Pipeline(
        lambda df: df.groupBy(F.window("ts", "10 seconds")).count().select(F.window_time("window").alias("at"), "count")
    ),
    "windows of windows": Pipeline(
        lambda df: (
            df.groupBy(F.window("ts", "10 seconds"), "k")
            .count()
            .groupBy(F.window(F.window_time("window"), "1 minute"))
            .agg(F.sum("count").alias("rows"), F.max("count").alias("most"))
        )
    ),
    "without ANSI": grouped("sum(v * 10000000000000000)", "avg(big)", conf=(("spark.sql.ansi.enabled", "false"),)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_tidegate_and_spark_agree(spark: SparkSession, events: Path, name: str) -> None:
    pipeline = PIPELINES[name]
    with configured(spark, pipeline.conf):
        df = pipeline.make(stream(spark, events, pipeline.watermark))
        assert_same(tidegate_rows(df, pipeline.mode, 3), sparks_rows(spark, events, name), pipeline)


def test_an_average_of_short_decimals_is_sparks_or_refused(spark: SparkSession, events: Path) -> None:
    """Catalyst divides it as a double and casts the quotient back."""

    def averaged(df: DataFrame) -> DataFrame:
        return df.groupBy("k").agg(F.avg("price"))

    try:
        found = tidegate_rows(averaged(stream(spark, events, None)), "update", 3)
    except UnsupportedPlan:
        return
    expected = plain_rows(averaged(spark.read.schema(SCHEMA).parquet(str(events))).collect())
    assert last_of_key(found, 1) == last_of_key(expected, 1)


_sparks: dict[str, list[tuple[Any, ...]]] = {}


def sparks_rows(spark: SparkSession, events: Path, name: str) -> list[tuple[Any, ...]]:
    """Of append mode what Structured Streaming gives, else the answer for all rows, which a batch gives sooner."""
    if name not in _sparks:
        pipeline = PIPELINES[name]
        if pipeline.mode == "append":
            table = f"spark_{next(_names)}"
            writer = pipeline.make(stream(spark, events, pipeline.watermark)).writeStream.format("memory")
            writer.queryName(table).trigger(availableNow=True).start().awaitTermination()
            rows = spark.table(table)
        else:
            rows = pipeline.make(spark.read.schema(SCHEMA).parquet(str(events)))
        _sparks[name] = plain_rows(rows.collect())
    return _sparks[name]


def tidegate_rows(df: DataFrame, mode: str, parallelism: int, **options: Any) -> list[tuple[Any, ...]]:
    name = f"windows_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(mode).trigger(availableNow=True)
    query = writer.option("parallelism", parallelism).options(**options).start()
    assert query.awaitTermination(90)
    return plain_rows([tuple(row.values()) for row in read_memory_table(name).to_pylist()])


def stream(spark: SparkSession, folder: Path, watermark: str | None) -> DataFrame:
    # Few batches, because each of them costs Spark a second; event time goes on within one.
    df = spark.readStream.schema(SCHEMA).parquet(str(folder))
    return df if watermark is None else df.withWatermark("ts", watermark)


class configured:
    def __init__(self, spark: SparkSession, conf: tuple[tuple[str, str], ...]) -> None:
        self.spark, self.conf = spark, conf

    def __enter__(self) -> None:
        for key, value in self.conf:
            self.spark.conf.set(key, value)

    def __exit__(self, *_: object) -> None:
        for key, _value in self.conf:
            self.spark.conf.unset(key)


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], pipeline: Pipeline) -> None:
    if pipeline.mode == "update":
        found = [key + value for key, value in last_of_key(found, pipeline.key_count).items()]
        expected = [key + value for key, value in last_of_key(expected, pipeline.key_count).items()]
    assert len(found) == len(expected) > 0
    for ours, sparks in zip(sorted(found, key=order), sorted(expected, key=order), strict=True):
        assert all(map(close, ours, sparks)), (ours, sparks)


def last_of_key(rows: list[tuple[Any, ...]], key_count: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {row[:key_count]: row[key_count:] for row in rows}


def order(row: tuple[Any, ...]) -> str:
    return str([value for value in row if not isinstance(value, float)])


def close(ours: Any, sparks: Any) -> bool:
    """Doubles are summed up in another order, so that their last digits may differ."""
    if isinstance(sparks, float) and isinstance(ours, float):
        return math.isclose(ours, sparks, rel_tol=1e-9, abs_tol=1e-9)
    return type(ours) is type(sparks) and bool(ours == sparks)


def plain_rows(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(plain(value) for value in row) for row in rows]


def plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, dict):
        return tuple(plain(each) for each in value.values())
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return tuple(value) if isinstance(value, list) else value


# -- late rows, restores, modes


def test_late_rows_are_dropped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_times(folder / "a.parquet", [100, 200], at=1)
    # The watermark is at 190 now: what is not after it is late.
    write_times(folder / "b.parquet", [100, 190, 191, 195], at=2)
    df = spark.readStream.schema("ts timestamp").parquet(str(folder)).withWatermark("ts", "10 seconds")
    name = f"late_{next(_names)}"
    writer = tg.writeStream(df.groupBy("ts").count()).format("memory").queryName(name).option("parallelism", 1)
    query = writer.outputMode("update").trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    found = plain_rows([tuple(row.values()) for row in read_memory_table(name).to_pylist()])
    assert {(round(at.replace(tzinfo=dt.UTC).timestamp()), n) for at, n in found} == {
        (100, 1),
        (200, 1),
        (191, 1),
        (195, 1),
    }
    progress = query.lastProgress
    assert progress is not None
    assert progress["stateOperators"] == [{"operatorName": "Aggregate(count(*))", "numRowsDroppedByWatermark": 2}]


def write_times(file: Path, seconds: list[int], *, at: int) -> None:
    table = pa.table({"ts": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))})
    pq.write_table(table, file)
    os.utime(file, (1_600_000_000 + at, 1_600_000_000 + at))


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, 20):
            time.sleep(0.02)
            yield batch.slice(start, 20)


def test_windows_go_on_where_they_were_at_another_parallelism(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    """Stopped in the middle of its input, with unaligned checkpoints, resumed with more slots: each window once."""

    def counted(df: DataFrame) -> DataFrame:
        # So patient that no row is late, whichever task goes on with which file.
        return df.withWatermark("ts", "3 minutes").groupBy("ts", "k").agg(F.expr("count(*) n"), F.expr("sum(v) total"))

    plain_df = spark.readStream.schema(SCHEMA).parquet(str(events))
    slow_df = plain_df.mapInArrow(slowly, plain_df.schema)
    options = {
        "path": str(tmp_path / "out"),
        "checkpointLocation": str(tmp_path / "chk"),
        "checkpoint.interval": "100ms",
        "checkpoint.unaligned": "true",
    }
    query = tg.writeStream(counted(slow_df)).format("parquet").options(**options).option("parallelism", 2).start()
    deadline = time.monotonic() + 60
    while len([c for c in query.checkpoints if c.status == "completed"]) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    read_before = sum(source["numInputRows"] for source in (query.lastProgress or {"sources": []})["sources"])
    query.stop()
    assert 0 < read_before < ROWS
    resumed = tg.writeStream(counted(slow_df)).format("parquet").options(**options).option("parallelism", 3)
    assert resumed.trigger(availableNow=True).start().awaitTermination(120)
    found = plain_rows(spark.read.parquet(str(tmp_path / "out")).collect())
    expected = counted(spark.read.schema(SCHEMA).parquet(str(events))).where(
        F.expr(f"ts <= (select max(ts) - interval 3 minutes from parquet.`{events}`)")
    )
    assert sorted(found, key=str) == sorted(plain_rows(expected.collect()), key=str)


def test_complete_mode_shows_one_table_also_after_a_restart_at_another_parallelism(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    df = spark.readStream.schema(SCHEMA).parquet(str(events)).groupBy("k").count()
    name = f"complete_{next(_names)}"
    for parallelism in (3, 2):
        writer = tg.writeStream(df).format("memory").queryName(name).outputMode("complete")
        writer.option("checkpointLocation", str(tmp_path / "chk")).option("parallelism", parallelism)
        assert writer.trigger(availableNow=True).start().awaitTermination(90)
        found = [tuple(row.values()) for row in read_memory_table(name).to_pylist()]
        batch = spark.read.schema(SCHEMA).parquet(str(events)).groupBy("k").count()
        assert sorted(found, key=str) == sorted(map(tuple, batch.collect()), key=str)


def test_files_cannot_be_written_in_complete_mode(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    counts = spark.readStream.schema(SCHEMA).parquet(str(events)).groupBy("k").count()
    with pytest.raises(OptionError, match="parquet sink does not support output mode complete"):
        tg.writeStream(counts).format("parquet").outputMode("complete").start(str(tmp_path / "out"))
