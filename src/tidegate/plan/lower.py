"""Cuts a plan into vertices: forward operators are chained, keyed ones start a new vertex behind a hash edge."""

from typing import assert_never

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Column, Expression
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    Filter,
    MapInArrow,
    Node,
    Project,
    Scan,
    Sink,
    TransformWithState,
)
from tidegate.plan.physical import (
    FIRST_INPUT,
    AggregateSpec,
    ConnectSpec,
    Edge,
    FilterSpec,
    HashPartitioning,
    JobPlan,
    MapInArrowSpec,
    OperatorSpec,
    Partitioning,
    ProjectSpec,
    RebalancePartitioning,
    TransformWithStateSpec,
    Vertex,
    WatermarkSpec,
    kind_of,
)


def lower(
    root: Node, sink: Sink, *, parallelism: int, max_parallelism: int, source_parallelism: int | None = None
) -> JobPlan:
    """`source_parallelism`: at most so many subtasks read; what they read goes to all slots in turn."""
    builder = _Builder(source_parallelism)
    builder.add(root)
    return JobPlan(
        vertices=builder.finish(sink),
        edges=tuple(builder.edges),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )


def describe(plan: JobPlan) -> str:
    """The plan for people: vertices from source to sink, each with its operators, and the edges between them."""
    lines = [f"{len(plan.vertices)} vertices x {plan.parallelism} slots, {plan.max_parallelism} key groups"]
    for vertex in plan.vertices:
        lines += [f"  {_described(edge)}" for edge in plan.edges if edge.receiver == vertex.id]
        lines.append(f"v{vertex.id} {vertex.name} (parallelism {plan.parallelism_of(vertex.id)})")
        if vertex.source is not None:
            lines.append(f"    source {vertex.source.format} {_fields(vertex.source.schema)}")
        lines += [f"    op{index} {operator_name(op)} {_details(op)}" for index, op in enumerate(vertex.operators)]
        if vertex.sink is not None:
            lines.append(f"    sink {vertex.sink.format} {_fields(vertex.sink.schema)}")
    return "\n".join(lines)


def fingerprint(plan: JobPlan) -> list[str]:
    """What must be the same for stored state and rows in flight to fit: kinds, keys, schemas, and which way rows go.

    Not literals, not function bodies, not how many subtasks there are.
    """
    lines = []
    for vertex in plan.vertices:
        lines += [_edge_shape(edge) for edge in plan.edges if edge.receiver == vertex.id]
        if vertex.source is not None:
            lines.append(f"v{vertex.id} source {vertex.source.format}")
        lines += [f"v{vertex.id} op{index} {_state_shape(op)}" for index, op in enumerate(vertex.operators)]
        if vertex.sink is not None:
            lines.append(f"v{vertex.id} sink {vertex.sink.format}")
    return lines


def operator_name(operator: OperatorSpec) -> str:
    match operator:
        case ProjectSpec():
            return "Project"
        case FilterSpec():
            return "Filter"
        case MapInArrowSpec(function_name=name):
            return f"MapInArrow({name})"
        case AggregateSpec(calls=calls):
            return f"Aggregate({', '.join(call.function.value for call in calls)})"
        case TransformWithStateSpec():
            return "TransformWithState"
        case WatermarkSpec():
            return "Watermark"
        case ConnectSpec():
            return "Connect"
        case _:
            assert_never(operator)


class _Builder:
    """Vertices so far, and the chain that is still open at its end."""

    def __init__(self, source_parallelism: int | None) -> None:
        self._source_parallelism = source_parallelism
        self.edges: list[Edge] = []
        self._vertices: list[Vertex] = []
        self._source: Scan | None = None
        self._operators: list[OperatorSpec] = []

    def add(self, node: Node) -> None:
        """Appends `node` behind its child."""
        match node:
            case Scan():
                self._source = node
                if self._source_parallelism is not None:
                    self._join(RebalancePartitioning(), node.schema)
            case Project(child=child, columns=columns, schema=schema):
                self.add(child)
                self._operators.append(ProjectSpec(columns, schema))
            case Filter(child=child, condition=condition, schema=schema):
                self.add(child)
                self._operators.append(FilterSpec(condition, schema))
            case MapInArrow(child=child, function=function, function_name=name, schema=schema):
                self.add(child)
                self._operators.append(MapInArrowSpec(function, name, schema))
            case Aggregate():
                self._add_aggregate(node)
            case TransformWithState(child=child, key_count=key_count, processor=processor, schema=schema):
                self.add(child)
                self._cut(key_count, child.schema)
                self._operators.append(TransformWithStateSpec(key_count, processor, child.schema, schema))
            case _:
                assert_never(node)

    def finish(self, sink: Sink) -> tuple[Vertex, ...]:
        self._close_vertex(sink)
        return tuple(self._vertices)

    def _add_aggregate(self, node: Aggregate) -> None:
        if not node.keys:
            raise UnsupportedPlan("Tidegate does not run Spark's Aggregate without keys: add a groupBy column.")
        self.add(node.child)
        columns, calls = _aggregate_input(node)
        schema = pa.schema([pa.field(_column_name(column, at), column.type) for at, column in enumerate(columns)])
        if _is_identity(columns, node.child.schema):
            schema = node.child.schema
        else:
            self._operators.append(ProjectSpec(columns, schema))
        self._cut(len(node.keys), schema)
        self._operators.append(AggregateSpec(len(node.keys), calls, node.results, schema, node.schema))

    def _cut(self, key_count: int, schema: pa.Schema) -> None:
        """Ends the open vertex with a hash edge to the next one."""
        self._join(HashPartitioning(key_count), schema)

    def _join(self, partitioning: Partitioning, schema: pa.Schema) -> None:
        sender = self._close_vertex(None)
        receiver = VertexId(len(self._vertices))
        self.edges.append(Edge(EdgeId(len(self.edges)), sender, receiver, partitioning, schema))

    def _close_vertex(self, sink: Sink | None) -> VertexId:
        vertex = VertexId(len(self._vertices))
        names = [f"Source[{self._source.format}]"] if self._source is not None else []
        names += [operator_name(operator) for operator in self._operators]
        names += [f"Sink[{sink.format}]"] if sink is not None else []
        most = None if self._source is None else self._source_parallelism
        self._vertices.append(Vertex(vertex, " -> ".join(names), self._source, tuple(self._operators), sink, most))
        self._source, self._operators = None, []
        return vertex


