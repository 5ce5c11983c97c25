"""A growing folder of files: each file is a split, read by one reader, to the exact row.

Owns who reads which file, what is remembered of those that were read, and how fast new ones are taken on. How a file
becomes rows is its format's business. It never changes or removes a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Protocol

import msgspec
import pyarrow as pa

from tidegate.connectors.column_names import ColumnNames
from tidegate.connectors.contract import Assignment, EndOfSource, NothingNow, Polled, Rows, Withheld
from tidegate.connectors.file_listing import FileSplit, Listing, in_reading_order
from tidegate.connectors.hadoop_glob import has_marks
from tidegate.connectors.malformed import MayBeMalformed, Mode
from tidegate.connectors.options import Options
from tidegate.connectors.partition_values import partition_array
from tidegate.connectors.text_lines import MissingFile, check_size
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.model.units import parse_duration_ms
from tidegate.storage.decoding import from_msgpack

# Spark's options of any source of files; the last ones tune its cache of listings, which is not needed here.
FILE_OPTIONS = (
    "basePath", "cleanSource", "fileNameOnly", "ignoreCorruptFiles", "ignoreMissingFiles", "latestFirst", "maxFileAge",
    "maxBytesPerTrigger", "maxFilesPerTrigger", "path", "pathGlobFilter", "recursiveFileLookup", "maxCachedFiles",
    "discardCachedInputRatio", "checkpointIntervalMs", "readColumns", "sessionTimeZone", "sessionCaseSensitive",
)  # fmt: skip
_NO_FILES_RETRY_MS = 1000.0
# Of a piece every row was dropped: the next one is read in another step, for a barrier must not wait for many.
_NEXT_PIECE_MS = 1.0
_DEFAULT_AGE = "7d"
_FOREVER_MS = 1 << 62


class FileRows(Protocol):
    """An open file and the position in it: `next_row` is the first row neither given out nor dropped."""

    next_row: int

    def next_rows(self, max_rows: int) -> pa.RecordBatch | None:
        """At most `max_rows` rows of the wanted columns; none where all that was read is dropped, and more may follow.

        None at the end of the file.
        """
        ...

    def close(self) -> None: ...


class FileFormat(Protocol):
    """A value that can be pickled. `columns` are those of the file; `wanted` the names of those to read."""

    def open(self, file: FileSplit, columns: pa.Schema, *, wanted: Sequence[str], first_row: int) -> FileRows: ...


class AssignedFile(FileSplit, frozen=True):
    """Files older than this were all handed out before, or are too old to be read at all."""

    forget_before_ms: int = 0


class Counted(Enum):
    """Which rows of a file a position counts: the two differ where `mode` drops some."""

    ALL = "all"
    KEPT = "kept"  # as older versions did, so that the count hangs on what the query reads


class FileProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """`next_row` is the first row that was neither given out nor dropped; None once the file is finished."""

    file: FileSplit
    next_row: int | None
    counted: Counted = Counted.KEPT  # also of a file that is finished or not begun, where both are the same


class ReaderState(msgspec.Struct, frozen=True):
    files: list[FileProgress]
    forget_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """What is taken on at once, and how long that has to last; no limit: None."""

    files: int | None = None
    bytes: int | None = None
    every_ms: float = 0.0

    def share_of(self, files: Sequence[FileSplit]) -> Sequence[FileSplit]:
        if self.bytes is None:
            return files[: self.files]
        # As Spark counts: the first file always, then as long as the sum stays within the limit.
        total = 0
        for count, file in enumerate(files):
            total += file.size_bytes
            if count and total > self.bytes:
                return files[:count]
        return files

    @property
    def is_limited(self) -> bool:
        return self.files is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class FileSource:
    """`read_columns`: the names that the query uses, None for all; the others are left null.

    `max_age_ms` is counted back from the newest file taken on, as in Spark, and never from the clock.
    """

    listing: Listing
    format: FileFormat
    schema: pa.Schema
    read_columns: frozenset[str] | None
    pace: Pace
    latest_first: bool
    max_age_ms: int
    knows_by_name_only: bool
    skips_missing: bool
    zone: str
    clock: Clock = field(default_factory=SystemClock, compare=False)

    def enumerator(self, *, parallelism: int, available_now: bool) -> "FileEnumerator":
        return FileEnumerator(self, parallelism=parallelism, available_now=available_now)

    def reader(self, *, subtask: int, parallelism: int) -> "FileReader":
        return FileReader(self)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        """Deals unfinished files as the enumerator deals new ones; finished ones only have to be remembered."""
        decoded = [decode_state(state) for state in states]
        forget_before_ms = max((state.forget_before_ms for state in decoded), default=0)
        progress_of = {progress.file: progress for state in decoded for progress in state.files}
        dealt: list[list[FileProgress]] = [[] for _ in range(parallelism)]
        assigned_bytes = [0] * parallelism
        finished_count = 0
        for file in self.ordered(progress_of):
            if progress_of[file].next_row is None:
                dealt[finished_count % parallelism].append(progress_of[file])
                finished_count += 1
            else:
                dealt[_assign(file, assigned_bytes)].append(progress_of[file])
        return [encode_state(files, forget_before_ms) for files in dealt]

    def ordered(self, files: Iterable[FileSplit]) -> list[FileSplit]:
        oldest_first = in_reading_order(files)
        return oldest_first[::-1] if self.latest_first else oldest_first

    def key_of(self, file: FileSplit) -> str:
        return PurePath(file.path).name if self.knows_by_name_only else file.path


def file_source(options: Options, fmt: FileFormat, schema: pa.Schema, *, owner: str) -> FileSource:
    """Reads the options that all sources of files share."""
    options.only("cleanSource", ("off",))
    options.only("ignoreCorruptFiles", ("false",))
    if options.text("basePath", default=""):
        raise OptionError(f"Option 'basePath' of the {owner} is not supported: name the base folder as the path.")
    path = options.path()
    listing = Listing(
        path=path,
        name_filter=options.text("pathGlobFilter", default="") or None,
        is_recursive=options.flag("recursiveFileLookup", default=False),
        owner=owner,
        names=column_names(options),
    )
    listing.check()
    if not has_marks(str(path)) and not path.exists():
        raise OptionError(f"The path {path} of the {owner} does not exist: create it or correct the path.")
    latest_first = options.flag("latestFirst", default=False)
    pace = _pace(options, owner)
    age = options.text("maxFileAge", default=_DEFAULT_AGE)
    # A bare number is milliseconds to Spark.
    age_ms = parse_duration_ms(f"{age}ms" if age.strip().isdecimal() else age, option="maxFileAge")
    columns = options.text("readColumns", default="")
    source = FileSource(
        listing=listing,
        format=fmt,
        schema=schema,
        read_columns=frozenset(columns.split("\0")) if columns else None,
        pace=pace,
        latest_first=latest_first,
        # Newest first and a few at a time: what is left for later is old, and must not be too old for that. As Spark.
        max_age_ms=_FOREVER_MS if latest_first and pace.is_limited else age_ms,
        knows_by_name_only=options.flag("fileNameOnly", default=False),
        skips_missing=options.flag("ignoreMissingFiles", default=False),
        zone=options.text("timeZone", default=options.text("sessionTimeZone", default="UTC")),
    )
    for file in listing.files():  # Folders that cannot be read are refused now, not in a running job.
        partition_columns(source, file.path)
    return source


def column_names(options: Options) -> ColumnNames:
    is_exact = options.flag("sessionCaseSensitive", default=False)
    return ColumnNames.AS_WRITTEN if is_exact else ColumnNames.IN_ANY_CASE


def _pace(options: Options, owner: str) -> Pace:
    files, size = options.optional_positive("maxFilesPerTrigger"), options.optional_positive("maxBytesPerTrigger")
    if files is not None and size is not None:
        raise OptionError(f"The {owner} has both 'maxFilesPerTrigger' and 'maxBytesPerTrigger': leave one of them out.")
    return Pace(files, size, float(options.text("checkpointIntervalMs", default="0")))


class FileEnumerator:
    """Gives every new file to the reader with the fewest bytes assigned so far.

    What is older than `forget_before_ms` is neither read nor remembered. That bound moves behind the files taken on
    and goes out with the next ones, so no checkpoint can hold it without the older files it stands for.
    """

    def __init__(self, source: FileSource, *, parallelism: int, available_now: bool) -> None:
        self._source = source
        self._assigned_bytes = [0] * parallelism
        self._known: dict[str, int] = {}
        self._forget_before_ms = 0
        self._available_now = available_now
        self._fixed_listing: list[FileSplit] | None = None
        self._next_share_ms = 0.0
        self._withheld = Withheld.NOTHING

    def restore(self, reader_states: Sequence[bytes]) -> None:
        states = [decode_state(state) for state in reader_states]
        self._forget_before_ms = max((state.forget_before_ms for state in states), default=0)
        for state in states:
            self._known |= {self._source.key_of(done.file): done.file.modified_ms for done in state.files}
        for subtask, state in enumerate(states[: len(self._assigned_bytes)]):
            unfinished = (progress.file.size_bytes for progress in state.files if progress.next_row is not None)
            self._assigned_bytes[subtask] = sum(unfinished)

    def discover(self) -> list[Assignment]:
        if self._available_now and self._fixed_listing is None:
            self._fixed_listing = self._source.ordered(self._source.listing.files())
        must_wait = self._fixed_listing is None and self._must_wait()
        if must_wait and self._withheld is not Withheld.NOTHING:
            return []
        new = self._new(self._listed())
        # Looked for even while nothing may be given: whoever waits for all that is there has to know of it.
        share = [] if must_wait else self._source.pace.share_of(new)
        self._withheld = Withheld.UNTIL_LATER if len(share) < len(new) else Withheld.NOTHING
        if share and self._source.pace.is_limited:
            self._next_share_ms = self._source.clock.monotonic_ms() + self._source.pace.every_ms
        assignments = [self._assign(file) for file in share]
        self._forget()
        return assignments

    def withheld(self) -> Withheld:
        return self._withheld

    def is_complete(self) -> bool:
        return self._fixed_listing is not None and not self._new(self._fixed_listing)

    def _listed(self) -> list[FileSplit]:
        if self._fixed_listing is not None:
            return self._fixed_listing
        return self._source.ordered(self._source.listing.files())

    def _must_wait(self) -> bool:
        return self._source.pace.is_limited and self._source.clock.monotonic_ms() < self._next_share_ms

    def _new(self, listing: list[FileSplit]) -> list[FileSplit]:
        new: dict[str, FileSplit] = {}
        for file in listing:
            key = self._source.key_of(file)
            if key not in self._known and file.modified_ms >= self._forget_before_ms:
                new.setdefault(key, file)
        return list(new.values())

    def _assign(self, file: FileSplit) -> Assignment:
        self._known[self._source.key_of(file)] = file.modified_ms
        assigned = AssignedFile(file.path, file.modified_ns, file.size_bytes, self._forget_before_ms)
        return Assignment(_assign(file, self._assigned_bytes), msgspec.msgpack.encode(assigned))

    def _forget(self) -> None:
        newest_ms = max(self._known.values(), default=0)
        self._forget_before_ms = max(self._forget_before_ms, newest_ms - self._source.max_age_ms)
        for key in [key for key, modified_ms in self._known.items() if modified_ms < self._forget_before_ms]:
            del self._known[key]


class FileReader:
    """Reads its files one after another, holding at most one decoded piece of one file.

    A finished file is remembered until the enumerator says that files of its age are not looked for any more.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._progress: dict[str, FileProgress] = {}
        self._waiting: list[str] = []
        self._rows: FileRows | None = None
        self._partition: Mapping[str, str | None] = {}
        self._forget_before_ms = 0
        self._is_told_all = False

    def restore(self, state: bytes) -> None:
        decoded = decode_state(state)
        self._forget_before_ms = decoded.forget_before_ms
        for progress in decoded.files:
            self._add(progress)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        for split in splits:
            assigned = from_msgpack(split, AssignedFile)
            self._forget_before_ms = max(self._forget_before_ms, assigned.forget_before_ms)
            self._add(FileProgress(FileSplit(assigned.path, assigned.modified_ns, assigned.size_bytes), 0))
        self._forget()

    def no_more_splits(self) -> None:
        self._is_told_all = True

    def poll(self, max_rows: int) -> Polled:
        while self._waiting:
            progress = self._progress[self._waiting[0]]
            rows = self._next_rows(progress, max_rows)
            if rows is None:
                self._finish(progress)
                continue
            assert self._rows is not None, "rows came from it"
            self._progress[progress.file.path] = FileProgress(progress.file, self._rows.next_row, Counted.ALL)
            return Rows(rows) if rows.num_rows else NothingNow(_NEXT_PIECE_MS, is_behind=True)
        return EndOfSource() if self._is_told_all else NothingNow(_NO_FILES_RETRY_MS)

    def lag_ms(self) -> float | None:
        """Since the file was written that is read now, or next."""
        if not self._waiting:
            return None
        written_ms = self._progress[self._waiting[0]].file.modified_ms
        return max(0.0, float(self._source.clock.wall_ms() - written_ms))

    def snapshot(self) -> bytes:
        return encode_state(self._progress.values(), self._forget_before_ms)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _next_rows(self, progress: FileProgress, max_rows: int) -> pa.RecordBatch | None:
        try:
            if progress.file.size_bytes == 0:
                # No file of any format to Spark, which passes it over; one that grew since must not be lost.
                check_size(progress.file.path, 0)
                return None
            if self._rows is None:
                self._rows = self._open(progress)
            rows = self._rows.next_rows(max_rows)
        except MissingFile:
            if self._source.skips_missing:
                return None
            raise
        return None if rows is None else self._completed(rows, progress.file)

    def _completed(self, rows: pa.RecordBatch, file: FileSplit) -> pa.RecordBatch:
        """The wanted columns, with those that come from the file's folders and those that nobody reads."""
        arrays = []
        for column in self._source.schema:
            if (key := self._source.listing.names.key(column.name)) in self._partition:
                value = self._partition[key]
                arrays.append(
                    partition_array(value, column, count=rows.num_rows, zone=self._source.zone, path=file.path)
                )
            elif column.name in rows.schema.names:
                arrays.append(rows.column(column.name))
            else:
                arrays.append(pa.nulls(rows.num_rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._source.schema)

    def _add(self, progress: FileProgress) -> None:
        self._progress[progress.file.path] = progress
        if progress.next_row is not None:
            self._waiting.append(progress.file.path)

    def _forget(self) -> None:
        for path, progress in list(self._progress.items()):
            if progress.next_row is None and progress.file.modified_ms < self._forget_before_ms:
                del self._progress[path]

    def _open(self, progress: FileProgress) -> FileRows:
        file = progress.file
        self._partition = partition_columns(self._source, file.path)
        key = self._source.listing.names.key
        columns = pa.schema([column for column in self._source.schema if key(column.name) not in self._partition])
        read = self._source.read_columns
        wanted = [name for name in columns.names if read is None or name in read]
        if not wanted and not isinstance(self._source.format, MayBeMalformed):
            # At least one column, because it is a column that says how many rows there are.
            wanted = columns.names[:1]
        next_row, fmt = progress.next_row or 0, self._source.format
        if progress.counted is Counted.ALL or not isinstance(fmt, MayBeMalformed) or fmt.mode is not Mode.DROPMALFORMED:
            return fmt.open(file, columns, wanted=wanted, first_row=next_row)
        rows = fmt.open(file, columns, wanted=wanted, first_row=0)
        _pass_over(rows, next_row, file.path)
        return rows

    def _finish(self, progress: FileProgress) -> None:
        self.close()
        self._waiting.pop(0)
        self._progress[progress.file.path] = FileProgress(progress.file, None)


def _pass_over(rows: FileRows, count: int, path: str) -> None:
    """So many rows that are given out, as older versions counted."""
    left = count
    while left:
        passed = rows.next_rows(left)
        if passed is None:
            raise IncompatibleCheckpoint(
                f"An older Tidegate had read {count} rows of {path} without the malformed ones, and the query keeps "
                f"fewer of the whole file now: read the columns that it read then, or use a new checkpointLocation."
            )
        left -= passed.num_rows


def partition_columns(source: FileSource, path: str) -> Mapping[str, str | None]:
    found = source.listing.partition_of(path)
    missing = set(found) - set(map(source.listing.names.key, source.schema.names))
    if missing:
        raise OptionError(
            f"The file {path} lies in folders that name the column {sorted(missing)[0]!r}, which the query's schema "
            f"does not have: restart the query, or add the column to the schema."
        )
    return found


def encode_state(files: Iterable[FileProgress], forget_before_ms: int) -> bytes:
    return msgspec.msgpack.encode(ReaderState(list(files), forget_before_ms))


def decode_state(state: bytes) -> ReaderState:
    """Also what the first version wrote: the bare list of files."""
    decoded = from_msgpack(state, ReaderState | list[FileProgress])
    return decoded if isinstance(decoded, ReaderState) else ReaderState(decoded)


def _assign(file: FileSplit, assigned_bytes: list[int]) -> int:
    """Gives the file to the reader with the fewest bytes so far, the first of equals."""
    subtask = assigned_bytes.index(min(assigned_bytes))
    assigned_bytes[subtask] += file.size_bytes
    return subtask
