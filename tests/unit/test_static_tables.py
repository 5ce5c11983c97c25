"""The fixed side of a join comes to the driver only if it may go with the plan. Spark's part is played by hand."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame

from tidegate.model.errors import UnsupportedPlan
from tidegate.spark.static_tables import collected_rows, full_chunks

SCHEMA = pa.schema([("id", pa.int64())])
ROW_BYTES = 8
TOO_MUCH_FOR_THE_DRIVER = (
    "Job aborted due to stage failure: Total size of serialized results of 9 tasks (1030.0 MiB) is bigger than "
    "spark.driver.maxResultSize (1024.0 MiB)"
)


def batch_of(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["0"])


class Table:
    """A DataFrame by its partitions; notes what was asked of it."""

    def __init__(
        self, *partitions: Sequence[pa.RecordBatch], estimated_bytes: int, failure: Exception | None = None
    ) -> None:
        self.partitions = partitions
        self.estimated_bytes = estimated_bytes
        self.failure = failure
        self.is_collected = False
        self.measured_partitions = 0

    # -- what Spark's optimizer says: _jdf.queryExecution().optimizedPlan().stats().sizeInBytes()

    @property
    def _jdf(self) -> "Table":
        return self

    def queryExecution(self) -> "Table":
        return self

    def optimizedPlan(self) -> "Table":
        return self

    def stats(self) -> "Table":
        return self

    def sizeInBytes(self) -> int:
        return self.estimated_bytes

    # -- jobs

    def mapInArrow(
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> "Mapped":
        return Mapped(self, function)

    def toArrow(self) -> pa.Table:
        self.is_collected = True
        if self.failure is not None:
            raise self.failure
        return pa.Table.from_batches([batch for partition in self.partitions for batch in partition])


class Mapped:
    def __init__(self, table: Table, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> None:
        self._table = table
        self._function = function

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        for partition in self._table.partitions:
            if len(found) >= count:
                break
            self._table.measured_partitions += 1
            found += [row for batch in self._function(iter(partition)) for row in batch.to_pylist()]
        return found[:count]


def read(table: Table, *, limit_bytes: int) -> list[int]:
    stream = collected_rows(cast(DataFrame, table), SCHEMA, limit_bytes=limit_bytes)
    return cast(list[int], pa.ipc.open_stream(stream).read_all().column("id").to_pylist())


def test_a_table_that_fits_is_read_whole() -> None:
    table = Table([batch_of(1, 2)], [batch_of(3)], estimated_bytes=1 << 62)
    assert read(table, limit_bytes=3 * ROW_BYTES) == [1, 2, 3]


def test_a_table_above_the_limit_is_refused_before_the_driver_holds_it() -> None:
    table = Table(*[[batch_of(1, 2)]] * 100, estimated_bytes=1 << 62)
    with pytest.raises(UnsupportedPlan, match="may have 64 B and has more"):
        read(table, limit_bytes=64)
    assert not table.is_collected
    assert table.measured_partitions < 10, "no more is read than it takes to know"


def test_a_table_that_spark_says_is_small_is_not_measured_but_refused_if_it_is_not() -> None:
    table = Table([batch_of(1, 2)], estimated_bytes=1)
    assert read(table, limit_bytes=1000) == [1, 2]
    with pytest.raises(UnsupportedPlan, match="may have 8 B and has more"):
        read(table, limit_bytes=8)
    assert table.measured_partitions == 0


def test_a_table_above_the_drivers_own_limit_is_refused_and_not_an_error_of_spark() -> None:
    table = Table(estimated_bytes=1, failure=PySparkRuntimeError(TOO_MUCH_FOR_THE_DRIVER))
    with pytest.raises(UnsupportedPlan, match=r"more than spark\.driver\.maxResultSize"):
        read(table, limit_bytes=1000)


def test_another_failure_of_spark_stays_what_it_is() -> None:
    table = Table(estimated_bytes=1, failure=PySparkRuntimeError("File does not exist"))
    with pytest.raises(PySparkRuntimeError, match="File does not exist"):
        read(table, limit_bytes=1000)


def test_chunks_are_counted_across_the_batches_of_a_partition() -> None:
    batches = [batch_of(1), batch_of(2), batch_of(3, 4, 5, 6, 7)]
    counts = [batch.num_rows for batch in full_chunks(iter(batches), chunk_bytes=2 * ROW_BYTES)]
    assert counts == [1, 2]
