"""Per-row Python on Spark's side of the benchmark of row functions: a function of a value, or a count kept per key.

Arguments: kind (function or state), keys, and those of the throughput benchmark.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.systems.arguments import Arguments


class Counter(StatefulProcessor):
    """One row out for each row in, as the PyFlink job does."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n = self._count.get()[0] if self._count.exists() else 0
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self._count.update((n,))

    def close(self) -> None:
        return


def python_rows(rows: DataFrame, given: Arguments) -> DataFrame:
    keyed = rows.select((F.col("value") % given.number("keys")).alias("k"), F.col("value").alias("v"))
    if given.text("kind") == "state":
        return keyed.groupBy("k").transformWithState(Counter(), "k long, n long", "Update", "None")
    mixed = F.udf(_mixed, "long")
    return (
        keyed.select("k", mixed("v").alias("v")).groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
    )


def _mixed(value: int) -> int:
    return (value * 31 + 7) % 1_000_003
