"""Operators that hold rows and give them on in order: user code takes slice by slice what few rows became before it.

What is held is stored in snapshots as rows. Must never let event time pass what is held.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from tidegate.operators.contract import Emit, Stateless, TaskContext, WithoutDeadlines
from tidegate.plan.physical import Giving
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section
from tidegate.storage.decoding import from_msgpack

SECTION = "rows held"
# So few rows go on at once: holding them would cost more than they do.
_FEW_ROWS = 16
_WANTED_ROWS = 1 << 16

Held = TypeVar("Held")


class GivesInOrder(Stateless, WithoutDeadlines, Generic[Held]):
    """For a `GivesLater` that gives what it holds in the order in which it came.

    With `Giving.AT_ONCE` it holds nothing: the task's own slices are all that comes.
    """

    def __init__(self, giving: Giving) -> None:
        self._giving = giving
        self._held: deque[Held] = deque()
        self._passed_ms = MIN_WATERMARK_MS

    def room(self) -> int:
        return 0 if self._held else _WANTED_ROWS

    def holds_rows(self) -> bool:
        return bool(self._held)

    def watermark_behind(self, event_time_ms: int) -> int:
        if not self._held:
            self._passed_ms = event_time_ms
        return self._passed_ms

    def _goes_at_once(self, row_count: int) -> bool:
        return self._giving is Giving.AT_ONCE or (row_count <= _FEW_ROWS and not self._held)


class FedInSlices(GivesInOrder[pa.RecordBatch], ABC):
    """For operators with user code that takes rows slice by slice."""

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._held.extend(decoded_batches(restored))

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows == 0:
            return
        if self._goes_at_once(rows.num_rows):
            self._feed(rows, emit)
        else:
            self._held.append(rows)

    def give(self, max_rows: int, emit: Emit) -> int:
        if not self._held:
            return 0
        rows = self._held.popleft()
        if rows.num_rows > max_rows:
            self._held.appendleft(rows.slice(max_rows))
            rows = rows.slice(0, max_rows)
        self._feed(rows, emit)
        return int(rows.num_rows)

    def snapshot(self) -> list[Section]:
        if not self._held:
            return []
        # Batches never change, so that they can be encoded later.
        return [Section(SECTION, None, partial(encode_batches, tuple(self._held)), Redistribution.SPLIT)]

    def state_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._held)

    @abstractmethod
    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        """One slice, never empty, into the user code."""


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
