"""Operators that hold rows and give them on in order: user code takes slice by slice what few rows became before it.

A few rows go on at once, for about a slice in a turn of the loop, however many calls bring them. What is held is stored
in snapshots as rows. Must never let event time pass what is held.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.operators.contract import Emit, Stateless, TaskContext, WithoutDeadlines
from tidegate.plan.physical import Giving
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section
from tidegate.storage.decoding import from_msgpack

SECTION = "rows held"
# So few rows go on at once: holding them would cost more than they do.
_FEW_ROWS = 16
# More than a slice: a task whose own slices go on at once must see that they take too long, or it makes them larger.
_TURN_MS = 15.0
_WANTED_ROWS = 1 << 16
# What is larger is worth a call, or a stream in a snapshot, of its own.
_GATHERED_BYTES = 1 << 20

Held = TypeVar("Held")


class TurnPace:
    """How many rows still go on at once in this turn of the loop, by what rows took lately."""

    def __init__(self) -> None:
        self._left_ms = _TURN_MS
        # One row shows what rows take.
        self._ms_per_row = inf

    def begin_turn(self) -> None:
        self._left_ms = _TURN_MS

    def has_time(self) -> bool:
        return self._left_ms > 0

    def fitting(self, row_count: int) -> int:
        """How many of so many rows: at least one while there is time, as no row can be cut."""
        if self._left_ms <= 0:
            return 0
        if row_count * self._ms_per_row <= self._left_ms:
            return row_count
        return int(self._left_ms / self._ms_per_row) + 1

    def observe(self, row_count: int, elapsed_ms: float) -> None:
        self._left_ms -= elapsed_ms
        measured = elapsed_ms / row_count
        # Dearer counts at once, cheaper by and by, as in the slices of a task.
        is_first = self._ms_per_row == inf
        self._ms_per_row = measured if is_first else max(measured, (self._ms_per_row + measured) / 2)


class GivesInOrder(Stateless, WithoutDeadlines, Generic[Held]):
    """For a `GivesLater` that gives what it holds in the order in which it came.

    With `Giving.AT_ONCE` it holds nothing: the task's own slices are all that comes.
    """

    _clock: Clock

    def __init__(self, giving: Giving) -> None:
        self._giving = giving
        self._held: deque[Held] = deque()
        self._pace = TurnPace()
        self._passed_ms = MIN_WATERMARK_MS

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._clock = context.clock

    def room(self) -> int:
        return 0 if self._held else _WANTED_ROWS

    def holds_rows(self) -> bool:
        return bool(self._held)

    def on_time(self, now_ms: float) -> None:
        self._pace.begin_turn()

    def watermark_behind(self, event_time_ms: int) -> int:
        if not self._held:
            self._passed_ms = event_time_ms
        return self._passed_ms

    def _at_once(self, row_count: int) -> int:
        """How many of so many rows go on at once, the first ones; the rest is to be held."""
        if self._giving is Giving.AT_ONCE:
            return row_count
        return 0 if self._held or row_count > _FEW_ROWS else self._pace.fitting(row_count)

    def _timed(self, feed: Emit, rows: pa.RecordBatch) -> None:
        """One part of a turn, and what it takes."""
        if self._giving is Giving.AT_ONCE:
            feed(rows)
            return
        started_ms = self._clock.monotonic_ms()
        feed(rows)
        self._pace.observe(rows.num_rows, self._clock.monotonic_ms() - started_ms)


class FedInSlices(GivesInOrder[pa.RecordBatch], ABC):
    """For operators with user code that takes rows slice by slice."""

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        super().open(context, restored)
        self._held.extend(decoded_batches(restored))

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows == 0:
            return
        count = self._at_once(rows.num_rows)
        if count:
            self._timed(partial(self._feed, emit=emit), rows.slice(0, count))
        if count < rows.num_rows:
            self._held.append(rows.slice(count))

    def give(self, max_rows: int, emit: Emit) -> int:
        if not self._held:
            return 0
        rows = _gathered(self._held, max_rows)
        self._timed(partial(self._feed, emit=emit), rows)
        return int(rows.num_rows)

    def snapshot(self) -> list[Section]:
        if not self._held:
            return []
        # Batches never change, so that they can be encoded later.
        return [Section(SECTION, None, partial(_encode_gathered, tuple(self._held)), Redistribution.SPLIT)]

    def state_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._held)

    @abstractmethod
    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        """One slice, never empty, into the user code."""


def _gathered(held: deque[pa.RecordBatch], max_rows: int) -> pa.RecordBatch:
    """The next rows, up to so many, out of what is held: small frames are one slice together."""
    parts: list[pa.RecordBatch] = []
    left_rows, left_bytes = max_rows, _GATHERED_BYTES
    while held and left_rows:
        rows = held[0].slice(0, left_rows)
        # Restored rows may differ from newer ones in the names of their columns.
        if parts and (rows.nbytes > left_bytes or rows.schema != parts[0].schema):
            break
        rest = held.popleft().slice(rows.num_rows)
        if rest.num_rows:
            held.appendleft(rest)
        parts.append(rows)
        left_rows, left_bytes = left_rows - rows.num_rows, left_bytes - rows.nbytes
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _encode_gathered(batches: Sequence[pa.RecordBatch]) -> bytes:
    held, items = deque(batches), []
    while held:
        items.append(_gathered(held, _WANTED_ROWS))
    return encode_batches(items)


def encode_batches(batches: Sequence[pa.RecordBatch]) -> bytes:
    """A list, as a section that is split holds it."""
    return msgspec.msgpack.encode([encode_batch(batch) for batch in batches])


def encode_batch(rows: pa.RecordBatch) -> bytes:
    """As an Arrow stream, which says its own schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def decoded_batches(sections: Sequence[RestoredSection]) -> Iterator[pa.RecordBatch]:
    """Out of sections that `encode_batches` made."""
    for section in sections:
        for item in from_msgpack(section.data, list[bytes]):
            with pa.ipc.open_stream(item) as reader:
                yield from reader
