"""How a plan is cut into vertices, and what of it must not change while state is stored."""

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Call, Column, Expression, Literal
from tidegate.plan.lower import describe, fingerprint, lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    EmptyCollections,
    EventTime,
    EventTimeKey,
    EventTimeWatermark,
    Expand,
    ExplodedAs,
    Filter,
    Generate,
    GroupRows,
    MapInArrow,
    Node,
    OutputMode,
    Project,
    Repartition,
    Scan,
    Sink,
    Spread,
    TransformWithState,
    Union,
)
from tidegate.plan.physical import (
    SECOND_INPUT,
    AggregateSpec,
    BroadcastPartitioning,
    Edge,
    ExpandSpec,
    FilterSpec,
    ForwardPartitioning,
    GenerateSpec,
    HashPartitioning,
    JobPlan,
    MapInArrowSpec,
    PartialAggregateSpec,
    Partitioning,
    PointwisePartitioning,
    ProjectSpec,
    RebalancePartitioning,
    TransformWithStateSpec,
    Vertex,
    WatermarkSpec,
)

INT64 = pa.int64()
SCHEMA = pa.schema([("k", INT64), ("v", INT64)])
SCAN = Scan("parquet", {"path": "/in"}, SCHEMA)
SINK = Sink("noop", {}, SCHEMA)
WIDE = pa.decimal128(38, 2)
K, V = Column(0, "k", INT64), Column(1, "v", INT64)


def lowered(root: Node) -> JobPlan:
    return lower(root, SINK, parallelism=3, max_parallelism=128)


def summed(child: Node, *, key: Expression = K, argument: Expression = V) -> Aggregate:
    call = AggregateCall(AggregateFunction.SUM, (argument,), INT64, ansi=True)
    results = (Column(0, "k", INT64), Column(1, "sum", INT64))
    return Aggregate(child, (key,), (call,), results, pa.schema([("k", INT64), ("total", INT64)]))


def test_forward_operators_are_one_vertex_from_source_to_sink() -> None:
    condition = Call("GreaterThan", (K, Literal(3, INT64)), pa.bool_(), ansi=False)
    plan = lowered(MapInArrow(Filter(Project(SCAN, (K, V), SCHEMA), condition, SCHEMA), b"f", "f", SCHEMA))
    (vertex,) = plan.vertices
    assert vertex.name == "Source[parquet] -> Project -> Filter -> MapInArrow(f) -> Sink[noop]"
    assert [type(operator) for operator in vertex.operators] == [ProjectSpec, FilterSpec, MapInArrowSpec]
    assert (vertex.source, vertex.sink) == (SCAN, SINK)
    assert plan.edges == ()
    assert (plan.parallelism, plan.max_parallelism) == (3, 128)


def ways(plan: JobPlan) -> list[tuple[int, int, Partitioning]]:
    return [(edge.sender, edge.receiver, edge.partitioning) for edge in plan.edges]


def test_a_union_ends_in_one_vertex_that_takes_the_rows_of_all() -> None:
    plan = lowered(Union((SCAN, Filter(SCAN, Literal(True, pa.bool_()), SCHEMA)), SCHEMA))
    names = [vertex.name for vertex in plan.vertices]
    assert names == ["Source[parquet]", "Source[parquet] -> Filter", "Sink[noop]"]
    assert ways(plan) == [(0, 2, ForwardPartitioning()), (1, 2, ForwardPartitioning())]


def test_what_follows_a_union_goes_into_each_of_its_parts() -> None:
    union = Union((SCAN, SCAN), SCHEMA)
    plan = lowered(summed(Filter(union, Literal(True, pa.bool_()), SCHEMA)))
    names = [vertex.name for vertex in plan.vertices]
    assert names == ["Source[parquet] -> Filter -> PartialAggregate(sum)"] * 2 + ["Aggregate(sum) -> Sink[noop]"]
    assert ways(plan) == [(0, 2, HashPartitioning(1)), (1, 2, HashPartitioning(1))]


def timed(child: Node) -> Node:
    return EventTimeWatermark(child, 1, 5000, SCHEMA)


def spread(child: Node) -> Node:
    return Repartition(child, Spread.EVENLY, (), None, SCHEMA)


