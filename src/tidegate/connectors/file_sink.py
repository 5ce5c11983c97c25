"""Files, exactly once: written under `<path>/_tidegate`, published into `<path>` by rename when committed.

Owns the hidden folder, the names of its own files, and the split of rows into partition folders. It never touches a
file of anybody else, and never replaces one: every name carries a token that no other writer uses.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.contract import Prepared
from tidegate.connectors.file_committer import CompactionRule, FileCommitter, FilePlaces
from tidegate.connectors.options import Options
from tidegate.connectors.partition_values import folder_name, speller
from tidegate.connectors.sink_encodings import EncodedFile, Encoding, sync_file, written_as
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.model.units import parse_size_bytes
from tidegate.plan.kernels.values import numpy_of
from tidegate.storage.store import make_folder, sync_folder

# Spark skips names that start with an underscore, so nobody reads what is in here.
HIDDEN = "_tidegate"
FILE_SINK_OPTIONS = (
    "checkpointLocation", "compression", "partitionBy", "path", "sessionTimeZone", "sink.compact",
    "sink.compact.epochs",
)  # fmt: skip
_ROLL_AT_BYTES = 128 << 20
# Each open file holds a descriptor and a compressor's buffers; the one not written to for longest makes room.
_MOST_OPEN_FILES = 64
_MOST_GATHERED_BYTES = 64 << 20
_DEFAULT_COMPACT_BYTES = 128 << 20
_DEFAULT_COMPACT_EPOCHS = 10


@dataclass(frozen=True, slots=True)
class FileSink:
    """`owner` keeps apart the hidden files of several queries that write into one folder."""

    path: Path
    schema: pa.Schema
    encoding: Encoding
    partition_by: tuple[str, ...]
    compaction: CompactionRule | None
    zone: str
    owner: str
    what: str

    def prepare_location(self) -> None:
        make_folder(self.path, what=f"the {self.what}")
        if (self.path / "_spark_metadata").exists():
            raise OptionError(
                f"{self.path} was written by Structured Streaming (it has _spark_metadata), so Spark would not read "
                f"files added by others: choose another path for the {self.what}."
            )

    def writer(self, *, task: TaskId, generation: Generation) -> "FileSinkWriter":
        return FileSinkWriter(self, task=task, generation=generation)

    def committer(self) -> FileCommitter:
        places = FilePlaces(self.path, self.hidden_folder, self.owner)
        return FileCommitter(places, self.encoding, self.file_schema, self.compaction)

    @property
    def hidden_folder(self) -> Path:
        return self.path / HIDDEN

    @property
    def file_schema(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])


def file_sink(options: Options, encoding: Encoding, schema: pa.Schema, *, what: str) -> FileSink:
    """Reads the options that all sinks of files share."""
    zone = options.text("sessionTimeZone", default="UTC")
    location = options.text("checkpointLocation", default="")
    return FileSink(
        path=options.path(),
        schema=schema,
        encoding=encoding,
        partition_by=_partition_columns(options, schema, zone=zone, what=what),
        compaction=_compaction(options),
        zone=zone,
        owner=hashlib.sha256(location.encode()).hexdigest()[:8],
        what=what,
    )


def _partition_columns(options: Options, schema: pa.Schema, *, zone: str, what: str) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in schema.names}
    given = options.text("partitionBy", default="")
    names = []
    for wanted in given.split("\0") if given else ():
        name = by_lower.get(wanted.lower())
        if name is None:
            raise OptionError(f"partitionBy names {wanted!r}, which is no column: the columns are {schema.names}.")
        if speller(schema.field(name).type, zone=zone) is None:
            raise OptionError(
                f"partitionBy names {name!r}, a {schema.field(name).type}, which the {what} cannot spell as Spark "
                f"does: use a string, a whole number, a boolean, a date, a timestamp or a decimal."
            )
        names.append(name)
    if names and len(set(names)) == len(schema.names):
        raise OptionError("partitionBy names every column: leave at least one for the files.")
    return tuple(names)


def _compaction(options: Options) -> CompactionRule | None:
    size, epochs = options.text("sink.compact", default=""), options.optional_positive("sink.compact.epochs")
    if not size and epochs is None:
        return None
    target = parse_size_bytes(size, option="sink.compact") if size else _DEFAULT_COMPACT_BYTES
    if target <= 0:
        raise OptionError("Option 'sink.compact' must be more than 0: write the size of a file, such as 128MiB.")
    return CompactionRule(target, epochs or _DEFAULT_COMPACT_EPOCHS)


@dataclass(slots=True)
class _HiddenFile:
    """One file of this epoch: open, or closed to make room for another."""

    path: Path
    folder: str
    file: EncodedFile
    rows: int = 0
    is_durable: bool = False
    _failure: Exception | None = None

    def finish(self) -> None:
        """May be called again, also when the file has been moved away; fails again if it has failed."""
        if self._failure is not None:
            # Arrow takes a file for closed whose end could not be written.
            raise self._failure
        if not self.is_durable:
            try:
                self.file.close()
                sync_file(self.path)
            except Exception as error:
                self._failure = error
                raise
            self.is_durable = True

    def drop(self) -> None:
        with suppress(pa.ArrowException, OSError):
            self.file.close()
        self.path.unlink(missing_ok=True)


class FileSinkWriter:
    def __init__(self, sink: FileSink, *, task: TaskId, generation: Generation) -> None:
        self._sink = sink
        self._task = task
        self._generation = generation
        self._token = secrets.token_hex(4)
        self._written_as = written_as(sink.encoding, sink.file_schema)
        self._opened = 0
        self._files: list[_HiddenFile] = []
        # By folder, the one written to last at the end.
        self._open: dict[str, _HiddenFile] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        for folder, part in split_by_folder(rows, self._sink):
            file = self._file_for(folder)
            file.file.write(part)
            file.rows += part.num_rows
            if file.file.size_bytes() >= _ROLL_AT_BYTES:
                self._close(folder)
        if sum(file.file.gathered_bytes for file in self._open.values()) > _MOST_GATHERED_BYTES:
            for file in self._open.values():
                file.file.flush()

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """Encoding what is still gathered and closing the files is left to `make_durable`, off the loop."""
        files, self._files, self._open = self._files, [], {}
        committables = [self._committable(file, checkpoint, number) for number, file in enumerate(files)]
        folder = self._sink.hidden_folder
        are_durable = not files

        def make_durable() -> None:
            # Called again if a later checkpoint has the same files: they may be published then, and the folder gone.
            nonlocal are_durable
            if are_durable:
                return
            for file in files:
                file.finish()
            sync_folder(folder)
            are_durable = True

        return Prepared([msgspec.msgpack.encode(committable) for committable in committables], make_durable)

    def close(self) -> None:
        for file in self._files:
            file.drop()
        self._files, self._open = [], {}

    def _file_for(self, folder: str) -> _HiddenFile:
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._new_file(folder)
        self._open[folder] = file
        return file

    def _close(self, folder: str) -> None:
        self._open.pop(folder).file.close()

    def _new_file(self, folder: str) -> _HiddenFile:
        self._opened += 1
        prefix = f"{self._sink.owner}-g{self._generation}-{self._task}-{self._token}"
        path = self._sink.hidden_folder / f"{prefix}-{self._opened}{self._sink.encoding.suffix}"
        file = _HiddenFile(path, folder, self._sink.encoding.open(path, self._sink.file_schema))
        self._files.append(file)
        return file

    def _committable(self, file: _HiddenFile, checkpoint: CheckpointId, number: int) -> FileCommittable:
        suffix = self._sink.encoding.suffix
        name = f"part-{checkpoint:08d}-{self._task}-g{self._generation}-{number}-{self._token}{suffix}"
        return FileCommittable(file.path.name, f"{file.folder}{name}", checkpoint, file.rows, self._written_as)


def split_by_folder(rows: pa.RecordBatch, sink: FileSink) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each partition folder (`day=1/`), without the columns that the folder's name holds."""
    if not sink.partition_by:
        yield "", rows
        return
    code = np.zeros(rows.num_rows, np.int64)
    spelled: list[list[str]] = []
    for name in sink.partition_by:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        spell = speller(encoded.dictionary.type, zone=sink.zone)
        assert spell is not None, "other types are refused before the start"
        spelled.append([folder_name(name, spell(value)) for value in encoded.dictionary.to_pylist()])
        code = code * len(spelled[-1]) + numpy_of(encoded.indices)
    kept = rows.select(sink.file_schema.names)
    order = np.argsort(code, kind="stable")
    ordered = kept.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order.astype(np.int64))]))
    sorted_codes = code[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]])).tolist()
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield _folder(int(sorted_codes[start]), spelled), ordered.slice(start, end - start)


def _folder(code: int, spelled: list[list[str]]) -> str:
    parts: list[Any] = []
    for names in reversed(spelled):
        code, at = divmod(code, len(names))
        parts.insert(0, names[at])
    return "".join(f"{part}/" for part in parts)
