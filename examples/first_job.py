"""Orders from parquet files, a running total per user, results in parquet files: exactly once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg

ORDERS = "user string, cents long"


def to_euros(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        euros = pc.divide(pc.cast(batch["cents"], pa.float64()), 100.0)
        yield pa.RecordBatch.from_arrays([batch["user"], euros], ["user", "euros"])


class RunningTotal(StatefulProcessor):
    """For every order: how many orders the user has made so far, and what they cost together."""

    def init(self, handle):
        self.total = handle.getValueState("total", "orders long, euros double")

    def handleInputRows(self, key, rows, timerValues):
        orders, euros = self.total.get() if self.total.exists() else (0, 0.0)
        for row in rows:
            orders, euros = orders + 1, euros + row.euros
            yield Row(user=key[0], orders=orders, euros=euros)
        self.total.update((orders, euros))

    def close(self):
        pass


def totals(orders):
    paid = orders.where("cents > 0").mapInArrow(to_euros, "user string, euros double")
    return paid.groupBy("user").transformWithState(
        RunningTotal(), "user string, orders long, euros double", "Append", "None"
    )


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="tidegate-first-job-"))
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[3]").config(map=quiet).getOrCreate()

    # Some input: 100,000 orders of ten users, in four files.
    made_up = spark.range(0, 100_000, 1, 4).selectExpr("concat('user-', id % 10) AS user", "id % 50 * 25 AS cents")
    made_up.write.parquet(str(folder / "orders"))

    # The stream is plain PySpark. The one changed line is tg.writeStream(df) in place of df.writeStream.
    orders = spark.readStream.schema(ORDERS).parquet(str(folder / "orders"))
    query = (
        tg.writeStream(totals(orders))
        .format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints"))
        .option("checkpoint.interval", "1s")
        .trigger(availableNow=True)
        .start(str(folder / "totals"))
    )
    query.awaitTermination()

    result = spark.read.parquet(str(folder / "totals"))
    result.groupBy("user").agg({"orders": "max", "euros": "max"}).orderBy("user").show()
    print(f"{result.count()} rows, one for each order that was paid, in {folder}/totals")
    for checkpoint in query.checkpoints:
        print(f"checkpoint {checkpoint.id}: {checkpoint.kind}, {checkpoint.duration_ms:.0f} ms")
    spark.stop()
