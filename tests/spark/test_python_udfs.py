"""Python UDFs, mapInPandas and stateful pandas functions give what Spark gives on the same rows."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf, pandas_udf, udf

import tidegate as tg
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import UserCodeFailure

pytestmark = pytest.mark.spark

SCHEMA = "id long, text string, at timestamp, day date, price decimal(10, 2), real double, small int, bytes binary"
_names = itertools.count()


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("udfs") / "in"
    values = {
        "text": "concat('t', id % 5)",
        "at": "timestamp_seconds(id * 100)",
        "day": "date_add(date'2020-01-01', cast(id % 9 as int))",
        "price": "cast(id / 4 as decimal(10, 2))",
        "real": "id / 8.0D",
        "small": "cast(id % 7 as int)",
        "bytes": "encode(cast(id % 4 as string), 'utf-8')",
    }
    columns = [
        F.expr(f"if(id % {n} = 0, null, {value})").alias(name) for n, (name, value) in enumerate(values.items(), 5)
    ]
    spark.range(0, 60, 1, 2).select("id", *columns).write.parquet(str(folder))
    return folder


def results(spark: SparkSession, table: Path, *columns: Column) -> list[tuple[Any, ...]]:
    """What Tidegate gives for each row, after it was compared with what Spark gives."""
    return compared(
        spark.readStream.schema(SCHEMA).parquet(str(table)).select("id", *columns),
        spark.read.schema(SCHEMA).parquet(str(table)).select("id", *columns),
    )


def compared(streaming: DataFrame, batch: DataFrame) -> list[tuple[Any, ...]]:
    name = f"udfs_{next(_names)}"
    query = (
        tg.writeStream(streaming)
        .format("memory")
        .queryName(name)
        .option("parallelism", 2)
        .option("checkpoint.interval", "50ms")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    ours = [tuple(row.values()) for row in read_memory_table(name).to_pylist()]
    theirs = [tuple(row.values()) for row in batch.toArrow().to_pylist()]
    assert ours
    assert Counter(map(repr, ours)) == Counter(map(repr, theirs))
    return ours


COLUMNS = ["text", "at", "day", "price", "real", "small", "bytes"]


@pytest.mark.parametrize("use_arrow", [True, False], ids=["arrow", "pickled"])
def test_a_plain_function_sees_and_gives_sparks_values(spark: SparkSession, table: Path, use_arrow: bool) -> None:
    described = udf(lambda value: f"{type(value).__name__} {value!r}", "string", useArrow=use_arrow)
    kinds = {"text": "string", "at": "timestamp", "day": "date", "price": "decimal(10, 2)", "real": "double"}
    given = [
        udf(lambda value: value, kind, useArrow=use_arrow)(name).alias(f"same_{name}") for name, kind in kinds.items()
    ]
    results(spark, table, *[described(name).alias(name) for name in COLUMNS], *given)


@pytest.mark.parametrize("kind", ["boolean", "byte", "int", "long", "float", "double", "decimal(5, 2)", "binary"])
def test_a_pickled_function_that_gives_another_type_gives_what_spark_makes_of_it(
    spark: SparkSession, table: Path, kind: str
) -> None:
    given = udf(lambda n: [True, 300, 1 << 40, 1.5, "text", None, 7][n % 7], kind, useArrow=False)
    results(spark, table, given("id").alias("given"))


def test_functions_of_functions_and_named_arguments(spark: SparkSession, table: Path) -> None:
    plus = udf(lambda a, b=10: a + b, "long")
    pickled = udf(lambda a, b=10: a + b, "long", useArrow=False)
    twice = pandas_udf(lambda a: a * 2, "long")
    none = udf(lambda: 5, "int")
    results(
        spark,
        table,
        plus(plus(plus("id"))).alias("chained"),
        plus(b=plus("id"), a=F.col("id") * 3).alias("named"),
        pickled(pickled("id"), b=twice("id")).alias("mixed"),
        pickled(pickled(pickled("id"))).alias("pickled"),
        none().alias("without_arguments"),
    )


def test_pandas_and_arrow_functions(spark: SparkSession, table: Path) -> None:
    @pandas_udf("double")  # type: ignore[call-overload, untyped-decorator]
    def scaled(real: pd.Series, small: pd.Series) -> pd.Series:
        return real * small.fillna(0)

    @arrow_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def doubled(values: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.multiply(values, 2)

    hours = pandas_udf(lambda at: at.dt.hour.astype("Int64"), "long")
    results(spark, table, scaled("real", "small").alias("a"), doubled("id").alias("b"), hours("at").alias("c"))


def test_a_function_over_an_iterator_may_hold_rows_back(spark: SparkSession, table: Path) -> None:
    @pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def pairs(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        held: list[pd.Series] = []
        for series in batches:
            held.append(series + 1)
            if len(held) == 2:
                yield pd.concat(held)
                held = []
        yield from held

    results(spark, table, pairs("id").alias("next"))


def test_a_function_may_filter_and_feed_an_aggregate(spark: SparkSession, table: Path) -> None:
    even = udf(lambda n: n % 2 == 0, "boolean")
    streaming = spark.readStream.schema(SCHEMA).parquet(str(table)).where(even("id")).select("id", "text")
    compared(streaming, spark.read.schema(SCHEMA).parquet(str(table)).where(even("id")).select("id", "text"))


def test_map_in_pandas(spark: SparkSession, table: Path) -> None:
    def largest(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[["id", "text"]].assign(twice=frame["id"] * 2)

    schema = "id long, text string, twice long"
    compared(
        spark.readStream.schema(SCHEMA).parquet(str(table)).mapInPandas(largest, schema),
        spark.read.schema(SCHEMA).parquet(str(table)).mapInPandas(largest, schema),
    )


def test_broadcast_variables_and_large_closures_travel_with_the_plan(spark: SparkSession, table: Path) -> None:
    names = spark.sparkContext.broadcast({0: "zero", 1: "one"})
    large = bytes(2 << 20)
    look = udf(lambda n: f"{names.value.get(n % 3)} {len(large)}", "string")
    rows = results(spark, table, look("id").alias("name"))
    assert ("zero 2097152") in {row[1] for row in rows}


def test_an_error_in_a_function_is_told_with_its_name(spark: SparkSession, table: Path) -> None:
    def broken(n: int) -> int:
        return 1 // (n - 5)

    df = spark.readStream.schema(SCHEMA).parquet(str(table)).select(udf(broken, "long")("id").alias("n"))
    writer = tg.writeStream(df).format("noop").option("restart.strategy", "none").option("parallelism", 1)
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(UserCodeFailure, match="'broken' raised ZeroDivisionError"):
        query.awaitTermination(90)


def test_nested_values_go_in_and_out(spark: SparkSession, table: Path) -> None:
    described = udf(lambda value: repr(value), "string")
    made = udf(lambda n: (n, [{"a": n}, None]), "struct<n: long, parts: array<map<string, long>>>")
    pickled = udf(lambda n: (n, [{"a": n}, None]), "struct<n: long, parts: array<map<string, long>>>", useArrow=False)
    text = F.coalesce("text", F.lit("none"))
    nested = F.struct("id", "text", F.array("small", "id").alias("both"), F.create_map(text, "at").alias("by"))
    results(spark, table, described(nested).alias("seen"), made("id").alias("made"), pickled("id").alias("pickled"))
