"""The program that runs the jobs: one order a line, one answer a line. It lives until it is killed or told no more.

A case that kills the driver kills this process; the next one is given the same order, and resumes.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import tidegate as tg
from tests.golden import jobs
from tests.golden.cases import SLOTS, Backend, Beside, Job, Mode, Operator, Sink, Source, parse_case
from tests.golden.strike import Strike, blows_of

PATIENCE_S = 300.0
_EXECUTORS = 2
# A JVM here lives for a few cases at most: what it saves at its start is more than it loses later.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.extraJavaOptions": _QUICK_START,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    # So often a barrier stage looks again whether there are cores for it.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
}


def main(master: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say("ready")
    for line in sys.stdin:
        try:
            await_executors(spark)
            obey(spark, *json.loads(line))
        except Exception:
            say("failed", traceback.format_exc())
        else:
            say("done")
    spark.stop()


def obey(spark: SparkSession, what: str, *words: str) -> None:
    match what, words:
        case "answer", (operator, input_folder, target):
            pq.write_table(jobs.sparks_answer(spark, Operator(operator), Path(input_folder)), target)
        case "undisturbed", (operator, input_folder, folder):
            job = Job(Mode.AUTO, Source.NATIVE, Sink.PARQUET, Operator(operator), Backend.HEAP)
            await_end(jobs.start(spark, job, Path(input_folder), Path(folder), struck=None, half=lambda: None))
        case "case", (case, seed, slots, input_folder, folder):
            strike_case(spark, case, int(seed), int(slots), Path(input_folder), Path(folder))
        case _:
            raise ValueError(f"there is no order {what!r} with {len(words)} words")


def strike_case(spark: SparkSession, name: str, seed: int, slots: int, input_folder: Path, folder: Path) -> None:
    case = parse_case(name)
    strike = Strike(
        job=folder,
        blows=blows_of(case, seed),
        driver_pid=os.getpid(),
        slot=seed % SLOTS,
    )
    with strike.watched() as watch:
        await_end(
            jobs.start(
                spark,
                case.job,
                input_folder,
                folder,
                struck=strike.last_mark,
                half=lambda: watch.at(Beside.HALF_PUBLISHED),
                slots=slots,
            )
        )


def await_executors(spark: SparkSession) -> None:
    """Those of a new session, and one that the case before has killed: a query is refused without enough cores."""
    if spark.sparkContext.master.startswith("local"):
        return
    deadline = time.monotonic() + PATIENCE_S
    # The driver counts as one.
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 1 + _EXECUTORS:
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster's executors did not come")
        time.sleep(0.05)


def await_end(query: tg.StreamingQuery) -> None:
    try:
        if not query.awaitTermination(PATIENCE_S):
            raise TimeoutError(f"the job hangs: {query.status}, {query.lastProgress}")
    finally:
        query.stop()


def say(*words: str) -> None:
    """A line for whoever gave the order; what Spark and its workers print is not in between."""
    sys.stdout.write("golden " + json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
