"""Spark's `rate` source: value k with the time at which it is due, never faster than `rowsPerSecond`.

Subtask i of p gives the values i, i + p, i + 2p, ... After a change of parallelism the new readers first share what
the old ones had left out, then go on with the new distance. Owns nothing outside of itself: the clock alone drives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.contract import Assignment, EndOfSource, NothingNow, Polled, Rows, Withheld
from tidegate.connectors.options import Options
from tidegate.connectors.rate_strands import Strand, after, count_below, deal, lowest_values, strand_below
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.plan.nodes import Scan
from tidegate.storage.decoding import from_msgpack

_KNOWN = ("numPartitions", "rampUpTime", "rowsPerSecond")


class _Split(msgspec.Struct, frozen=True):
    """Leave to go on. `limit` ends the values (excluded); without one they never end."""

    start_ms: int
    limit: int | None


class _State(msgspec.Struct, frozen=True):
    """`start_ms` is None until a split told it. Every value of the backlog is below every reader's `next_value`."""

    start_ms: int | None
    next_value: int
    parallelism: int
    backlog: tuple[Strand, ...] = ()


@dataclass(frozen=True, slots=True)
class RateSource:
    rows_per_s: int
    schema: pa.Schema
    clock: Clock

    def enumerator(self, *, parallelism: int, available_now: bool) -> "RateEnumerator":
        return RateEnumerator(self, parallelism=parallelism, available_now=available_now)

    def reader(self, *, subtask: int, parallelism: int) -> "RateReader":
        return RateReader(self, subtask=subtask, parallelism=parallelism)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        old = [_decode_state(state) for state in states]
        for state in old:
            if state.parallelism != len(old):
                raise IncompatibleCheckpoint(
                    f"The checkpoint holds the positions of {len(old)} of the rate source's {state.parallelism} "
                    f"readers: start from another checkpoint."
                )
        untouched = _first_untouched(old)
        below = [strand_below(untouched, first=state.next_value, step=state.parallelism) for state in old]
        backlog = [strand for state in old for strand in state.backlog] + [part for part in below if part is not None]
        start_ms = _start_of(old)
        return [
            msgspec.msgpack.encode(_State(start_ms, untouched + subtask, parallelism, tuple(share)))
            for subtask, share in enumerate(deal(backlog, shares=parallelism))
        ]

    def due_count(self, start_ms: int) -> int:
        """How many values are due now: value k is due at start + k / rows_per_s."""
        elapsed_ms = self.clock.wall_ms() - start_ms
        return 0 if elapsed_ms < 0 else elapsed_ms * self.rows_per_s // 1000 + 1


def from_scan(scan: Scan, clock: Clock | None = None) -> RateSource:
    options = Options(scan.options, owner="rate source", known=_KNOWN)
    options.positive("numPartitions", default=1)
    options.only("rampUpTime", ("0", "0s", "0 seconds"))
    for field in scan.schema:
        if not _is_column(field):
            raise OptionError(
                f"The rate source has no column {field.name!r} of type {field.type}: "
                f"its columns are timestamp (timestamp) and value (long)."
            )
    return RateSource(options.positive("rowsPerSecond", default=1), scan.schema, clock or SystemClock())


def _is_column(field: "pa.Field[Any]") -> bool:
    if field.name == "timestamp":
        return bool(pa.types.is_timestamp(field.type) and field.type.unit == "us" and field.type.tz is not None)
    return bool(field.name == "value" and field.type == pa.int64())


class RateEnumerator:
    """Tells every reader the common start, again after each restore: a reader waits for leave to go on."""

    def __init__(self, source: RateSource, *, parallelism: int, available_now: bool) -> None:
        self._source = source
        self._parallelism = parallelism
        self._available_now = available_now
        self._start_ms: int | None = None
        self._is_assigned = False

    def restore(self, reader_states: Sequence[bytes]) -> None:
        self._start_ms = _start_of([_decode_state(state) for state in reader_states])

    def discover(self) -> list[Assignment]:
        if self._is_assigned:
            return []
        self._is_assigned = True
        start_ms = self._source.clock.wall_ms() if self._start_ms is None else self._start_ms
        limit = self._source.due_count(start_ms) if self._available_now else None
        split = msgspec.msgpack.encode(_Split(start_ms, limit))
        return [Assignment(subtask, split) for subtask in range(self._parallelism)]

    def withheld(self) -> Withheld:
        return Withheld.NOTHING

    def is_complete(self) -> bool:
        return self._is_assigned


