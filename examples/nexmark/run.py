"""Runs Nexmark queries on this machine and prints what they gave: `python run.py q5 --events 200000`."""

import argparse
import os
import sys
import tempfile
import time

from pyspark.sql import DataFrame, SparkSession
from queries import QUERIES

import tidegate as tg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help="q0, q1, ...; all without any")
    parser.add_argument("--events", type=int, default=100_000, help="of all tables together")
    arguments = parser.parse_args()
    known = {query.name for query in QUERIES}
    if unknown := set(arguments.queries) - known:
        parser.error(f"there is no query {', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}")

    # Spark opens data sources in a Python of its own choice unless it is told: take this one, which has Tidegate.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[4]").config(map=quiet).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(tg.NexmarkDataSource)

    def stream(table: str) -> DataFrame:
        reader = spark.readStream.format("nexmark").option("table", table).option("events", arguments.events)
        return reader.load()

    for query in QUERIES:
        if arguments.queries and query.name not in arguments.queries:
            continue
        started = time.monotonic()
        name = f"nexmark_{query.name}"
        with tempfile.TemporaryDirectory() as folder:
            writer = tg.writeStream(query.build(stream)).format("memory").queryName(name).outputMode(query.mode)
            running = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            running.awaitTermination()
            rows = spark.table(name).count()
        print(f"{query.name:>4}: {rows:>8} rows in {time.monotonic() - started:5.1f} s   {query.question}")
    spark.stop()


if __name__ == "__main__":
    main()
