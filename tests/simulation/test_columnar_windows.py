"""Aggregations by windows and sessions under a seeded scheduler: crashes, restores, other parallelism, unaligned cuts.

Each group is committed once, with every one of its rows, whatever happens to the job.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from tests.simulation.playing import play
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.model.ids import EdgeId, VertexId
from tidegate.operators import partial_aggregate
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction, EventTime, EventTimeKey, OutputMode, Scan, Sink
from tidegate.plan.partials import combined
from tidegate.plan.physical import (
    AggregateSpec,
    Edge,
    HashPartitioning,
    JobPlan,
    MapInArrowSpec,
    ProjectSpec,
    Vertex,
)
from tidegate.testing.simulation import cluster as cluster_module
from tidegate.testing.simulation.connectors import ROWS_SCHEMA
from tidegate.testing.simulation.states import StateDice
from tidegate.testing.simulation.topologies import FORMAT, MAX_PARALLELISM, WINDOWS, Rows, Shape, Topology
from tidegate.testing.simulation.user_code import EVENT_TIMES, SESSION, SESSION_GAP_MS
from tidegate.worker.settings import SlotSettings

SEEDS = [seed for seed in range(220) if seed % len(Topology) == list(Topology).index(Topology.WINDOWS)]
INT = pa.int64()
COUNT = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT, ansi=True)
TIMES = MapInArrowSpec(b"event_times", "event_times", EVENT_TIMES)


class WindowsByColumns(Shape):
    def plan(self, parallelism: int) -> JobPlan:
        columns = (Column(0, "k", INT), Column(1, "end", INT), Column(2, "ends", EVENT_TIMES.field(2).type))
        keys = ProjectSpec(columns, pa.schema(list(EVENT_TIMES)[:3]))
        results = (Column(0, "k", INT), Column(1, "end", INT), Column(3, "n", INT))
        event_time = EventTime(2, EventTimeKey.TIMESTAMP)
        spec = AggregateSpec(3, (COUNT,), results, keys.schema, WINDOWS, OutputMode.APPEND, event_time)
        return _job(self, keys, spec, key_count=3, parallelism=parallelism)


class CombinedWindows(WindowsByColumns):
    """Rows of a window are combined before the shuffle, as far as they come in one slice."""

    def plan(self, parallelism: int) -> JobPlan:
        plain = super().plan(parallelism)
        source, groups = plain.vertices
        (spec,) = groups.operators
        assert isinstance(spec, AggregateSpec)
        before = combined(spec.calls, spec.input_schema, key_count=3, counts_rows=True)
        assert before is not None
        behind = replace(spec, input_schema=before.spec.schema, partials=before.layout)
        vertices = (
            replace(source, operators=(*source.operators, before.spec)),
            replace(groups, operators=(behind,)),
        )
        edges = tuple(replace(edge, schema=before.spec.schema) for edge in plain.edges)
        return replace(plain, vertices=vertices, edges=edges)


class SessionsByColumns(Shape):
    def plan(self, parallelism: int) -> JobPlan:
        keys = ProjectSpec((Column(0, "k", INT), Column(3, "session", SESSION)), _SESSION_ROWS)
        # Counted twice, because a row of the sink has three numbers.
        results = (Column(0, "k", INT), Column(2, "end", INT), Column(3, "n", INT))
        spec = AggregateSpec(
            2, (COUNT, COUNT), results, _SESSION_ROWS, WINDOWS, OutputMode.APPEND, EventTime(1, EventTimeKey.SESSION)
        )
        return _job(self, keys, spec, key_count=1, parallelism=parallelism)

    def expected_rows(self) -> Rows:
        times: dict[int, list[int]] = {}
        for key, _, _, time_ms in self.first.all_rows():
            times.setdefault(key, []).append(time_ms)
        sessions = [(key, len(part), len(part)) for key, found in times.items() for part in _sessions(sorted(found))]
        return Counter(sessions)


_SESSION_ROWS = pa.schema([EVENT_TIMES.field(0), EVENT_TIMES.field(3)])


def _sessions(times_ms: list[int]) -> list[list[int]]:
    parts = [[times_ms[0]]]
    for time_ms in times_ms[1:]:
        if time_ms <= parts[-1][-1] + SESSION_GAP_MS:
            parts[-1].append(time_ms)
        else:
            parts.append([time_ms])
    return parts


def _job(shape: Shape, keys: ProjectSpec, spec: AggregateSpec, *, key_count: int, parallelism: int) -> JobPlan:
    scan = Scan(FORMAT, {"name": shape.first.name}, ROWS_SCHEMA)
    source = Vertex(VertexId(0), "source", scan, (*shape.head(), TIMES, keys), None)
    groups = Vertex(VertexId(1), "groups", None, (spec,), Sink(FORMAT, {}, WINDOWS))
    edge = Edge(EdgeId(0), source.id, groups.id, HashPartitioning(key_count), keys.schema)
    return JobPlan((source, groups), (edge,), parallelism, MAX_PARALLELISM)


@pytest.fixture(autouse=True)
def _combines_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregate, "_FEW_ROWS", 2)
    monkeypatch.setattr(partial_aggregate, "_ROWS_PER_GROUP", 1)


@pytest.mark.parametrize("kind", [WindowsByColumns, CombinedWindows, SessionsByColumns])
def test_every_group_is_committed_once_and_whole(kind: type[Shape]) -> None:
    play(kind, SEEDS, StateDice.HEAP)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WindowsByColumns, SessionsByColumns])
def test_every_group_on_disk_is_committed_once_and_whole(kind: type[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    play(kind, SEEDS, StateDice.ROCKSDB)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WindowsByColumns, SessionsByColumns])
def test_every_group_is_committed_once_wherever_it_is_kept(kind: type[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    small = partial(SlotSettings, heap_rows_whole_up_to_bytes=100, state_rows_memory_bytes=200)
    monkeypatch.setattr(cluster_module, "SlotSettings", small)
    play(kind, SEEDS, StateDice.MIXED)
