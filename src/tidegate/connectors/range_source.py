"""A stream of offsets as a source: ranges between offsets on the driver, partitions of a range in the tasks.

Python data sources and what Spark ingests are read so. Ranges are numbered from the first start. A split names a whole
range and the partitions of it that one reader gets, so that readers' states alone tell which partitions nobody has.
Knows PySpark only as a pickled `StreamOpener`.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, assert_never, runtime_checkable

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import (
    Assignment,
    CommittedPositions,
    EndOfData,
    EndOfSource,
    NothingNow,
    Polled,
    Rows,
    Withheld,
)
from tidegate.connectors.pump import Pump, Pumped, PumpEmpty, PumpEnded
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import CheckpointId
from tidegate.plan.nodes import Scan
from tidegate.storage.decoding import from_msgpack

# More ranges than this may not wait for a checkpoint that covers them: readers' states stay small.
_MOST_OPEN_RANGES = 64
# A source that limits its ranges gets several at each look, as micro-batches would follow one another.
_MOST_RANGES_PER_LOOK = 8
_NO_SPLITS_RETRY_MS = 1000.0
# A partition is being read by its own thread: soon there is more.
_READING_RETRY_MS = 5.0


class OffsetStream(Protocol):
    """What is read, opened on the driver and in each task. Offsets are texts, partitions bytes. Any call may block."""

    def initial_offset(self) -> str: ...

    def latest_offset(self, start: str) -> str:
        """How far to read from `start`: as far as the reader's own limit lets it, or `start` if nothing is there."""
        ...

    def ends_with_one_range(self) -> bool:
        """Told that the query ends with what is there now: whether the next `latest_offset` says all of it."""
        ...

    def limits_ranges(self) -> bool:
        """Whether another `latest_offset` right away may find more."""
        ...

    def has_ended(self) -> bool:
        """With what is there now: whether a later `latest_offset` cannot find more than one that follows right away."""
        ...

    def partitions(self, start: str, end: str) -> list[bytes]: ...
    def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]: ...

    def commit(self, end: str) -> None:
        """Everything before `end` is read and in a committed checkpoint."""
        ...

    def release(self, end: str) -> None:
        """No checkpoint is retained that would read on from before `end`."""
        ...

    def stop(self) -> None: ...


@runtime_checkable
class DatesRanges(Protocol):
    """A stream that knows when rows came to it, which may be long before it is asked for them."""

    def came_at_ms(self, end: str) -> int:
        """When the newest rows before `end` did, by the wall clock."""
        ...


StreamOpener: TypeAlias = Callable[[], OffsetStream]


class OffsetRange(msgspec.Struct, frozen=True):
    """`came_at_ms`: when its rows came to the source, else when the enumerator found it; not in every stored range."""

    number: int
    start: str
    end: str
    partitions: list[bytes]
    came_at_ms: int | None = None


class RangeSplit(msgspec.Struct, frozen=True):
    """All ranges below `floor` are read everywhere and committed: nobody needs to remember them."""

    range: OffsetRange
    own: list[int]
    floor: int


class RangeProgress(msgspec.Struct, frozen=True):
    """Of the partitions that one reader has: the first row that was not given out, None once it is finished."""

    range: OffsetRange
    next_rows: dict[int, int | None]


class ReaderState(msgspec.Struct, frozen=True):
    floor: int
    ranges: list[RangeProgress]


