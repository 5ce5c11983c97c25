"""Epochs for a function on the driver: rows wait in files below the checkpoint location until they are committed.

Owns the files of `staging/<format>` and the process-wide table of functions. It does not know what a function does
with an epoch; it promises that one id always comes with the same files, in the same order, until it is recorded.
"""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.beside_loop import BesideLoop
from tidegate.connectors.contract import Prepared
from tidegate.connectors.options import Options
from tidegate.connectors.sink_encodings import ROW_GROUP_BYTES
from tidegate.connectors.staged_table import ResultTable, TaskFile
from tidegate.model.errors import Damaged, OptionError, ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.protocol.commit import CommitPermit
from tidegate.storage import layout
from tidegate.storage.decoding import from_msgpack
from tidegate.storage.store import local_path, make_folder, sync_folder

FOREACH_BATCH = "foreachBatch"
FOREACH = "foreach"

EpochFunction: TypeAlias = Callable[[Sequence[Path], CheckpointId], None]

_ROLL_AT_BYTES = 128 << 20

# The user's thread registers, the storing thread commits.
_lock = Lock()
_functions: dict[Path, EpochFunction] = {}


def call_for_epochs(folder: Path, function: EpochFunction) -> None:
    """From now on `function` gets the committed epochs of the sink in `folder`, in this process."""
    with _lock:
        _functions[folder] = function


def call_no_more(folder: Path) -> None:
    with _lock:
        _functions.pop(folder, None)


class StagedFile(msgspec.Struct, frozen=True):
    """A committable: one finished file of one task and epoch."""

    name: str
    checkpoint: CheckpointId
    rows: int


@dataclass(frozen=True, slots=True)
class StagedSink:
    folder: Path
    schema: pa.Schema
    mode: nodes.OutputMode = nodes.OutputMode.APPEND

    def prepare_location(self) -> None:
        make_folder(self.folder, what="the rows of an epoch")

    def writer(self, *, task: TaskId, generation: Generation) -> "StagedWriter":
        return StagedWriter(self, task=task, generation=generation)

    def committer(self) -> "StagedCommitter | StagedTableCommitter":
        return StagedTableCommitter(self) if self.mode is nodes.OutputMode.COMPLETE else StagedCommitter(self)

    @property
    def file_schema(self) -> pa.Schema:
        """Columns by position: a plan may have two of one name, a file may not."""
        return pa.schema([pa.field(column_name(at), field.type) for at, field in enumerate(self.schema)])


def column_name(position: int) -> str:
    return f"c{position}"


def from_node(node: nodes.Sink) -> StagedSink:
    options = Options(node.options, owner=f"{node.format} sink", known=("checkpointLocation",))
    location = options.text("checkpointLocation", default="")
    path = local_path(location)
    if path is None:
        raise OptionError(
            f"The checkpointLocation {location!r} is remote, and {node.format} keeps the rows of an epoch below it in "
            f"files: choose a local or mounted folder."
        )
    return StagedSink(path / layout.staging_folder(node.format), node.schema, node.mode)


