"""What operators keep, described for readers of a checkpoint: names and types of keys, values and running values."""

from typing import assert_never

import pyarrow as pa

from tidegate.operators import (
    aggregate,
    deduplicate,
    evicted_rows,
    logged_sessions,
    session_aggregate,
    sessions_on_disk,
    stored_groups,
    stream_join,
)
from tidegate.operators.accumulators.calls import CallStates
from tidegate.plan.expressions import Column
from tidegate.plan.lower import operator_name
from tidegate.plan.nodes import AggregateFunction, DeclaredState, EventTimeKey, RowStyle, TimeMode
from tidegate.plan.physical import (
    AggregateSpec,
    AsyncMapSpec,
    ConnectSpec,
    DeduplicateSpec,
    EvalPythonSpec,
    EventTimeColumnSpec,
    ExpandSpec,
    FilterSpec,
    GenerateSpec,
    JobPlan,
    JoinInputSpec,
    MapInArrowSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    StaticJoinSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    WatermarkSpec,
    kind_of,
)
from tidegate.storage.stored_plan import (
    FormOnDisk,
    NumberedForm,
    StoredCall,
    StoredEdge,
    StoredGroups,
    StoredOperator,
    StoredPlan,
    StoredRows,
    StoredState,
    UserState,
    encode_schema,
)


def describe_plan(plan: JobPlan) -> StoredPlan:
    """The same at every parallelism."""
    described = [
        _operator(operator, vertex.id, position)
        for vertex in plan.vertices
        for position, operator in enumerate(vertex.operators)
    ]
    return StoredPlan(
        vertices=[vertex.name for vertex in plan.vertices],
        operators=[operator for operator in described if operator is not None],
        edges=[
            StoredEdge(
                edge.id, edge.sender, edge.receiver, kind_of(edge.partitioning).value, encode_schema(edge.schema)
            )
            for edge in plan.edges
        ],
    )


def _operator(spec: OperatorSpec, vertex: int, position: int) -> StoredOperator | None:
    """None for one without state that could be read by key."""
    match spec:
        case AggregateSpec():
            keys, states = _group_keys(spec), [_groups(spec)]
        case DeduplicateSpec():
            keys = _first(spec.schema, spec.key_count)
            columns = keys.append(pa.field("forgotten_at", pa.timestamp("us", "UTC")))
            stored = deduplicate.stored_schema(spec)
            form = FormOnDisk(encode_schema(stored), spec.key_count, deduplicate.end_key_of(spec))
            states = [StoredRows("keys", deduplicate.SECTION_NAME, encode_schema(columns), form)]
        case StreamJoinSpec():
            keys = _first(spec.left.schema, spec.left.key_count)
            states = [
                _side("left", stream_join.LEFT_SECTION, spec.left, _in_log(spec, stream_join.LEFT_NUMBER)),
                _side("right", stream_join.RIGHT_SECTION, spec.right, _in_log(spec, stream_join.RIGHT_NUMBER)),
            ]
        case TransformWithStateSpec():
            keys, states = _first(spec.input_schema, spec.key_count), _declared(spec.states)
        case ConnectSpec():
            keys, states = _first(spec.left_schema, spec.left_key_count), _declared(spec.states)
        case (
            ProjectSpec()
            | FilterSpec()
            | MapInArrowSpec()
            | AsyncMapSpec()
            | EvalPythonSpec()
            | PartialAggregateSpec()
            | EventTimeColumnSpec()
            | WatermarkSpec()
            | GenerateSpec()
            | ExpandSpec()
            | StaticJoinSpec()
        ):
            return None
        case _:
            assert_never(spec)
    time_mode = spec.time_mode if isinstance(spec, TransformWithStateSpec | ConnectSpec) else None
    return StoredOperator(
        vertex=vertex,
        position=position,
        name=spec.name or operator_name(spec),
        keys=encode_schema(keys),
        states=states,
        has_timers=time_mode not in (None, TimeMode.NONE),
        has_zoned_keys=_has_zoned_keys(spec),
        time_mode=None if time_mode is None else time_mode.value,
    )


