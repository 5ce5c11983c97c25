"""What the systems on Spark have in common: the arguments, the session, the DataFrame and the digest of its results."""

import argparse
import os
import sys
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True, slots=True)
class Arguments:
    key_type: str
    keys: int
    slots: int
    folder: str
    warm_up_s: float
    measure_s: float
    check_rows: int | None
    rows_per_batch: int


def arguments(parser: argparse.ArgumentParser) -> Arguments:
    parser.add_argument("--key-type", choices=["long", "string"], required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--folder", required=True, help="for checkpoints and whatever else is written")
    parser.add_argument("--warm-up-s", type=float, default=5.0)
    parser.add_argument("--measure-s", type=float, default=10.0)
    parser.add_argument("--check-rows", type=int, help="instead of measuring, give the results of so many rows")
    parser.add_argument("--rows-per-batch", type=int, default=0)
    return Arguments(**vars(parser.parse_args()))


def spark_session(*, cores: int) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def keyed_totals(rows: DataFrame, given: Arguments) -> DataFrame:
    key = F.col("value") % given.keys
    if given.key_type == "string":
        key = F.concat(F.lit("key-"), key.cast("string"))
    keyed = rows.select(key.alias("k"), F.col("value").alias("v"))
    return keyed.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))


def digest_of(totals: pa.Table) -> dict[str, int]:
    """The same as the Flink job's: sums, and one number that changes when any group's count, sum or key does."""
    keys = totals["k"].combine_chunks()
    if pa.types.is_string(keys.type):
        keys = pc.utf8_slice_codeunits(keys, len("key-")).cast(pa.int64())
    numbers, counts, sums = (np.asarray(column, np.int64) for column in (keys, totals["rows"], totals["total"]))
    with np.errstate(over="ignore"):
        digest = ((numbers + 1) * (31 * counts + sums)).sum(dtype=np.int64)
    return {"groups": len(counts), "rows": int(counts.sum()), "total": int(sums.sum()), "digest": int(digest)}
