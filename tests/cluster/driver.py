"""A driver on a cluster: runs the chaos tests' job, says what happens to it, and compares its rows with Spark's."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.chaos import job
from tests.chaos.watching import completed_ids, generation, pids


def main(master: str, folder: Path, slots: int) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    job.make_input(spark, folder, rows=15_000, files=24)
    query = job.start(
        spark,
        folder,
        slots=slots,
        unaligned="auto",
        row_cost_s=0.002,
        input_folder=folder,
        options={"network.window": "4kb", "restart.attempts": "20"},
    )
    seen, said = 0, "running"
    while query.isActive:
        done = len(completed_ids(query))
        if generation(query) > seen and query.status["message"] == "running" and done >= 2 * (seen + 1):
            seen = generation(query)
            print(f"{said}: generation {seen}, {len(pids(query))} slots", flush=True)  # noqa: T201
            said = "recovered"
        time.sleep(0.02)
    query.awaitTermination()
    is_equal = job.committed_rows(spark, folder) == job.sparks_answer(spark, folder)
    print("rows", "equal" if is_equal else "different", flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
