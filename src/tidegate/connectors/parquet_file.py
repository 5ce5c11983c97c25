"""The rows of one parquet file in a wanted schema, from any row on, with Spark's rules for columns and types.

Columns are matched by name; a missing one is null; a type may widen but never lose. It decodes a piece of one row group
at a time and never reads ahead of what is asked for.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.column_names import ColumnNames
from tidegate.connectors.file_listing import FileSplit
from tidegate.connectors.nested_columns import can_fit, fit
from tidegate.connectors.text_lines import changed, missing
from tidegate.model.errors import Damaged, OptionError

# What is decoded in one go: small enough not to hold up a loop, large enough to be worth the call.
_DECODE_ROWS = 16_384
_WIDER_NUMBERS: dict[pa.DataType, set[pa.DataType]] = {
    pa.int8(): {pa.int16(), pa.int32(), pa.int64(), pa.float64()},
    pa.int16(): {pa.int32(), pa.int64(), pa.float64()},
    pa.int32(): {pa.int64(), pa.float64()},
    pa.uint8(): {pa.int16(), pa.int32(), pa.int64()},
    pa.uint16(): {pa.int32(), pa.int64()},
    pa.uint32(): {pa.int64()},
    pa.float32(): {pa.float64()},
}


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    names: ColumnNames

    def open(self, file: FileSplit, columns: pa.Schema, *, wanted: Sequence[str], first_row: int) -> "ParquetRows":
        schema = pa.schema([columns.field(name) for name in wanted])
        return ParquetRows(file.path, schema, self.names, size_bytes=file.size_bytes, first_row=first_row)


class ParquetRows:
    """An open file and the position in it: `next_row` is the first row not given out."""

    def __init__(self, path: str, schema: pa.Schema, names: ColumnNames, *, size_bytes: int, first_row: int) -> None:
        self._path = path
        self._schema = schema
        self._names = names
        self._file = _open(path, size_bytes)
        if first_row > self._file.metadata.num_rows:
            self._file.close()
            raise changed(path)
        self._columns = _match_columns(path, self._file, schema, names)
        self._pieces = self._decode_from(first_row)
        self._piece: pa.RecordBatch | None = None
        self._piece_at = 0
        self.next_row = first_row

    def next_rows(self, max_rows: int) -> pa.RecordBatch | None:
        """At least one and at most `max_rows` rows; None at the end of the file."""
        while self._piece is None or self._piece_at == self._piece.num_rows:
            self._piece, self._piece_at = self._next_piece(), 0
            if self._piece is None:
                return None
        rows = self._piece.slice(self._piece_at, max_rows)
        self._piece_at += rows.num_rows
        self.next_row += rows.num_rows
        return rows

    def close(self) -> None:
        self._pieces = iter(())
        self._piece = None
        self._file.close()

    def _next_piece(self) -> pa.RecordBatch | None:
        try:
            piece = next(self._pieces, None)
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"The source file {self._path} cannot be read ({error}): replace or remove it.") from error
        return None if piece is None else self._to_schema(piece)

    def _decode_from(self, row: int) -> Iterator[pa.RecordBatch]:
        names = [name for name in self._columns if name is not None]
        group_start = 0
        for group in range(self._file.metadata.num_row_groups):
            group_end = group_start + self._file.metadata.row_group(group).num_rows
            if group_end > row:
                pieces = self._file.iter_batches(_DECODE_ROWS, row_groups=[group], columns=names, use_threads=False)
                yield from _skip(pieces, max(0, row - group_start))
            group_start = group_end

    def _to_schema(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            pa.nulls(piece.num_rows, field.type) if name is None else _cast(piece.column(name), field.type, self._names)
            for name, field in zip(self._columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _open(path: str, size_bytes: int) -> pq.ParquetFile:
    try:
        if os.stat(path).st_size != size_bytes:
            raise changed(path)
        # Spark keeps old timestamps as INT96; microseconds are what it reads them as.
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"The source file {path} is not readable as parquet ({error}): replace or remove it.") from error


def _match_columns(path: str, file: pq.ParquetFile, schema: pa.Schema, names: ColumnNames) -> list[str | None]:
    """For each wanted column the file's name for it, or None if the file has no such column."""
    by_key: dict[str, list[pa.Field[Any]]] = {}
    for field in file.schema_arrow:
        by_key.setdefault(names.key(field.name), []).append(field)
    return [_match(path, wanted, by_key.get(names.key(wanted.name), []), names) for wanted in schema]


def _match(path: str, wanted: "pa.Field[Any]", candidates: list["pa.Field[Any]"], names: ColumnNames) -> str | None:
    if not candidates:
        return None
    if len(candidates) > 1:
        found = ", ".join(field.name for field in candidates)
        raise OptionError(
            f"The source file {path} has several columns for {wanted.name!r} ({found}): keep one of them."
        )
    if not _can_read(candidates[0].type, wanted.type, names):
        raise OptionError(
            f"Column {wanted.name!r} of the source file {path} is {candidates[0].type}, which cannot be read as "
            f"{wanted.type}: correct the schema given to the source, or the file."
        )
    return str(candidates[0].name)


def _can_read(stored: pa.DataType, wanted: pa.DataType, names: ColumnNames) -> bool:
    """Spark's rules: the same type, or one that holds every value of the stored one."""
    if stored == wanted or wanted in _WIDER_NUMBERS.get(stored, ()):
        return True
    is_type = pa.types
    if is_type.is_dictionary(stored):
        return _can_read(stored.value_type, wanted, names)
    if is_type.is_timestamp(stored) and is_type.is_timestamp(wanted):
        # A stored local time may be read as an instant (as UTC); the reverse would drop the zone.
        return stored.unit in ("ms", "us") and not (stored.tz is not None and wanted.tz is None)
    if is_type.is_decimal(stored) and is_type.is_decimal(wanted):
        whole_digits = wanted.precision - wanted.scale >= stored.precision - stored.scale
        return bool(whole_digits and wanted.scale >= stored.scale)
    nested = can_fit(stored, wanted, names, _can_read)
    if nested is not None:
        return nested
    return any(is_kind(stored) and is_kind(wanted) for is_kind in (_is_string, _is_binary))


def _is_string(type_: pa.DataType) -> bool:
    is_type = pa.types
    return any(is_layout(type_) for is_layout in (is_type.is_string, is_type.is_large_string, is_type.is_string_view))


def _is_binary(type_: pa.DataType) -> bool:
    is_type = pa.types
    layouts = (is_type.is_binary, is_type.is_large_binary, is_type.is_binary_view, is_type.is_fixed_size_binary)
    return any(is_layout(type_) for is_layout in layouts)


def _cast(column: "pa.Array[Any]", wanted: pa.DataType, names: ColumnNames) -> "pa.Array[Any]":
    if column.type == wanted:
        return column
    return fit(column, wanted, names, _cast) if pa.types.is_nested(wanted) else column.cast(wanted)


def _skip(pieces: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        if rows < piece.num_rows:
            yield piece.slice(rows)
        rows = max(0, rows - piece.num_rows)
