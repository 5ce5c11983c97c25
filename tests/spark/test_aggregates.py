"""groupBy with count and sum in update mode: the last row of each key is Spark's own answer for it."""

import itertools
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import tidegate as tg

pytestmark = pytest.mark.spark

ROWS = 4000
SCHEMA = (
    "id long, text string, small int, flag boolean, day date, at timestamp, price decimal(12, 2), real double, "
    "bytes binary, amount long, share double"
)
_names = itertools.count()


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every column has nulls, and few enough values that keys meet on several slots."""
    folder = tmp_path_factory.mktemp("aggregates") / "in"
    values = {
        "text": "concat('key-', id % 11)",
        "small": "id % 7 - 3",
        "flag": "id % 2 = 0",
        "day": "date_add(date'1969-12-28', cast(id % 9 as int))",
        "at": "timestamp_micros(id % 6 - 3)",
        "price": "(id % 8 - 4) / 4",
        "real": "array(0.0D, -0.0D, double('NaN'), 1.5D)[id % 4]",
        "bytes": "encode(cast(id % 4 as string), 'utf-8')",
        "amount": "id * 3 - 2000",
        "share": "id / 8.0D",
    }
    columns = [
        F.expr(f"if(id % {n} = 0, null, {value})").alias(name) for n, (name, value) in enumerate(values.items(), 5)
    ]
    typed = [F.col(field.name).cast(field.dataType) for field in StructType.fromDDL(SCHEMA)]
    spark.range(0, ROWS, 1, 7).select("id", *columns).select(*typed).write.parquet(str(folder))
    return folder


def aggregated(df: DataFrame, keys: list[str]) -> DataFrame:
    sums = [F.sum("amount").alias("amount"), F.sum("share").alias("share")]
    return df.groupBy(*keys).agg(F.count("*").alias("n"), F.count("amount").alias("amounts"), *sums)


def comparable(value: Any) -> Any:
    """As Spark groups: all NaNs are one, and so are both zeros. Sums of doubles are exact here: eighths."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return bytes(value) if isinstance(value, bytearray) else value


def by_key(rows: Any, key_count: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """A later row replaces an earlier one of its key."""
    plain = [tuple(map(comparable, row)) for row in rows]
    return {row[:key_count]: row[key_count:] for row in plain}


def run(spark: SparkSession, df: DataFrame, **options: Any) -> list[tuple[Any, ...]]:
    """The rows that were committed, in their order."""
    name = f"aggregates_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode("update").option("parallelism", 3)
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return read_in_order(name)


def read_in_order(name: str) -> list[tuple[Any, ...]]:
    from tidegate.connectors.memory import read_memory_table

    return [tuple(row.values()) for row in read_memory_table(name).to_pylist()]


def sparks(spark: SparkSession, table: Path, keys: list[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    batch = aggregated(spark.read.schema(SCHEMA).parquet(str(table)), keys)
    # Through Arrow as well, so that both sides come as the same Python values.
    return by_key((tuple(row.values()) for row in batch.toArrow().to_pylist()), len(keys))


def stream(spark: SparkSession, table: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(table))


@pytest.mark.parametrize(
    "keys",
    [
        ["text"],
        ["small"],
        ["flag"],
        ["day"],
        ["at"],
        ["price"],
        ["real"],
        ["bytes"],
        ["text", "flag"],
        ["day", "small", "price"],
    ],
    ids=" ".join,
)
def test_the_last_row_of_each_key_is_sparks_answer(spark: SparkSession, table: Path, keys: list[str]) -> None:
    rows = run(spark, aggregated(stream(spark, table), keys), **{"checkpoint.interval": "30ms"})
    assert by_key(rows, len(keys)) == sparks(spark, table, keys)


def test_a_computed_key_and_a_filter_before_it(spark: SparkSession, table: Path) -> None:
    def counts(df: DataFrame) -> DataFrame:
        return df.where("amount > 0").groupBy((F.col("id") % 10).alias("d")).agg(F.sum("amount").alias("s"))

    rows = run(spark, counts(stream(spark, table)))
    batch = counts(spark.read.schema(SCHEMA).parquet(str(table))).collect()
    assert by_key(rows, 1) == by_key(map(tuple, batch), 1)


def test_numbers_written_as_text_are_keys_like_any_other(spark: SparkSession, table: Path) -> None:
    def totals(df: DataFrame) -> DataFrame:
        name = F.concat(F.lit("é-"), F.col("small").cast("string"), F.lit(""))
        keyed = df.select(
            "amount", F.col("flag").cast("string").alias("f"), F.col("day").cast("string").alias("d"), name
        )
        return keyed.groupBy(keyed.columns[3], "d", "f").agg(F.count("*"), F.sum("amount"), F.min("d"))

    rows = run(spark, totals(stream(spark, table)), **{"checkpoint.interval": "30ms"})
    batch = totals(spark.read.schema(SCHEMA).parquet(str(table))).collect()
    assert by_key(rows, 3) == by_key(map(tuple, batch), 3)


def test_counts_only_grow_and_are_never_below_what_was_shown(spark: SparkSession, table: Path) -> None:
    shown: dict[Any, int] = {}
    for key, count in run(spark, stream(spark, table).groupBy("text").count(), **{"checkpoint.interval": "10ms"}):
        assert count > shown.get(key, 0), f"{key} was {shown.get(key)} and became {count}"
        shown[key] = count
    assert sum(shown.values()) == ROWS


def test_groups_go_on_after_a_restart_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    totals: dict[Any, int] = {}
    for run_number in range(3):
        values = pa.table({"k": ["a", "b", None] * 10, "v": [run_number] * 30})
        pq.write_table(values, source / f"{run_number}.parquet")
        df = spark.readStream.schema("k string, v long").parquet(str(source)).groupBy("k").agg(F.sum("v").alias("s"))
        out = tmp_path / f"out{run_number}"
        writer = tg.writeStream(df).format("parquet").outputMode("update").option("parallelism", 2)
        writer.option("checkpointLocation", tmp_path / "chk").trigger(availableNow=True)
        assert writer.start(str(out)).awaitTermination(60)
        totals = {row.k: row.s for row in spark.read.parquet(str(out)).collect()}
    assert totals == {"a": 30, "b": 30, None: 30}


def test_a_sum_beyond_its_type_fails_with_sparks_reason(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table({"k": [1, 1], "v": [2**62, 2**62]}), source / "0.parquet")
    df = spark.readStream.schema("k long, v long").parquet(str(source)).groupBy("k").agg(F.sum("v").alias("s"))
    writer = tg.writeStream(df).format("memory").queryName(f"aggregates_{next(_names)}").outputMode("update")
    query = writer.option("parallelism", 1).option("restart.strategy", "none").trigger(availableNow=True).start()
    with pytest.raises(tg.TidegateError, match="(?i)overflow"):
        query.awaitTermination(60)
