"""Runs one DataFrame by Tidegate and by Spark, over the same bounded input, and makes their rows comparable."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tidegate.connectors.memory import read_memory_table

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_S = 120.0
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_names = itertools.count()

Tables: TypeAlias = Callable[[str], DataFrame]


class Against(Enum):
    """What Spark is asked: a batch over the same files, or a streaming query where the end of event time matters."""

    BATCH = "batch"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`keys`: in update mode, how many leading columns tell the groups, of which the last row counts.

    `falls`: whether it is also made to fail midway; what Spark ingests fails in Spark, by other words.
    """

    name: str
    build: Callable[[Tables], DataFrame]
    mode: str = "append"
    against: Against = Against.BATCH
    keys: int = 0
    falls: bool = True


@dataclass(frozen=True, slots=True)
class Input:
    """Tables as folders of parquet files, each file behind the one before it in event time."""

    folder: Path
    schemas: Mapping[str, str]
    spark: SparkSession

    def batch(self, name: str) -> DataFrame:
        return self.spark.read.schema(self.schemas[name]).parquet(str(self.folder / name))

    def stream(self, name: str) -> DataFrame:
        return self.spark.readStream.schema(self.schemas[name]).parquet(str(self.folder / name))

    def stumbling(self, stone: Path) -> Tables:
        """Streams that are slow enough for checkpoints, and fail at the last files as long as the stone lies there."""

        def stream(name: str) -> DataFrame:
            df = self.stream(name)
            return df.mapInArrow(_stumbling(str(stone)), df.schema)

        return stream


def write_files(folder: Path, table: pa.Table, *, files: int) -> None:
    folder.mkdir(parents=True)
    size = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), folder / f"{number:03d}.parquet")


def sparks_rows(pipeline: Pipeline, given: Input) -> list[Any]:
    if pipeline.against is Against.BATCH:
        return comparable(pipeline.build(given.batch).toArrow(), keys=0)
    name = f"spark_{next(_names)}"
    # The other one does not serve transformWithState.
    given.spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    writer = pipeline.build(given.stream).writeStream.format("memory").queryName(name).outputMode(pipeline.mode)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S))
    return comparable(given.spark.table(name).toArrow(), keys=pipeline.keys)


def tidegates_rows(pipeline: Pipeline, given: Input, *, slots: int) -> list[Any]:
    name = f"tidegate_{next(_names)}"
    query = _writer(pipeline, pipeline.build(given.stream), name, slots=slots).start()
    assert query.awaitTermination(PATIENCE_S)
    return comparable(read_memory_table(name), keys=pipeline.keys)


def tidegates_rows_after_a_fall(
    pipeline: Pipeline, given: Input, folder: Path, *, slots: int, slots_afterwards: int
) -> list[Any]:
    """The query fails midway, after a checkpoint, and goes on at another parallelism."""
    name = f"tidegate_{next(_names)}"
    stone = folder / "stone"
    stone.touch()
    df = pipeline.build(given.stumbling(stone))
    options = {"checkpointLocation": folder / "chk", "checkpoint.interval": "20ms", "checkpoint.unaligned": "true"}
    query = _writer(pipeline, df, name, slots=slots, **options, **{"restart.strategy": "none"}).start()
    _await_fall(query)
    assert any(checkpoint.status == "completed" for checkpoint in query.checkpoints), "it fell before a checkpoint"
    stone.unlink()
    query = _writer(pipeline, df, name, slots=slots_afterwards, **options).start()
    assert query.awaitTermination(PATIENCE_S)
    return comparable(read_memory_table(name), keys=pipeline.keys)


def comparable(table: pa.Table, *, keys: int) -> list[Any]:
    """Rows as values that can be sorted; with keys, the last row of each group."""
    rows = [tuple(_value(value) for value in row.values()) for row in _unnamed(table).to_pylist(maps_as_pydicts=None)]
    if keys:
        rows = list({row[:keys]: row for row in rows}.values())
    return sorted(rows, key=repr)


def _writer(pipeline: Pipeline, df: DataFrame, name: str, *, slots: int, **options: Any) -> tg.DataStreamWriter:
    writer = tg.writeStream(df).format("memory").queryName(name).outputMode(pipeline.mode)
    return writer.option("parallelism", slots).options(**options).trigger(availableNow=True)


def _await_fall(query: tg.StreamingQuery) -> None:
    with pytest.raises(tg.TidegateError, match="a stone"):
        query.awaitTermination(PATIENCE_S)


def _stumbling(stone: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pass_slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # So slow that checkpoints come between the batches.
            time.sleep(0.06)
            if pc.any(pc.equal(batch.column(0), LAST_ID)).as_py() and Path(stone).exists():
                raise RuntimeError("stumbled over a stone")
            yield batch

    return pass_slowly


# The first column of every table counts its rows; it is this for the last.
LAST_ID = 239


def _unnamed(table: pa.Table) -> pa.Table:
    # Column names may repeat.
    return table.rename_columns([str(at) for at in range(table.num_columns)])


def _value(value: Any) -> Any:
    match value:
        case float():
            # Sums of floating point numbers depend on the order of their parts.
            return "nan" if value != value else float(f"{value:.9g}")
        case list():
            return tuple(_value(item) for item in value)
        case tuple():
            return tuple(_value(item) for item in value)
        case dict():
            return tuple((key, _value(item)) for key, item in value.items())
        case _:
            return value
