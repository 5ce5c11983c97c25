"""The fixed side of a join as bytes, read by Spark when the query starts.

Must never bring a table to the driver that is too large to go with the plan: it may be larger than the driver's memory.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.units import format_bytes

# Spark goes by the size of files, whose rows may take many times as much, so that only far below it is believed.
_BELIEVED_PART = 8
# So finely is a table measured: what is left of each partition is not counted.
_CHUNKS = 1024
_DRIVER_LIMIT = "spark.driver.maxResultSize"


def collected_rows(table: DataFrame, schema: pa.Schema, *, limit_bytes: int) -> bytes:
    """All rows, as an Arrow stream of this schema; raises `UnsupportedPlan` if there are too many.

    The columns of `table` go by position; their names must differ.
    """
    if _estimated_bytes(table) > limit_bytes // _BELIEVED_PART and _is_larger(table, limit_bytes):
        raise _too_large(limit_bytes)
    try:
        rows = table.toArrow()
    except (PySparkException, Py4JError) as error:
        # The failure of a job has no class of its own for this, but it names the setting.
        if _DRIVER_LIMIT not in str(error):
            raise
        raise UnsupportedPlan(
            f"The fixed side of a join has more than {_DRIVER_LIMIT}: select fewer columns or rows of it, read it as "
            f"a stream, or raise that setting."
        ) from None
    if rows.nbytes > limit_bytes:
        raise _too_large(limit_bytes)
    # A timestamp comes in the session's zone.
    columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, schema) as stream:
        stream.write_table(pa.Table.from_arrays(columns, schema=schema))
    return bytes(target.getvalue())


def full_chunks(batches: Iterator[pa.RecordBatch], *, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """A row for each time that so many bytes have come. Runs in the executor's Python worker."""
    left_bytes = 0
    for batch in batches:
        count, left_bytes = divmod(left_bytes + batch.nbytes, chunk_bytes)
        if count:
            yield pa.RecordBatch.from_arrays([pa.array([chunk_bytes] * count, pa.int64())], names=["bytes"])


def _estimated_bytes(table: DataFrame) -> int:
    """By Spark's optimizer, without reading the table."""
    plan: Any = table._jdf.queryExecution().optimizedPlan()
    return int(str(plan.stats().sizeInBytes()))


def _is_larger(table: DataFrame, limit_bytes: int) -> bool:
    """Measured where the rows are: `take` looks at a few partitions first, and at no more once there is enough."""
    chunk_bytes = max(1, limit_bytes // _CHUNKS)
    wanted = limit_bytes // chunk_bytes + 1
    chunks = table.mapInArrow(partial(full_chunks, chunk_bytes=chunk_bytes), "bytes long")
    return len(chunks.take(wanted)) == wanted


def _too_large(limit_bytes: int) -> UnsupportedPlan:
    return UnsupportedPlan(
        f"The fixed side of a join may have {format_bytes(limit_bytes)} and has more: select fewer columns or rows of "
        f"it, or read it as a stream."
    )
