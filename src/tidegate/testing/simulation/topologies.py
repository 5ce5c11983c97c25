"""The jobs that are simulated: for each its plan, the rows it must publish and the state it must end with."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa

from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AnswerOrder, RightSide, Scan, Sink, TimeMode
from tidegate.plan.physical import (
    FIRST_INPUT,
    SECOND_INPUT,
    AsyncMapSpec,
    BroadcastPartitioning,
    ConnectSpec,
    Edge,
    ForwardPartitioning,
    HashPartitioning,
    JobPlan,
    MapInArrowSpec,
    OperatorSpec,
    Partitioning,
    PointwisePartitioning,
    ProjectSpec,
    RebalancePartitioning,
    TransformWithStateSpec,
    Vertex,
)
from tidegate.testing.simulation.connectors import ROWS_SCHEMA, SimSource
from tidegate.testing.simulation.user_code import WINDOW_MS

FORMAT = "simulated"
MAX_PARALLELISM = 8
COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
PAIRS = pa.schema([("n", pa.int64()), ("k", pa.int64())])
WINDOWS = pa.schema([("k", pa.int64()), ("end", pa.int64()), ("n", pa.int64())])
SIDES = pa.schema([("k", pa.int64()), ("side", pa.int64()), ("n", pa.int64())])

Rows = Counter[tuple[int, ...]]
_HASH, _REBALANCE, _POINTWISE = HashPartitioning(1), RebalancePartitioning(), PointwisePartitioning()
_BROADCAST, _FORWARD = BroadcastPartitioning(), ForwardPartitioning()
_IN_ORDER = TransformWithStateSpec(1, b"in_order", ROWS_SCHEMA, COUNTS)
_ANY_ORDER = TransformWithStateSpec(1, b"any_order", ROWS_SCHEMA, COUNTS)
_WINDOWS = TransformWithStateSpec(1, b"windows", ROWS_SCHEMA, WINDOWS, TimeMode.EVENT_TIME)
_HOLD_BACK = MapInArrowSpec(b"hold_back", "hold_back", ROWS_SCHEMA)


class Topology(Enum):
    ONE_SHUFFLE = "one shuffle"
    TWO_SHUFFLES = "two shuffles in a row"
    UNION = "union of two sources"
    CONNECTED = "two keyed inputs"
    DIAMOND = "diamond"
    TWIN_EDGES = "two edges between the same tasks"
    BROADCAST = "broadcast beside a keyed stream"
    POINTWISE = "pointwise chain"
    FORWARD = "forward edge, then a shuffle"
    WINDOWS = "windows by event time"
    LATE = "windows with rows that are late by a fixed schedule"
    WAITING = "calls that wait, then a shuffle"
    WAITING_WINDOWS = "windows behind calls that are answered in any order"


@dataclass(frozen=True, slots=True)
class Shape:
    """`narrow` is the parallelism of vertices that have one of their own; `capacity` is that of calls that wait."""

    topology: Topology
    first: SimSource
    second: SimSource
    narrow: int
    holds_rows_back: bool
    capacity: int = 3

    def sources(self) -> dict[str, SimSource]:
        return {self.first.name: self.first, self.second.name: self.second}

    def with_available(self, *, is_last_run: bool) -> "Shape":
        """A run that is not the last one finds half of the splits."""

        def part(source: SimSource) -> SimSource:
            return replace(source, available=source.splits if is_last_run else (source.splits + 1) // 2)

        return replace(self, first=part(self.first), second=part(self.second))

    # -- the plan

    def plan(self, parallelism: int) -> JobPlan:
        builder = _Builder()
        _PLANS[self.topology](self, builder)
        return JobPlan(tuple(builder.vertices), tuple(builder.edges), parallelism, MAX_PARALLELISM)

    def head(self) -> tuple[OperatorSpec, ...]:
        return (_HOLD_BACK,) if self.holds_rows_back else ()

    # -- what must come of it

    def expected_rows(self) -> Rows:
        """Each key with 1, 2, ... up to its count: a lost row shows as a gap at the end, a doubled one as a surplus."""
        first, second = self.first.all_rows(), self.second.all_rows()
        match self.topology:
            case Topology.UNION:
                return _numbered(Counter(row[0] for row in first + second))
            case Topology.TWO_SHUFFLES:
                return _numbered(Counter(n for _, n in _numbered(Counter(row[0] for row in first)).elements()))
            case Topology.DIAMOND | Topology.TWIN_EDGES:
                return _numbered(Counter(row[0] for row in first + first))
            case Topology.CONNECTED:
                left, right = Counter(row[0] for row in first), Counter(row[0] for row in second)
                sides = [(key, side, n) for side, counts in enumerate((left, right)) for key, n in _numbered(counts)]
                return Counter(sides)
            case Topology.WINDOWS | Topology.LATE | Topology.WAITING_WINDOWS:
                return Counter((k, end, n) for (k, end), n in self.windows(with_late=False).items())
            case _:
                return _numbered(Counter(row[0] for row in first))

    def windows(self, *, with_late: bool) -> "Counter[tuple[int, int]]":
        rows = [row for row in self.first.all_rows() if with_late or not self.first.is_late(row)]
        return Counter((k, t - t % WINDOW_MS + WINDOW_MS) for k, _, _, t in rows)

    def rule_count(self) -> int:
        return len(self.second.all_rows())


def _numbered(counts: "Counter[int]") -> Rows:
    return Counter((key, n) for key, count in counts.items() for n in range(1, count + 1))


class _Builder:
    def __init__(self) -> None:
        self.vertices: list[Vertex] = []
        self.edges: list[Edge] = []

    def source(self, source: SimSource, *operators: OperatorSpec, parallelism: int | None = None) -> VertexId:
        return self._add(Scan(FORMAT, {"name": source.name}, ROWS_SCHEMA), operators, None, parallelism)

    def vertex(self, *operators: OperatorSpec, parallelism: int | None = None) -> VertexId:
        return self._add(None, operators, None, parallelism)

    def sink(self, *operators: OperatorSpec, schema: pa.Schema, parallelism: int | None = None) -> VertexId:
        return self._add(None, operators, Sink(FORMAT, {}, schema), parallelism)

    def edge(
        self,
        sender: VertexId,
        receiver: VertexId,
        partitioning: Partitioning,
        *,
        schema: pa.Schema = ROWS_SCHEMA,
        input: int = FIRST_INPUT,
    ) -> None:
        self.edges.append(Edge(EdgeId(len(self.edges)), sender, receiver, partitioning, schema, input))

    def _add(
        self, scan: Scan | None, operators: tuple[OperatorSpec, ...], sink: Sink | None, parallelism: int | None
    ) -> VertexId:
        id = VertexId(len(self.vertices))
        self.vertices.append(Vertex(id, f"v{id}", scan, operators, sink, parallelism))
        return id


def _one_shuffle(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first, *shape.head())
    b.edge(source, b.sink(_IN_ORDER, schema=COUNTS), _HASH)


def _two_shuffles(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first, *shape.head())
    swap = ProjectSpec((Column(1, "n", pa.int64()), Column(0, "k", pa.int64())), PAIRS)
    counts = b.vertex(_IN_ORDER, swap)
    b.edge(source, counts, _HASH)
    pairs = TransformWithStateSpec(1, b"pairs", PAIRS, COUNTS)
    b.edge(counts, b.sink(pairs, schema=COUNTS), _HASH, schema=PAIRS)


def _union(shape: Shape, b: _Builder) -> None:
    first, second = b.source(shape.first, *shape.head()), b.source(shape.second, parallelism=shape.narrow)
    # Splits of both sources have the same numbers: order is not told apart here.
    counts = b.sink(_ANY_ORDER, schema=COUNTS)
    b.edge(first, counts, _HASH)
    b.edge(second, counts, _HASH)


def _connected(shape: Shape, b: _Builder) -> None:
    left, right = b.source(shape.first, *shape.head()), b.source(shape.second)
    spec = ConnectSpec(b"sides", RightSide.KEYED, 1, 1, ROWS_SCHEMA, ROWS_SCHEMA, SIDES)
    both = b.sink(spec, schema=SIDES)
    b.edge(left, both, _HASH, input=FIRST_INPUT)
    b.edge(right, both, _HASH, input=SECOND_INPUT)


def _diamond(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first)
    upper, lower = b.vertex(*shape.head()), b.vertex(parallelism=shape.narrow)
    b.edge(source, upper, _HASH)
    b.edge(source, lower, _REBALANCE)
    counts = b.sink(_ANY_ORDER, schema=COUNTS)
    b.edge(upper, counts, _HASH)
    b.edge(lower, counts, _HASH)


def _twin_edges(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first, *shape.head())
    counts = b.sink(_ANY_ORDER, schema=COUNTS)
    b.edge(source, counts, _HASH)
    b.edge(source, counts, _HASH)


def _broadcast(shape: Shape, b: _Builder) -> None:
    stream, rules = b.source(shape.first, *shape.head()), b.source(shape.second, parallelism=shape.narrow)
    spec = ConnectSpec(b"rules", RightSide.BROADCAST, 1, 0, ROWS_SCHEMA, ROWS_SCHEMA, COUNTS)
    both = b.sink(spec, schema=COUNTS)
    b.edge(stream, both, _HASH, input=FIRST_INPUT)
    b.edge(rules, both, _BROADCAST, input=SECOND_INPUT)


def _pointwise(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first)
    narrow, wide = b.vertex(*shape.head(), parallelism=shape.narrow), b.vertex()
    b.edge(source, narrow, _POINTWISE)
    b.edge(narrow, wide, _POINTWISE)
    spread = b.vertex(parallelism=shape.narrow)
    b.edge(wide, spread, _REBALANCE)
    b.edge(spread, b.sink(_ANY_ORDER, schema=COUNTS), _HASH)


def _forward(shape: Shape, b: _Builder) -> None:
    source, same = b.source(shape.first, *shape.head()), b.vertex(_HOLD_BACK)
    b.edge(source, same, _FORWARD)
    b.edge(same, b.sink(_ANY_ORDER, schema=COUNTS), _HASH)


def _windows(shape: Shape, b: _Builder) -> None:
    source, passed = b.source(shape.first, *shape.head()), b.vertex()
    b.edge(source, passed, _REBALANCE)
    b.edge(passed, b.sink(_WINDOWS, schema=WINDOWS), _HASH)


def _late(shape: Shape, b: _Builder) -> None:
    # One reader, one split: what is late is late by the order on its channels alone.
    source = b.source(shape.first, parallelism=1)
    b.edge(source, b.sink(_WINDOWS, schema=WINDOWS), _HASH)


def _waiting(shape: Shape, b: _Builder) -> None:
    source = b.source(shape.first, *shape.head(), _look_up(shape, AnswerOrder.AS_TAKEN))
    b.edge(source, b.sink(_IN_ORDER, schema=COUNTS), _HASH)


def _waiting_windows(shape: Shape, b: _Builder) -> None:
    source, waiting = b.source(shape.first), b.vertex(_look_up(shape, AnswerOrder.AS_ANSWERED), *shape.head())
    b.edge(source, waiting, _REBALANCE)
    b.edge(waiting, b.sink(_WINDOWS, schema=WINDOWS), _HASH)


def _look_up(shape: Shape, order: AnswerOrder) -> AsyncMapSpec:
    return AsyncMapSpec(b"look_up", "look_up", ROWS_SCHEMA, ROWS_SCHEMA, shape.capacity, order)


_PLANS: dict[Topology, Callable[[Shape, _Builder], None]] = {
    Topology.ONE_SHUFFLE: _one_shuffle,
    Topology.TWO_SHUFFLES: _two_shuffles,
    Topology.UNION: _union,
    Topology.CONNECTED: _connected,
    Topology.DIAMOND: _diamond,
    Topology.TWIN_EDGES: _twin_edges,
    Topology.BROADCAST: _broadcast,
    Topology.POINTWISE: _pointwise,
    Topology.FORWARD: _forward,
    Topology.WINDOWS: _windows,
    Topology.LATE: _late,
    Topology.WAITING: _waiting,
    Topology.WAITING_WINDOWS: _waiting_windows,
}
