"""Writes a savepoint as a Spark job: what has to change slots is encoded and brought there, each slot is stored.

The manifest comes last, from the driver: a job that fails leaves files that mean nothing.
"""

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.coordinator.written_savepoints import PLACE_COLUMNS, WrittenRows, WrittenSavepoint
from tidegate.model.errors import OptionError
from tidegate.plan.key_groups import owner_of
from tidegate.worker.reading import BATCH_ROWS
from tidegate.worker.written_state import StateEntry, decode_slot_file, encode_slot_file

_ENTRY = pa.schema(
    [
        ("slot", pa.int32()),
        ("operator", pa.int32()),
        ("name", pa.string()),
        ("key_group", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
# Entries may hold many rows each.
_MOST_BYTES = 1 << 24
_ENTRY_DDL = "slot int, operator int, name string, key_group int, key binary, value binary"


def write_savepoint(spark: SparkSession, df: DataFrame | None, target: WrittenSavepoint) -> None:
    """`df`: the rows that `target` names; None if it names none."""
    every_slot = spark.range(0, target.slots, 1, target.slots)
    # One row for each slot, so that those without state are written as well.
    together = every_slot.select(
        F.col("id").cast("int").alias("slot"), *[F.lit(None).cast(kind).alias(name) for name, kind in _others()]
    )
    if df is not None:
        assert target.rows is not None, "rows are of a state"
        fitting = _fitting(df, target.rows)
        together = together.union(fitting.mapInArrow(_encoding(target, target.rows), _ENTRY_DDL))
    if target.regrouping is not None:
        together = together.union(every_slot.mapInArrow(_taking_over(target), _ENTRY_DDL))
    written = (
        together.repartition(target.slots, "slot")
        .sortWithinPartitions("slot")
        .mapInArrow(_writing(target), "file string")
    )
    target.finish([decode_slot_file(row.file) for row in written.collect()])


def _others() -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (part.split() for part in _ENTRY_DDL.split(", ")) if name != "slot"]


def _fitting(df: DataFrame, rows: WrittenRows) -> DataFrame:
    expected = from_arrow_schema(rows.columns)
    given = {field.name: field.dataType for field in df.schema.fields}
    wanted = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in expected.fields)
    of = f"State {rows.state.name!r} of operator {rows.operator.id} has the columns {wanted}"
    for field in expected.fields:
        if field.name not in given:
            raise OptionError(f"{of}: the DataFrame has no column {field.name!r}.")
        if given[field.name].simpleString() != field.dataType.simpleString():
            raise OptionError(
                f"{of}: column {field.name!r} of the DataFrame is {given[field.name].simpleString()}, so cast it."
            )
    unknown = [name for name in given if name not in expected.names and name not in PLACE_COLUMNS]
    if unknown or len(given) != len(df.columns):
        raise OptionError(f"{of}: drop {', '.join(map(repr, unknown)) or 'columns of the same name'}.")
    return df.select(*[F.col("`" + name.replace("`", "``") + "`") for name in expected.names])


def _encoding(
    target: WrittenSavepoint, rows: WrittenRows
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = target.encoder(rows)
        return _batches((entry for batch in batches for entry in encoder.entries(batch)), target)

    return encode


def _taking_over(target: WrittenSavepoint) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def take_over(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slots = (slot for batch in batches for slot in batch.column(0).to_pylist())
        return _batches((entry for slot in slots for entry in target.taken_over(slot)), target)

    return take_over


def _writing(target: WrittenSavepoint) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for slot, own in itertools.groupby(rows, key=lambda row: row[0]):
            entries = (StateEntry(*row[1:]) for row in own if row[2] is not None)
            file = target.write_slot(slot, entries, token=uuid.uuid4().hex)
            yield pa.RecordBatch.from_arrays([pa.array([encode_slot_file(file)], pa.string())], names=["file"])

    return write


def _batches(entries: Iterator[StateEntry], target: WrittenSavepoint) -> Iterator[pa.RecordBatch]:
    max_parallelism = target.manifest.max_parallelism
    every = np.arange(max_parallelism)
    owners = [
        owner_of(every, parallelism=target.subtasks_of(operator), max_parallelism=max_parallelism).tolist()
        for operator in range(target.operators)
    ]
    for piece in _pieces(entries):
        slots = [owners[entry.operator][entry.key_group] for entry in piece]
        columns = [slots, *zip(*piece, strict=True)]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _ENTRY, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ENTRY)


def _pieces(entries: Iterator[StateEntry]) -> Iterator[list[StateEntry]]:
    piece: list[StateEntry] = []
    size_bytes = 0
    for entry in entries:
        piece.append(entry)
        size_bytes += len(entry.value)
        if len(piece) == BATCH_ROWS or size_bytes >= _MOST_BYTES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece
