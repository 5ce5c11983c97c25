"""DISTINCT inside aggregate functions: what Spark's batch gives, over values that are hard to tell apart."""

import itertools
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tests.spark.same_answers.engines import comparable
from tidegate.connectors.memory import read_memory_table
from tidegate.model.errors import UnsupportedPlan

pytestmark = pytest.mark.spark

SCHEMA = "id long, x double, f float, big long, d decimal(7, 2), wide decimal(38, 4), s string, b binary, t timestamp"
CALLS = [
    "count(distinct x)", "sum(distinct f)", "min(distinct x)", "count(distinct f, x)",
    # Doubles cannot tell these longs apart: they are distinct before they are averaged.
    "avg(distinct big)", "sum(distinct cast(big % 5 as int))",
    "sum(distinct d)", "sum(distinct wide)", "avg(distinct wide)",
    "count(distinct s)", "count(distinct b)", "count(distinct t, s)", "count(distinct named_struct('a', x, 'b', s))",
    "count(distinct 1)", "count(distinct cast(null as int))", "count(distinct s, 'c')",
    "count(distinct s) filter (where x > 0)", "sum(distinct d) filter (where s = 'a')",
    "count(distinct s) + count(distinct b) * 2", "count(distinct s) filter (where false)", "stddev(distinct x)",
    "bit_xor(distinct id % 3)", "approx_count_distinct(s)", "sort_array(collect_list(distinct s))",
]  # fmt: skip
_names = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distinct")
    floats = [0.0, -0.0, math.nan, -math.nan, None, 1.5, math.inf]
    for number in range(3):
        ids = list(range(number * 40, number * 40 + 40))
        columns = {
            "id": (ids, pa.int64()),
            "x": ([floats[i % 7] for i in ids], pa.float64()),
            "f": ([floats[i % 3] for i in ids], pa.float32()),
            "big": ([(1 << 60) + i % 11 for i in ids], pa.int64()),
            "d": ([None if i % 9 == 0 else Decimal(i % 4).scaleb(-2) for i in ids], pa.decimal128(7, 2)),
            "wide": ([Decimal(10**30 + i % 6).scaleb(-4) for i in ids], pa.decimal128(38, 4)),
            "s": ([[None, "", "a", "A", "ä"][i % 5] for i in ids], pa.string()),
            "b": ([[None, b"", b"\0"][i % 3] for i in ids], pa.binary()),
            "t": ([None if i % 8 == 0 else (i % 3) * 1_000_000 for i in ids], pa.timestamp("us", "UTC")),
        }
        table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def rows_of(df: DataFrame, *, keys: int, mode: str) -> list[object]:
    name = f"distinct_{next(_names)}"
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(mode).option("parallelism", 2)
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return comparable(read_memory_table(name), keys=keys)


def test_distinct_values_are_sparks(spark: SparkSession, folder: Path) -> None:
    def asked(df: DataFrame) -> DataFrame:
        return df.groupBy((df.id % 2).alias("odd")).agg(*(F.expr(call) for call in CALLS))

    expected = comparable(asked(spark.read.schema(SCHEMA).parquet(str(folder))).toArrow(), keys=0)
    assert rows_of(asked(spark.readStream.schema(SCHEMA).parquet(str(folder))), keys=1, mode="update") == expected


def test_append_mode_still_needs_a_watermark(spark: SparkSession, folder: Path) -> None:
    """Spark's check of output modes sees the plan as if it had no DISTINCT."""
    df = spark.readStream.schema(SCHEMA).parquet(str(folder)).groupBy("s").agg(F.expr("count(distinct x)"))
    with pytest.raises(UnsupportedPlan, match="append.*aggregations without watermark"):
        tg.writeStream(df).format("noop").outputMode("append").start()
