"""Joins of two streams under a seeded scheduler: crashes, restores, other parallelism, unaligned cuts.

Each pair is committed once, whatever happens to the job, and wherever the rows are that it keeps.
"""

from collections import Counter
from functools import partial

import pyarrow as pa
import pytest

from tests.simulation.playing import play
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import JoinType, Scan, Sink
from tidegate.plan.physical import (
    FIRST_INPUT,
    SECOND_INPUT,
    Edge,
    HashPartitioning,
    JobPlan,
    JoinInputSpec,
    ProjectSpec,
    StreamJoinSpec,
    Vertex,
)
from tidegate.testing.simulation import cluster as cluster_module
from tidegate.testing.simulation.connectors import ROWS_SCHEMA
from tidegate.testing.simulation.states import StateDice
from tidegate.testing.simulation.topologies import FORMAT, MAX_PARALLELISM, SIDES, Rows, Shape, Topology
from tidegate.worker.settings import SlotSettings

SEEDS = [seed for seed in range(260) if seed % len(Topology) == list(Topology).index(Topology.CONNECTED)]
SIDE = JoinInputSpec(1, (0, 1, 2, 3), ROWS_SCHEMA, None, None, None)
PAIR = pa.schema([*ROWS_SCHEMA, *ROWS_SCHEMA])
BOTH = StreamJoinSpec(JoinType.INNER, SIDE, SIDE, None, PAIR)
NUMBERS = ProjectSpec(tuple(Column(at, PAIR[at].name, pa.int64()) for at in (0, 2, 6)), SIDES)


class Joined(Shape):
    def plan(self, parallelism: int) -> JobPlan:
        first, second = (Scan(FORMAT, {"name": source.name}, ROWS_SCHEMA) for source in (self.first, self.second))
        vertices = (
            Vertex(VertexId(0), "left", first, self.head(), None),
            Vertex(VertexId(1), "right", second, (), None),
            Vertex(VertexId(2), "both", None, (BOTH, NUMBERS), Sink(FORMAT, {}, SIDES)),
        )
        edges = tuple(
            Edge(EdgeId(at), VertexId(at), VertexId(2), HashPartitioning(1), ROWS_SCHEMA, input)
            for at, input in enumerate((FIRST_INPUT, SECOND_INPUT))
        )
        return JobPlan(vertices, edges, parallelism, MAX_PARALLELISM)

    def expected_rows(self) -> Rows:
        right: dict[int, list[int]] = {}
        for key, _, number, _ in self.second.all_rows():
            right.setdefault(key, []).append(number)
        left = self.first.all_rows()
        return Counter((key, number, other) for key, _, number, _ in left for other in right.get(key, []))


def test_every_pair_is_committed_once() -> None:
    play(Joined, SEEDS, StateDice.HEAP)


@pytest.mark.slow
@pytest.mark.parametrize("dice", [StateDice.MIXED, StateDice.ROCKSDB])
def test_every_pair_of_rows_in_files_is_committed_once(dice: StateDice, monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    small = partial(SlotSettings, heap_rows_whole_up_to_bytes=500, state_rows_memory_bytes=2_000)
    monkeypatch.setattr(cluster_module, "SlotSettings", small)
    play(Joined, SEEDS, dice)
