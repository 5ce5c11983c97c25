"""A growing folder of parquet files: each file is a split, read by one reader, to the exact row.

Owns which files there are and who reads them. How the rows of one file become rows of the schema is
`parquet_file`'s business. It never changes or removes a file.
"""

import fnmatch
import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Assignment, EndOfSource, NothingNow, Polled, Rows
from tidegate.connectors.options import Options
from tidegate.connectors.parquet_file import ParquetRows
from tidegate.model.errors import OptionError
from tidegate.plan.nodes import Scan

_KNOWN = (
    "cleanSource", "fileNameOnly", "latestFirst", "maxFileAge", "maxFilesPerTrigger", "mergeSchema", "path",
    "pathGlobFilter", "recursiveFileLookup",
)  # fmt: skip
_NO_FILES_RETRY_MS = 1000.0


class FileSplit(msgspec.Struct, frozen=True):
    path: str
    modified_ns: int
    size_bytes: int


class FileProgress(msgspec.Struct, frozen=True):
    """`next_row` is the first row that was not given out; None once the file is finished."""

    file: FileSplit
    next_row: int | None


@dataclass(frozen=True, slots=True)
class ParquetSource:
    path: Path
    schema: pa.Schema
    name_filter: str | None
    files_per_discovery: int | None
    latest_first: bool

    def enumerator(self, *, parallelism: int, available_now: bool) -> "ParquetEnumerator":
        return ParquetEnumerator(self, parallelism=parallelism, available_now=available_now)

    def reader(self, *, subtask: int, parallelism: int) -> "ParquetReader":
        return ParquetReader(self)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        """Deals unfinished files as the enumerator deals new ones; finished ones only have to be remembered."""
        progress_of = {progress.file: progress for state in states for progress in _decode_state(state)}
        dealt: list[list[FileProgress]] = [[] for _ in range(parallelism)]
        assigned_bytes = [0] * parallelism
        finished_count = 0
        for file in self._in_reading_order(progress_of):
            if progress_of[file].next_row is None:
                dealt[finished_count % parallelism].append(progress_of[file])
                finished_count += 1
            else:
                dealt[_assign(file, assigned_bytes)].append(progress_of[file])
        return [_encode_state(files) for files in dealt]

    def list_files(self) -> list[FileSplit]:
        """Every visible file, oldest first (or newest first, if so asked)."""
        found = [_stat(path) for path in self._paths()]
        return self._in_reading_order(split for split in found if split is not None)

    def _in_reading_order(self, files: Iterable[FileSplit]) -> list[FileSplit]:
        return sorted(files, key=lambda file: (file.modified_ns, file.path), reverse=self.latest_first)

    def _paths(self) -> Iterator[Path]:
        for root in [Path(match) for match in glob.glob(str(self.path))] if _is_glob(self.path) else [self.path]:
            if root.is_file():
                yield root
                continue
            _refuse_folder(root)
            for path in _children(root):
                if not _is_hidden(path.name) and (self.name_filter is None or _fits(path.name, self.name_filter)):
                    yield path


def from_scan(scan: Scan) -> ParquetSource:
    options = Options(scan.options, owner="parquet source", known=_KNOWN)
    options.only("maxFileAge", ("7d", "7 days", "1w"))
    options.only("cleanSource", ("off",))
    for unsupported in ("fileNameOnly", "mergeSchema", "recursiveFileLookup"):
        options.only(unsupported, ("false",))
    path = options.path()
    if not _is_glob(path) and not path.exists():
        raise OptionError(f"The path {path} of the parquet source does not exist: create it or correct the path.")
    source = ParquetSource(
        path=path,
        schema=scan.schema,
        name_filter=options.text("pathGlobFilter", default="") or None,
        files_per_discovery=options.optional_positive("maxFilesPerTrigger"),
        latest_first=options.flag("latestFirst", default=False),
    )
    source.list_files()  # Partitioned or otherwise unreadable folders are refused now, not in a running job.
    return source


