"""Cuts a plan into vertices: forward operators are chained, keyed ones start a new vertex behind a hash edge."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.event_times import with_event_times
from tidegate.plan.expressions import Column, Expression, Literal
from tidegate.plan.joins import (
    KeyedRow,
    deduplicate_spec,
    input_spec,
    join_details,
    join_name,
    join_shape,
    keyed_row,
    static_join_spec,
)
from tidegate.plan.key_groups import check_key_type
from tidegate.plan.late_keys import write_keys_late
from tidegate.plan.naming import name_last
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AsyncMap,
    Connect,
    Deduplicate,
    EvalPython,
    EventTimeColumn,
    EventTimeKey,
    EventTimeWatermark,
    Expand,
    Filter,
    Generate,
    MapInArrow,
    Named,
    Node,
    OutputMode,
    Project,
    Repartition,
    RightSide,
    Scan,
    Sink,
    Spread,
    StaticJoin,
    StreamJoin,
    TransformWithState,
    Union,
)
from tidegate.plan.partials import combined
from tidegate.plan.physical import (
    FIRST_INPUT,
    SECOND_INPUT,
    AggregateSpec,
    AsyncMapSpec,
    BroadcastPartitioning,
    ConnectSpec,
    DeduplicateSpec,
    Edge,
    EvalPythonSpec,
    EventTimeColumnSpec,
    ExpandSpec,
    FilterSpec,
    ForwardPartitioning,
    GenerateSpec,
    HashPartitioning,
    JobPlan,
    MapInArrowSpec,
    OperatorSpec,
    PartialAggregateSpec,
    Partitioning,
    PointwisePartitioning,
    ProjectSpec,
    RebalancePartitioning,
    StaticJoinSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    Vertex,
    WatermarkSpec,
    kind_of,
)
from tidegate.plan.whole_groups import give_in_slices, keep_groups_in_order, require_whole_groups


def lower(
    root: Node, sink: Sink, *, parallelism: int, max_parallelism: int, source_parallelism: int | None = None
) -> JobPlan:
    """`source_parallelism`: at most so many subtasks read; what they read goes to all slots in turn."""
    builder = _Builder(sink, source_parallelism)
    builder.finish(builder.chains(root), sink)
    require_whole_groups(builder.vertices, sink)
    return JobPlan(
        vertices=tuple(
            write_keys_late(keep_groups_in_order(give_in_slices(builder.vertices), builder.edges, sink)),
        ),
        edges=tuple(with_event_times(builder.vertices, builder.edges)),
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
        case AsyncMapSpec(function_name=name):
            return f"AsyncMap({name})"
        case EvalPythonSpec(function_name=name):
            return f"EvalPython({name})"
        case EventTimeColumnSpec():
            return "EventTimeColumn"
        case PartialAggregateSpec(calls=calls):
            return f"PartialAggregate({', '.join(_call_name(call) for call in calls)})"
        case AggregateSpec(calls=calls):
            return f"Aggregate({', '.join(_call_name(call) for call in calls)})"
        case TransformWithStateSpec():
            return "TransformWithState"
        case WatermarkSpec():
            return "Watermark"
        case ConnectSpec():
            return "Connect"
        case GenerateSpec(exploded_as=exploded_as):
            return f"Generate({exploded_as.value})"
        case ExpandSpec():
            return "Expand"
        case DeduplicateSpec() | StreamJoinSpec() | StaticJoinSpec():
            return join_name(operator)
        case _:
            assert_never(operator)


@dataclass(frozen=True, slots=True)
class _Input:
    """A closed vertex that feeds the open one."""

    sender: VertexId
    partitioning: Partitioning
    schema: pa.Schema
    input: int


@dataclass(slots=True)
class _Chain:
    """A vertex that is still open at its end."""

    source: Scan | None = None
    inputs: list[_Input] = field(default_factory=list)
    operators: list[OperatorSpec] = field(default_factory=list)
    parallelism: int | None = None


# Several chains stand for their union: stateless operators go into each of them, so that a union costs no exchange.
_Chains: TypeAlias = list[_Chain]


class _Builder:
    """The vertices that are closed, in an order in which senders come before receivers."""

    def __init__(self, sink: Sink, source_parallelism: int | None) -> None:
        self._sink = sink
        self._source_parallelism = source_parallelism
        self.edges: list[Edge] = []
        self.vertices: list[Vertex] = []

    def chains(self, node: Node) -> _Chains:
        """What gives the rows of `node`, open at the end."""
        match node:
            case Scan():
                if self._source_parallelism is None:
                    return [_Chain(source=node)]
                reading = _Chain(source=node, parallelism=self._source_parallelism)
                return [self.cut([reading], RebalancePartitioning(), node.schema)]
            case Project(child=child, columns=columns, schema=schema):
                return self._append(child, ProjectSpec(columns, schema))
            case Filter(child=child, condition=condition, schema=schema):
                return self._append(child, FilterSpec(condition, schema))
            case MapInArrow(child=child, function=function, function_name=name, schema=schema, method=method):
                return self._append(child, MapInArrowSpec(function, name, schema, method))
            case AsyncMap():
                return self._append(node.child, _async_map(node))
            case EvalPython():
                return self._append(node.child, _eval_python(node))
            case EventTimeColumn(child=child, column=column, schema=schema):
                return self._append(child, EventTimeColumnSpec(column, schema))
            case Connect():
                return [self._connect(node)]
            case EventTimeWatermark(child=child, column=column, delay_ms=delay_ms, schema=schema):
                return self._append(child, WatermarkSpec(column, delay_ms, schema))
            case Generate(child=child, schema=schema):
                spec = GenerateSpec(node.collection, node.exploded_as, node.of_empty, node.kept, schema)
                return self._append(child, spec)
            case Expand(child=child, projections=projections, schema=schema):
                return self._append(child, ExpandSpec(projections, schema))
            case Union(children=children, schema=schema):
                return [chain for child in children for chain in self._renamed(child, schema)]
            case Repartition():
                return [self._repartition(node)]
            case Aggregate():
                return [self._aggregate(node)]
            case TransformWithState():
                keyed = self.cut(self.chains(node.child), HashPartitioning(node.key_count), node.child.schema)
                keyed.operators.append(_transform_with_state(node))
                return [keyed]
            case Deduplicate():
                return [self._deduplicate(node)]
            case StreamJoin():
                return [self._stream_join(node)]
            case StaticJoin(child=child):
                return self._append(child, static_join_spec(node))
            case Named(child=child, name=name):
                chains = self.chains(child)
                name_last([chain.operators for chain in chains], name)
                return chains
            case _:
                assert_never(node)

    def finish(self, chains: _Chains, sink: Sink) -> None:
        self._close(self._joined(chains, sink.schema), sink)

    def cut(self, chains: _Chains, partitioning: Partitioning, schema: pa.Schema) -> _Chain:
        """Closes the chains with edges to a new one."""
        if isinstance(partitioning, HashPartitioning):
            for key in _keys(schema, partitioning):
                check_key_type(key.type)
        return _Chain(inputs=self.close_all(chains, partitioning, schema, input=FIRST_INPUT))

    def close_all(self, chains: _Chains, partitioning: Partitioning, schema: pa.Schema, *, input: int) -> list[_Input]:
        return [_Input(self._close(chain, None), partitioning, schema, input) for chain in chains]

    def _append(self, child: Node, operator: OperatorSpec) -> _Chains:
        chains = self.chains(child)
        for chain in chains:
            chain.operators.append(operator)
        return chains

    def _renamed(self, child: Node, schema: pa.Schema) -> _Chains:
        if child.schema.names == schema.names:
            return self.chains(child)
        columns = tuple(Column(at, field.name, field.type) for at, field in enumerate(child.schema))
        return self._append(child, ProjectSpec(columns, schema))

    def _joined(self, chains: _Chains, schema: pa.Schema) -> _Chain:
        """One chain that takes the rows of all, without moving them to other slots where that can be."""
        if len(chains) == 1:
            return chains[0]
        are_alike = len({chain.parallelism for chain in chains}) == 1
        way: Partitioning = ForwardPartitioning() if are_alike else PointwisePartitioning()
        joined = self.cut(chains, way, schema)
        joined.parallelism = chains[0].parallelism if are_alike else None
        return joined

    def _repartition(self, node: Repartition) -> _Chain:
        chains = self.chains(node.child)
        match node.spread:
            case Spread.EVENLY:
                after = self.cut(chains, RebalancePartitioning(), node.schema)
            case Spread.TO_NEIGHBOURS:
                after = self.cut(chains, PointwisePartitioning(), node.schema)
            case Spread.BY_KEY:
                after = self._by_key(chains, node)
            case _:
                assert_never(node.spread)
        after.parallelism = node.partitions
        return after

    def _by_key(self, chains: _Chains, node: Repartition) -> _Chain:
        """Keys travel as columns of their own in front of the others, and are dropped on arrival."""
        own = tuple(Column(at, field.name, field.type) for at, field in enumerate(node.schema))
        keys = [pa.field(f"_key{at}", key.type) for at, key in enumerate(node.keys)]
        keyed = pa.schema([*keys, *node.schema])
        for chain in chains:
            chain.operators.append(ProjectSpec((*node.keys, *own), keyed))
        after = self.cut(chains, HashPartitioning(len(keys)), keyed)
        shifted = tuple(Column(column.index + len(keys), column.name, column.type) for column in own)
        after.operators.append(ProjectSpec(shifted, node.schema))
        return after

    def _connect(self, node: Connect) -> _Chain:
        # Without a key, rows may be handled anywhere: most of them stay where they are.
        keyed = HashPartitioning(node.left_key_count)
        left_way: Partitioning = keyed if node.left_key_count else PointwisePartitioning()
        left = self.close_all(self.chains(node.left), left_way, node.left.schema, input=FIRST_INPUT)
        is_keyed = node.right_side is RightSide.KEYED
        right_way: Partitioning = HashPartitioning(node.right_key_count) if is_keyed else BroadcastPartitioning()
        right = self.close_all(self.chains(node.right), right_way, node.right.schema, input=SECOND_INPUT)
        return _Chain(inputs=left + right, operators=[_connect_spec(node)])

    def _aggregate(self, node: Aggregate) -> _Chain:
        if self._sink.mode is OutputMode.APPEND and node.event_time is None:
            raise UnsupportedPlan(
                "Tidegate does not run an aggregation in append mode whose keys have no watermark: "
                "group by a window or timestamp that has one, or use outputMode('update')."
            )
        chains = self.chains(node.child)
        columns, calls = _aggregate_input(node)
        schema = pa.schema([pa.field(_column_name(column, at), column.type) for at, column in enumerate(columns)])
        if _is_identity(columns, node.child.schema):
            schema = node.child.schema
        else:
            for chain in chains:
                chain.operators.append(ProjectSpec(columns, schema))
        # Sessions of a key meet in one task, so that the session itself cannot say which.
        is_session = node.event_time is not None and node.event_time.key is EventTimeKey.SESSION
        is_finite = node.event_time is not None and self._sink.mode is not OutputMode.COMPLETE
        before = None if is_session else combined(calls, schema, key_count=len(node.keys), counts_rows=is_finite)
        if before is not None:
            schema = before.spec.schema
            for chain in chains:
                chain.operators.append(before.spec)
        keyed = self.cut(chains, HashPartitioning(len(node.keys) - is_session), schema)
        spec = AggregateSpec(
            len(node.keys),
            calls,
            node.results,
            schema,
            node.schema,
            self._sink.mode,
            node.event_time,
            self._sink.group_rows,
            None if before is None else before.layout,
        )
        keyed.operators.append(spec)
        return keyed

    def _deduplicate(self, node: Deduplicate) -> _Chain:
        schema = node.child.schema
        row = keyed_row([Column(at, schema.field(at).name, schema.field(at).type) for at in node.keys], schema)
        keyed = self.cut(self._keyed(node.child, row), HashPartitioning(len(node.keys)), row.schema)
        keyed.operators.append(deduplicate_spec(node, row))
        if not row.is_as_it_was():
            keyed.operators.append(row.back(node.schema))
        return keyed

    def _stream_join(self, node: StreamJoin) -> _Chain:
        left, right = (keyed_row(side.keys, side.child.schema) for side in (node.left, node.right))
        by_key = HashPartitioning(len(node.left.keys))
        inputs = self.close_all(self._keyed(node.left.child, left), by_key, left.schema, input=FIRST_INPUT)
        inputs += self.close_all(self._keyed(node.right.child, right), by_key, right.schema, input=SECOND_INPUT)
        sides = input_spec(node.left, left), input_spec(node.right, right)
        spec = StreamJoinSpec(node.type, *sides, node.condition, node.schema, node.event_time)
        return _Chain(inputs=inputs, operators=[spec])

    def _keyed(self, child: Node, row: KeyedRow) -> _Chains:
        return self.chains(child) if row.is_as_it_was() else self._append(child, row.to_keyed())

    def _close(self, chain: _Chain, sink: Sink | None) -> VertexId:
        vertex = VertexId(len(self.vertices))
        for fed in chain.inputs:
            edge = EdgeId(len(self.edges))
            self.edges.append(Edge(edge, fed.sender, vertex, fed.partitioning, fed.schema, fed.input))
        names = [f"Source[{chain.source.format}]"] if chain.source is not None else []
        names += [operator_name(operator) for operator in chain.operators]
        names += [f"Sink[{sink.format}]"] if sink is not None else []
        name = " -> ".join(names) or "Pass"
        self.vertices.append(Vertex(vertex, name, chain.source, tuple(chain.operators), sink, chain.parallelism))
        return vertex


def _transform_with_state(node: TransformWithState) -> TransformWithStateSpec:
    return TransformWithStateSpec(
        key_count=node.key_count,
        processor=node.processor,
        input_schema=node.child.schema,
        schema=node.schema,
        time_mode=node.time_mode,
        event_column=node.event_column,
        time_zone=node.time_zone,
        style=node.style,
        initial=node.initial,
        states=node.states,
        deleted=node.deleted,
    )


def _async_map(node: AsyncMap) -> AsyncMapSpec:
    return AsyncMapSpec(
        function=node.function,
        function_name=node.function_name,
        input_schema=node.child.schema,
        schema=node.schema,
        capacity=node.capacity,
        order=node.order,
        timeout_ms=node.timeout_ms,
        time_zone=node.time_zone,
    )


def _eval_python(node: EvalPython) -> EvalPythonSpec:
    return EvalPythonSpec(
        functions=node.functions,
        function_name=node.function_name,
        shape=node.shape,
        arguments=node.arguments,
        result_count=node.result_count,
        schema=node.schema,
    )


def _connect_spec(node: Connect) -> ConnectSpec:
    return ConnectSpec(
        processor=node.processor,
        right_side=node.right_side,
        left_key_count=node.left_key_count,
        right_key_count=node.right_key_count,
        left_schema=node.left.schema,
        right_schema=node.right.schema,
        schema=node.schema,
        time_mode=node.time_mode,
        time_zone=node.time_zone,
        states=node.states,
        deleted=node.deleted,
    )


def _aggregate_input(node: Aggregate) -> tuple[tuple[Expression, ...], tuple[AggregateCall, ...]]:
    """[keys..., arguments and conditions...], each once, and the calls over these columns."""
    columns = list(node.keys)

    def column_of(expression: Expression) -> Column:
        if expression not in columns:
            columns.append(expression)
        position = columns.index(expression)
        return Column(position, _column_name(expression, position), expression.type)

    calls = [
        replace(
            call,
            arguments=call.arguments if call.distinct else tuple(column_of(argument) for argument in call.arguments),
            distinct=tuple(column_of(value) for value in call.distinct),
            condition=None if call.condition is None else column_of(call.condition),
        )
        for call in node.calls
    ]
    # Rows without columns would not travel.
    return tuple(columns) or (Literal(True, pa.bool_()),), tuple(calls)


def _call_name(call: AggregateCall) -> str:
    return f"{call.function.value} distinct" if call.distinct else call.function.value


def _is_identity(columns: tuple[Expression, ...], schema: pa.Schema) -> bool:
    positions = [column.index if isinstance(column, Column) else None for column in columns]
    return positions == list(range(len(schema)))


def _column_name(expression: Expression, position: int) -> str:
    return expression.name if isinstance(expression, Column) else f"_{position}"


def _details(operator: OperatorSpec) -> str:
    match operator:
        case AggregateSpec() | TransformWithStateSpec():
            keys = ", ".join(field.name for field in list(operator.input_schema)[: operator.key_count])
            mode = f", {operator.mode.value} mode" if isinstance(operator, AggregateSpec) else ""
            return f"by [{keys}]{mode} {_fields(operator.schema)}"
        case PartialAggregateSpec():
            keys = ", ".join(field.name for field in list(operator.schema)[: operator.key_count])
            return f"by [{keys}], within a slice"
        case ProjectSpec() | FilterSpec() | MapInArrowSpec() | GenerateSpec() | ExpandSpec():
            return _fields(operator.schema)
        case AsyncMapSpec():
            limit = "" if operator.timeout_ms is None else f", {operator.timeout_ms:g} ms each"
            return f"up to {operator.capacity} at once, {operator.order.value}{limit} {_fields(operator.schema)}"
        case EvalPythonSpec() | EventTimeColumnSpec():
            return _fields(operator.schema)
        case WatermarkSpec():
            column = operator.schema.field(operator.column).name
            return f"on {column}, {operator.delay_ms} ms behind {_fields(operator.schema)}"
        case ConnectSpec():
            keys = ", ".join(field.name for field in list(operator.left_schema)[: operator.left_key_count])
            return f"by [{keys}], right side {operator.right_side.value} {_fields(operator.schema)}"
        case DeduplicateSpec() | StreamJoinSpec() | StaticJoinSpec():
            return join_details(operator)
        case _:
            assert_never(operator)


def _state_shape(operator: OperatorSpec) -> str:
    match operator:
        case AggregateSpec(calls=calls, event_time=event_time):
            held = ", ".join(f"{_call_name(call)}:{call.type}" for call in calls)
            by = "" if event_time is None else f" by={event_time.key.value}:{event_time.position}"
            return f"Aggregate keys={_key_types(operator)}{by} in={_types(operator.input_schema)} calls=[{held}]"
        case TransformWithStateSpec():
            shapes = f"in={_fields(operator.input_schema)} out={_fields(operator.schema)}"
            start = "" if operator.initial is None else " with initial state"
            return f"TransformWithState keys={_key_types(operator)} {shapes}{start}"
        case PartialAggregateSpec():
            return "PartialAggregate"
        case ProjectSpec():
            return "Project"
        case FilterSpec():
            return "Filter"
        case MapInArrowSpec():
            return "MapInArrow"
        case AsyncMapSpec():
            return f"AsyncMap in={_fields(operator.input_schema)}"
        case GenerateSpec():
            return f"Generate kept={list(operator.kept)} out={_types(operator.schema)}"
        case ExpandSpec():
            return "Expand"
        case EvalPythonSpec():
            return "EvalPython"
        case EventTimeColumnSpec():
            return "EventTimeColumn"
        case WatermarkSpec():
            return "Watermark"
        case ConnectSpec():
            keys = _types(pa.schema(list(operator.left_schema)[: operator.left_key_count]))
            inputs = f"left={_fields(operator.left_schema)} right={_fields(operator.right_schema)}"
            return f"Connect keys={keys} side={operator.right_side.value} {inputs} out={_fields(operator.schema)}"
        case DeduplicateSpec() | StreamJoinSpec() | StaticJoinSpec():
            return join_shape(operator)
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