def _aggregate_input(node: Aggregate) -> tuple[tuple[Expression, ...], tuple[AggregateCall, ...]]:
    """[keys..., arguments...], each argument once, and the calls over these columns."""
    columns = list(node.keys)
    calls = []
    for call in node.calls:
        arguments = []
        for argument in call.arguments:
            if argument not in columns:
                columns.append(argument)
            position = columns.index(argument)
            arguments.append(Column(position, _column_name(argument, position), argument.type))
        calls.append(AggregateCall(call.function, tuple(arguments), call.type, call.ansi))
    return tuple(columns), tuple(calls)


def _is_identity(columns: tuple[Expression, ...], schema: pa.Schema) -> bool:
    positions = [column.index if isinstance(column, Column) else None for column in columns]
    return positions == list(range(len(schema)))


def _column_name(expression: Expression, position: int) -> str:
    return expression.name if isinstance(expression, Column) else f"_{position}"


def _details(operator: OperatorSpec) -> str:
    match operator:
        case AggregateSpec() | TransformWithStateSpec():
            keys = ", ".join(field.name for field in list(operator.input_schema)[: operator.key_count])
            return f"by [{keys}] {_fields(operator.schema)}"
        case ProjectSpec() | FilterSpec() | MapInArrowSpec():
            return _fields(operator.schema)
        case WatermarkSpec():
            column = operator.schema.field(operator.column).name
            return f"on {column}, {operator.delay_ms} ms behind {_fields(operator.schema)}"
        case ConnectSpec():
            keys = ", ".join(field.name for field in list(operator.left_schema)[: operator.left_key_count])
            return f"by [{keys}], right side {operator.right_side.value} {_fields(operator.schema)}"
        case _:
            assert_never(operator)


def _state_shape(operator: OperatorSpec) -> str:
    match operator:
        case AggregateSpec(calls=calls):
            held = ", ".join(f"{call.function.value}:{call.type}" for call in calls)
            return f"Aggregate keys={_key_types(operator)} in={_types(operator.input_schema)} calls=[{held}]"
        case TransformWithStateSpec():
            shapes = f"in={_fields(operator.input_schema)} out={_fields(operator.schema)}"
            return f"TransformWithState keys={_key_types(operator)} {shapes}"
        case ProjectSpec():
            return "Project"
        case FilterSpec():
            return "Filter"
        case MapInArrowSpec():
            return "MapInArrow"
        case WatermarkSpec():
            return "Watermark"
        case ConnectSpec():
            keys = _types(pa.schema(list(operator.left_schema)[: operator.left_key_count]))
            inputs = f"left={_fields(operator.left_schema)} right={_fields(operator.right_schema)}"
            return f"Connect keys={keys} side={operator.right_side.value} {inputs} out={_fields(operator.schema)}"
        case _:
            assert_never(operator)


def _described(edge: Edge) -> str:
    way = kind_of(edge.partitioning).value
    if isinstance(edge.partitioning, HashPartitioning):
        way = f"hash by [{', '.join(field.name for field in _keys(edge.schema, edge.partitioning))}]"
    return f"e{edge.id}: v{edge.sender} -> v{edge.receiver}{_second(edge)}, {way}"


def _edge_shape(edge: Edge) -> str:
    """Columns by type alone: a hash edge takes its keys by position, and captured rows are read by it."""
    way = kind_of(edge.partitioning).value
    if isinstance(edge.partitioning, HashPartitioning):
        way = f"hash keys={_types(_keys(edge.schema, edge.partitioning))}"
    return f"e{edge.id} v{edge.sender} -> v{edge.receiver}{_second(edge)} {way} rows={_types(edge.schema)}"


def _keys(schema: pa.Schema, partitioning: HashPartitioning) -> pa.Schema:
    return pa.schema(list(schema)[: partitioning.key_count])


def _second(edge: Edge) -> str:
    return "" if edge.input == FIRST_INPUT else f" (input {edge.input + 1})"


def _key_types(operator: AggregateSpec | TransformWithStateSpec) -> str:
    return f"[{', '.join(str(field.type) for field in list(operator.input_schema)[: operator.key_count])}]"


def _types(schema: pa.Schema) -> str:
    return f"[{', '.join(str(field.type) for field in schema)}]"


def _fields(schema: pa.Schema) -> str:
    return f"[{', '.join(f'{field.name}: {field.type}' for field in schema)}]"