class ParquetEnumerator:
    """Gives every new file to the reader with the fewest bytes assigned so far."""

    def __init__(self, source: ParquetSource, *, parallelism: int, available_now: bool) -> None:
        self._source = source
        self._assigned_bytes = [0] * parallelism
        self._known: set[str] = set()
        self._available_now = available_now
        self._fixed_listing: list[FileSplit] | None = None

    def restore(self, reader_states: Sequence[bytes]) -> None:
        states = [_decode_state(state) for state in reader_states]
        self._known = {progress.file.path for state in states for progress in state}
        for subtask, state in enumerate(states[: len(self._assigned_bytes)]):
            unfinished = (progress.file.size_bytes for progress in state if progress.next_row is not None)
            self._assigned_bytes[subtask] = sum(unfinished)

    def discover(self) -> list[Assignment]:
        if self._available_now and self._fixed_listing is None:
            self._fixed_listing = self._source.list_files()
        listing = self._source.list_files() if self._fixed_listing is None else self._fixed_listing
        return [self._assign(split) for split in self._new(listing)[: self._source.files_per_discovery]]

    def is_complete(self) -> bool:
        return self._fixed_listing is not None and not self._new(self._fixed_listing)

    def _new(self, listing: list[FileSplit]) -> list[FileSplit]:
        return [split for split in listing if split.path not in self._known]

    def _assign(self, split: FileSplit) -> Assignment:
        self._known.add(split.path)
        return Assignment(_assign(split, self._assigned_bytes), msgspec.msgpack.encode(split))


class ParquetReader:
    """Reads its files one after another, holding at most one decoded piece of one file.

    Every finished file is remembered by name: forgetting one by its age could read it twice, or lose an older one
    that was assigned but had not arrived here.
    """

    def __init__(self, source: ParquetSource) -> None:
        self._source = source
        self._progress: dict[str, FileProgress] = {}
        self._waiting: list[str] = []
        self._rows: ParquetRows | None = None
        self._is_told_all = False

    def restore(self, state: bytes) -> None:
        for progress in _decode_state(state):
            self._add(progress)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        for split in splits:
            self._add(FileProgress(msgspec.msgpack.decode(split, type=FileSplit), 0))

    def no_more_splits(self) -> None:
        self._is_told_all = True

    def poll(self, max_rows: int) -> Polled:
        while self._waiting:
            progress = self._progress[self._waiting[0]]
            if self._rows is None:
                self._rows = self._open(progress)
            rows = self._rows.next_rows(max_rows)
            if rows is None:
                self._finish(progress)
                continue
            self._progress[progress.file.path] = FileProgress(progress.file, self._rows.next_row)
            return Rows(rows)
        return EndOfSource() if self._is_told_all else NothingNow(_NO_FILES_RETRY_MS)

    def snapshot(self) -> bytes:
        return _encode_state(self._progress.values())

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _add(self, progress: FileProgress) -> None:
        self._progress[progress.file.path] = progress
        if progress.next_row is not None:
            self._waiting.append(progress.file.path)

    def _open(self, progress: FileProgress) -> ParquetRows:
        file = progress.file
        first_row = progress.next_row or 0
        return ParquetRows(file.path, self._source.schema, size_bytes=file.size_bytes, first_row=first_row)

    def _finish(self, progress: FileProgress) -> None:
        self.close()
        self._waiting.pop(0)
        self._progress[progress.file.path] = FileProgress(progress.file, None)


def _assign(file: FileSplit, assigned_bytes: list[int]) -> int:
    """Gives the file to the reader with the fewest bytes so far, the first of equals."""
    subtask = assigned_bytes.index(min(assigned_bytes))
    assigned_bytes[subtask] += file.size_bytes
    return subtask


def _encode_state(files: Iterable[FileProgress]) -> bytes:
    return msgspec.msgpack.encode(list(files))


def _decode_state(state: bytes) -> list[FileProgress]:
    return msgspec.msgpack.decode(state, type=list[FileProgress])


def _is_glob(path: Path) -> bool:
    # A path that is there as written is meant as written, whatever characters it has.
    return glob.has_magic(str(path)) and not path.exists()


def _children(root: Path) -> list[Path]:
    try:
        children = list(root.iterdir())
    except FileNotFoundError:
        raise OptionError(
            f"The folder {root} of the parquet source is gone: put it back or correct the path."
        ) from None
    for child in children:
        if "=" in child.name and child.is_dir():
            raise OptionError(
                f"{root} is partitioned by folders ({child.name}), which the parquet source does not read yet: "
                f"name one partition's folder as the path."
            )
    return [child for child in children if child.is_file()]


def _refuse_folder(root: Path) -> None:
    if (root / "_spark_metadata").exists():
        raise OptionError(
            f"{root} was written by Structured Streaming (it has _spark_metadata), which the parquet source does not "
            f"follow yet: copy the committed files to another folder, or name that query's source."
        )


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _stat(path: Path) -> FileSplit | None:
    try:
        found = path.stat()
    except FileNotFoundError:  # Removed since it was listed: then there is nothing to read.
        return None
    return FileSplit(str(path), found.st_mtime_ns, found.st_size)
