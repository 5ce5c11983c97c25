"""Committed epochs as Spark DataFrames: what `foreachBatch` and `foreach` call, on the driver, by epoch id.

Runs on the thread that commits. It must not remove what it reads: the staged sink does, once the commit is recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkStreamWriter
from pyspark.sql.types import StructField, StructType

from tidegate.connectors.staged_sink import column_name
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId
from tidegate.operators.user_code import user_code_failure

# Where PySpark's own wrapper around `open(partition_id, epoch_id)` looks for the id.
_BATCH_ID = "streaming.sql.batchId"
_READ_OPTIONS = {
    "__globPaths__": "false",  # a folder's name may have brackets in it
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}


@dataclass(frozen=True, slots=True)
class ForeachBatch:
    """Calls `function(df, batch_id)` for an epoch."""

    spark: SparkSession
    schema: StructType
    function: Callable[[DataFrame, int], None]

    def __call__(self, files: Sequence[Path], batch_id: CheckpointId) -> None:
        batch = _exactly(self.spark, _read(self.spark, files, self.schema), self.schema)
        try:
            self.function(batch, int(batch_id))
        except Exception as error:
            raise user_code_failure(error, called=f"The foreachBatch function, in batch {batch_id},") from error


@dataclass(frozen=True, slots=True)
class Foreach:
    """Hands an epoch's rows to the user's writer in Spark tasks, one partition for each file."""

    spark: SparkSession
    schema: StructType
    function: Callable[[int, Iterable[Any]], Iterable[Any]]

    def __call__(self, files: Sequence[Path], batch_id: CheckpointId) -> None:
        context = self.spark.sparkContext
        # A partition per file, so that a repeated epoch has the same rows under the same partition id.
        parts = [_read(self.spark, [file], self.schema).coalesce(1) for file in files]
        rows = context.union([_exactly(self.spark, part, self.schema).rdd for part in parts])
        context.setLocalProperty(_BATCH_ID, str(batch_id))
        try:
            rows.mapPartitionsWithIndex(self.function, preservesPartitioning=True).count()
        except PySparkException as error:
            raise user_code_failure(error, called=f"The foreach writer, in batch {batch_id},") from error
        finally:
            context.setLocalProperty(_BATCH_ID, None)  # type: ignore[arg-type]


def foreach_batch(df: DataFrame, function: Any) -> ForeachBatch:
    if not callable(function):
        raise OptionError(f"foreachBatch needs a function of a DataFrame and a batch id, not {function!r}.")
    return ForeachBatch(df.sparkSession, df.schema, function)


def foreach(df: DataFrame, f: Any) -> Foreach:
    """`f` as PySpark takes it: a function of a row, or an object with `process` and maybe `open` and `close`."""
    try:
        function: Any = SparkStreamWriter._construct_foreach_function(f)
    except PySparkException as error:
        raise OptionError(
            f"foreach needs a function of a row, or an object with process(row) and maybe open and close: {error}"
        ) from None
    return Foreach(df.sparkSession, df.schema, function)


def _read(spark: SparkSession, files: Sequence[Path], schema: StructType) -> DataFrame:
    stored = StructType([StructField(column_name(at), field.dataType) for at, field in enumerate(schema)])
    return spark.read.options(**_READ_OPTIONS).schema(stored).parquet(*map(str, files))


def _exactly(spark: SparkSession, df: DataFrame, schema: StructType) -> DataFrame:
    """The same rows under the query's own names, nullability and metadata, which files do not keep."""
    session: Any = spark._jsparkSession
    rows = df._jdf.queryExecution().toRdd()
    return DataFrame(session.internalCreateDataFrame(rows, session.parseDataType(schema.json()), False), spark)
