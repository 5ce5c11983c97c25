"""Joins of two streams and of a stream with a table: the same rows as Spark's own."""

import itertools
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import UnsupportedPlan
from tidegate.spark import catalyst_joins

pytestmark = pytest.mark.spark
# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k long, ts timestamp, v long"
RANGE = "bts between ats - interval 3 seconds and ats + interval 5 seconds"
ARROW_SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
FILES, ROWS = 4, 600
PATIENCE_S = 90.0
_names = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Event time goes up from file to file by a minute each, and moves about within one; some keys are null."""
    folder = tmp_path_factory.mktemp("joins")
    for name, step in (("a", 7919), ("b", 104729)):
        (folder / name).mkdir()
        for number in range(FILES):
            ids = range(number * ROWS // FILES, (number + 1) * ROWS // FILES)
            columns = [
                [None if id % 17 == 0 else (id * step) % 23 for id in ids],
                [(1_700_000_000 + id * FILES * 60 // ROWS + (id * step) % 7) * 1_000_000 for id in ids],
                [(id * step) % 100 for id in ids],
            ]
            file = folder / name / f"{number}.parquet"
            pq.write_table(pa.table(columns, names=["k", "ts", "v"]).cast(ARROW_SCHEMA), file)
            # Files are read by age, which is then the order of event time.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def side(df: DataFrame, name: str) -> DataFrame:
    return df.select([F.col(column).alias(f"{name}{column}") for column in ("k", "ts", "v")])


def streams(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    read = spark.readStream.schema(SCHEMA)
    a, b = (side(read.parquet(str(folder / name)), name) for name in ("a", "b"))
    return a.withWatermark("ats", "20 seconds"), b.withWatermark("bts", "30 seconds")


def batches(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    a, b = (side(spark.read.schema(SCHEMA).parquet(str(folder / name)), name) for name in ("a", "b"))
    return a, b


def ran(df: DataFrame, parallelism: int, **options: Any) -> Counter[tuple[Any, ...]]:
    name = f"joined_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).trigger(availableNow=True)
    query = writer.option("parallelism", parallelism).options(**options).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    table = read_memory_table(name)
    return rows_of(zip(*(column.to_pylist() for column in table.columns), strict=True))


def ran_by_spark(df: DataFrame) -> Counter[tuple[Any, ...]]:
    name = f"by_spark_{next(_names)}"
    df.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    return rows_of(df.sparkSession.table(name).collect())


def rows_of(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(plain(value) for value in row) for row in rows)


def plain(value: Any) -> Any:
    if isinstance(value, dict) or hasattr(value, "asDict"):
        return tuple(plain(each) for each in (value.values() if isinstance(value, dict) else value))
    return int(value.timestamp()) if hasattr(value, "timestamp") else value


def windows(a: DataFrame, b: DataFrame, how: str) -> DataFrame:
    # Spark takes one column with a watermark, so that the times themselves must go.
    left = a.select(F.window("ats", "10 seconds").alias("w"), "ak", "av")
    right = b.where("bv < 20").select(F.window("bts", "10 seconds").alias("w"), "bk", "bv")
    return left.join(right, "w", how).select("w.end", "ak", "av", "bk", "bv")


# Of streams: what Structured Streaming gives, because rows without a partner come out only behind the watermark.
JOINS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "inner": lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}")),
    "left outer": lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}"), "left_outer"),
    "right outer": lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}"), "right_outer"),
    "full outer, where nulls meet": lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}"), "full_outer"),
    "left semi": lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}"), "left_semi"),
    "nulls are equal": lambda a, b: a.join(b, F.expr(f"ak <=> bk and {RANGE}"), "left_outer"),
    "conditions of one side and of both": lambda a, b: a.join(
        b, F.expr(f"ak + 1 = bk and av < bv and av > 40 and bv < 90 and {RANGE}"), "full_outer"
    ),
    "time as a key": lambda a, b: a.join(b, F.expr("ats = bts and ak = bk"), "left_outer"),
    "windows as keys": lambda a, b: windows(a, b, "left_outer"),
}


@pytest.mark.parametrize("name", JOINS)
def test_streams_are_joined_as_by_spark(spark: SparkSession, folder: Path, name: str) -> None:
    expected = ran_by_spark(JOINS[name](*streams(spark, folder)))
    assert len(expected) > 20
    parallelisms = (1, 3) if name in ("full outer, where nulls meet", "inner") else (3,)
    for parallelism in parallelisms:
        assert ran(JOINS[name](*streams(spark, folder)), parallelism) == expected


@pytest.mark.parametrize("name", ["inner", "full outer, where nulls meet", "left semi"])
def test_streams_are_joined_as_by_spark_with_a_log_of_their_rows(spark: SparkSession, folder: Path, name: str) -> None:
    found = ran(JOINS[name](*streams(spark, folder)), 2, **{"state.backend": "rocksdb", "checkpoint.interval": "20ms"})
    assert found == ran_by_spark(JOINS[name](*streams(spark, folder)))


@pytest.mark.parametrize("name", ["inner", "full outer, where nulls meet", "left semi"])
def test_streams_are_joined_as_by_spark_when_their_rows_do_not_fit(
    spark: SparkSession, folder: Path, name: str
) -> None:
    beyond = {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "1KiB", "checkpoint.interval": "20ms"}
    found = ran(JOINS[name](*streams(spark, folder)), 2, **beyond)
    assert found == ran_by_spark(JOINS[name](*streams(spark, folder)))


def test_a_join_without_a_watermark_gives_every_pair(spark: SparkSession, folder: Path) -> None:
    def joined(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.join(b, F.expr("ak = bk and av = bv"))

    read = spark.readStream.schema(SCHEMA)
    sides = [side(read.parquet(str(folder / name)), name) for name in ("a", "b")]
    assert ran(joined(*sides), 3) == rows_of(joined(*batches(spark, folder)).collect())


def test_windows_over_a_join_wait_for_its_rows(spark: SparkSession, folder: Path) -> None:
    def counted(a: DataFrame, b: DataFrame) -> DataFrame:
        joined = a.join(b, F.expr(f"ak = bk and {RANGE}"), "left_outer").drop("bts")
        return joined.groupBy(F.window("ats", "20 seconds")).agg(F.count("*"), F.count("bv"), F.sum("av"))

    expected = ran_by_spark(counted(*streams(spark, folder)))
    assert len(expected) > 5
    assert ran(counted(*streams(spark, folder)), 3) == expected


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_join_is_restored_with_rows_in_flight_at_another_parallelism(
    spark: SparkSession, folder: Path, tmp_path: Path, backend: str
) -> None:
    def add_files(*numbers: int) -> None:
        for name, number in itertools.product(("a", "b"), numbers):
            (tmp_path / name).mkdir(exist_ok=True)
            shutil.copy2(folder / name / f"{number}.parquet", tmp_path / name)

    def writer(row_cost_s: float, slots: int) -> tg.DataStreamWriter:
        def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in batches:
                time.sleep(row_cost_s * rows.num_rows)
                yield rows

        a, b = streams(spark, tmp_path)
        joined = a.join(b, F.expr(f"ak = bk and {RANGE}"), "full_outer")
        df = joined.repartition(3).mapInArrow(slow, joined.schema)
        start = tg.writeStream(df).format("parquet").option("path", tmp_path / "out").option("parallelism", slots)
        start.option("checkpointLocation", tmp_path / "chk").option("network.window", "4kb")
        start.option("state.backend", backend)
        return start.option("checkpoint.unaligned", "true").option("checkpoint.interval", "50ms")

    add_files(0, 1)
    query = writer(0.002, 2).start()
    deadline = time.monotonic() + PATIENCE_S
    while len([c for c in query.checkpoints if c.status == "completed"]) < 2:
        assert query.isActive and time.monotonic() < deadline, query.status
        time.sleep(0.01)
    query.stop(savepoint=True, unaligned=True)
    (view,) = [c for c in query.checkpoints if c.is_savepoint]
    assert view.inflight_bytes > 0
    add_files(2, 3)
    query = writer(0.0, 3).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    found = rows_of(spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == ran_by_spark(JOINS["full outer, where nulls meet"](*streams(spark, folder)))


def test_late_rows_of_a_join_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    dropped = []
    for number, at_s in enumerate((1_700_000_000, 1_600_000_000)):
        rows = pa.table([[1, 2, 3], [at_s * 1_000_000] * 3, [1, 2, 3]], names=["k", "ts", "v"]).cast(ARROW_SCHEMA)
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            pq.write_table(rows, tmp_path / name / f"{number}.parquet")
        a, b = streams(spark, tmp_path)
        writer = tg.writeStream(a.join(b, F.expr(f"ak = bk and {RANGE}"))).format("noop").option("parallelism", 1)
        query = writer.option("checkpointLocation", tmp_path / "chk").trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), query.status
        progress = query.lastProgress
        assert progress is not None
        (operator,) = progress["stateOperators"]
        dropped.append((operator["operatorName"], operator["numRowsDroppedByWatermark"]))
    assert dropped == [("Join(inner)", 0), ("Join(inner)", 6)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda a, b: a.join(b, F.expr("ak > bk")), "without an equality"),
        (lambda a, b: a.join(b, F.expr(f"ak = bk and {RANGE}"), "left_anti"), "left_anti|LeftAnti"),
        (lambda a, b: a.join(b, F.expr("ak = bk"), "left_outer"), "watermark"),
    ],
    ids=["no equality", "left anti", "outer without a bound"],
)
def test_what_cannot_be_joined_is_refused(
    spark: SparkSession, folder: Path, make: Callable[[DataFrame, DataFrame], DataFrame], said: str
) -> None:
    with pytest.raises(UnsupportedPlan, match=said):
        tg.writeStream(make(*streams(spark, folder))).format("noop").start()


def test_a_watermark_on_one_side_only_is_refused_where_rows_are_kept_by_it(spark: SparkSession, folder: Path) -> None:
    read = spark.readStream.schema(SCHEMA)
    a, b = (side(read.parquet(str(folder / name)), name) for name in ("a", "b"))
    with pytest.raises(UnsupportedPlan, match="withWatermark to both"):
        tg.writeStream(a.withWatermark("ats", "1 second").join(b, F.expr("ats = bts"))).format("noop").start()


# -- with a table

TABLE_JOINS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "inner": lambda a, t: a.join(t, F.expr("ak = id")),
    "broadcast": lambda a, t: a.join(F.broadcast(t), F.expr("ak = id and av > 30")),
    "left outer": lambda a, t: a.join(t, F.expr("ak = id and av < size"), "left_outer"),
    "left semi": lambda a, t: a.join(t, F.expr("ak = id and av < size"), "left_semi"),
    "left anti": lambda a, t: a.join(t, F.expr("ak = id"), "left_anti"),
    "right outer, table first": lambda a, t: t.join(a, F.expr("ak = id"), "right_outer"),
    "inner, table first": lambda a, t: t.join(a, F.expr("ak = id + 1")),
    "nulls are equal": lambda a, t: a.join(t, F.expr("ak <=> id")),
    "every row with every row": lambda a, t: a.crossJoin(t.where("id < 4")),
    "a range": lambda a, t: a.join(t, F.expr("ak between id and id + 2 and size < 40"), "left_outer"),
    "not in": lambda a, t: a.where("ak is not null").join(t.where("id is not null"), F.expr("ak = id"), "left_anti"),
}


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("table") / "t")
    rows = spark.range(0, 30).selectExpr(
        "if(id % 9 = 0, null, id div 2) as id",
        "concat('name ', id) as name",
        "id * 3 as size",
        "timestamp'2024-01-01' at",
    )
    rows.write.parquet(path)
    return spark.read.parquet(path)


@pytest.mark.parametrize("name", TABLE_JOINS)
def test_a_stream_is_joined_with_a_table_as_by_spark(
    spark: SparkSession, folder: Path, table: DataFrame, name: str
) -> None:
    stream = side(spark.readStream.schema(SCHEMA).parquet(str(folder / "a")), "a")
    expected = rows_of(TABLE_JOINS[name](batches(spark, folder)[0], table).collect())
    assert len(expected) > 20
    assert ran(TABLE_JOINS[name](stream, table), 3) == expected


def test_a_table_feeds_what_follows(spark: SparkSession, folder: Path, table: DataFrame) -> None:
    def counted(df: DataFrame) -> DataFrame:
        return df.join(table, F.expr("ak = id")).groupBy("name").agg(F.sum("av").alias("sum"))

    stream = side(spark.readStream.schema(SCHEMA).parquet(str(folder / "a")), "a")
    name = f"joined_{next(_names)}"
    writer = tg.writeStream(counted(stream)).format("memory").queryName(name).outputMode("update")
    assert writer.option("parallelism", 2).trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
    last = dict(tuple(row.values()) for row in read_memory_table(name).to_pylist())
    assert Counter(last.items()) == rows_of(counted(batches(spark, folder)[0]).collect())


def test_a_table_that_is_too_large_is_refused_where_spark_may_not_ingest_the_join(
    spark: SparkSession, folder: Path, table: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalyst_joins, "STATIC_TABLE_LIMIT_BYTES", 100)
    stream = side(spark.readStream.schema(SCHEMA).parquet(str(folder / "a")), "a")
    writer = tg.writeStream(stream.join(table, F.expr("ak = id"))).format("noop")
    with pytest.raises(UnsupportedPlan, match="may have 100 B"):
        writer.option("ingest", "native").start()


def test_a_table_that_is_too_large_is_not_brought_to_the_driver_and_its_join_is_left_to_spark(
    spark: SparkSession, folder: Path, table: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(df: DataFrame) -> None:
        raise AssertionError("the table was collected")

    monkeypatch.setattr(catalyst_joins, "STATIC_TABLE_LIMIT_BYTES", 100)
    monkeypatch.setattr(type(table), "toArrow", refuse)
    stream = side(spark.readStream.schema(SCHEMA).parquet(str(folder / "a")), "a")
    condition = F.expr("ak = id")
    expected = rows_of(batches(spark, folder)[0].join(table, condition).collect())
    assert ran(stream.join(table, condition), 2) == expected


def test_all_rows_of_a_table_cannot_be_asked_for(spark: SparkSession, folder: Path, table: DataFrame) -> None:
    stream = side(spark.readStream.schema(SCHEMA).parquet(str(folder / "a")), "a")
    with pytest.raises(UnsupportedPlan):
        tg.writeStream(stream.join(table, F.expr("ak = id"), "right_outer")).format("noop").start()
