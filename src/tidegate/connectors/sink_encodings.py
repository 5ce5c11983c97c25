"""How rows become the bytes of one sink file, and how several finished files become one: parquet, json, csv.

Owns the content of a file; its name and whether anybody sees it are the sink's business.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.csv_text import CsvText
from tidegate.connectors.json_text import json_lines

ParquetCompression: TypeAlias = Literal["none", "snappy", "gzip", "zstd", "lz4"]
TextCompression: TypeAlias = Literal["none", "gzip", "bz2", "zstd"]

# The hidden folder goes when it is empty, perhaps just before a writer opens a file in it.
_OPEN_ATTEMPTS = 20
# Rows gather up to this before they are encoded: a row group of a few rows is slow to read, a huge one slow to write.
ROW_GROUP_BYTES = 8 << 20
_COPY_BYTES = 1 << 20
_COPY_ROWS = 65_536
_SUFFIXES = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}


class EncodedFile(Protocol):
    """A file being written. Its path is given when it is opened; nobody else opens it before `close`."""

    def write(self, rows: pa.RecordBatch) -> None: ...

    def flush(self) -> None:
        """Encodes what is held in memory until it is worth it."""
        ...

    def size_bytes(self) -> int: ...

    def close(self) -> None:
        """May be called again."""
        ...


class Encoding(Protocol):
    """A value that can be pickled."""

    @property
    def suffix(self) -> str: ...

    @property
    def has_row_groups(self) -> bool:
        """Rows are encoded many at a time, in one call that lasts, and lets others work meanwhile."""
        ...

    def open(self, path: Path, schema: pa.Schema) -> EncodedFile: ...

    def merge(self, sources: Sequence[Path], target: Path, schema: pa.Schema) -> None:
        """Writes `target` with the rows of all sources, in their order; memory is bounded by a piece of one."""
        ...


def written_as(encoding: Encoding, schema: pa.Schema) -> str:
    """The same for files that can be merged with each other."""
    return hashlib.sha256(f"{encoding!r}\n{schema.to_string()}".encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class ParquetEncoding:
    compression: ParquetCompression

    @property
    def suffix(self) -> str:
        return ".parquet"

    @property
    def has_row_groups(self) -> bool:
        return True

    def open(self, path: Path, schema: pa.Schema) -> "_ParquetFile":
        return _ParquetFile(path, schema, self.compression)

    def merge(self, sources: Sequence[Path], target: Path, schema: pa.Schema) -> None:
        file = self.open(target, schema)
        for source in sources:
            with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as opened:
                for piece in opened.iter_batches(_COPY_ROWS, use_threads=False):
                    file.write(piece)
        file.close()


class _ParquetFile:
    def __init__(self, path: Path, schema: pa.Schema, compression: ParquetCompression) -> None:
        self._schema = schema
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._file = open_new(path)
        self._parquet = pq.ParquetWriter(
            self._file, schema, compression=compression, version="2.6", coerce_timestamps="us"
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(pa.RecordBatch.from_arrays(rows.columns, schema=self._schema))
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered)
            self._parquet.write_table(table, row_group_size=table.num_rows)
            self._gathered, self._gathered_bytes = [], 0

    def size_bytes(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._parquet.close()
            self._file.close()


@dataclass(frozen=True, slots=True)
class JsonEncoding:
    compression: TextCompression

    @property
    def suffix(self) -> str:
        return f".json{_SUFFIXES[self.compression]}"

    @property
    def has_row_groups(self) -> bool:
        return False

    def open(self, path: Path, schema: pa.Schema) -> "_TextFile":
        return _TextFile(path, self.compression, json_lines)

    def merge(self, sources: Sequence[Path], target: Path, schema: pa.Schema) -> None:
        _merge_text(sources, target, self.compression, header=b"")


@dataclass(frozen=True, slots=True)
class CsvEncoding:
    compression: TextCompression
    text: CsvText
    has_header: bool

    @property
    def suffix(self) -> str:
        return f".csv{_SUFFIXES[self.compression]}"

    @property
    def has_row_groups(self) -> bool:
        return False

    def open(self, path: Path, schema: pa.Schema) -> "_TextFile":
        file = _TextFile(path, self.compression, self.text.lines)
        file.write_text(self._header(schema))
        return file

    def merge(self, sources: Sequence[Path], target: Path, schema: pa.Schema) -> None:
        _merge_text(sources, target, self.compression, header=self._header(schema))

    def _header(self, schema: pa.Schema) -> bytes:
        return self.text.header(schema) if self.has_header else b""


class _TextFile:
    def __init__(self, path: Path, compression: TextCompression, spell: Callable[[pa.RecordBatch], bytes]) -> None:
        self._file = open_new(path)
        self._stream = _compressed(self._file, compression)
        self._spell = spell

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.write_text(self._spell(rows))

    def flush(self) -> None:
        """Nothing is gathered: lines are as cheap one by one."""

    def write_text(self, text: bytes) -> None:
        self._stream.write(text)

    def size_bytes(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
        if not self._file.closed:
            self._file.close()


def _merge_text(sources: Sequence[Path], target: Path, compression: TextCompression, *, header: bytes) -> None:
    """The bytes of all files one after another, with the header of the first only."""
    file = _TextFile(target, compression, lambda _: b"")
    for number, source in enumerate(sources):
        with pa.OSFile(str(source), "rb") as plain:
            stream = plain if compression == "none" else pa.CompressedInputStream(plain, compression)
            if number:
                stream.read(len(header))
            while block := stream.read(_COPY_BYTES):
                file.write_text(block)
    file.close()


def _compressed(file: pa.NativeFile, compression: TextCompression) -> pa.NativeFile:
    return file if compression == "none" else pa.CompressedOutputStream(file, compression)


def open_new(path: Path) -> pa.OSFile:
    # Arrow's own file, because it writes without the GIL.
    for _ in range(_OPEN_ATTEMPTS):
        with suppress(FileNotFoundError):
            return pa.OSFile(str(path), "wb")
        # The sink's own folder was made before the job started: if it is gone now, that is an error worth seeing.
        path.parent.mkdir(exist_ok=True)
    return pa.OSFile(str(path), "wb")


def sync_file(path: Path) -> None:
    with open(path, "rb") as written:
        os.fsync(written.fileno())
