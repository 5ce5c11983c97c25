"""What a seed stands for: a job, its settings, its pace and its faults; and the result every run of it must have."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import MapInArrow, Node, Project, Scan, Sink, TransformWithState
from tidegate.plan.physical import JobPlan
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.testing.simulation.connectors import ROWS_SCHEMA, SimSource
from tidegate.testing.threads import CountingProcessor, NamedUserCode

FORMAT = "simulated"
_KEY_GROUPS = 8
_COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
_BY_COUNT = pa.schema([("n", pa.int64()), ("k", pa.int64())])
_RANKS = pa.schema([("n", pa.int64()), ("m", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`switch_after_ms` as in `SlotSettings`. Rates are per turn of the scheduler, or per write for the store's.

    `strikes` is how often the job is made to start again, by a crash of everything or in place.
    """

    seed: int
    source: SimSource
    slots: int
    shuffles: int
    holds_rows_back: bool
    switch_after_ms: float | None
    checkpoints: CheckpointSettings
    retained: int
    window_bytes: int
    link_capacity: int
    has_plain_local_link: bool
    most_rows_per_slice: int
    tick_ms: float
    strikes: int
    abort_rate: float
    stall_rate: float
    store_flaky_rate: float
    sink_flaky_rate: float
    leaves_zombies: bool

    def plan(self) -> JobPlan:
        root: Node = Scan(FORMAT, {}, ROWS_SCHEMA)
        if self.holds_rows_back:
            root = MapInArrow(root, b"hold_back", "hold_back", ROWS_SCHEMA)
        root = TransformWithState(root, 1, b"count", _COUNTS)
        schema = _COUNTS
        if self.shuffles == 2:
            if self.holds_rows_back:
                root = MapInArrow(root, b"hold_back", "hold_back", _COUNTS)
            columns = (Column(1, "n", pa.int64()), Column(0, "k", pa.int64()))
            root = TransformWithState(Project(root, columns, _BY_COUNT), 1, b"count", _RANKS)
            schema = _RANKS
        sink = Sink(FORMAT, {}, schema)
        return lower(root, sink, parallelism=self.slots, max_parallelism=_KEY_GROUPS)

    def user_code(self) -> NamedUserCode:
        return NamedUserCode(functions={"hold_back": _hold_back}, processors={"count": CountingProcessor})

    def expected_states(self) -> list[dict[int, int]]:
        """The counts of each stage when everything is processed."""
        by_key = Counter(self.source.all_keys())
        if self.shuffles == 1:
            return [dict(by_key)]
        by_count = Counter(n for count in by_key.values() for n in range(1, count + 1))
        return [dict(by_key), dict(by_count)]

    def expected_rows(self) -> "Counter[tuple[int, ...]]":
        """Each key with 1, 2, ... up to its count: a lost row shows as a gap at the end, a doubled one as a surplus."""
        return Counter((key, n) for key, count in self.expected_states()[-1].items() for n in range(1, count + 1))


def scenario_of(seed: int) -> Scenario:
    random = Random(f"scenario:{seed}")
    return Scenario(
        seed=seed,
        source=SimSource(
            seed=seed,
            splits=random.randint(3, 8),
            # With few rows the sources end while most of them are still in flight, end marks among them.
            rows_per_split=random.choice([random.randint(1, 5), random.randint(8, 30), random.randint(8, 30)]),
            keys=random.choice([1, 3, 8, 20]),
            skew=random.choice([1.0, 1.0, 3.0]),
            most_rows_per_poll=random.randint(1, 4),
        ),
        slots=random.choice([2, 2, 3]),
        shuffles=random.choice([1, 2]),
        holds_rows_back=random.random() < 0.4,
        switch_after_ms=random.choice([None, 0.0, 0.0, random.uniform(1, 25)]),
        checkpoints=CheckpointSettings(
            interval_ms=random.choice([5.0, 20.0, 60.0]),
            timeout_ms=500.0,
            min_pause_ms=random.choice([0.0, 0.0, 10.0]),
            max_concurrent=random.randint(1, 3),
            tolerable_failures=1_000_000,
        ),
        retained=random.randint(1, 3),
        window_bytes=random.choice([1, 100, 400, 1500, 1 << 20]),
        link_capacity=random.choice([1, 1, 2, 5]),
        has_plain_local_link=random.random() < 0.3,
        most_rows_per_slice=random.choice([1, 2, 5, 12]),
        tick_ms=random.choice([2.0, 6.0, 15.0]),
        strikes=random.choice([0, 2, 4, 6]),
        abort_rate=random.choice([0.0, 0.0, 0.0003, 0.001]),
        stall_rate=random.choice([0.0, 0.0, 0.0003]),
        store_flaky_rate=random.choice([0.0, 0.0, 0.02, 0.08]),
        sink_flaky_rate=random.choice([0.0, 0.0, 0.1]),
        leaves_zombies=random.random() < 0.5,
    )


def _hold_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives rows in threes of batches, the rest when the epoch ends."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 3:
            yield from held
            held.clear()
    yield from held