class ReaderPosition(msgspec.Struct, frozen=True):
    floor: int
    finished: dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class RangeSource:
    """`is_bounded`: what a run reads is all there will ever be."""

    name: str
    schema: pa.Schema
    opener: bytes
    is_bounded: bool = False
    clock: Clock = field(default_factory=SystemClock, compare=False)

    def enumerator(self, *, parallelism: int, available_now: bool) -> "RangeEnumerator":
        return RangeEnumerator(self, parallelism=parallelism, available_now=available_now)

    def reader(self, *, subtask: int, parallelism: int) -> "RangeReader":
        return RangeReader(self)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        """Deals the partitions one by one; a range without any is remembered by the first reader."""
        merged = merged_states(states)
        dealt: list[list[RangeProgress]] = [[] for _ in range(parallelism)]
        for progress in merged.ranges:
            shares: list[dict[int, int | None]] = [{} for _ in range(parallelism)]
            for index, next_row in progress.next_rows.items():
                shares[(progress.range.number + index) % parallelism][index] = next_row
            for subtask, share in enumerate(shares):
                if share or (subtask == 0 and not progress.next_rows):
                    dealt[subtask].append(RangeProgress(progress.range, share))
        return [msgspec.msgpack.encode(ReaderState(merged.floor, ranges)) for ranges in dealt]

    def open(self) -> OffsetStream:
        # Not from storage: the plan of this very query, whose data source the user has registered.
        opener: StreamOpener = pickle.loads(self.opener)
        return opener()


def from_scan(scan: Scan) -> RangeSource:
    return RangeSource(scan.options.get("format", "python"), scan.schema, scan.payload)


class RangeEnumerator:
    def __init__(self, source: RangeSource, *, parallelism: int, available_now: bool) -> None:
        self._source = source
        self._parallelism = parallelism
        self._available_now = available_now
        self._stream: OffsetStream | None = None
        self._start: str | None = None
        self._next_number = 0
        self._floor = 0
        self._open: dict[int, OffsetRange] = {}
        self._unassigned: list[tuple[OffsetRange, list[int]]] = []
        self._covered: dict[CheckpointId, str | None] = {}
        self._covered_to: str | None = None
        self._released_to: str | None = None
        self._one_range_is_all = False
        self._withheld = Withheld.NOTHING
        self._is_complete = False

    def restore(self, reader_states: Sequence[bytes]) -> None:
        merged = merged_states(reader_states)
        self._floor = merged.floor
        for progress in merged.ranges:
            self._open[progress.range.number] = progress.range
            # Its split was on the way when the checkpoint was taken.
            nobodys = [at for at in range(len(progress.range.partitions)) if at not in progress.next_rows]
            if nobodys:
                self._unassigned.append((progress.range, nobodys))
        if merged.ranges:
            newest = merged.ranges[-1].range
            self._start, self._next_number = newest.end, newest.number + 1

    def discover(self) -> list[Assignment]:
        waiting, self._unassigned = self._unassigned, []
        assignments = [split for found, own in waiting for split in self._deal(found, own)]
        for _ in range(_MOST_RANGES_PER_LOOK):
            found = self._next_range()
            if found is None:
                self._withheld = Withheld.UNTIL_COMMITTED if self._is_full() else Withheld.NOTHING
                break
            assignments += self._deal(found, list(range(len(found.partitions))))
            if not self._opened().limits_ranges():
                self._withheld = Withheld.NOTHING
                break
        else:
            self._withheld = Withheld.UNTIL_LATER
        return assignments

    def withheld(self) -> Withheld:
        return self._withheld

    def is_complete(self) -> bool:
        return self._is_complete and not self._unassigned

    def on_committed(self, committed: CommittedPositions) -> None:
        """Tells the user's reader how far everything is read and committed."""
        positions = [from_msgpack(data, ReaderPosition) for data in committed.positions]
        newest: OffsetRange | None = None
        for number in sorted(self._open):
            finished = {index for position in positions for index in position.finished.get(number, ())}
            is_past = any(number < position.floor for position in positions)
            if not is_past and len(finished) < len(self._open[number].partitions):
                break
            if not is_past and not any(number in position.finished for position in positions):
                break  # a range without partitions that no reader has heard of yet
            newest = self._open.pop(number)
        if newest is not None:
            self._floor, self._covered_to = newest.number, newest.end
            self._opened().commit(newest.end)
        self._release(committed)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.stop()
            self._stream = None

    def _release(self, committed: CommittedPositions) -> None:
        """What the oldest retained checkpoint has behind it. Where those of earlier runs stand is not known here."""
        self._covered[committed.checkpoint] = self._covered_to
        is_known = committed.oldest_retained >= min(self._covered)
        self._covered = {c: end for c, end in self._covered.items() if c >= committed.oldest_retained or not is_known}
        end = self._covered[min(self._covered)] if is_known and self._covered else None
        if end is not None and end != self._released_to:
            self._released_to = end
            self._opened().release(end)

    def _is_full(self) -> bool:
        """Whether there are more ranges is not known then."""
        return not self._is_complete and len(self._open) >= _MOST_OPEN_RANGES

    def _next_range(self) -> OffsetRange | None:
        if self._is_complete or self._is_full():
            return None
        stream = self._opened()
        if self._start is None:
            # Once: one that begins with what comes next would begin anew with each look.
            self._start = stream.initial_offset()
        start = self._start
        # Asked first: what comes between the two questions is found by the second.
        has_ended = self._available_now and stream.has_ended()
        end = stream.latest_offset(start)
        if self._available_now:
            self._is_complete = self._one_range_is_all or (end == start and has_ended)
        if end == start:
            return None
        came_at_ms = stream.came_at_ms(end) if isinstance(stream, DatesRanges) else self._source.clock.wall_ms()
        found = OffsetRange(self._next_number, start, end, stream.partitions(start, end), came_at_ms)
        self._start, self._next_number = end, self._next_number + 1
        self._open[found.number] = found
        return found

    def _deal(self, found: OffsetRange, own: list[int]) -> list[Assignment]:
        shares = [
            [index for index in own if (found.number + index) % self._parallelism == subtask]
            for subtask in range(self._parallelism)
        ]
        return [
            Assignment(subtask, msgspec.msgpack.encode(RangeSplit(found, share, self._floor)))
            for subtask, share in enumerate(shares)
            if share or (subtask == 0 and not found.partitions)
        ]

    def _opened(self) -> OffsetStream:
        if self._stream is None:
            self._stream = self._source.open()
            if self._available_now:
                self._one_range_is_all = self._stream.ends_with_one_range()
        return self._stream


