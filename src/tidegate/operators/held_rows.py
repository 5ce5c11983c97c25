"""Rows in front of user code that an operator before it in the chain made of few: they go in slice by slice.

What is held is stored in snapshots as rows. Must never let event time pass what it holds.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from tidegate.operators.contract import Emit, Stateless, TaskContext, WithoutDeadlines
from tidegate.plan.physical import Giving
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section

SECTION = "rows held"
# So few rows go on at once: holding them would cost more than they do.
FEW_ROWS = 16
WANTED_ROWS = 1 << 16


class FedInSlices(Stateless, WithoutDeadlines, ABC):
    """For operators with user code that takes rows slice by slice. `GivesLater`."""

    def __init__(self, giving: Giving) -> None:
        self._held = HeldRows(giving)

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        self._held.restore(restored)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows and not self._held.take(rows):
            self._feed(rows, emit)

    @abstractmethod
    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        """One slice, never empty, into the user code."""

    def room(self) -> int:
        return self._held.room()

    def holds_rows(self) -> bool:
        return self._held.holds_rows()

    def give(self, max_rows: int, emit: Emit) -> int:
        rows = self._held.next(max_rows)
        if rows is None:
            return 0
        self._feed(rows, emit)
        return int(rows.num_rows)

    def watermark_behind(self, event_time_ms: int) -> int:
        return self._held.watermark_behind(event_time_ms)

    def snapshot(self) -> list[Section]:
        return self._held.snapshot()

    def state_bytes(self) -> int:
        return self._held.size_bytes()


class HeldRows:
    """With `Giving.AT_ONCE` it holds nothing: the task's own slices are all that comes."""

    def __init__(self, giving: Giving) -> None:
        self._giving = giving
        self._batches: deque[pa.RecordBatch] = deque()
        self._passed_ms = MIN_WATERMARK_MS

    def restore(self, sections: Sequence[RestoredSection]) -> None:
        self._batches.extend(decoded_batches(sections))

    def take(self, rows: pa.RecordBatch) -> bool:
        """Whether it keeps the rows, of which there is at least one; else they go in now."""
        if self._giving is Giving.AT_ONCE or (rows.num_rows <= FEW_ROWS and not self._batches):
            return False
        self._batches.append(rows)
        return True

    def next(self, max_rows: int) -> pa.RecordBatch | None:
        if not self._batches:
            return None
        rows = self._batches.popleft()
        if rows.num_rows > max_rows:
            self._batches.appendleft(rows.slice(max_rows))
        return rows.slice(0, max_rows)

    def room(self) -> int:
        return 0 if self._batches else WANTED_ROWS

    def holds_rows(self) -> bool:
        return bool(self._batches)

    def watermark_behind(self, event_time_ms: int) -> int:
        if not self._batches:
            self._passed_ms = event_time_ms
        return self._passed_ms

    def snapshot(self) -> list[Section]:
        if not self._batches:
            return []
        # Batches never change, so that they can be encoded later.
        return [Section(SECTION, None, partial(encode_batches, tuple(self._batches)), Redistribution.SPLIT)]

    def size_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._batches)


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
        for item in msgspec.msgpack.decode(section.data, type=list[bytes]):
            with pa.ipc.open_stream(item) as reader:
                yield from reader