class _OpenFile:
    """One file being written, its row groups beside the loop; `finish` closes and syncs it once they are done."""

    def __init__(self, path: Path, schema: pa.Schema, beside: BesideLoop) -> None:
        self.path = path
        self.rows = 0
        self._beside = beside
        self._written_bytes = 0
        self._schema = schema
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        # Arrow's own file, because it writes without the GIL.
        self._failure: Exception | None = None
        self._file = pa.OSFile(str(path), "wb")
        self._parquet = pq.ParquetWriter(
            self._file, schema, compression="snappy", version="2.6", coerce_timestamps="us", store_schema=False
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(pa.RecordBatch.from_arrays(rows.columns, schema=self._schema))
        self._gathered_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            gathered, size_bytes = self._gathered, self._gathered_bytes
            self._gathered, self._gathered_bytes = [], 0
            self._beside.give(partial(self._encode, gathered), size_bytes=size_bytes)

    def is_full(self) -> bool:
        return self._written_bytes >= _ROLL_AT_BYTES

    def finish(self) -> None:
        """May be called again; fails again if it has failed."""
        if self._failure is not None:
            # Arrow takes a file for closed whose end could not be written.
            raise self._failure
        if self._file.closed:
            return
        try:
            self._encode(self._gathered)
            self._gathered = []
            self._parquet.close()
            self._file.close()
            with open(self.path, "rb") as written:
                os.fsync(written.fileno())
        except Exception as error:
            self._failure = error
            raise

    def drop(self) -> None:
        self._gathered = []
        self._parquet.close()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _encode(self, gathered: Sequence[pa.RecordBatch]) -> None:
        if gathered:
            table = pa.Table.from_batches(gathered)
            self._parquet.write_table(table, row_group_size=table.num_rows)
            self._written_bytes = self._file.tell()


class StagedWriter:
    def __init__(self, sink: StagedSink, *, task: TaskId, generation: Generation) -> None:
        self._sink = sink
        self._schema = sink.file_schema
        self._prefix = f"g{generation}-{task}-{secrets.token_hex(4)}"
        self._opened = 0
        self._files: list[_OpenFile] = []
        self._beside = BesideLoop(f"tidegate-sink-{task}")

    def has_room(self) -> bool:
        return self._beside.has_room()

    def call_when_done(self, call: Callable[[], None]) -> None:
        self._beside.call_when_done(call)

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            if self._sink.mode is nodes.OutputMode.COMPLETE and not self._files:
                # A file without rows takes the place of the task's last one: its result is empty now.
                self._open_file()
            return
        if not self._files or self._files[-1].is_full():
            self._open_file()
        self._files[-1].write(rows)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """Encoding what is still gathered and closing the files is left to `make_durable`, off the loop."""
        # First, as it fails if any of it did: then `close` has to find the files.
        handed_over = self._beside.given_so_far()
        files, self._files = self._files, []
        folder = self._sink.folder

        def make_durable() -> None:
            handed_over.result()
            for file in files:
                file.finish()
            if files:
                sync_folder(folder)

        staged = [StagedFile(file.path.name, checkpoint, file.rows) for file in files]
        return Prepared([msgspec.msgpack.encode(file) for file in staged], make_durable)

    def close(self) -> None:
        # Files that the thread still writes to are left to the next generation, which removes what nobody prepared.
        for file in self._files if self._beside.finish() else ():
            file.drop()
        self._files = []

    def _open_file(self) -> None:
        self._opened += 1
        path = self._sink.folder / f"{self._prefix}-{self._opened:06d}.parquet"
        self._files.append(_OpenFile(path, self._schema, self._beside))


class StagedCommitter:
    """Calls the function once per epoch that has rows; again, with the same files, for an id that was not recorded.

    In update mode rows that were prepared for a failed checkpoint come first, under its id: a group may be among the
    rows of each, and within one call no row is newer than another.
    """

    def __init__(self, sink: StagedSink) -> None:
        self._sink = sink
        self._given: dict[CheckpointId, list[Path]] = {}

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        self._remove_recorded(before=permit.checkpoint)
        files = sorted(_checked(self._sink, committables, permit), key=lambda file: file.name)
        self._given[permit.checkpoint] = [self._sink.folder / file.name for file in files]
        calls: dict[CheckpointId, list[Path]] = {}
        for file in files:
            shown_in = file.checkpoint if self._sink.mode is nodes.OutputMode.UPDATE else permit.checkpoint
            calls.setdefault(shown_in, []).append(self._sink.folder / file.name)
        for checkpoint in sorted(calls):
            _function_of(self._sink)(calls[checkpoint], checkpoint)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        _discard(self._sink, {file.name for file in _decode(keep)}, generation)

    def _remove_recorded(self, *, before: CheckpointId) -> None:
        # Commits come in the log's order, each after the one before it is recorded: only then its files may go.
        for checkpoint in [given for given in self._given if given < before]:
            for path in self._given.pop(checkpoint):
                path.unlink(missing_ok=True)


class StagedTableCommitter:
    """In complete mode: calls the function with the whole result table, once per epoch in which a task gave its own."""

    def __init__(self, sink: StagedSink) -> None:
        self._sink = sink
        self._table = ResultTable(sink.folder)
        self._given: dict[str, CheckpointId] = {}

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        given = _checked(self._sink, committables, permit)
        if not given:
            return
        for name in self._table.files():
            self._given.setdefault(name, CheckpointId(0))
        self._given |= {file.name: permit.checkpoint for file in given}
        names = self._table.at(permit.checkpoint, [_of_task(file) for file in given])
        self._remove_replaced(names, before=permit.checkpoint)
        _function_of(self._sink)([self._sink.folder / name for name in names], permit.checkpoint)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        _discard(self._sink, {*self._table.files(), *(file.name for file in _decode(keep))}, generation)

    def _remove_replaced(self, names: Sequence[str], *, before: CheckpointId) -> None:
        # As above; and which files this epoch has is on disk, whatever happens next.
        for name in [given for given, at in self._given.items() if at < before and given not in names]:
            del self._given[name]
            (self._sink.folder / name).unlink(missing_ok=True)


def _function_of(sink: StagedSink) -> EpochFunction:
    with _lock:
        found = _functions.get(sink.folder)
    if found is None:
        raise ProtocolViolation(f"Nobody in this process takes the epochs of {sink.folder}.")
    return found


def _checked(sink: StagedSink, committables: Sequence[bytes], permit: CommitPermit) -> list[StagedFile]:
    files = _decode(committables)
    for file in files:
        # One prepared for a checkpoint that failed goes with a later one, never with an earlier one.
        if file.checkpoint > permit.checkpoint:
            raise ProtocolViolation(
                f"{file.name} belongs to checkpoint {file.checkpoint} and was to be committed with {permit.checkpoint}."
            )
        if not (sink.folder / file.name).is_file():
            raise Damaged(
                f"The staged file {sink.folder / file.name} is missing, so {file.rows} rows of epoch "
                f"{permit.checkpoint} cannot be given out: restore it from a backup."
            )
    return files


def _discard(sink: StagedSink, kept: set[str], generation: Generation) -> None:
    for path in sink.folder.glob("g*.parquet"):
        if path.name not in kept and _generation_of(path.name) < generation:
            path.unlink(missing_ok=True)


def _of_task(file: StagedFile) -> TaskFile:
    return TaskFile(file.name, file.name.split("-")[1], _generation_of(file.name), file.checkpoint)


def _decode(committables: Sequence[bytes]) -> list[StagedFile]:
    return [from_msgpack(data, StagedFile) for data in committables]


def _generation_of(name: str) -> int:
    return int(name.split("-")[0].removeprefix("g"))
