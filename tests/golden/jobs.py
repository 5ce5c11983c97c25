"""The jobs of the golden method: their input, a DataFrame for each source and operator, and Spark's own answer.

The answers do not depend on where a batch ends: rows come in the order of event time, the last row of each table is so
late that everything before it closes, and what belongs to that row is left out of the answers.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, assert_never
from unittest.mock import patch

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

import tidegate as tg
import tidegate.api.writer
from tests.golden.cases import SLOTS, Backend, Job, Mode, Operator, Sink, Source
from tidegate.worker.settings import SlotSettings

# Workers get the users' functions with the plan, as they would from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 1800
FILES = 36
KEYS = 17
# By sources that take a few at a time; Spark gives the rows of those in any order, the watermark has to wait for them.
FILES_AT_ONCE = {"orders": 8, "clicks": 2}
SCHEMA = "id long, k long, g long, at_ms long, day_ms long"
_BEGIN_MS = 1_772_000_000_000
_STEP_MS = 250
_DAY_ROWS = 360
# Later than anything else, so that the watermark passes everything else.
_END_MS = _BEGIN_MS + 10 * 24 * 3_600_000
_DELAY = "120 seconds"
_WINDOW_MS = 20_000
_TS = "timestamp_millis(at_ms) as ts"
_FORMAT = "golden_files"

_OPTIONS = {
    "checkpoint.interval": "150ms",
    "restart.delay": "50ms",
    "restart.attempts": "20",
    # Narrow, so that rows are in flight when a barrier comes.
    "network.window": "4kb",
}
_MODES = {
    # Narrower still: an aligned barrier waits for every row in front of it, and many checkpoints are to pass.
    Mode.ALIGNED: {"checkpoint.unaligned": "false", "network.window": "1kb"},
    Mode.UNALIGNED: {"checkpoint.unaligned": "true"},
    # Soon, so that some switch and some do not.
    Mode.AUTO: {"checkpoint.unaligned": "auto", "checkpoint.alignedTimeout": "20ms"},
}


# -- the input


def make_input(folder: Path) -> None:
    """Tables as folders of files, once in parquet and once in ORC, which Tidegate leaves to Spark."""
    orders = {
        "id": list(range(ROWS)),
        "k": [i * 7 % KEYS for i in range(ROWS)],
        "g": [i % 90 for i in range(ROWS)],
        "at_ms": [_BEGIN_MS + i * _STEP_MS for i in range(ROWS)],
        "day_ms": [_BEGIN_MS + i // _DAY_ROWS * _DAY_ROWS * _STEP_MS for i in range(ROWS)],
    }
    # A click for every tenth order, a second later, and none for some keys.
    of_clicks = [i for i in range(0, ROWS, 10) if orders["k"][i] < KEYS - 5]
    clicks = {name: [values[i] for i in of_clicks] for name, values in orders.items()}
    clicks["at_ms"] = [at_ms + 1000 for at_ms in clicks["at_ms"]]
    _write(folder / "orders", orders, files=FILES)
    _write(folder / "clicks", clicks, files=FILES // 3)


def _write(folder: Path, columns: dict[str, list[int]], *, files: int) -> None:
    last = {"id": -1, "k": -1, "g": -1, "at_ms": _END_MS, "day_ms": _END_MS}
    table = pa.table({name: pa.array([*values, last[name]], pa.int64()) for name, values in columns.items()})
    size = -(-table.num_rows // files)
    for format, write in (("parquet", pq.write_table), ("orc", pyarrow.orc.write_table)):
        (folder / format).mkdir(parents=True)
        for number in range(files):
            path = folder / format / f"{number:03d}.{format}"
            write(table.slice(number * size, size), path)
            # Spark reads the oldest first.
            os.utime(path, (_BEGIN_MS / 1000 + number, _BEGIN_MS / 1000 + number))


def stream(spark: SparkSession, source: Source, folder: Path) -> DataFrame:
    match source:
        case Source.NATIVE:
            return spark.readStream.schema(SCHEMA).parquet(str(folder / "parquet"))
        case Source.PYTHON:
            spark.dataSource.register(Files)
            reader = spark.readStream.format(_FORMAT).option("filesAtOnce", FILES_AT_ONCE[folder.name])
            return reader.option("folder", str(folder / "parquet")).load()
        case Source.SPARK:
            limited = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_AT_ONCE[folder.name])
            return limited.orc(str(folder / "orc"))
        case _:
            assert_never(source)


class Files(DataSource):
    """A folder of files as a user would write it: a partition for each file, a few at a time."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FilesReader(self.options["folder"], int(self.options["filesAtOnce"]))


class FilesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, folder: str, files_at_once: int) -> None:
        self._files_at_once = files_at_once
        self._files = [str(path) for path in sorted(Path(folder).iterdir())]

    def prepareForTriggerAvailableNow(self) -> None:
        """All files are there from the start."""

    def initialOffset(self) -> dict[str, int]:
        return {"file": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._files_at_once)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"file": min(start["file"] + self._files_at_once, len(self._files))}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        return [InputPartition(path) for path in self._files[start["file"] : end["file"]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from pq.read_table(partition.value).to_batches()


# -- the operators


def timed(operator: Operator, orders: DataFrame) -> DataFrame:
    """Id, key and event time, with its watermark: where rows are still in the order of their files."""
    columns = ("g as k", "timestamp_millis(day_ms) as ts") if operator is Operator.DEDUP else ("k", _TS)
    return orders.selectExpr("id", *columns).withWatermark("ts", _DELAY)


def pipeline(operator: Operator, orders: DataFrame, clicks: DataFrame) -> DataFrame:
    """`orders` with their times; both as streams, or as tables, which gives Spark's answer."""
    match operator:
        case Operator.AGGREGATION:
            return orders.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("total"), F.max("id").alias("m"))
        case Operator.JOIN:
            right = clicks.selectExpr("id as click", "k as ck", _TS).withColumnRenamed("ts", "cts")
            met = "k = ck and cts between ts - interval 3 seconds and ts + interval 3 seconds"
            return orders.join(right.withWatermark("cts", _DELAY), F.expr(met), "leftOuter").select("id", "click")
        case Operator.WINDOW:
            windows = orders.groupBy(F.window("ts", f"{_WINDOW_MS} milliseconds"), "k")
            counted = windows.agg(F.count("*").alias("n"), F.sum("id").alias("total"))
            return counted.selectExpr("k", "unix_millis(window.start) as since_ms", "n", "total")
        case Operator.DEDUP:
            return orders.dropDuplicates(["k", "ts"]).selectExpr("k", "unix_millis(ts) as day_ms")
        case Operator.TIMERS:
            output = "k long, since_ms long, n long, total long"
            return orders.groupBy("k").transformWithState(CloseWindows(), output, "Append", "EventTime")
        case _:
            assert_never(operator)


class CloseWindows(StatefulProcessor):
    """Windows by hand: counted in a map, given out by a timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getMapState("open", "since_ms long", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at_ms = round(row.ts.timestamp() * 1000)
            since_ms = at_ms - at_ms % _WINDOW_MS
            n, total = self._open.getValue((since_ms,)) if self._open.containsKey((since_ms,)) else (0, 0)
            if n == 0:
                self._handle.registerTimer(since_ms + _WINDOW_MS)
            self._open.updateValue((since_ms,), (n + 1, total + row.id))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        since_ms = expiredTimerInfo.getExpiryTimeInMs() - _WINDOW_MS
        n, total = self._open.getValue((since_ms,))
        self._open.removeKey((since_ms,))
        yield Row(k=key[0], since_ms=since_ms, n=n, total=total)

    def close(self) -> None:
        return


def sparks_answer(spark: SparkSession, operator: Operator, folder: Path) -> pa.Table:
    """By a batch over the same files; a batch fires no timers, so that the windows say what these should."""
    orders, clicks = (
        spark.read.schema(SCHEMA).parquet(str(folder / name / "parquet")) for name in ("orders", "clicks")
    )
    orders = timed(operator, orders)
    match operator:
        case Operator.WINDOW | Operator.TIMERS:
            # The last row's window is still open when a stream ends.
            return pipeline(Operator.WINDOW, orders, clicks).where("k >= 0").toArrow()
        case Operator.AGGREGATION | Operator.JOIN | Operator.DEDUP:
            return pipeline(operator, orders, clicks).toArrow()
        case _:
            assert_never(operator)


# -- the query


def start(
    spark: SparkSession,
    job: Job,
    input_folder: Path,
    folder: Path,
    *,
    struck: Path | None,
    half: Callable[[], None],
    slots: int = SLOTS,
) -> tg.StreamingQuery:
    """Slow until the file `struck` is there; `half` is called when a foreachBatch function has done a part."""
    orders = timed(job.operator, stream(spark, job.source, input_folder / "orders"))
    # Behind an exchange, so that rows queue in front of it.
    paced = F.udf(pace(None if struck is None else str(struck)), "long")
    orders = orders.repartition("id").select("id", paced("id", "k").alias("k"), "ts")
    df = pipeline(job.operator, orders, stream(spark, job.source, input_folder / "clicks"))
    writer = tg.writeStream(df).option("checkpointLocation", str(folder / "chk")).options(**_OPTIONS)
    writer = writer.options(**{"parallelism": slots, **job.backend.options()})
    writer = writer.options(**_MODES[job.mode]).outputMode(output_mode(job.operator)).trigger(availableNow=True)
    out = folder / "out"
    with small_changes_stored(job.backend):
        match job.sink:
            case Sink.PARQUET:
                return writer.format("parquet").start(str(out))
            case Sink.FOREACH_BATCH:
                return writer.foreachBatch(write_epochs(out, half)).start()
            case _:
                assert_never(job.sink)


@contextmanager
def small_changes_stored(backend: Backend) -> Iterator[None]:
    """With a changelog, changes are in files ahead of checkpoints; there are so few that all would be stored whole."""
    settings = {"inline_below_bytes": 0, "heap_rows_whole_up_to_bytes": 0} if backend.has_changelog else {}
    with patch.object(tidegate.api.writer, "SlotSettings", partial(SlotSettings, **settings)):
        yield


def output_mode(operator: Operator) -> str:
    return "update" if operator is Operator.AGGREGATION else "append"


def pace(struck: str | None) -> Callable[[int, int], int]:
    """So that many checkpoints pass before the strike, and few after it: the last rows wait for it the longest."""

    def paced(id: int, k: int) -> int:
        if struck is None:
            time.sleep(0.001)
        elif os.path.exists(struck):
            time.sleep(0.0003)
        else:
            time.sleep(0.002 if id < ROWS * 0.5 else 0.008)
        return k

    return paced


def write_epochs(out: Path, half: Callable[[], None]) -> Callable[[DataFrame, int], None]:
    """Every call of an epoch leaves a file of its own, so that calls with the same id can be compared."""

    def write(df: DataFrame, epoch: int) -> None:
        folder = out / str(epoch)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{uuid.uuid4().hex}"
        pq.write_table(df.toArrow(), draft)
        half()
        draft.rename(folder / f"{draft.name[1:]}.parquet")

    return write
