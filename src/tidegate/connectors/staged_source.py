"""Reads what Spark has ingested: batches of parquet files below the checkpoint location, in the order of their ids.

Owns the layout of a staging folder. A batch exists from the moment its marker does; markers are made once and never
changed, so that of two writers of one batch only the first counts. The feed that writes lives in the driver's process.
"""

import json
import os
import pickle
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec
import pyarrow as pa

from tidegate.connectors.column_names import ColumnNames
from tidegate.connectors.options import Options
from tidegate.connectors.parquet_file import ParquetRows
from tidegate.connectors.range_source import RangeSource
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.plan.nodes import Scan
from tidegate.storage.decoding import from_json, from_msgpack
from tidegate.storage.store import sync_folder

STAGED = "staged"
_READ_ROWS = 16_384
_BEFORE_THE_FIRST = -1
# Names that have another number with every start: what Catalyst calls an expression that it computes once for several
# uses, and a random column, by the seed that it is given. All other numbers in names, also those that Catalyst makes
# (`pythonUDF0`), are the same for the same query.
_NUMBERED_ANEW = re.compile(r"(_common_expr_|randn?\()-?\d+(\)?)")


class IngestMode(Enum):
    """Which part of a plan Spark runs into a staging folder."""

    NATIVE = "native"  # none
    SPARK = "spark"  # all that is stateless
    AUTO = "auto"  # what Tidegate cannot read or compute itself


class StagedPart(msgspec.Struct, frozen=True):
    """A file, by its path below the staging folder. `columns`: what the query called them, in the file's order."""

    path: str
    size_bytes: int
    columns: list[str] = []


class StagedOffset(msgspec.Struct, frozen=True):
    """The newest batch that was read, in the folder with the id `staging`."""

    staging: str
    batch: int


class Origin(msgspec.Struct, frozen=True):
    """Another folder, of which this one is a copy: batches up to `newest` are the same here."""

    staging: str
    newest: int


class StagedBatch(msgspec.Struct, frozen=True):
    """A marker's content."""

    parts: list[StagedPart]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Feed(Protocol):
    """Who stages batches, on the driver. Calls come from the thread that looks for splits."""

    def keep_going(self) -> None:
        """Starts it if it does not run, ends a pause; raises what it has failed with."""
        ...

    def pause(self) -> None:
        """The slots are gone, and to come back they need the cores that another batch would take."""
        ...

    def has_ended(self) -> bool:
        """It has staged all that was there for now, and will not stage more."""
        ...

    def on_covered(self, batch: int) -> None:
        """All batches up to this one are in a committed checkpoint."""
        ...


# The user's thread registers, the thread that looks for splits asks.
_lock = Lock()
_feeds: dict[Path, Feed] = {}


def feed_from(folder: Path, feed: Feed) -> None:
    with _lock:
        _feeds[folder] = feed


def feed_no_more(folder: Path) -> None:
    with _lock:
        _feeds.pop(folder, None)


@dataclass(frozen=True, slots=True)
class StagingFolder:
    path: Path

    @property
    def spark_checkpoint(self) -> Path:
        return self.path / "spark"

    @property
    def origins_path(self) -> Path:
        return self.path / "origins.json"

    def is_prepared(self) -> bool:
        return (self.path / "id").exists()

    def prepare(self) -> None:
        for folder in (self.path / "data", self.path / "batches"):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.is_prepared():
            self._create(self.path / "id", uuid.uuid4().hex.encode())

    def id(self) -> str:
        """Keeps apart what two places have under the same batch ids."""
        return (self.path / "id").read_text()

    def origins(self) -> list[Origin]:
        """All of them, if it is a copy of a copy."""
        try:
            return from_json(self.origins_path.read_bytes(), list[Origin])
        except FileNotFoundError:
            return []

    def knows(self, offset: StagedOffset) -> bool:
        """Whether what comes behind it is the same here as where it was read."""
        if offset.staging == self.id():
            return True
        return any(origin.staging == offset.staging and offset.batch <= origin.newest for origin in self.origins())

    def new_data_folder(self, batch: int) -> Path:
        """Unlike any other attempt's at the same batch."""
        return self.path / "data" / f"{batch}-{uuid.uuid4().hex[:8]}"

    def publish(self, batch: int, data: Path, columns: Sequence[str]) -> StagedBatch:
        """The batch exists from here on, with these files; if it did before, nothing changes."""
        files = sorted(path for path in data.iterdir() if path.suffix == ".parquet") if data.exists() else []
        for path in files:
            _sync_file(path)
        named = list(columns)
        parts = [StagedPart(path.relative_to(self.path).as_posix(), path.stat().st_size, named) for path in files]
        self._create(self.marker(batch), msgspec.json.encode(StagedBatch(parts)))
        return self.batch(batch)

    def has(self, batch: int) -> bool:
        return self.marker(batch).exists()

    def batch(self, batch: int) -> StagedBatch:
        try:
            return from_json(self.marker(batch).read_bytes(), StagedBatch)
        except FileNotFoundError:
            raise self._gone(batch) from None

    def staged_at_ms(self, batch: int) -> int:
        try:
            return self.marker(batch).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            raise self._gone(batch) from None

    def batches(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.path / "batches").glob("*.json"))

    def remove_up_to(self, batch: int) -> None:
        """The newest marker stays: Spark may ask for that batch once more."""
        present = self.batches()
        for old in [number for number in present if number <= batch]:
            for part in self.batch(old).parts:
                shutil.rmtree((self.path / part.path).parent, ignore_errors=True)
            if old != present[-1]:
                self.marker(old).unlink(missing_ok=True)

    def remove_unpublished(self) -> None:
        """What attempts left behind at batches that others have published.

        A newer attempt stays: a driver that does not know yet that it was superseded may be about to publish it.
        """
        present = self.batches()
        used = {Path(part.path).parent.name for number in present for part in self.batch(number).parts}
        newest = present[-1] if present else _BEFORE_THE_FIRST
        for data in (self.path / "data").iterdir():
            if data.name not in used and int(data.name.split("-")[0]) <= newest:
                shutil.rmtree(data, ignore_errors=True)

    def marker(self, batch: int) -> Path:
        return self.path / "batches" / f"{batch}.json"

    def _gone(self, batch: int) -> Damaged:
        return Damaged(f"The staged batch {self.marker(batch)} is gone: restore it from a backup.")

    def _create(self, path: Path, content: bytes) -> None:
        draft = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
        draft.write_bytes(content)
        _sync_file(draft)
        try:
            os.link(draft, path)  # fails if it is there, which a rename would not
        except FileExistsError:
            return
        finally:
            draft.unlink()
        sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class OpenStaging:
    """The `range_source.StreamOpener` of a staging folder."""

    path: Path
    schema: pa.Schema

    def __call__(self) -> "StagedStream":
        return StagedStream(StagingFolder(self.path), self.schema)