@pytest.mark.parametrize(
    ("plan", "event_time_of"),
    [
        (timed(Union((SCAN, SCAN), SCHEMA)), [None, EdgeId(0)]),
        (Union((timed(SCAN), timed(SCAN)), SCHEMA), [None, None]),
        (timed(Union((timed(SCAN), timed(SCAN)), SCHEMA)), [None, EdgeId(0)]),
        (timed(Union((spread(SCAN), SCAN), SCHEMA)), [None, None, EdgeId(1)]),
    ],
    ids=["behind", "before", "before and behind", "behind edges of the parts"],
)
def test_a_watermark_behind_a_union_is_one_event_time_and_those_before_it_are_two(
    plan: Node, event_time_of: list[EdgeId | None]
) -> None:
    assert [edge.event_time_of for edge in lowered(summed(plan)).edges] == event_time_of


@pytest.mark.parametrize("mode", [OutputMode.COMPLETE, OutputMode.UPDATE])
def test_groups_that_must_come_whole_stay_in_the_task_of_their_aggregation(mode: OutputMode) -> None:
    sink = Sink("any", {}, SCHEMA, mode, GroupRows.ONCE_PER_EPOCH)
    with pytest.raises(UnsupportedPlan, match=f"behind an aggregation in {mode.value} mode"):
        lower(spread(summed(SCAN)), sink, parallelism=2, max_parallelism=128)
    lower(summed(spread(SCAN)), sink, parallelism=2, max_parallelism=128)


def test_groups_that_come_once_and_for_all_may_go_to_another_task() -> None:
    finished = dataclasses.replace(summed(SCAN), event_time=EventTime(0, EventTimeKey.TIMESTAMP))
    sink = Sink("any", {}, SCHEMA, OutputMode.APPEND, GroupRows.ONCE_PER_EPOCH)
    plan = lower(spread(finished), sink, parallelism=2, max_parallelism=128)
    assert [vertex.sink for vertex in plan.vertices] == [None, None, sink]


def test_the_parts_of_a_union_carry_the_names_of_the_first() -> None:
    other = Scan("parquet", {"path": "/other"}, pa.schema([("a", INT64), ("b", INT64)]))
    plan = lowered(Union((SCAN, other), SCHEMA))
    renaming = ProjectSpec((Column(0, "a", INT64), Column(1, "b", INT64)), SCHEMA)
    assert [vertex.operators for vertex in plan.vertices] == [(), (renaming,), ()]


def test_a_union_of_unlike_parts_meets_by_neighbours() -> None:
    few = Repartition(SCAN, Spread.TO_NEIGHBOURS, (), 1, SCHEMA)
    plan = lowered(Union((few, SCAN), SCHEMA))
    assert [plan.parallelism_of(vertex.id) for vertex in plan.vertices] == [3, 1, 3, 3]
    pointwise = PointwisePartitioning()
    assert ways(plan) == [(0, 1, pointwise), (1, 3, pointwise), (2, 3, pointwise)]


def test_a_watermark_is_chained() -> None:
    (vertex,) = lowered(EventTimeWatermark(SCAN, 1, 5000, SCHEMA)).vertices
    assert vertex.operators == (WatermarkSpec(1, 5000, SCHEMA),)


def test_what_makes_rows_is_chained_and_has_no_state() -> None:
    exploded = pa.schema([("v", INT64), ("e", INT64)])
    collection = Literal((1, 2), pa.list_(INT64))
    made = Generate(SCAN, collection, ExplodedAs.VALUE, EmptyCollections.ONE_ROW, (1,), exploded)
    plan = lowered(Expand(made, ((K, V), (V, K)), exploded))
    generate = GenerateSpec(collection, ExplodedAs.VALUE, EmptyCollections.ONE_ROW, (1,), exploded)
    assert plan.vertices[0].operators == (generate, ExpandSpec(((K, V), (V, K)), exploded))
    assert plan.vertices[0].name == "Source[parquet] -> Generate(explode) -> Expand -> Sink[noop]"
    assert fingerprint(plan)[1:3] == ["v0 op0 Generate kept=[1] out=[int64, int64]", "v0 op1 Expand"]
    assert "op0 Generate(explode) [v: int64, e: int64]" in describe(plan)


def test_a_map_is_refused_as_a_key_before_anything_starts() -> None:
    key = Literal(((1, 2),), pa.map_(INT64, INT64))
    with pytest.raises(UnsupportedPlan, match="Keys of type map"):
        lowered(Repartition(SCAN, Spread.BY_KEY, (key,), None, SCHEMA))
    with pytest.raises(UnsupportedPlan, match="Keys of type map"):
        lowered(summed(SCAN, key=Literal(((key.value,),), pa.list_(key.type))))