class RateReader:
    def __init__(self, source: RateSource, *, subtask: int, parallelism: int) -> None:
        self._source = source
        self._step = parallelism
        self._start_ms: int | None = None
        self._next_value = subtask
        self._backlog: tuple[Strand, ...] = ()
        self._split: _Split | None = None
        self._is_told_all = False

    def restore(self, state: bytes) -> None:
        restored = _decode_state(state)
        self._start_ms = restored.start_ms
        self._next_value = restored.next_value
        self._step = restored.parallelism
        self._backlog = restored.backlog

    def add_splits(self, splits: Sequence[bytes]) -> None:
        for split in splits:
            self._split = from_msgpack(split, _Split)
            self._start_ms = self._split.start_ms

    def no_more_splits(self) -> None:
        self._is_told_all = True

    def poll(self, max_rows: int) -> Polled:
        if self._split is None:
            return EndOfSource() if self._is_told_all else NothingNow(retry_after_ms=1000.0)
        due, limit = self._source.due_count(self._split.start_ms), self._split.limit
        values = self._take(max_rows, end=due if limit is None else min(due, limit))
        return Rows(self._rows(self._split.start_ms, values)) if len(values) else self._nothing(self._split)

    def lag_ms(self) -> float | None:
        """Since the next row was due."""
        if self._split is None:
            return None
        due_at_ms = self._split.start_ms + self._waiting_for() * 1000 / self._source.rows_per_s
        lag_ms = self._source.clock.wall_ms() - due_at_ms
        return lag_ms if lag_ms > 0 else None

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(_State(self._start_ms, self._next_value, self._step, self._backlog))

    def close(self) -> None:
        """Holds nothing."""

    def _take(self, max_rows: int, *, end: int) -> npt.NDArray[np.int64]:
        if self._backlog:
            values = lowest_values(self._backlog, end=end, max_count=max_rows)
            if len(values):
                self._backlog = tuple(after(self._backlog, int(values[-1])))
            return values
        count = min(max_rows, count_below(end, first=self._next_value, step=self._step))
        first, self._next_value = self._next_value, self._next_value + count * self._step
        return np.arange(first, self._next_value, self._step, dtype=np.int64)

    def _nothing(self, split: _Split) -> NothingNow | EndOfSource:
        waiting_for = self._waiting_for()
        if split.limit is not None and waiting_for >= split.limit:
            return EndOfSource() if self._is_told_all else NothingNow(retry_after_ms=1000.0)
        due_at_ms = split.start_ms + waiting_for * 1000 / self._source.rows_per_s
        return NothingNow(retry_after_ms=max(1.0, due_at_ms - self._source.clock.wall_ms()))

    def _waiting_for(self) -> int:
        return min([strand.first for strand in self._backlog], default=self._next_value)

    def _rows(self, start_ms: int, values: npt.NDArray[np.int64]) -> pa.RecordBatch:
        schema = self._source.schema
        arrays = [
            # Through buffers, because pa.array(numpy) would import pandas.
            pa.Array.from_buffers(
                field.type, len(values), [None, pa.py_buffer(self._column(field.name, start_ms, values).data)]
            )
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str, start_ms: int, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return values if name == "value" else start_ms * 1000 + values * 1_000_000 // self._source.rows_per_s


def _decode_state(state: bytes) -> _State:
    return from_msgpack(state, _State)


def _start_of(states: Sequence[_State]) -> int | None:
    return next((state.start_ms for state in states if state.start_ms is not None), None)


def _first_untouched(states: Sequence[_State]) -> int:
    """The lowest value that was not given and above which none was: one above the last that the foremost reader gave.

    Not the foremost reader's next value: then every change of parallelism without reading would add to the backlog.
    """
    return max((state.next_value - state.parallelism + 1 for state in states), default=0)
