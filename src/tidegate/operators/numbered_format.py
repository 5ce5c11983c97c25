"""How numbered rows and marks lie in a file of a row log: Arrow streams, one after the other.

Read from the newest file to the oldest: what a file says of rows is of those in older files. The last column of a row
is its number, and that column's name says what the rows are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import Flags, fixed_array, slots_array
from tidegate.operators.log_format import cannot_read
from tidegate.operators.row_numbers import NO_NUMBERS, Marks, Numbers
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes, fixed_values_of

_GONE: Final = pa.schema([pa.field("gone", pa.int64())])
_MET: Final = pa.schema([pa.field("met", pa.int64())])
# So many marks of later files are gathered before they are brought into one order.
_MOST_GATHERED: Final = 32


def numbered(rows: pa.Schema, number_column: str) -> pa.Schema:
    return rows.append(pa.field(number_column, pa.int64()))


def encoded_rows(
    format: RowFormat, columns: Sequence[pa.Array], hashes: Hashes, first_number: int, max_parallelism: int
) -> Sequence[memoryview]:
    """`columns`: without the number; rows are numbered through."""
    numbers = fixed_array(pa.int64(), np.arange(first_number, first_number + len(hashes)), None)
    rows = pa.RecordBatch.from_arrays([*columns, numbers], schema=format.schema)
    return format.encoded(rows, hashes, max_parallelism)


def encoded_gone(numbers: Numbers) -> Sequence[memoryview]:
    return _encoded_marks(numbers, _GONE)


def encoded_met(numbers: Numbers) -> Sequence[memoryview]:
    return _encoded_marks(numbers, _MET)


def _encoded_marks(numbers: Numbers, schema: pa.Schema) -> Sequence[memoryview]:
    target = BytesIO()
    with pa.ipc.new_stream(target, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays([fixed_array(pa.int64(), numbers, None)], schema=schema))
    return [target.getbuffer()]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that are there, without their numbers. `has_met`: those of which that was noted after they were written."""

    number_column: str
    rows: pa.RecordBatch
    numbers: Numbers
    has_met: Flags

    def with_flags(self) -> pa.RecordBatch:
        """The rows, if their last column is whether they have met a partner; as it is now."""
        *columns, flags = self.rows.columns
        has_partner = fixed_values_of(flags).view(np.bool_) | self.has_met
        return pa.RecordBatch.from_arrays(
            [*columns, fixed_array(pa.bool_(), has_partner, None)], names=self.rows.schema.names
        )


class LogReader:
    """Reads the files of one log, which have to be given from the newest to the oldest.

    `formats`: by the names of their columns of numbers. `marks`, `first_number` and `last_number` are of the file that
    was read last; the numbers are None and 0 if no row in it is of these key groups.
    """

    def __init__(self, formats: Mapping[str, RowFormat], key_groups: KeyGroupRange) -> None:
        self._formats = formats
        self._key_groups = key_groups
        self._later = [Marks()]
        self.marks = Marks()
        self.first_number: int | None = None
        self.last_number = 0

    def read(self, path: Path) -> Iterator[FoundRows]:
        gone, met = [NO_NUMBERS], [NO_NUMBERS]
        self.first_number, self.last_number = None, 0
        try:
            with pa.OSFile(str(path)) as file:
                size = file.size()
                while file.tell() < size:
                    with pa.ipc.open_stream(file) as stream:
                        if stream.schema in (_GONE, _MET):
                            marks = gone if stream.schema == _GONE else met
                            marks += [fixed_values_of(batch.column(0)) for batch in stream]
                        else:
                            yield from self._rows_in(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise cannot_read(path, next(iter(self._formats.values())), error) from error
        self.marks = Marks(np.concatenate(gone), np.concatenate(met))
        self._later.append(self.marks)
        if len(self._later) > _MOST_GATHERED:
            self._later = [_merged(self._later)]

    def _rows_in(self, stream: pa.ipc.RecordBatchStreamReader) -> Iterator[FoundRows]:
        # The last but one: the key group is behind it. Rows of something else are refused by any format.
        name = stream.schema.names[-2] if len(stream.schema) > 1 else ""
        format = self._formats.get(name) or next(iter(self._formats.values()))
        for rows in format.read(stream, self._key_groups):
            *columns, last = rows.columns
            numbers = fixed_values_of(last)
            if self.first_number is None:
                self.first_number = int(numbers[0])
            self.last_number = int(numbers[-1])
            gone, has_met = self._marked(numbers)
            found = pa.RecordBatch.from_arrays(columns, names=rows.schema.names[:-1])
            if gone.any():
                there = np.flatnonzero(~gone)
                found, numbers, has_met = found.take(slots_array(there)), numbers[there], has_met[there]
            if len(numbers):
                yield FoundRows(name, found, numbers, has_met)

    def _marked(self, numbers: Numbers) -> tuple[Flags, Flags]:
        low, high = int(numbers[0]), int(numbers[-1]) + 1
        marks = _merged([each.between(low, high) for each in self._later])
        return np.isin(numbers, marks.gone), np.isin(numbers, marks.met)


def _merged(marks: Sequence[Marks]) -> Marks:
    gone = np.sort(np.concatenate([each.gone for each in marks]))
    return Marks(gone, np.sort(np.concatenate([each.met for each in marks])))