def test_a_repartitioning_starts_a_vertex_of_so_many_subtasks() -> None:
    plan = lowered(Repartition(SCAN, Spread.EVENLY, (), 2, SCHEMA))
    assert ways(plan) == [(0, 1, RebalancePartitioning())]
    assert [plan.parallelism_of(vertex.id) for vertex in plan.vertices] == [3, 2]


def test_a_repartitioning_by_key_sends_its_keys_ahead_and_drops_them() -> None:
    plan = lowered(Repartition(SCAN, Spread.BY_KEY, (V,), None, SCHEMA))
    keyed = pa.schema([("_key0", INT64), ("k", INT64), ("v", INT64)])
    assert plan.edges[0].schema == keyed
    assert plan.vertices[0].operators == (ProjectSpec((V, K, V), keyed),)
    assert plan.vertices[1].operators == (ProjectSpec((Column(1, "k", INT64), Column(2, "v", INT64)), SCHEMA),)


def test_an_aggregate_starts_a_vertex_behind_a_hash_edge() -> None:
    plan = lowered(summed(SCAN))
    sender, receiver = plan.vertices
    assert (sender.name, receiver.name) == (
        "Source[parquet] -> PartialAggregate(sum)",
        "Aggregate(sum) -> Sink[noop]",
    )
    assert (sender.sink, receiver.source) == (None, None)
    combined = pa.schema([("k", INT64), ("_part0", INT64)])
    assert plan.edges == (Edge(EdgeId(0), VertexId(0), VertexId(1), HashPartitioning(1), combined),)


def test_keys_and_arguments_are_computed_before_the_edge() -> None:
    bucket = Call("Remainder", (K, Literal(10, INT64)), INT64, ansi=True)
    plan = lowered(summed(SCAN, key=bucket, argument=V))
    projection, combining = plan.vertices[0].operators
    assert isinstance(projection, ProjectSpec) and isinstance(combining, PartialAggregateSpec)
    assert projection.columns == (bucket, V)
    assert combining.input_schema == projection.schema
    (aggregate,) = plan.vertices[1].operators
    assert isinstance(aggregate, AggregateSpec)
    assert aggregate.key_count == 1
    assert aggregate.calls[0].arguments == (Column(1, "v", INT64),)
    assert aggregate.input_schema == combining.schema == plan.edges[0].schema


def test_an_identical_projection_before_the_edge_is_left_out() -> None:
    (combining,) = lowered(summed(SCAN)).vertices[0].operators
    assert isinstance(combining, PartialAggregateSpec)
    swapped = lowered(summed(SCAN, key=V, argument=K)).vertices[0].operators
    assert [type(operator) for operator in swapped] == [ProjectSpec, PartialAggregateSpec]


def collected(function: AggregateFunction, **details: Any) -> AggregateCall:
    return AggregateCall(function, (V,), pa.list_(INT64), ansi=True, **details)


@pytest.mark.parametrize(
    "call",
    [
        collected(AggregateFunction.COLLECT_LIST),
        collected(AggregateFunction.COLLECT_SET),
        AggregateCall(AggregateFunction.SUM, (Column(0, "v", INT64),), INT64, ansi=True, distinct=(V,)),
        AggregateCall(AggregateFunction.FIRST, (V,), INT64, ansi=True, condition=Literal(True, pa.bool_())),
        AggregateCall(AggregateFunction.SUM, (Column(1, "v", WIDE),), WIDE, ansi=True),
    ],
)
def test_rows_travel_themselves_where_combining_them_would_not_give_the_same(call: AggregateCall) -> None:
    plan = lowered(dataclasses.replace(summed(SCAN), calls=(*summed(SCAN).calls, call)))
    assert not any(isinstance(operator, PartialAggregateSpec) for operator in plan.vertices[0].operators)
    assert plan.edges[0].schema.names[1] == "v"


def test_sessions_are_not_combined_before_their_windows_have_met() -> None:
    node = dataclasses.replace(summed(SCAN), keys=(K, V), event_time=EventTime(1, EventTimeKey.SESSION))
    operators = lowered(node).vertices[0].operators
    assert not any(isinstance(operator, PartialAggregateSpec) for operator in operators)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.APPEND, OutputMode.COMPLETE])
