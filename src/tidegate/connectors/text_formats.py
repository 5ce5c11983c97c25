"""Files of lines as rows: what text, json and csv files have in common when they are read.

All rows are counted, also those that are dropped; going back to a row reads the file again from its start, because
compressed files have no other way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.csv_rows import CsvColumns
from tidegate.connectors.csv_tokens import Marks
from tidegate.connectors.file_listing import FileSplit
from tidegate.connectors.malformed import Malformed, Mode, Piece, whole
from tidegate.connectors.text_lines import changed, read_lines, read_whole
from tidegate.plan.parsing.json_rows import BLANK, record_columns


class TextRows:
    """The pieces of one file, from a row on."""

    def __init__(self, path: str, pieces: Iterator[Piece], *, first_row: int) -> None:
        self._pieces = pieces
        self._piece: Piece | None = None
        self._piece_row = 0
        self._at = 0
        self.next_row = 0
        while self.next_row < first_row:
            piece = self._next_piece()
            if piece is None:
                raise changed(path)
            self._move_to(piece, piece.first_from(first_row - self._piece_row))

    def next_rows(self, max_rows: int) -> pa.RecordBatch | None:
        piece = self._piece
        if piece is None or self._at == piece.rows.num_rows:
            piece = self._next_piece()
        if piece is None:
            return None
        rows = piece.rows.slice(self._at, max_rows)
        self._move_to(piece, self._at + rows.num_rows)
        return rows

    def close(self) -> None:
        self._pieces = iter(())
        self._piece = None

    def _next_piece(self) -> Piece | None:
        self._piece = next((piece for piece in self._pieces if piece.count), None)
        self._piece_row, self._at = self.next_row, 0
        return self._piece

    def _move_to(self, piece: Piece, at: int) -> None:
        self._at = at
        self.next_row = self._piece_row + piece.place(at)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Each line is a row of one string; with `is_whole` each file is."""

    separator: bytes | None
    is_whole: bool

    def open(self, file: FileSplit, columns: pa.Schema, *, wanted: Sequence[str], first_row: int) -> TextRows:
        schema = pa.schema([columns.field(name) for name in wanted])

        def pieces() -> Iterator[Piece]:
            if self.is_whole:
                text = read_whole(file.path, size_bytes=file.size_bytes)
                yield whole(pa.RecordBatch.from_arrays([text], schema=schema))
                return
            for lines in read_lines(file.path, size_bytes=file.size_bytes, separator=self.separator):
                yield whole(pa.RecordBatch.from_arrays([lines], schema=schema))

        return TextRows(file.path, pieces(), first_row=first_row)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    separator: bytes | None
    mode: Mode
    corrupt_column: str
    zone: str

    def open(self, file: FileSplit, columns: pa.Schema, *, wanted: Sequence[str], first_row: int) -> TextRows:
        schema = pa.schema([columns.field(name) for name in wanted])
        data = pa.schema([column for column in schema if column.name != self.corrupt_column])
        parse = record_columns(data, zone=self.zone).parse
        malformed = Malformed(self.mode, self.corrupt_column if self.corrupt_column in wanted else None)

        def pieces() -> Iterator[Piece]:
            for lines in read_lines(file.path, size_bytes=file.size_bytes, separator=self.separator):
                lines = lines.filter(pc.not_equal(pc.utf8_trim(lines, BLANK), ""))
                yield malformed.settle(parse(lines), schema, path=file.path)

        return TextRows(file.path, pieces(), first_row=first_row)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    separator: bytes | None
    mode: Mode
    corrupt_column: str
    zone: str
    marks: Marks
    null_word: str
    has_header: bool

    def open(self, file: FileSplit, columns: pa.Schema, *, wanted: Sequence[str], first_row: int) -> TextRows:
        schema = pa.schema([columns.field(name) for name in wanted])
        data = [column for column in columns if column.name != self.corrupt_column]
        reads_corrupt = self.corrupt_column in wanted
        parse = CsvColumns(
            names=[column.name for column in data],
            schema=pa.schema([column for column in data if column.name in wanted]),
            marks=self.marks,
            null_word=self.null_word,
            zone=self.zone,
            counts_words=reads_corrupt or len(wanted) == len(data),
        ).parse
        malformed = Malformed(self.mode, self.corrupt_column if reads_corrupt else None)

        def pieces() -> Iterator[Piece]:
            is_header_due = self.has_header
            for lines in read_lines(file.path, size_bytes=file.size_bytes, separator=self.separator):
                if is_header_due:
                    lines, is_header_due = _without_header(lines)
                yield malformed.settle(parse(lines), schema, path=file.path)

        return TextRows(file.path, pieces(), first_row=first_row)


def _without_header(lines: pa.Array) -> tuple[pa.Array, bool]:
    """Drops the first line that is not blank; and whether it is still to come."""
    for at, line in enumerate(lines.to_pylist()):
        if line.strip():
            return lines.slice(at + 1), False
    return lines.slice(len(lines)), True
