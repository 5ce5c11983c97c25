"""A source and a sink for the simulation. Both keep the promises of their contracts and nothing more."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Assignment, EndOfSource, NothingNow, Polled, Prepared, Rows
from tidegate.model.errors import Damaged, DidNotHappen, ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.protocol.commit import CommitPermit
from tidegate.testing.simulation.world import World

ROWS_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@dataclass(frozen=True, slots=True)
class SimSource:
    """Split s belongs to reader s modulo parallelism; its keys follow from the seed."""

    seed: int
    splits: int
    rows_per_split: int
    keys: int
    skew: float
    most_rows_per_poll: int

    def enumerator(self, *, parallelism: int, available_now: bool) -> "SimEnumerator":
        return SimEnumerator(self, parallelism)

    def reader(self, *, subtask: int, parallelism: int) -> "SimReader":
        return SimReader(self)

    def keys_of(self, split: int) -> list[int]:
        return _keys(self, split)

    def all_keys(self) -> list[int]:
        return [key for split in range(self.splits) for key in self.keys_of(split)]


@lru_cache(maxsize=64)
def _keys(source: SimSource, split: int) -> list[int]:
    random = Random(f"{source.seed}:{split}")
    return [int(source.keys * random.random() ** source.skew) for _ in range(source.rows_per_split)]


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
        found = [split for split in range(self.source.splits) if split not in self._assigned][: self.parallelism]
        self._assigned.update(found)
        return [Assignment(split % self.parallelism, msgspec.msgpack.encode(split)) for split in found]

    def is_complete(self) -> bool:
        return len(self._assigned) == self.source.splits


@dataclass(slots=True)
class SimReader:
    source: SimSource
    _positions: dict[int, int] = field(default_factory=dict)
    _has_all: bool = False

    def restore(self, state: bytes) -> None:
        self._positions = msgspec.msgpack.decode(state, type=dict[int, int])

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self._positions.update({msgspec.msgpack.decode(split, type=int): 0 for split in splits})

    def no_more_splits(self) -> None:
        self._has_all = True

    def poll(self, max_rows: int) -> Polled:
        for split, position in self._positions.items():
            keys = self.source.keys_of(split)[position : position + min(max_rows, self.source.most_rows_per_poll)]
            if keys:
                self._positions[split] = position + len(keys)
                values = range(position, position + len(keys))
                return Rows(pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.int64())], ROWS_SCHEMA))
        return EndOfSource() if self._has_all else NothingNow(3.0)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self._positions)

    def close(self) -> None:
        return


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
        return SimWriter(self.world, f"g{generation}:{task}")

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