class RangeReader:
    """Reads its partitions one after another, each on a thread of its own: a user's iterator may wait."""

    def __init__(self, source: RangeSource) -> None:
        self._source = source
        self._floor = 0
        self._ranges: dict[int, OffsetRange] = {}
        self._next_rows: dict[int, dict[int, int | None]] = {}
        self._waiting: deque[tuple[int, int]] = deque()
        self._begun: set[int] = set()
        self._stream: OffsetStream | None = None
        self._pump: Pump[pa.RecordBatch] | None = None
        self._to_skip = 0
        self._rest: pa.RecordBatch | None = None
        self._is_told_all = False

    def restore(self, state: bytes) -> None:
        restored = from_msgpack(state, ReaderState)
        self._floor = restored.floor
        for progress in restored.ranges:
            self._add(progress)
            self._begun.add(progress.range.number)  # by whoever read it before, as far as is known here

    def add_splits(self, splits: Sequence[bytes]) -> None:
        for data in splits:
            split = from_msgpack(data, RangeSplit)
            self._add(RangeProgress(split.range, dict.fromkeys(split.own, 0)))
            self._forget_below(split.floor)

    def no_more_splits(self) -> None:
        self._is_told_all = True

    def poll(self, max_rows: int) -> Polled:
        while self._waiting:
            if self._rest is not None:
                return Rows(self._give(self._rest, max_rows))
            taken = self._opened_pump().take()
            match taken:
                case Pumped(item=batch):
                    self._rest = self._unskipped(batch)
                case PumpEmpty():
                    return NothingNow(_READING_RETRY_MS, is_behind=True)
                case PumpEnded():
                    finished, _ = self._waiting[0]
                    self._finish()
                    if self._waiting and self._waiting[0][0] != finished:
                        return NothingNow(0.0, is_behind=True)  # event time moves here
                case _:
                    assert_never(taken)
        if not self._is_told_all:
            return NothingNow(_NO_SPLITS_RETRY_MS)
        return EndOfData() if self._source.is_bounded else EndOfSource()

    def is_amid_batch(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] in self._begun

    def lag_ms(self) -> float | None:
        """Since the oldest range came that is not read whole; 0 once all are."""
        if not self._waiting:
            return 0.0
        came_at_ms = self._ranges[min(number for number, _ in self._waiting)].came_at_ms
        return None if came_at_ms is None else max(0.0, float(self._source.clock.wall_ms() - came_at_ms))

    def snapshot(self) -> bytes:
        ranges = [RangeProgress(self._ranges[number], dict(rows)) for number, rows in self._next_rows.items()]
        return msgspec.msgpack.encode(ReaderState(self._floor, ranges))

    def position(self) -> bytes:
        finished = {
            number: [index for index, next_row in rows.items() if next_row is None]
            for number, rows in self._next_rows.items()
        }
        return msgspec.msgpack.encode(ReaderPosition(self._floor, finished))

    def close(self) -> None:
        if self._pump is not None:
            self._pump.close()
            self._pump = None

    def _add(self, progress: RangeProgress) -> None:
        number = progress.range.number
        self._ranges[number] = progress.range
        self._next_rows.setdefault(number, {}).update(progress.next_rows)
        self._waiting += [(number, index) for index, row in progress.next_rows.items() if row is not None]

    def _forget_below(self, floor: int) -> None:
        self._floor = max(self._floor, floor)
        for number in [number for number in self._ranges if number < self._floor]:
            del self._ranges[number], self._next_rows[number]
            self._begun.discard(number)

    def _opened_pump(self) -> "Pump[pa.RecordBatch]":
        if self._pump is None:
            number, index = self._waiting[0]
            if self._stream is None:
                self._stream = self._source.open()
            stream, partition = self._stream, self._ranges[number].partitions[index]
            self._to_skip = self._next_rows[number][index] or 0
            self._pump = Pump(lambda: stream.batches(partition), name=f"tidegate-read-{number}-{index}")
        return self._pump

    def _unskipped(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Without the rows that were given out before a restore: a partition that is read again gives the same ones."""
        skipped = min(self._to_skip, batch.num_rows)
        self._to_skip -= skipped
        return batch.slice(skipped) if batch.num_rows > skipped else None

    def _give(self, rest: pa.RecordBatch, max_rows: int) -> pa.RecordBatch:
        number, index = self._waiting[0]
        self._begun.add(number)
        given = rest.slice(0, max_rows)
        self._rest = rest.slice(max_rows) if rest.num_rows > max_rows else None
        self._next_rows[number][index] = (self._next_rows[number][index] or 0) + given.num_rows
        return given

    def _finish(self) -> None:
        number, index = self._waiting.popleft()
        if self._to_skip:
            raise UserCodeFailure(
                f"A partition of the data source {self._source.name!r} gave {self._to_skip} rows fewer than before: "
                f"read must give the same rows whenever it is called with the same partition."
            )
        self._next_rows[number][index] = None
        self.close()


def merged_states(states: Iterable[bytes]) -> ReaderState:
    """All that the readers have, oldest range first, without what every one of them may forget."""
    decoded = [from_msgpack(state, ReaderState) for state in states]
    floor = max((state.floor for state in decoded), default=0)
    ranges: dict[int, OffsetRange] = {}
    next_rows: dict[int, dict[int, int | None]] = {}
    for state in decoded:
        for progress in state.ranges:
            if progress.range.number >= floor:
                ranges[progress.range.number] = progress.range
                next_rows.setdefault(progress.range.number, {}).update(progress.next_rows)
    return ReaderState(floor, [RangeProgress(ranges[number], next_rows[number]) for number in sorted(ranges)])
