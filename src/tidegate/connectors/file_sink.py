"""Files, exactly once: written under `<path>/_tidegate`, published into `<path>` by rename when committed.

Owns the hidden folder, the names of its own files, and when the rows of a partition folder go into one. It never
touches a file of anybody else, and never replaces one: every name carries a token that no other writer uses.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tidegate.connectors.beside_loop import BesideLoop
from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.contract import Prepared
from tidegate.connectors.file_committer import CompactionRule, FileCommitter, FilePlaces
from tidegate.connectors.options import Options
from tidegate.connectors.partition_folders import GatheredRows, RowsByFolder
from tidegate.connectors.partition_values import speller
from tidegate.connectors.sink_encodings import ROW_GROUP_BYTES, EncodedFile, Encoding, sync_file, written_as
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
# Without them.
_MOST_OF_ONE_FOLDER_BYTES = ROW_GROUP_BYTES
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
    """One file of this epoch. It is there once it has rows, and takes a descriptor until it is closed.

    The loop chooses it and counts its rows; what touches the file itself is done by one thread at a time.
    """

    path: Path
    folder: str
    schema: pa.Schema
    encoding: Encoding
    rows: int = 0
    written_bytes: int = 0
    is_durable: bool = False
    _file: EncodedFile | None = None
    _failure: Exception | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = self.encoding.open(self.path, self.schema)
        self._file.write(rows)
        self._file.flush()
        self.written_bytes = self._file.size_bytes()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def finish(self) -> None:
        """May be called again, also when the file has been moved away; fails again if it has failed."""
        if self._failure is not None:
            # Arrow takes a file for closed whose end could not be written.
            raise self._failure
        if not self.is_durable:
            try:
                self.close()
                sync_file(self.path)
            except Exception as error:
                self._failure = error
                raise
            self.is_durable = True

    def drop(self) -> None:
        with suppress(pa.ArrowException, OSError):
            self.close()
        self.path.unlink(missing_ok=True)


@dataclass(slots=True)
class _EndedEpoch:
    """Its files, and rows that are not yet in them. `handed_over`: done when all others are."""

    files: list[_HiddenFile]
    gathered: GatheredRows
    handed_over: "Future[None]"
    hidden_folder: Path
    _are_durable: bool = False
    _failure: Exception | None = None

    def make_durable(self) -> None:
        """Called again if a later checkpoint has the same files: they may be published then, and the folder gone."""
        if self._are_durable or not self.files:
            return
        self.handed_over.result()
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
                file_of[folder].write(part)
                # One by one, as there may be more of them than descriptors.
                file_of[folder].close()
        except Exception as error:
            self._failure = error
            raise
        self.gathered = GatheredRows((), "")


class _Step(NamedTuple):
    """Of handing over: `file` gets its rows, once `full` is closed."""

    full: _HiddenFile | None
    file: _HiddenFile


class FileSinkWriter:
    """Rows gather in memory: an epoch makes a file for each partition folder if its rows fit there.

    What is too much goes into files while the epoch lasts, beside the loop: taking the rows of folders apart and
    encoding a row group last longer than a slice.
    """

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
        self._beside = BesideLoop(f"tidegate-sink-{task}")

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if not self._sink.partition_by and not self._sink.encoding.has_row_groups:
            self._write_lines(rows)
            return
        self._gathered.add(rows)
        if self._gathered.size_bytes > self._most_gathered_bytes():
            self._hand_over()

    def has_room(self) -> bool:
        """Not either while as many rows have come again as `_hand_over` would have to wait for."""
        earlier = self._gathered.earlier
        is_waited_for = earlier is not None and not earlier.done()
        is_much = self._gathered.size_bytes > self._most_gathered_bytes() // 2
        return self._beside.has_room() and not (is_waited_for and is_much)

    def call_when_done(self, call: Callable[[], None]) -> None:
        self._beside.call_when_done(call)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """What is gathered is written by `make_durable`, off the loop, which also closes the files."""
        gathered, self._gathered = self._gathered, self._nothing_gathered()
        for folder, count in gathered.counts().items():
            file = self._open.get(folder) or self._new_file(folder)
            file.rows += count
        epoch = _EndedEpoch(self._files, gathered, self._beside.given_so_far(), self._sink.hidden_folder)
        self._files, self._open = [], {}
        committables = [self._committable(file, checkpoint, number) for number, file in enumerate(epoch.files)]
        return Prepared([msgspec.msgpack.encode(committable) for committable in committables], epoch.make_durable)

    def close(self) -> None:
        # Files that the thread still writes to are left to the next generation, which removes what nobody prepared.
        for file in self._files if self._beside.finish() else ():
            file.drop()
        self._files, self._open = [], {}
        self._gathered = self._nothing_gathered()

    def _nothing_gathered(self) -> GatheredRows:
        return GatheredRows(self._sink.partition_by, self._sink.zone)

    def _most_gathered_bytes(self) -> int:
        return _MOST_GATHERED_BYTES if self._sink.partition_by else _MOST_OF_ONE_FOLDER_BYTES

    def _write_lines(self, rows: pa.RecordBatch) -> None:
        """Within the slice: lines are as cheap one by one, and the thread would want the interpreter for them."""
        full, file = self._file_for("")
        if full is not None:
            full.close()
        file.rows += rows.num_rows
        file.write(rows)

    def _hand_over(self) -> None:
        """The largest folders get their rows, which have been counted by now; all other rows come back."""
        gathered = self._gathered
        gathered.wait_for_earlier()
        leaving = gathered.largest()
        steps = []
        for folder, count in leaving.items():
            full, file = self._file_for(folder)
            file.rows += count
            steps.append(_Step(full, file))
        staying = gathered.counts() - leaving
        size_bytes = 0 if staying else gathered.size_bytes
        rest = self._beside.give(partial(_write_out, gathered, steps), size_bytes=size_bytes)
        self._gathered = self._nothing_gathered()
        if staying:
            self._gathered.earlier, self._gathered.folder_rows = rest, staying

    def _file_for(self, folder: str) -> tuple[_HiddenFile | None, _HiddenFile]:
        """And the one that has to be closed before."""
        full = None
        file = self._open.pop(folder, None)
        if file is not None and file.written_bytes >= _ROLL_AT_BYTES:
            full, file = file, None
        if file is None:
            if full is None and len(self._open) >= _MOST_OPEN_FILES:
                full = self._open.pop(next(iter(self._open)))
            file = self._new_file(folder)
        self._open[folder] = file
        return full, file

    def _new_file(self, folder: str) -> _HiddenFile:
        self._opened += 1
        prefix = f"{self._sink.owner}-g{self._generation}-{self._task}-{self._token}"
        path = self._sink.hidden_folder / f"{prefix}-{self._opened}{self._sink.encoding.suffix}"
        file = _HiddenFile(path, folder, self._sink.file_schema, self._sink.encoding)
        self._files.append(file)
        return file

    def _committable(self, file: _HiddenFile, checkpoint: CheckpointId, number: int) -> FileCommittable:
        suffix = self._sink.encoding.suffix
        name = f"part-{checkpoint:08d}-{self._task}-g{self._generation}-{number}-{self._token}{suffix}"
        return FileCommittable(file.path.name, f"{file.folder}{name}", checkpoint, file.rows, self._written_as)


def _write_out(gathered: GatheredRows, steps: Sequence[_Step]) -> RowsByFolder:
    """Gives back the rows of all other folders."""
    leaving, rest = gathered.whole().apart({step.file.folder for step in steps})
    rows_of = dict(leaving.parts())
    for full, file in steps:
        if full is not None:
            full.close()
        file.write(rows_of.pop(file.folder))
    return rest
