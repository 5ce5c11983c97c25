"""Python Data Sources as sinks: `write` in the tasks once per epoch, `commit` and `abort` on the driver by epoch id.

Gives the user's writer what PySpark gives it: its own copy for each call, Rows or Arrow batches, the session's zone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType, _create_row
from pyspark.util import PythonEvalType

from tidegate.connectors.messages_sink import MESSAGE_SCHEMA
from tidegate.model.errors import OptionError, UserCodeFailure
from tidegate.model.ids import CheckpointId
from tidegate.operators.user_code import user_code_failure
from tidegate.plan.nodes import MapInArrow, Node
from tidegate.spark.commands import Command, encode_command
from tidegate.spark.pickling import dumps, loads

PYTHON = "python"


@dataclass(frozen=True, slots=True)
class PythonSink:
    """A writer of a registered data source, pickled; implements `connectors.messages_sink.MessageTaker`."""

    name: str
    writer: bytes
    schema: StructType
    time_zone: str
    binary_as_bytes: bool

    def writing(self, root: Node) -> MapInArrow:
        """The plan whose rows are the writer's messages."""
        function = EpochWrite(self.name, self.writer, self.schema, self.time_zone, self.binary_as_bytes)
        name = f"write to {self.name}"
        eval_type = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        command = Command(eval_type=eval_type, pickled=dumps((function, None)), name=name, broadcasts={}, settings={})
        return MapInArrow(root, encode_command(command), name, MESSAGE_SCHEMA)

    def commit(self, messages: Sequence[bytes], batch_id: CheckpointId) -> None:
        try:
            loads(self.writer).commit([loads(message) for message in messages], int(batch_id))
        except Exception as error:
            raise user_code_failure(error, called=f"commit of the data source {self.name!r}") from error

    def abort(self, batch_id: CheckpointId) -> None:
        try:
            loads(self.writer).abort([], int(batch_id))
        except Exception as error:
            raise user_code_failure(error, called=f"abort of the data source {self.name!r}") from error


def find_python_sink(df: DataFrame, name: str, options: Mapping[str, str]) -> PythonSink | None:
    """The writer of the data source that the session has registered under this name, if there is one."""
    spark = df.sparkSession
    source_class = registered_data_source(spark, name)
    if source_class is None:
        return None
    writer = _stream_writer(source_class, name, options, df.schema)
    return PythonSink(
        name=name,
        writer=dumps(writer),
        schema=df.schema,
        time_zone=str(spark.conf.get("spark.sql.session.timeZone")),
        binary_as_bytes=spark.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true",
    )


def registered_data_source(spark: SparkSession, name: str) -> type[DataSource] | None:
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists(name):
        return None
    found: type[DataSource] = loads(bytes(sources.lookupDataSource(name).dataSourceCls().command().unsafeArray()))
    return found


class EpochWrite:
    """What a task calls once per epoch: rows in, one pickled message out."""

    def __init__(self, name: str, writer: bytes, schema: StructType, time_zone: str, binary_as_bytes: bool) -> None:
        self._name = name
        self._writer = writer
        self._schema = schema
        self._time_zone = time_zone
        self._binary_as_bytes = binary_as_bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = loads(self._writer)
        in_zone = (_in_zone(batch, self._time_zone) for batch in batches)
        rows: Any = in_zone if isinstance(writer, DataSourceStreamArrowWriter) else self._rows(in_zone)
        try:
            message = writer.write(rows)
        except Exception as error:
            raise user_code_failure(error, called=f"write of the data source {self._name!r}") from error
        if not isinstance(message, WriterCommitMessage):
            raise UserCodeFailure(
                f"write of the data source {self._name!r} returned {type(message).__name__}: "
                f"it must return a WriterCommitMessage."
            )
        yield pa.RecordBatch.from_arrays([pa.array([dumps(message)], pa.binary())], schema=MESSAGE_SCHEMA)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        converters = [
            ArrowTableToRowsConversion._create_converter(field.dataType, binary_as_bytes=self._binary_as_bytes)
            for field in self._schema.fields
        ]
        names = self._schema.fieldNames()
        for batch in batches:
            columns = [
                [convert(value) for value in ArrowTableToRowsConversion._to_pylist(column)]
                for convert, column in zip(converters, batch.columns, strict=True)
            ]
            for values in zip(*columns, strict=True):
                yield _create_row(names, values)


def _stream_writer(
    source_class: type[DataSource], name: str, options: Mapping[str, str], schema: StructType
) -> DataSourceStreamWriter:
    try:
        # Rows are added in append and in update mode; overwriting belongs to complete mode.
        writer = source_class(options=CaseInsensitiveDict(options)).streamWriter(schema, overwrite=False)
    except Exception as error:
        raise OptionError(f"The data source {name!r} gave no stream writer: {type(error).__name__}: {error}") from error
    if not isinstance(writer, DataSourceStreamWriter):
        raise OptionError(
            f"streamWriter of the data source {name!r} returned {type(writer).__name__}: it must return a "
            f"DataSourceStreamWriter or a DataSourceStreamArrowWriter."
        )
    return writer


def _in_zone(batch: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    """The same instants, labelled with the session's zone as Spark's own batches are."""
    zoned = [at for at, field in enumerate(batch.schema) if pa.types.is_timestamp(field.type) and field.type.tz]
    for at in zoned:
        field = batch.schema.field(at)
        column = batch.column(at).cast(pa.timestamp(field.type.unit, zone))
        batch = batch.set_column(at, pa.field(field.name, column.type), column)
    return batch