class StagedStream:
    """Implements `range_source.OffsetStream` and `DatesRanges`: an offset is the newest batch that was read."""

    def __init__(self, folder: StagingFolder, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._file_schema = pa.schema([pa.field(column_name(at), field.type) for at, field in enumerate(schema)])

    def initial_offset(self) -> str:
        self._feed().keep_going()  # which makes the folder
        return self._offset(_BEFORE_THE_FIRST)

    def latest_offset(self, start: str) -> str:
        """One batch on: each is a range of its own."""
        self._feed().keep_going()
        newest = self._batch_of(start)
        if self._folder.has(newest + 1):
            return self._offset(newest + 1)
        later = [number for number in self._folder.batches() if number > newest]
        if later:
            raise Damaged(
                f"The batches {newest + 1} to {later[0] - 1} that Spark has staged in {self._folder.path} are gone, "
                f"because no retained checkpoint needed them: start from a newer checkpoint."
            )
        return start

    def ends_with_one_range(self) -> bool:
        return False

    def limits_ranges(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return self._feed().has_ended()

    def partitions(self, start: str, end: str) -> list[bytes]:
        return [msgspec.msgpack.encode(part) for part in self._folder.batch(self._batch_of(end)).parts]

    def came_at_ms(self, end: str) -> int:
        return self._folder.staged_at_ms(self._batch_of(end))

    def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
        part = from_msgpack(partition, StagedPart)
        self._check_columns(part)
        path = str(self._folder.path / part.path)
        rows = ParquetRows(path, self._file_schema, ColumnNames.AS_WRITTEN, size_bytes=part.size_bytes, first_row=0)
        try:
            while (piece := rows.next_rows(_READ_ROWS)) is not None:
                yield pa.RecordBatch.from_arrays(piece.columns, schema=self._schema)
        finally:
            rows.close()

    def _check_columns(self, part: StagedPart) -> None:
        """Files know columns by their place: after a change of the query another one may be there."""
        staged, now = (list(map(_lasting_name, names)) for names in (part.columns, self._schema.names))
        if part.columns and staged != now:
            raise IncompatibleCheckpoint(
                f"Spark has staged rows with the columns {', '.join(part.columns)}, which are not read yet, and the "
                f"query ingests {', '.join(self._schema.names)}: run the old query to its end once, with "
                f"trigger(availableNow=True), or use a new checkpointLocation."
            )

    def commit(self, end: str) -> None:
        self._feed().on_covered(self._batch_of(end))

    def release(self, end: str) -> None:
        self._folder.remove_up_to(self._batch_of(end))

    def stop(self) -> None:
        """The feed outlives the generations that read from it."""
        self._feed().pause()

    def _offset(self, batch: int) -> str:
        return json.dumps({"staging": self._folder.id(), "batch": batch})

    def _batch_of(self, offset: str) -> int:
        decoded = offset_from(offset)
        if not self._folder.knows(decoded):
            raise staged_elsewhere(self._folder)
        return decoded.batch

    def _feed(self) -> Feed:
        with _lock:
            found = _feeds.get(self._folder.path)
        if found is None:
            raise Damaged(f"Nobody in this process stages into {self._folder.path}.")
        return found


def offset_from(text: str) -> StagedOffset:
    return from_json(text.encode(), StagedOffset)


def staged_elsewhere(folder: StagingFolder) -> IncompatibleCheckpoint:
    return IncompatibleCheckpoint(
        f"The checkpoint reads on from what Spark had staged in another place than {folder.path}: a query whose input "
        f"Spark ingests goes on in its own checkpointLocation, or from a savepoint in a new one."
    )


def column_name(position: int) -> str:
    """Columns by position: a plan may have two of one name, a file may not."""
    return f"c{position}"


def from_scan(scan: Scan) -> RangeSource:
    options = Options(scan.options, owner="staged source", known=("path", "bounded"))
    path = Path(options.text("path", default="."))
    is_bounded = options.text("bounded", default="false") == "true"
    return RangeSource(STAGED, scan.schema, pickle.dumps(OpenStaging(path, scan.schema)), is_bounded)


def _lasting_name(name: str) -> str:
    numbered = _NUMBERED_ANEW.fullmatch(name)
    return name if numbered is None else f"{numbered[1]}#{numbered[2]}"


def _sync_file(path: Path) -> None:
    with open(path, "rb") as written:
        os.fsync(written.fileno())
