"""What the systems on Spark have in common of the throughput benchmark: the DataFrame and the digest of its results.

Arguments: key_type (long or string), keys, slots, and either warm_up_s and measure_s, or check_rows.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.systems.arguments import Arguments


def keyed_totals(rows: DataFrame, given: Arguments) -> DataFrame:
    key = F.col("value") % given.number("keys")
    if given.text("key_type") == "string":
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
