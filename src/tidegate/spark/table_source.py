"""`spark.read.format("tidegate")`: checkpoints as tables, read by Spark's executors, a partition per slot.

Imports little: Spark imports it in a process of its own whenever a session looks for data sources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidegate.coordinator.checkpoint_tables import Table


class CheckpointDataSource(DataSource):
    """Options: `path`, `table`, and what the table lets choose: `checkpoint`, `operator`, `state`, `edge`.

    And settings of object stores by Hadoop's names. `settings`: those of the session, where they are known.
    """

    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # Kept with the source when Spark sends it on: schema and rows are of the same checkpoint.
        self._table: Table | None = None

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> "StructType":
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._opened().schema)

    def reader(self, schema: "StructType") -> "CheckpointReader":
        from tidegate.model.errors import OptionError

        if schema != (own := self.schema()):
            raise OptionError(
                f"The table has the schema {own.simpleString()}, not {schema.simpleString()}: leave schema(...) out."
            )
        return CheckpointReader(self._opened(), schema)

    def _opened(self) -> "Table":
        from tidegate.coordinator.checkpoint_tables import open_table
        from tidegate.storage.access import StoreAccess

        if self._table is None:
            self._table = open_table(dict(self.options), StoreAccess(self.settings))
        return self._table


@dataclass(frozen=True)
class SlotPartition(InputPartition):
    slot: int


class CheckpointReader(DataSourceReader):
    def __init__(self, table: "Table", schema: "StructType") -> None:
        self._table = table
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [SlotPartition(slot) for slot in range(self._table.partitions)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, SlotPartition)
        # As Spark wants it to the letter, also where names of parts do not matter.
        expected = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._table.read(partition.slot):
            columns = [column.cast(field.type) for column, field in zip(batch.columns, expected, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=expected)