def test_combined_rows_say_how_many_they_are_where_they_may_be_late(mode: OutputMode) -> None:
    sink = dataclasses.replace(SINK, mode=mode)
    node = dataclasses.replace(summed(SCAN), event_time=EventTime(0, EventTimeKey.TIMESTAMP))
    plan = lower(node, sink, parallelism=2, max_parallelism=8)
    assert ("_rows" in plan.edges[0].schema.names) is (mode is not OutputMode.COMPLETE)


def test_a_column_that_several_calls_need_travels_once() -> None:
    count = AggregateCall(AggregateFunction.COUNT, (V,), INT64, ansi=False)
    rows = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, ansi=False)
    of_key = AggregateCall(AggregateFunction.SUM, (K,), INT64, ansi=True)
    aggregate = dataclasses.replace(summed(SCAN), calls=(*summed(SCAN).calls, count, rows, of_key))
    plan = lowered(aggregate)
    assert plan.edges[0].schema.types == [INT64, INT64, pa.int32(), pa.int32(), INT64]
    (spec,) = plan.vertices[1].operators
    assert isinstance(spec, AggregateSpec)
    assert [call.arguments for call in spec.calls] == [(V,), (V,), (), (K,)]


def test_what_several_calls_are_combined_into_travels_once() -> None:
    count = AggregateCall(AggregateFunction.COUNT, (V,), INT64, ansi=False)
    average = AggregateCall(AggregateFunction.AVG, (V,), pa.float64(), ansi=False)
    plan = lowered(dataclasses.replace(summed(SCAN), calls=(count, average)))
    assert plan.edges[0].schema.types == [INT64, pa.int32(), pa.float64()]
    (spec,) = plan.vertices[1].operators
    assert isinstance(spec, AggregateSpec) and spec.partials is not None
    assert spec.partials.columns == ((1,), (2, 1))


def test_a_global_aggregate_sends_all_rows_to_one_task() -> None:
    plan = lowered(dataclasses.replace(summed(SCAN), keys=(), results=(Column(0, "total", INT64),)))
    assert plan.edges[0].partitioning == HashPartitioning(0)


def test_rows_that_are_only_counted_travel_as_their_count() -> None:
    counted = AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, ansi=False)
    plan = lowered(dataclasses.replace(summed(SCAN), keys=(), calls=(counted,), results=(Column(0, "n", INT64),)))
    assert plan.edges[0].schema.types == [pa.int32()]


def test_sessions_of_a_key_meet_in_one_task_whatever_their_windows_are() -> None:
    node = dataclasses.replace(
        summed(SCAN), keys=(K, Column(1, "v", INT64)), event_time=EventTime(1, EventTimeKey.SESSION)
    )
    assert lowered(node).edges[0].partitioning == HashPartitioning(1)


def test_append_mode_without_event_time_is_refused() -> None:
    sink = Sink("noop", {}, SCHEMA, OutputMode.APPEND)
    with pytest.raises(UnsupportedPlan, match="append mode whose keys have no watermark"):
        lower(summed(SCAN), sink, parallelism=2, max_parallelism=8)


def test_keyed_operators_may_follow_one_another() -> None:
    totals = summed(SCAN)
    stateful = TransformWithState(totals, 1, b"p", SCHEMA)
    plan = lowered(Project(stateful, (K,), pa.schema([("k", INT64)])))
    assert [vertex.name for vertex in plan.vertices] == [
        "Source[parquet] -> PartialAggregate(sum)",
        "Aggregate(sum)",
        "TransformWithState -> Project -> Sink[noop]",
    ]
    assert [(edge.sender, edge.receiver) for edge in plan.edges] == [(0, 1), (1, 2)]
    spec = plan.vertices[2].operators[0]
    assert isinstance(spec, TransformWithStateSpec)
    assert spec.input_schema == totals.schema == plan.edges[1].schema


def test_a_description_shows_vertices_operators_and_edges() -> None:
    text = describe(lowered(summed(SCAN)))
    assert text.splitlines() == [
        "2 vertices x 3 slots, 128 key groups",
        "v0 Source[parquet] -> PartialAggregate(sum) (parallelism 3)",
        "    source parquet [k: int64, v: int64]",
        "    op0 PartialAggregate(sum) by [k], within a slice",
        "  e0: v0 -> v1, hash by [k]",
        "v1 Aggregate(sum) -> Sink[noop] (parallelism 3)",
        "    op0 Aggregate(sum) by [k], update mode [k: int64, total: int64]",
        "    sink noop [k: int64, v: int64]",
    ]


