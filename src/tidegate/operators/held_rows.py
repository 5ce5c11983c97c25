"""Rows in front of user code that an operator before it in the chain made of few: they go in slice by slice.

What is held is stored in snapshots as rows. Must never let event time pass what it holds.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec
import pyarrow as pa

from tidegate.plan.physical import Giving
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section

SECTION = "rows held"
# So few rows go in at once: holding them would cost more than they do.
_FEW_ROWS = 16
_WANTED_ROWS = 1 << 16


class HeldRows:
    """With `Giving.AT_ONCE` it holds nothing: the task's own slices are all that comes."""

    def __init__(self, giving: Giving) -> None:
        self._giving = giving
        self._batches: deque[pa.RecordBatch] = deque()
        self._passed_ms = MIN_WATERMARK_MS

    def restore(self, sections: Sequence[RestoredSection]) -> None:
        for section in sections:
            for item in msgspec.msgpack.decode(section.data, type=list[bytes]):
                with pa.ipc.open_stream(item) as reader:
                    self._batches += reader

    def take(self, rows: pa.RecordBatch) -> bool:
        """Whether it keeps the rows; else they go in now."""
        if self._giving is Giving.AT_ONCE or (rows.num_rows <= _FEW_ROWS and not self._batches):
            return False
        if rows.num_rows:
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
        return 0 if self._batches else _WANTED_ROWS

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
        return [Section(SECTION, None, partial(_encode, tuple(self._batches)), Redistribution.SPLIT)]

    def size_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._batches)


def _encode(batches: Sequence[pa.RecordBatch]) -> bytes:
    return msgspec.msgpack.encode([encode_batch(batch) for batch in batches])


def encode_batch(rows: pa.RecordBatch) -> bytes:
    """As an Arrow stream, which says its own schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
