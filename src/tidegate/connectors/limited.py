"""A source that may give so many rows a second, over all its readers. Works around any source; adds no state."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.connectors.contract import NothingNow, Polled, Rows, Source, SourceReader, SplitEnumerator, TellsLag
from tidegate.model.clock import Clock, SystemClock

# What was not used may be made up for, but not more than this: the limit holds over every short while.
_SAVED_S = 0.1


@dataclass(frozen=True, slots=True)
class LimitedSource:
    source: Source
    rows_per_s: int
    clock: Clock = field(default_factory=SystemClock, compare=False)

    def enumerator(self, *, parallelism: int, available_now: bool) -> SplitEnumerator:
        return self.source.enumerator(parallelism=parallelism, available_now=available_now)

    def reader(self, *, subtask: int, parallelism: int) -> "LimitedReader":
        reader = self.source.reader(subtask=subtask, parallelism=parallelism)
        return LimitedReader(reader, rows_per_s=self.rows_per_s / parallelism, clock=self.clock)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        return self.source.redistribute(states, parallelism=parallelism)


class LimitedReader:
    """Each reader has an equal share, used or not."""

    def __init__(self, reader: SourceReader, *, rows_per_s: float, clock: Clock) -> None:
        self._reader = reader
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._allowed = 0.0
        self._counted_at_ms = clock.monotonic_ms()
        self._has_more = True

    @property
    def wrapped(self) -> SourceReader:
        return self._reader

    def restore(self, state: bytes) -> None:
        self._reader.restore(state)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self._reader.add_splits(splits)

    def no_more_splits(self) -> None:
        self._reader.no_more_splits()

    def poll(self, max_rows: int) -> Polled:
        now_ms = self._clock.monotonic_ms()
        earned = (now_ms - self._counted_at_ms) / 1000.0 * self._rows_per_s
        self._allowed = min(self._allowed + earned, max(1.0, self._rows_per_s * _SAVED_S))
        self._counted_at_ms = now_ms
        if self._allowed < 1.0:
            return NothingNow((1.0 - self._allowed) / self._rows_per_s * 1000.0, is_behind=self._has_more)
        polled = self._reader.poll(min(max_rows, int(self._allowed)))
        if isinstance(polled, Rows):
            self._allowed -= polled.rows.num_rows
        # If so, it then waits for its turn and not for rows: event time must not pass it meanwhile.
        self._has_more = isinstance(polled, Rows) or (isinstance(polled, NothingNow) and polled.is_behind)
        return polled

    def lag_ms(self) -> float | None:
        return self._reader.lag_ms() if isinstance(self._reader, TellsLag) else None

    def snapshot(self) -> bytes:
        return self._reader.snapshot()

    def close(self) -> None:
        self._reader.close()
