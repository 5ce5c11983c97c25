"""Counts that grow while you watch: rate -> groupBy -> console, one checkpoint a second, ten of them."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidegate as tg

quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[3]").config(map=quiet).getOrCreate()

ticks = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
counts = ticks.groupBy((F.col("value") % 3).alias("bucket")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))

query = (
    tg.writeStream(counts)
    .format("console")
    .outputMode("update")
    .queryName("live-counts")
    .trigger(processingTime="1 second")
    .start()
)
while not query.awaitTermination(0.5):
    if sum(checkpoint.status == "completed" for checkpoint in query.checkpoints) >= 10:
        query.stop()
spark.stop()
