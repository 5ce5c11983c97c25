"""Python Data Sources as sources: a user's `DataSourceStreamReader`, or the simple one, behind our own contract.

Follows PySpark's own runner: offsets are dictionaries in JSON, limits and availableNow are asked for as Spark does.
"""

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.datasource_internal import SimpleInputPartition, _SimpleStreamReaderWrapper, _streamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from tidegate.model.errors import OptionError, UserCodeFailure
from tidegate.operators.user_code import user_code_failure
from tidegate.plan.nodes import Scan
from tidegate.spark.pickling import dumps, loads

PYTHON = "python"
_PYTHON_CLASS = "org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2"


def is_python_relation(relation: Any) -> bool:
    """Whether a `StreamingRelationV2` reads a Python data source."""
    source = relation.source()
    return bool(source.isDefined()) and str(source.get().getClass().getName()) == _PYTHON_CLASS


def read_python_relation(relation: Any, schema: pa.Schema) -> Scan:
    """The very instance that Spark made when the stream was defined comes out of the plan, pickled."""
    name = str(relation.sourceName())
    spark_schema = StructType.fromJson(json.loads(relation.table().schema().json()))
    none = _jvm().scala.Option.empty()
    created = relation.source().get().getOrCreateDataSourceInPython(name, relation.extraOptions(), none)
    opener = OpenStream(name, bytes(created.dataSource()), spark_schema, schema, _batch_rows())
    try:
        opener()
    except Exception as error:
        # Not for Spark to ingest either: it would ask the same class.
        raise OptionError(f"The data source {name!r} gave no stream reader: {type(error).__name__}: {error}") from error
    return Scan(PYTHON, {"format": name}, schema, dumps(opener))


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Pickled into the plan; opens a reader wherever it is called."""

    name: str
    data_source: bytes
    spark_schema: StructType
    schema: pa.Schema
    batch_rows: int

    def __call__(self) -> "PythonStream":
        return PythonStream(self, loads(self.data_source))


class PythonStream:
    """Implements `connectors.range_source.OffsetStream`."""

    def __init__(self, opened: OpenStream, data_source: DataSource) -> None:
        self._name = opened.name
        self._data_source = data_source
        self._spark_schema = opened.spark_schema
        self._schema = opened.schema
        self._batch_rows = opened.batch_rows
        self._reader: DataSourceStreamReader = _streamReader(data_source, opened.spark_schema)

    def initial_offset(self) -> str:
        return json.dumps(self._call("initialOffset"))

    def latest_offset(self, start: str) -> str:
        if isinstance(self._reader, _SimpleStreamReaderWrapper):
            return self._read_simply(self._reader, start)
        if not self._takes_limits():
            return json.dumps(self._call("latestOffset"))
        return json.dumps(self._call("latestOffset", json.loads(start), self._call("getDefaultReadLimit")))

    def ends_with_one_range(self) -> bool:
        reader: Any = self._reader
        if isinstance(reader, _SimpleStreamReaderWrapper):
            reader = reader.simple_reader
        if not isinstance(reader, SupportsTriggerAvailableNow):
            return True
        try:
            reader.prepareForTriggerAvailableNow()
        except Exception as error:
            raise self._failure("prepareForTriggerAvailableNow", error) from error
        return False

    def limits_ranges(self) -> bool:
        if isinstance(self._reader, _SimpleStreamReaderWrapper):
            return True
        return self._takes_limits() and not isinstance(self._call("getDefaultReadLimit"), ReadAllAvailable)

    def partitions(self, start: str, end: str) -> list[bytes]:
        first, last = json.loads(start), json.loads(end)
        if isinstance(self._reader, _SimpleStreamReaderWrapper):
            return [dumps(SimpleInputPartition(first, last))]
        return [dumps(partition) for partition in self._call("partitions", first, last)]

    def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
        try:
            read = self._reader.read(loads(partition))
            if not isinstance(read, Iterator):
                raise TypeError(f"read returned {type(read).__name__}, and must return an iterator")
            for batch in records_to_arrow_batches(read, self._batch_rows, self._spark_schema, self._data_source):
                yield self._fitted(batch)
        except UserCodeFailure:
            raise
        except Exception as error:
            raise self._failure("read", error) from error

    def commit(self, end: str) -> None:
        self._call("commit", json.loads(end))

    def has_ended(self) -> bool:
        return True

    def release(self, end: str) -> None:
        """A user's reader is told of commits alone, as Spark does."""

    def stop(self) -> None:
        self._call("stop")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._reader, method)(*arguments)
        except Exception as error:
            raise self._failure(method, error) from error

    def _read_simply(self, reader: _SimpleStreamReaderWrapper, start: str) -> str:
        """Only how far it goes: the rows are read in a task, by `readBetweenOffsets`, as Spark does after a restart."""
        try:
            rows, end = reader.simple_reader.read(json.loads(start))
            found = json.dumps(end)
            if found == start and next(iter(rows), None) is not None:
                raise ValueError(f"read gave rows, but its end offset is its start, {start}")
        except Exception as error:
            raise self._failure("read", error) from error
        return found

    def _takes_limits(self) -> bool:
        return len(inspect.signature(self._reader.latestOffset).parameters) > 0

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(field.name) for field in self._schema]
        for column, field in zip(columns, self._schema, strict=True):
            if column.type != field.type:
                raise UserCodeFailure(
                    f"read of the data source {self._name!r} gave column {field.name!r} as {column.type}, its schema "
                    f"has it as {field.type}: cast it in read, or change the schema."
                )
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _failure(self, method: str, error: Exception) -> UserCodeFailure:
        return user_code_failure(error, called=f"{method} of the data source {self._name!r}")


def _batch_rows() -> int:
    spark = SparkSession.getActiveSession()
    asked = 0 if spark is None else int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch", "10000") or 0)
    return asked if asked > 0 else 10_000


def _jvm() -> Any:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    return context._jvm
