"""A job for spark-submit: the example's pipeline, saying for every row where the slot's code came from."""

import json
import sys
from pathlib import Path

from pipeline import ORDERS, each_order_once, euros
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import tidegate as tg


@F.udf(StringType())
def whereabouts(_):
    import pipeline
    import pyarrow

    import tidegate

    return json.dumps({module.__name__: module.__file__ for module in (tidegate, pyarrow, pipeline)})


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("submitted").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, 20_000, 1, 6).selectExpr("id % 15000 AS number")
    columns = [
        "number",
        "concat('user-', number % 10) AS user",
        "number * 7 AS cents",
        "timestamp_millis(1700000000000 + number) AS at",
    ]
    rows.selectExpr(*columns).write.parquet(str(folder / "orders"))
    orders = each_order_once(spark.readStream.schema(ORDERS).parquet(str(folder / "orders")))
    query = (
        tg.writeStream(orders.withColumn("whereabouts", whereabouts("number")))
        .queryName("orders")
        .format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints"))
        .option("checkpoint.interval", "500ms")
        .trigger(availableNow=True)
        .start(str(folder / "once"))
    )
    slots = set()
    while query.awaitTermination(0.1) is False:
        slots.update(slot["pid"] for slot in (query.lastProgress or {}).get("slots", []))
    written = spark.read.parquet(str(folder / "once"))
    # Spark has no dropDuplicatesWithinWatermark without a stream; no order is a day late here.
    once = spark.read.schema(ORDERS).parquet(str(folder / "orders")).dropDuplicates(["number"])
    expected = once.select("number", "user", euros("cents").alias("paid"))
    report = {
        "rows": written.count(),
        "missing": expected.exceptAll(written.drop("whereabouts")).count(),
        "unexpected": written.drop("whereabouts").exceptAll(expected).count(),
        "whereabouts": [json.loads(row[0]) for row in written.select("whereabouts").distinct().collect()],
        "slots": len(slots),
    }
    print(json.dumps(report), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