def test_a_fingerprint_names_kinds_keys_and_schemas() -> None:
    assert fingerprint(lowered(TransformWithState(SCAN, 1, b"p", SCHEMA))) == [
        "v0 source parquet",
        "e0 v0 -> v1 hash keys=[int64] rows=[int64, int64]",
        "v1 op0 TransformWithState keys=[int64] in=[k: int64, v: int64] out=[k: int64, v: int64]",
        "v1 sink noop",
    ]


def test_a_fingerprint_ignores_literals_and_function_bodies_but_not_types() -> None:
    def bucketed(modulus: int) -> list[str]:
        return fingerprint(lowered(summed(SCAN, key=Call("Remainder", (K, Literal(modulus, INT64)), INT64, ansi=True))))

    assert bucketed(10) == bucketed(20)
    processors = [lowered(TransformWithState(SCAN, 1, body, SCHEMA)) for body in (b"p", b"q")]
    assert fingerprint(processors[0]) == fingerprint(processors[1])
    names = Scan("parquet", {}, pa.schema([("k", pa.string()), ("v", INT64)]))
    by_name = lowered(summed(names, key=Column(0, "k", pa.string())))
    assert fingerprint(by_name) != fingerprint(lowered(summed(SCAN)))


def joined(*partitionings: Partitioning, names: tuple[str, str] = ("k", "v")) -> JobPlan:
    """Two sources, each with an edge to one sink; a third partitioning feeds the sink's second input."""
    schema = pa.schema([(name, INT64) for name in names])
    sources = [Vertex(VertexId(at), "Source[parquet]", SCAN, (), None) for at in range(len(partitionings))]
    sink = VertexId(len(sources))
    edges = [
        Edge(EdgeId(at), VertexId(at), sink, partitioning, schema, SECOND_INPUT if at == 2 else 0)
        for at, partitioning in enumerate(partitionings)
    ]
    vertices = (*sources, Vertex(sink, "Sink[noop]", None, (), SINK, parallelism=1))
    return JobPlan(vertices, tuple(edges), parallelism=3, max_parallelism=128)


EVERY_PARTITIONING: list[tuple[Partitioning, str, str]] = [
    (HashPartitioning(1), "hash by [k]", "hash keys=[int64]"),
    (HashPartitioning(2), "hash by [k, v]", "hash keys=[int64, int64]"),
    (RebalancePartitioning(), "rebalance", "rebalance"),
    (PointwisePartitioning(), "pointwise", "pointwise"),
    (BroadcastPartitioning(), "broadcast", "broadcast"),
    (ForwardPartitioning(), "forward", "forward"),
]


@pytest.mark.parametrize(("partitioning", "described", "shape"), EVERY_PARTITIONING)
def test_every_way_that_rows_can_go_is_described_and_part_of_the_fingerprint(
    partitioning: Partitioning, described: str, shape: str
) -> None:
    plan = joined(partitioning)
    assert f"  e0: v0 -> v1, {described}" in describe(plan).splitlines()
    assert f"e0 v0 -> v1 {shape} rows=[int64, int64]" in fingerprint(plan)


def test_all_edges_into_a_vertex_are_described_in_front_of_it_with_its_own_parallelism() -> None:
    text = describe(joined(HashPartitioning(1), RebalancePartitioning(), BroadcastPartitioning()))
    assert text.splitlines()[-5:] == [
        "  e0: v0 -> v3, hash by [k]",
        "  e1: v1 -> v3, rebalance",
        "  e2: v2 -> v3 (input 2), broadcast",
        "v3 Sink[noop] (parallelism 1)",
        "    sink noop [k: int64, v: int64]",
    ]


def test_a_changed_shuffle_changes_the_fingerprint_and_a_renamed_column_does_not() -> None:
    shapes = [tuple(fingerprint(joined(partitioning))) for partitioning, _, _ in EVERY_PARTITIONING]
    assert len(set(shapes)) == len(shapes)
    assert fingerprint(joined(HashPartitioning(1), names=("a", "b"))) == list(shapes[0])


def test_a_fingerprint_does_not_depend_on_the_parallelism() -> None:
    wider = lower(summed(SCAN), SINK, parallelism=7, max_parallelism=128)
    assert fingerprint(wider) == fingerprint(lowered(summed(SCAN)))
