"""Each order once, on a Spark cluster: docs/guides/clusters.md has the line that submits it.

The folder must be one that the driver and all executors see under the same path.
"""

import sys
from pathlib import Path

from pipeline import ORDERS, each_order_once
from pyspark.sql import SparkSession

import tidegate as tg


def main(folder: Path) -> None:
    # Master, cores and memory come from spark-submit.
    spark = SparkSession.builder.appName("orders").getOrCreate()
    if not (folder / "orders").exists():
        made_up = spark.range(0, 200_000, 1, 8).selectExpr("id % 150000 AS number").selectExpr(
            "number",
            "concat('user-', number % 10) AS user",
            "number % 50 * 25 AS cents",
            "timestamp_millis(1700000000000 + number * 10) AS at",
        )  # fmt: skip
        made_up.write.parquet(str(folder / "orders"))
    orders = spark.readStream.schema(ORDERS).parquet(str(folder / "orders"))
    query = (
        tg.writeStream(each_order_once(orders))
        .queryName("orders")
        .format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints"))
        .option("checkpoint.interval", "1s")
        .trigger(availableNow=True)
        .start(str(folder / "once"))
    )
    query.awaitTermination()
    print(f"{spark.read.parquet(str(folder / 'once')).count()} orders in {folder / 'once'}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
