"""Rows in a snapshot: Arrow streams of bounded size, each row with its key group, so that any new owner finds its own.

Must never change what it was given: sections are encoded after the operator has gone on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import RawIOBase
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import Slots, fixed_array, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.parts import parts_of
from tidegate.plan.key_groups import Hashes, fixed_values_of, hash_rows, key_group_of
from tidegate.state.contract import RestoredSection, Section

# A section is encoded between two steps of the stream; this many rows take a few ms.
SECTION_ROWS: Final = 1 << 16

_KEY_GROUP_COLUMN = "key_group"


@dataclass(frozen=True, slots=True)
class RowFormat:
    """`noun`: what the rows are of, for messages."""

    name: str
    noun: str
    schema: pa.Schema

    def sections(
        self,
        read: Callable[[slice], tuple[pa.RecordBatch, Hashes]],
        row_count: int,
        context: TaskContext,
        array_bytes: Slots | None = None,
    ) -> list[Section]:
        """`read` gives a range of the rows as they are now, with the hashes of their keys, whenever it is called.

        `array_bytes`: about what each has in arrays, if they have any.
        """
        parts = parts_of(row_count, SECTION_ROWS, array_bytes)
        encode = partial(self._encoded_part, read, context.max_parallelism)
        return [Section(self.name, context.key_groups, partial(encode, part)) for part in parts]

    def encoded(self, rows: pa.RecordBatch, hashes: Hashes, max_parallelism: int) -> Sequence[memoryview]:
        """A whole Arrow stream of these rows, whose keys have those hashes."""
        key_groups = fixed_array(pa.uint16(), key_group_of(hashes, max_parallelism), None)
        schema = _with_key_group(self.schema)
        return stream_of(pa.RecordBatch.from_arrays([*rows.columns, key_groups], schema=schema))

    def is_of(self, stream: pa.ipc.RecordBatchStreamReader) -> bool:
        return bool(stream.schema == _with_key_group(self.schema))

    def restored(self, section: RestoredSection, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """The rows of those key groups."""
        try:
            with pa.ipc.open_stream(section.data) as stream:
                yield from self.read(stream, key_groups)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.damaged(error) from error

    def read(self, stream: pa.ipc.RecordBatchStreamReader, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """The rows of those key groups."""
        if not self.is_of(stream):
            raise IncompatibleCheckpoint(
                f"The checkpoint holds {self.noun} of ({_described(stream.schema)}), this query has one of "
                f"({_described(_with_key_group(self.schema))}): start with a new checkpointLocation, or with the query "
                "it was."
            )
        for stored in stream:
            own = _of_range(stored, key_groups)
            if own.num_rows:
                yield own.select(range(len(self.schema)))

    def damaged(self, error: Exception) -> Damaged:
        return Damaged(f"The state of {self.noun} cannot be read ({error}): restore an older checkpoint.")

    def _encoded_part(
        self, read: Callable[[slice], tuple[pa.RecordBatch, Hashes]], max_parallelism: int, part: slice
    ) -> Sequence[memoryview]:
        return self.encoded(*read(part), max_parallelism)


def stream_of(rows: pa.RecordBatch) -> Sequence[memoryview]:
    """A whole Arrow stream of one batch."""
    target = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(target, mode="w"), rows.schema) as stream:
        stream.write_batch(rows)
    return target.pieces


def with_key_group(rows: pa.RecordBatch, key_count: int, max_parallelism: int) -> pa.RecordBatch:
    """The key group as the last column; the first `key_count` are the key."""
    key_groups = key_group_of(hash_rows(rows, key_count), max_parallelism)
    return rows.append_column(_KEY_GROUP_COLUMN, fixed_array(pa.uint16(), key_groups, None))


def regrouped(stored: pa.RecordBatch, hashes: Hashes, max_parallelism: int, own: KeyGroupRange) -> pa.RecordBatch:
    """Stored rows with the key groups of another max parallelism, those of these key groups."""
    key_groups = fixed_array(pa.uint16(), key_group_of(hashes, max_parallelism), None)
    columns = [*stored.columns[:-1], key_groups]
    return _of_range(pa.RecordBatch.from_arrays(columns, schema=stored.schema), own)


def stored_key_groups(stored: pa.RecordBatch) -> npt.NDArray[np.uint16]:
    key_groups: npt.NDArray[np.uint16] = fixed_values_of(stored.column(stored.num_columns - 1))
    return key_groups


def read_rows(section: RestoredSection, *, noun: str) -> Iterator[pa.RecordBatch]:
    """All rows of a section, whatever they are; their last column is the key group."""
    try:
        with pa.ipc.open_stream(section.data) as stream:
            yield from stream
    except (pa.ArrowInvalid, OSError) as error:
        raise Damaged(f"The state of {noun} cannot be read ({error}): restore an older checkpoint.") from error


class _Pieces(RawIOBase):
    """A file of Arrow's buffers as they are: nothing is copied, so that no new memory is written to."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        self.pieces.append(piece)
        return len(piece)


def _with_key_group(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(_KEY_GROUP_COLUMN, pa.uint16()))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _of_range(stored: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    found = stored_key_groups(stored)
    own = (found >= key_groups.first) & (found < key_groups.last)
    return stored if own.all() else stored.take(slots_array(np.flatnonzero(own)))
