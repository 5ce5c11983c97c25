"""Files, exactly once: written under `<path>/_tidegate`, published into `<path>` by rename when committed.

Owns the hidden folder, the names of its own files, and when the rows of a partition folder go into one. It never
touches a file of anybody else, and never replaces one: every name carries a token that no other writer uses.
"""

import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.contract import Prepared
from tidegate.connectors.file_committer import CompactionRule, FileCommitter, FilePlaces
from tidegate.connectors.options import Options
from tidegate.connectors.partition_folders import GatheredRows
from tidegate.connectors.partition_values import speller
from tidegate.connectors.sink_encodings import EncodedFile, Encoding, sync_file, written_as
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.model.units import parse_size_bytes
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
# Rows of partition folders in memory: the more, the fewer and larger the files of an epoch.
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
    _check_names(schema, what=what)
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


def _check_names(schema: pa.Schema, *, what: str) -> None:
    """Names that differ only in case are one to Spark, also when it reads the files."""
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.get(name.lower())
        if other is not None:
            twice = f"{name!r} twice" if name == other else f"{other!r} also as {name!r}"
            raise OptionError(
                f"The {what} cannot write the column {twice}: give one of them another name with alias() or toDF()."
            )
        seen[name.lower()] = name


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


@dataclass(slots=True)
class _LateFile:
    """An `EncodedFile` that is there only once it is closed: so any number of them take no descriptor."""

    path: Path
    schema: pa.Schema
    encoding: Encoding
    _gathered: list[pa.RecordBatch] = field(default_factory=list)
    _is_closed: bool = False

    @property
    def gathered_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._gathered)

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)

    def flush(self) -> None:
        """Everything at once, at the end."""

    def size_bytes(self) -> int:
        return 0

    def close(self) -> None:
        if self._is_closed:
            return
        file = self.encoding.open(self.path, self.schema)
        try:
            for rows in self._gathered:
                file.write(rows)
        finally:
            file.close()
        self._gathered, self._is_closed = [], True


@dataclass(slots=True)
class _EndedEpoch:
    """Its files, and rows that are not yet in them."""

    files: list[_HiddenFile]
    gathered: GatheredRows
    hidden_folder: Path
    _are_durable: bool = False
    _failure: Exception | None = None

    def make_durable(self) -> None:
        """Called again if a later checkpoint has the same files: they may be published then, and the folder gone."""
        if self._are_durable or not self.files:
            return
        self._write_gathered()
        for file in self.files:
            file.finish()
        sync_folder(self.hidden_folder)
        self._are_durable = True

    def _write_gathered(self) -> None:
        if self._failure is not None:
            # Some of the rows may be in their files: a second attempt would double them.
            raise self._failure
        if not self.gathered.counts():
            return
        # The last file of a folder is the one that was left open for its rows.
        file_of = {file.folder: file for file in self.files}
        try:
            for folder, part in self.gathered.whole().parts():
                file_of[folder].file.write(part)
        except Exception as error:
            self._failure = error
            raise
        self.gathered = GatheredRows((), "")


class FileSinkWriter:
    """Rows for partition folders gather in memory: an epoch makes a file for each folder if its rows fit there."""

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
        self._gathered = self._nothing_gathered()

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if not self._sink.partition_by:
            self._write_into("", rows)
            return
        self._gathered.add(rows)
        while self._gathered.size_bytes > _MOST_GATHERED_BYTES:
            self._write_largest_folders()

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """Sorting and encoding what is gathered and closing the files is left to `make_durable`, off the loop."""
        gathered, self._gathered = self._gathered, self._nothing_gathered()
        open_late = partial(_LateFile, encoding=self._sink.encoding)
        for folder, count in gathered.counts().items():
            file = self._open.get(folder) or self._new_file(folder, open_late)
            file.rows += count
        epoch = _EndedEpoch(self._files, gathered, self._sink.hidden_folder)
        self._files, self._open = [], {}
        committables = [self._committable(file, checkpoint, number) for number, file in enumerate(epoch.files)]
        return Prepared([msgspec.msgpack.encode(committable) for committable in committables], epoch.make_durable)

    def close(self) -> None:
        for file in self._files:
            file.drop()
        self._files, self._open = [], {}
        self._gathered = self._nothing_gathered()

    def _nothing_gathered(self) -> GatheredRows:
        return GatheredRows(self._sink.partition_by, self._sink.zone)

    def _write_largest_folders(self) -> None:
        large, rest = self._gathered.whole().largest()
        for folder, part in large.parts():
            self._write_into(folder, part)
            if (file := self._open.get(folder)) is not None:
                file.file.flush()
        self._gathered = self._nothing_gathered()
        if rest.num_rows:
            self._gathered.add(rest)

    def _write_into(self, folder: str, rows: pa.RecordBatch) -> None:
        file = self._file_for(folder)
        file.file.write(rows)
        file.rows += rows.num_rows
        if file.file.size_bytes() >= _ROLL_AT_BYTES:
            self._close(folder)

    def _file_for(self, folder: str) -> _HiddenFile:
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._new_file(folder, self._sink.encoding.open)
        self._open[folder] = file
        return file

    def _close(self, folder: str) -> None:
        self._open.pop(folder).file.close()

    def _new_file(self, folder: str, open_file: Callable[[Path, pa.Schema], EncodedFile]) -> _HiddenFile:
        self._opened += 1
        prefix = f"{self._sink.owner}-g{self._generation}-{self._task}-{self._token}"
        path = self._sink.hidden_folder / f"{prefix}-{self._opened}{self._sink.encoding.suffix}"
        file = _HiddenFile(path, folder, open_file(path, self._sink.file_schema))
        self._files.append(file)
        return file

    def _committable(self, file: _HiddenFile, checkpoint: CheckpointId, number: int) -> FileCommittable:
        suffix = self._sink.encoding.suffix
        name = f"part-{checkpoint:08d}-{self._task}-g{self._generation}-{number}-{self._token}{suffix}"
        return FileCommittable(file.path.name, f"{file.folder}{name}", checkpoint, file.rows, self._written_as)