def can_leave_memory(spec: OperatorSpec) -> bool:
    """Whether it has state that RocksDB keeps on disk."""
    match spec:
        case TransformWithStateSpec() | ConnectSpec() | StreamJoinSpec():
            return True
        case AggregateSpec() if _is_of_sessions(spec):
            stored, stays = session_aggregate.stored_schema(spec), aggregate.stays_because(spec)
            return evicted_rows.can_leave_memory(stored, key_count=spec.key_count - 1, stays=stays)
        case AggregateSpec():
            stored, stays = aggregate.stored_schema(spec), aggregate.stays_because(spec)
        case DeduplicateSpec():
            stored, stays = deduplicate.stored_schema(spec), None
        case _:
            return False
    return evicted_rows.can_leave_memory(stored, key_count=spec.key_count, stays=stays)


def _has_zoned_keys(spec: OperatorSpec) -> bool:
    match spec:
        case TransformWithStateSpec(style=RowStyle.ROWS, time_zone=str()) | ConnectSpec(time_zone=str()):
            return True
        case _:
            return False


def _declared(states: tuple[DeclaredState, ...]) -> list[StoredState]:
    return [
        UserState(
            name=state.name,
            shape=state.shape.value,
            values=encode_schema(state.values),
            subkeys=None if state.subkeys is None else encode_schema(state.subkeys),
            has_ttl=state.has_ttl,
        )
        for state in states
    ]


def _side(name: str, section: str, side: JoinInputSpec, in_log: NumberedForm) -> StoredState:
    columns = encode_schema(side.schema.append(pa.field("has_partner", pa.bool_())))
    return StoredRows(name, section, columns, in_log=in_log)


def _in_log(spec: StreamJoinSpec, number_column: str) -> NumberedForm:
    both = [encode_schema(schema) for schema in stream_join.logged_schemas(spec)]
    return NumberedForm(both, number_column, spec.left.key_count)


def _groups(spec: AggregateSpec) -> StoredState:
    plain = [_call(spec, at) for at, call in enumerate(spec.calls) if not call.distinct]
    seen = [field for field in CallStates(spec.calls).stored_fields() if field.name.startswith("distinct_")]
    return StoredGroups(
        name="groups",
        section=stored_groups.SECTION_NAME,
        keys=encode_schema(_group_keys(spec)),
        calls=plain,
        seen=encode_schema(pa.schema(seen)),
        on_disk=_groups_on_disk(spec),
        in_log=_sessions_in_log(spec),
    )


def _groups_on_disk(spec: AggregateSpec) -> FormOnDisk:
    if _is_of_sessions(spec):
        # The window is no part of the key that rows are sent by, nor of the one that entries are found by.
        key_count = spec.key_count - 1
        away = sessions_on_disk.away_schema(session_aggregate.stored_schema(spec), key_count)
        return FormOnDisk(encode_schema(away), key_count)
    stored = encode_schema(aggregate.stored_schema(spec))
    return FormOnDisk(stored, spec.key_count, aggregate.end_key_of(spec))


def _sessions_in_log(spec: AggregateSpec) -> NumberedForm | None:
    if not _is_of_sessions(spec):
        return None
    stored = logged_sessions.logged_schema(session_aggregate.stored_schema(spec))
    return NumberedForm([encode_schema(stored)], logged_sessions.NUMBER, spec.key_count - 1)


def _is_of_sessions(spec: AggregateSpec) -> bool:
    return spec.event_time is not None and spec.event_time.key is EventTimeKey.SESSION


def _group_keys(spec: AggregateSpec) -> pa.Schema:
    fields = [spec.input_schema.field(at) for at in range(spec.key_count)]
    return pa.schema([field.with_name(_shown_as(spec, at, field.name)) for at, field in enumerate(fields)])


def _call(spec: AggregateSpec, at: int) -> StoredCall:
    call = spec.calls[at]
    # A sketch is not estimated by readers: they see its registers.
    kind = pa.binary() if call.function is AggregateFunction.APPROX_COUNT_DISTINCT else call.type
    shown = pa.field(_shown_as(spec, spec.key_count + at, f"{call.function.value}_{at}"), kind)
    arguments = [pa.field(f"argument_{place}", argument.type) for place, argument in enumerate(call.arguments)]
    return StoredCall(call.function.value, encode_schema(pa.schema([shown, *arguments])))


def _shown_as(spec: AggregateSpec, position: int, otherwise: str) -> str:
    """The output column that shows a key or a call as it is."""
    for result, field in zip(spec.results, spec.schema, strict=True):
        if isinstance(result, Column) and result.index == position:
            return str(field.name)
    return otherwise


def _first(schema: pa.Schema, count: int) -> pa.Schema:
    return pa.schema([schema.field(at) for at in range(count)])
