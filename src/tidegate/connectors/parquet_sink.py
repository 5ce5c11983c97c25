"""Parquet files, exactly once: written under `<path>/_tidegate`, published into `<path>` by rename when committed.

Owns the hidden folder and the names of its own files. It never touches a file of anybody else, and never replaces
one: every name carries a token that no other writer uses.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.contract import Prepared
from tidegate.connectors.nested_columns import has_intervals
from tidegate.connectors.options import Options, nearest
from tidegate.model.errors import Damaged, OptionError, ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.store import make_folder, sync_folder

Compression: TypeAlias = Literal["none", "snappy", "gzip", "zstd", "lz4"]

# Spark skips names that start with an underscore, so nobody reads what is in here.
HIDDEN = "_tidegate"
_KNOWN = ("checkpointLocation", "compression", "partitionBy", "path")
_COMPRESSIONS: dict[str, Compression] = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4": "lz4",
}  # fmt: skip
_ROLL_AT_BYTES = 128 << 20
# Rows gather up to this before they are encoded: a row group of a few rows is slow to read, a huge one slow to write.
_ROW_GROUP_BYTES = 8 << 20
# The hidden folder goes when it is empty, perhaps just before a writer opens a file in it.
_OPEN_ATTEMPTS = 20


class ParquetCommittable(msgspec.Struct, frozen=True):
    """One finished file: its name in the hidden folder, and the name it gets when it is committed."""

    hidden: str
    final: str
    checkpoint: CheckpointId
    rows: int


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """`owner` keeps apart the hidden files of several queries that write into one folder."""

    path: Path
    schema: pa.Schema
    compression: Compression
    owner: str

    def prepare_location(self) -> None:
        make_folder(self.path, what="the parquet sink")
        if (self.path / "_spark_metadata").exists():
            raise OptionError(
                f"{self.path} was written by Structured Streaming (it has _spark_metadata), so Spark would not read "
                f"files added by others: choose another path for the parquet sink."
            )

    def writer(self, *, task: TaskId, generation: Generation) -> "ParquetSinkWriter":
        return ParquetSinkWriter(self, task=task, generation=generation)

    def committer(self) -> "ParquetCommitter":
        return ParquetCommitter(self)

    @property
    def hidden_folder(self) -> Path:
        return self.path / HIDDEN


def from_node(node: nodes.Sink) -> ParquetSink:
    options = Options(node.options, owner="parquet sink", known=_KNOWN)
    if options.text("partitionBy", default=""):
        raise OptionError(
            "The parquet sink does not support partitionBy yet: leave it out, the column stays in the rows."
        )
    intervals = [field.name for field in node.schema if has_intervals(field.type)]
    if intervals:
        raise OptionError(
            f"The parquet sink cannot write the interval in column {intervals[0]!r} so that Spark reads it back: "
            f"turn it into a number, such as extract(SECOND FROM {intervals[0]})."
        )
    compression = options.text("compression", default="snappy").lower()
    if compression not in _COMPRESSIONS:
        raise OptionError(
            f"Option 'compression' of the parquet sink is {compression!r}{nearest(compression, _COMPRESSIONS)}: "
            f"it knows {', '.join(sorted(_COMPRESSIONS))}."
        )
    location = options.text("checkpointLocation", default="")
    owner = hashlib.sha256(location.encode()).hexdigest()[:8]
    return ParquetSink(options.path(), node.schema, _COMPRESSIONS[compression], owner)


class _OpenFile:
    """One hidden file being written: rows gather, are encoded as row groups, and `finish` closes and syncs it."""

    def __init__(self, sink: ParquetSink, name: str) -> None:
        self.path = sink.hidden_folder / name
        self.rows = 0
        self._schema = sink.schema
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._file = _open_new(self.path)
        self._parquet = pq.ParquetWriter(
            self._file, sink.schema, compression=sink.compression, version="2.6", coerce_timestamps="us"
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(pa.RecordBatch.from_arrays(rows.columns, schema=self._schema))
        self._gathered_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._gathered_bytes >= _ROW_GROUP_BYTES:
            self._encode()

    def is_full(self) -> bool:
        return bool(self._file.tell() >= _ROLL_AT_BYTES)

    def finish(self) -> None:
        """May be called again."""
        if self._file.closed:
            return
        self._encode()
        self._parquet.close()
        self._file.close()
        with open(self.path, "rb") as written:
            os.fsync(written.fileno())

    def drop(self) -> None:
        self._gathered = []
        self._parquet.close()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _encode(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered)
            self._parquet.write_table(table, row_group_size=table.num_rows)
            self._gathered, self._gathered_bytes = [], 0


class ParquetSinkWriter:
    def __init__(self, sink: ParquetSink, *, task: TaskId, generation: Generation) -> None:
        self._sink = sink
        self._task = task
        self._generation = generation
        self._token = secrets.token_hex(4)
        self._opened = 0
        self._files: list[_OpenFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if not self._files or self._files[-1].is_full():
            self._files.append(self._open())
        self._files[-1].write(rows)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """Encoding what is still gathered and closing the files is left to `make_durable`, off the loop."""
        files, self._files = self._files, []
        committables = [self._committable(file, checkpoint, number) for number, file in enumerate(files)]
        folder = self._sink.hidden_folder

        def make_durable() -> None:
            for file in files:
                file.finish()
            if files:
                sync_folder(folder)

        return Prepared([msgspec.msgpack.encode(committable) for committable in committables], make_durable)

    def close(self) -> None:
        for file in self._files:
            file.drop()
        self._files = []

    def _open(self) -> _OpenFile:
        self._opened += 1
        name = f"{self._sink.owner}-g{self._generation}-{self._task}-{self._token}-{self._opened}.parquet"
        return _OpenFile(self._sink, name)

    def _committable(self, file: _OpenFile, checkpoint: CheckpointId, number: int) -> ParquetCommittable:
        final = f"part-{checkpoint:08d}-{self._task}-g{self._generation}-{number}-{self._token}.parquet"
        return ParquetCommittable(file.path.name, final, checkpoint, file.rows)


class ParquetCommitter:
    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        for committable in _decode(committables):
            # One prepared for a checkpoint that failed goes with a later one, never with an earlier one.
            if committable.checkpoint > permit.checkpoint:
                raise ProtocolViolation(
                    f"{committable.final} belongs to checkpoint {committable.checkpoint} and was to be committed "
                    f"with {permit.checkpoint}."
                )
            self._publish(committable)
        if committables:
            sync_folder(self._sink.path)
            self._tidy()

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        kept = {committable.hidden for committable in _decode(keep)}
        for path in self._sink.hidden_folder.glob(f"{self._sink.owner}-g*.parquet"):
            if path.name not in kept and _generation_of(path.name) < generation:
                path.unlink(missing_ok=True)
        self._tidy()

    def _publish(self, committable: ParquetCommittable) -> None:
        hidden, final = self._sink.hidden_folder / committable.hidden, self._sink.path / committable.final
        try:
            os.replace(hidden, final)
        except FileNotFoundError:
            if not final.exists():
                raise Damaged(
                    f"The prepared file {hidden} is missing and {final} is not there either, so {committable.rows} "
                    f"rows cannot be committed: restore one of the two from a backup."
                ) from None

    def _tidy(self) -> None:
        with suppress(OSError):  # Still in use, or gone: both are fine.
            self._sink.hidden_folder.rmdir()


def _decode(committables: Sequence[bytes]) -> list[ParquetCommittable]:
    return [msgspec.msgpack.decode(data, type=ParquetCommittable) for data in committables]


def _generation_of(hidden_name: str) -> int:
    return int(hidden_name.split("-")[1].removeprefix("g"))


def _open_new(path: Path) -> pa.OSFile:
    # Arrow's own file, because it writes without the GIL.
    for _ in range(_OPEN_ATTEMPTS):
        with suppress(FileNotFoundError):
            return pa.OSFile(str(path), "wb")
        # The sink's own folder was made before the job started: if it is gone now, that is an error worth seeing.
        path.parent.mkdir(exist_ok=True)
    return pa.OSFile(str(path), "wb")
