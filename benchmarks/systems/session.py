"""The Spark session of a measured process: local, quiet, on the loopback address only."""

import os
import sys

from pyspark.sql import SparkSession


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


def warm_up_workers(spark: SparkSession, slots: int) -> None:
    """Python workers import what they need; on a busy machine that alone may outlast the wait for slots."""
    spark.range(0, slots, 1, slots).mapInArrow(lambda batches: batches, "id long").count()
