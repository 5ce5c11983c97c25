"""The job of the chaos tests: parquet -> filter -> mapInArrow -> shuffle -> transformWithState -> parquet.

Every row counts its key's rows so far, so that one lost or doubled row anywhere shows in the committed result.
Run as a program it is a driver of its own, which a test can kill.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEYS = 37
INPUT = "k long, v long, s string"


class CountRows(StatefulProcessor):
    def __init__(self, row_cost_s: float) -> None:
        self._row_cost_s = row_cost_s

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            if self._row_cost_s:
                time.sleep(self._row_cost_s)
            n += 1
            yield Row(k=key[0], n=n, parity=row.v % 2)
        self._count.update((n,))

    def close(self) -> None:
        return


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column(0), pc.multiply(batch.column(1), 2)], ["k", "v"])


def make_input(spark: SparkSession, folder: Path, *, rows: int, files: int) -> None:
    spark.range(0, rows, 1, files).selectExpr(f"id % {KEYS} as k", "id as v", "cast(id as string) as s").write.parquet(
        str(folder / "in")
    )


def pipeline(rows: DataFrame, *, row_cost_s: float = 0.0) -> DataFrame:
    mapped = rows.select("k", "v").where("v % 5 <> 0").mapInArrow(doubled, "k long, v long")
    return mapped.groupBy("k").transformWithState(
        CountRows(row_cost_s), "k long, n long, parity long", "Append", "None"
    )


def start(
    spark: SparkSession,
    folder: Path,
    *,
    slots: int,
    unaligned: str,
    row_cost_s: float,
    input_folder: Path | None = None,
    options: Mapping[str, str] | None = None,
) -> tg.StreamingQuery:
    """Reads `input_folder` (default: `folder`), writes and checkpoints below `folder`; `options` win over the job's."""
    stream = spark.readStream.schema(INPUT).parquet(str((input_folder or folder) / "in"))
    writer = (
        tg.writeStream(pipeline(stream, row_cost_s=row_cost_s))
        .format("parquet")
        .option("checkpointLocation", str(folder / "chk"))
        .option("checkpoint.interval", "300ms")
        .option("checkpoint.unaligned", unaligned)
        .option("network.window", "64kb")
        .option("restart.delay", "100ms")
        .option("parallelism", slots)
    )
    for name, value in (options or {}).items():
        writer.option(name, value)
    return writer.trigger(availableNow=True).start(str(folder / "out"))


def committed_rows(spark: SparkSession, folder: Path) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in spark.read.parquet(str(folder / "out")).collect())


def sparks_answer(spark: SparkSession, folder: Path) -> list[tuple[int, ...]]:
    """What Spark itself says about the same rows, in a batch."""
    return sorted(tuple(row) for row in pipeline(spark.read.schema(INPUT).parquet(str(folder / "in"))).collect())


def session(master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config(map=dict(conf or {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--unaligned", default="auto")
    parser.add_argument("--row-cost-ms", type=float, default=0.0)
    parser.add_argument("--input", type=Path, default=None)
    parser.add_argument("--option", action="append", default=[], help="name=value")
    parser.add_argument("--conf", action="append", default=[], help="name=value, of the session")
    given = parser.parse_args()
    query = start(
        session(given.master, dict(pair.split("=", 1) for pair in given.conf)),
        given.folder,
        slots=given.slots,
        unaligned=given.unaligned,
        row_cost_s=given.row_cost_ms / 1000,
        input_folder=given.input,
        options=dict(pair.split("=", 1) for pair in given.option),
    )
    said: tuple[Any, ...] = ()
    seen = 0
    while not query.awaitTermination(0.05):
        view = query._coordinator.view()
        if (now := (view.state, view.generation, *view.slot_pids)) != said:
            said = now
            say("state", *now)
        completed = [c.id for c in query.checkpoints if c.status == "completed"]
        if len(completed) > seen:
            seen = len(completed)
            say("completed", completed[0])
    say("ended")


def say(*words: Any) -> None:
    """A line for the test that runs this program, on a line of its own whatever the JVM has just begun to write."""
    sys.stdout.write("\n" + " ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
