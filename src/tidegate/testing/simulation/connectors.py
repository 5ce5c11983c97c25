"""Sources and a sink for the simulation. They keep the promises of their contracts and nothing more."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import (
    Assignment,
    EndOfData,
    EndOfSource,
    NothingNow,
    Polled,
    Prepared,
    Rows,
    Withheld,
)
from tidegate.model.errors import Damaged, DidNotHappen, ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.protocol.commit import CommitPermit
from tidegate.testing.simulation.world import World

# Key, split, position in the split, event time: every row of a source is another one.
ROWS_SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])
Row = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class SimSource:
    """Its rows follow from the seed. `available` splits are there in this run; a later run may find more.

    Event time rises with the position, a little out of order. With `late_every`, each so-manieth row is older than
    the watermark in front of it: late by a fixed schedule if one split is all there is.
    """

    seed: int
    name: str
    splits: int
    rows_per_split: int
    keys: int
    skew: float
    most_rows_per_poll: int
    available: int
    splits_per_look: int = 100
    late_every: int | None = None

    def enumerator(self, *, parallelism: int, available_now: bool) -> "SimEnumerator":
        return SimEnumerator(self, parallelism)

    def reader(self, *, subtask: int, parallelism: int) -> "SimReader":
        return SimReader(self)

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        positions: dict[int, int] = {}
        for state in states:
            positions.update(msgspec.msgpack.decode(state, type=dict[int, int]))
        return [
            msgspec.msgpack.encode({split: at for split, at in positions.items() if split % parallelism == subtask})
            for subtask in range(parallelism)
        ]

    def rows_of(self, split: int) -> list[Row]:
        return _rows(self, split)

    def all_rows(self) -> list[Row]:
        return [row for split in range(self.splits) for row in self.rows_of(split)]

    def is_late(self, row: Row) -> bool:
        return self.late_every is not None and row[2] > 0 and row[2] % self.late_every == 0


@lru_cache(maxsize=256)
def _rows(source: SimSource, split: int) -> list[Row]:
    random = Random(f"{source.seed}:{source.name}:{split}")
    rows: list[Row] = []
    for position in range(source.rows_per_split):
        key = int(source.keys * random.random() ** source.skew)
        time_ms = event_time_ms(position) + random.randrange(STEP_MS)
        if source.late_every is not None and position > 0 and position % source.late_every == 0:
            time_ms = event_time_ms(position) - 6 * STEP_MS - random.randrange(STEP_MS)
        rows.append((key, split, position, max(0, time_ms)))
    return rows


STEP_MS = 10


def event_time_ms(position: int) -> int:
    """No row of that position or a later one is older, but for those that are meant to be late."""
    return position * STEP_MS


@dataclass(slots=True)
class SimEnumerator:
    """Finds a few splits at a time."""

    source: SimSource
    parallelism: int
    _assigned: set[int] = field(default_factory=set)

    def restore(self, reader_states: Sequence[bytes]) -> None:
        for state in reader_states:
            self._assigned.update(msgspec.msgpack.decode(state, type=dict[int, int]))

    def discover(self) -> list[Assignment]:
        found = [split for split in range(self.source.available) if split not in self._assigned]
        found = found[: self.source.splits_per_look]
        self._assigned.update(found)
        return [Assignment(split % self.parallelism, msgspec.msgpack.encode(split)) for split in found]

    def withheld(self) -> Withheld:
        return Withheld.NOTHING if self.is_complete() else Withheld.UNTIL_LATER

    def is_complete(self) -> bool:
        return len(self._assigned) >= self.source.available


@dataclass(slots=True)
class SimReader:
    """Event time: the oldest row that may still come, of the splits it has and of those it may be given."""

    source: SimSource
    _positions: dict[int, int] = field(default_factory=dict)
    _has_all: bool = False
    _turn: int = 0

    def restore(self, state: bytes) -> None:
        self._positions = msgspec.msgpack.decode(state, type=dict[int, int])

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self._positions.update({msgspec.msgpack.decode(split, type=int): 0 for split in splits})

    def no_more_splits(self) -> None:
        self._has_all = True

    def poll(self, max_rows: int) -> Polled:
        unread = [split for split, at in self._positions.items() if at < self.source.rows_per_split]
        if not unread:
            if not self._has_all:
                return NothingNow(3.0)
            return EndOfData() if self.source.available >= self.source.splits else EndOfSource()
        self._turn += 1
        split = unread[self._turn % len(unread)]
        at = self._positions[split]
        count = min(max_rows, self.source.most_rows_per_poll)
        if self.source.late_every is not None:
            # A late row comes first in its batch, so that the watermark in front of it is told before it.
            count = min(count, self.source.late_every - at % self.source.late_every)
        rows = self.source.rows_of(split)[at : at + count]
        self._positions[split] = at + len(rows)
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        return Rows(pa.record_batch(columns, ROWS_SCHEMA), self._watermark_ms())

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self._positions)

    def close(self) -> None:
        return

    def _watermark_ms(self) -> int | None:
        """Splits that come later, in this run or another one, begin at the beginning of event time."""
        # The one split of a fixed schedule is all there is, whether the reader has been told so or not.
        knows_all = self._has_all or self.source.late_every is not None
        if not knows_all or self.source.available < self.source.splits:
            return None
        positions = [at for at in self._positions.values() if at < self.source.rows_per_split]
        return event_time_ms(min(positions)) - 1 if positions else None


class _Committable(msgspec.Struct, frozen=True):
    id: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SimSink:
    """Rows lie hidden once they are durable and are published by the commit, one committable after another."""

    world: World

    def prepare_location(self) -> None:
        return

    def writer(self, *, task: TaskId, generation: Generation) -> "SimWriter":
        return SimWriter(self.world, f"g{generation}:{task}:{self.world.random.randrange(1 << 30)}")

    def committer(self) -> "SimCommitter":
        return SimCommitter(self.world)


@dataclass(slots=True)
class SimWriter:
    world: World
    name: str
    _rows: list[tuple[int, ...]] = field(default_factory=list)

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += zip(*(column.to_pylist() for column in rows.columns), strict=True)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        rows, self._rows = self._rows, []
        if not rows:
            return Prepared([], lambda: None)
        committable = _Committable(f"{self.name}:{checkpoint}", checkpoint)
        return Prepared([msgspec.msgpack.encode(committable)], partial(self._make_durable, committable.id, rows))

    def close(self) -> None:
        self._rows = []

    def _make_durable(self, id: str, rows: list[tuple[int, ...]]) -> None:
        self.world.crash_point()
        # May come again, and by then it may be published.
        if id not in self.world.published:
            self.world.hidden[id] = rows


@dataclass(slots=True)
class SimCommitter:
    world: World

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        for data in committables:
            committable = msgspec.msgpack.decode(data, type=_Committable)
            if committable.checkpoint > permit.checkpoint:
                raise ProtocolViolation(f"{committable.id} was to be committed with checkpoint {permit.checkpoint}.")
            self.world.crash_point()
            if self.world.happens(self.world.sink_flaky_rate):
                raise DidNotHappen(f"publishing {committable.id}")
            self._publish(committable.id)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        kept = {msgspec.msgpack.decode(data, type=_Committable).id for data in keep}
        for id in [id for id in self.world.hidden if _generation_of(id) < generation and id not in kept]:
            del self.world.hidden[id]

    def _publish(self, id: str) -> None:
        if id in self.world.hidden:
            self.world.published[id] = self.world.hidden.pop(id)
        elif id not in self.world.published:
            raise Damaged(f"{id} was to be committed and is not there.")


def _generation_of(id: str) -> int:
    return int(id.split(":")[0].removeprefix("g"))
