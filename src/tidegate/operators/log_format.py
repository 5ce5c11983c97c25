"""How rows and keys that are gone lie in a file of a row log: Arrow streams, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate.model.errors import DidNotHappen, StorageFailure
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes


@dataclass(frozen=True, slots=True)
class LogFormat:
    """`rows` is the format of a row, its first `key_count` columns the key."""

    rows: RowFormat
    gone: RowFormat
    key_count: int

    @staticmethod
    def of(rows: RowFormat, key_count: int) -> "LogFormat":
        gone = [pa.field(f"gone_{at}", rows.schema.field(at).type) for at in range(key_count)]
        # Without keys there is a column all the same, so that they are not taken for rows without any.
        gone = gone or [pa.field("gone", pa.null())]
        return LogFormat(rows, RowFormat(rows.name, rows.noun, pa.schema(gone)), key_count)

    @property
    def key_types(self) -> list[pa.DataType]:
        return [self.rows.schema.field(at).type for at in range(self.key_count)]

    def encoded(self, columns: Sequence[pa.Array], hashes: Hashes, max_parallelism: int) -> Sequence[memoryview]:
        rows = pa.RecordBatch.from_arrays(columns, schema=self.rows.schema)
        return self.rows.encoded(rows, hashes, max_parallelism)

    def encoded_gone(self, keys: pa.RecordBatch, hashes: Hashes, max_parallelism: int) -> Sequence[memoryview]:
        return self.gone.encoded(keys, hashes, max_parallelism)

    def gone_keys(self, columns: Sequence[pa.Array], count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns or [pa.nulls(count)], schema=self.gone.schema)

    def read(self, path: Path, key_groups: KeyGroupRange) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """Whether the keys are gone, and the rows or keys."""
        try:
            with pa.OSFile(str(path)) as file:
                size = file.size()
                while file.tell() < size:
                    with pa.ipc.open_stream(file) as stream:
                        is_gone = self.gone.is_of(stream)
                        format = self.gone if is_gone else self.rows
                        for rows in format.read(stream, key_groups):
                            yield is_gone, rows
        except (pa.ArrowInvalid, OSError) as error:
            raise cannot_read(path, self.rows, error) from error


def cannot_read(path: Path, format: RowFormat, error: Exception) -> StorageFailure:
    """Of a file on this machine, fetched from a checkpoint: damage of that is only what its content says.

    Where a call of the system fails, Arrow gives its number; an OSError without one is about a file that ends too soon.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return DidNotHappen(
            f"The state of {format.noun} could not be read from {path} ({error}): see to permissions and the limit of "
            "open files there."
        )
    return format.damaged(error)
