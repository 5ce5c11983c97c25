"""A driver of four queries at once, of which a test runs two on the same checkpoint locations.

Every row is a number that is read once, so one lost or doubled row shows. The older driver is slow, so that it stands
in the middle of an epoch whenever it is stopped; and its `foreachBatch` function waits for the file `go`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

import tidegate as tg
from tests.chaos.job import say, session

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OLDER, NEWER = "older", "newer"
FILE_ROWS = 100


def add_files(folder: Path, first: int, files: int) -> None:
    """Numbers from `first` on."""
    (folder / "in").mkdir(exist_ok=True)
    for number in range(files):
        values = range(first + number * FILE_ROWS, first + (number + 1) * FILE_ROWS)
        draft = folder / "in" / f".{values.start}"
        pq.write_table(pa.table({"v": pa.array(values, pa.int64())}), draft)
        draft.rename(folder / "in" / f"{values.start:08d}.parquet")
    (folder / ".until").write_text(str(first + files * FILE_ROWS))
    (folder / ".until").rename(folder / "until")


class Message(WriterCommitMessage):
    def __init__(self, name: str) -> None:
        self.name = name


class PublishedFiles(DataSourceStreamWriter):
    """Rows in a hidden file; the commit publishes it, and does so again without harm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[Row]) -> Message:
        import uuid

        name = f"{uuid.uuid4().hex}.rows"
        (self.folder / f".{name}").write_text(json.dumps([row.v for row in iterator]))
        return Message(name)

    def commit(self, messages: list[Any], batchId: int) -> None:
        for message in messages:
            if (self.folder / f".{message.name}").exists():
                (self.folder / f".{message.name}").rename(self.folder / message.name)

    def abort(self, messages: list[Any], batchId: int) -> None:
        return


class SlowNumbers(DataSourceStreamReader):
    def __init__(self, folder: Path, row_cost_s: float) -> None:
        self.folder = folder
        self.row_cost_s = row_cost_s

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"next": int((self.folder / "until").read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["next"], end["next"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(*partition.value):
            if self.row_cost_s:
                time.sleep(self.row_cost_s)
            yield (number,)


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers_at_both_ends"

    def schema(self) -> str:
        return "v long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SlowNumbers(Path(self.options["folder"]), float(self.options["rowCostS"]))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return PublishedFiles(Path(self.options["folder"]))


def epochs_of(who: str, folder: Path) -> Callable[[DataFrame, int], None]:
    """Writes each epoch under its id, as a sink that is idempotent by id does, and a line for each call."""

    def note(word: str, batch_id: int) -> None:
        with open(folder / "calls", "a") as calls:
            calls.write(f"{who} {word} {batch_id}\n")

    def take(batch: DataFrame, batch_id: int) -> None:
        note("began", batch_id)
        rows = sorted(row.v for row in batch.collect())
        (folder / f".{who}-{batch_id}").write_text(json.dumps(rows))
        os.replace(folder / f".{who}-{batch_id}", folder / f"{who}-{batch_id}.rows")
        while who == OLDER and not (folder / "go").exists():
            time.sleep(0.01)
        note("ended", batch_id)

    return take


def start(spark: SparkSession, folder: Path, who: str) -> Mapping[str, tg.StreamingQuery]:
    is_slow = who == OLDER
    pace = {"maxFilesPerTrigger": "1"} if is_slow else {}
    files = spark.readStream.schema("v long").options(**pace).parquet(str(folder / "in"))
    spark.dataSource.register(Numbers)
    numbers = spark.readStream.format("numbers_at_both_ends").option("folder", str(folder))
    numbers = numbers.option("rowCostS", "0.004" if is_slow else "0")

    def writer(df: DataFrame, name: str) -> tg.DataStreamWriter:
        (folder / name).mkdir(exist_ok=True)
        options = {"parallelism": 1, "checkpoint.interval": "200ms"}
        return tg.writeStream(df).queryName(name).option("checkpointLocation", folder / "chk" / name).options(**options)

    merged = writer(files, "merged").format("json").option("path", folder / "merged")
    ingested = writer(files, "ingested").format("parquet").option("path", folder / "ingested")
    data_source = writer(numbers.load(), "data-source").format("numbers_at_both_ends")
    writers = {
        "merged": merged.option("sink.compact.epochs", "3"),
        "ingested": ingested.option("ingest", "spark"),
        "data-source": data_source.option("folder", str(folder / "data-source")),
        "epochs": writer(files, "epochs").foreachBatch(epochs_of(who, folder / "epochs")),
    }
    queries = {}
    for name, prepared in writers.items():
        queries[name] = query = prepared.start()
        while query.isActive and query.status["message"] != "running":  # one after the other, on a busy machine too
            time.sleep(0.02)
    return queries


def run_older(queries: Mapping[str, tg.StreamingQuery]) -> None:
    """Until every query has ended; says how."""
    while not all(query._coordinator.view().committed_checkpoints >= 2 for name, query in queries.items()
                  if name != "epochs"):  # fmt: skip
        time.sleep(0.05)
    say("running")
    for name, query in queries.items():
        while query.isActive:
            time.sleep(0.05)
        say("ended", name, type(query.exception()).__name__, query.exception())
    say("over")


def run_newer(queries: Mapping[str, tg.StreamingQuery]) -> None:
    """Whatever is there is processed, once and again when a line comes."""
    for said in ("caught up", "over"):
        for query in queries.values():
            query.processAllAvailable()
        if said == "over":
            for query in queries.values():
                query.stop()
        say(said)
        if said != "over":
            sys.stdin.readline()


def main(folder: Path, who: str) -> None:
    spark = session("local[8]")
    # What a first Python task costs must not count against the time in which slots have to come.
    spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id long").collect()
    queries = start(spark, folder, who)
    (run_older if who == OLDER else run_newer)(queries)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
