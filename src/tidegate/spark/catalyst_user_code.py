"""Reads the plan nodes that run the user's Python: functions over batches and columns, stateful processors.

Takes functions out of the plan with all they need in a slot. Must never run a user's row-by-row code: of a processor
only `init` and `close` are run, as Spark does before it starts.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import PythonEvalType

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Column, Expression
from tidegate.plan.nodes import (
    AsyncMap,
    Connect,
    DeclaredState,
    EvalPython,
    EventTimeColumn,
    InitialState,
    MapInArrow,
    Node,
    Project,
    RightSide,
    RowStyle,
    StateShape,
    TimeMode,
    TransformWithState,
    UdfShape,
)
from tidegate.spark.async_mapped import async_call_in, function_name, is_async_map
from tidegate.spark.catalyst_expressions import Scope, read_expression
from tidegate.spark.catalyst_trees import ExpressionTree, PlanTree
from tidegate.spark.commands import Command, command_of, encode_command, schema_detail
from tidegate.spark.connected import (
    LEFT_NAMES,
    OUTPUT_NAMES,
    RIGHT_NAMES,
    ConnectProcessor,
    ConnectProcessorHandle,
    connection_in,
    names_detail,
)
from tidegate.spark.pandas_stateful import (
    HAS_WATERMARK,
    INITIAL_KEY_POSITIONS,
    KEY_POSITIONS,
    OUTPUT_SCHEMA,
    STATE_NAME,
    STATE_SCHEMA,
    TIMEOUT,
    positions_detail,
)
from tidegate.spark.python_udfs import INPUT_SCHEMA, ITERATOR_UDFS, UdfCall, UdfCalls, encode_calls
from tidegate.spark.stateful import NO_TIME, TIME_MODE, DeclaringHandle, check_init, declared_state, stateful_processor
from tidegate.spark.typed_states import ParsedSchemas, TypedHandle
from tidegate.spark.types import to_arrow_schema, to_arrow_type
from tidegate.spark.user_code import ROW_PROCESSORS

Ids: TypeAlias = list[tuple[int, str]]
# A node and the expression ids of its columns.
ReadNode: TypeAlias = tuple[Node, Ids]
ReadChild: TypeAlias = Callable[[PlanTree], ReadNode]

# An initial state travels inside the plan, to every slot, and is applied before the first row.
MAX_INITIAL_STATE_ROWS = 1_000_000
MAX_INITIAL_STATE_BYTES = 64 << 20

_TIME_MODES = {
    "NoTime$": TimeMode.NONE,
    "ProcessingTime$": TimeMode.PROCESSING_TIME,
    "EventTime$": TimeMode.EVENT_TIME,
}
_TIMEOUTS = {
    "NoTimeout$": ("NoTimeout", TimeMode.NONE),
    "ProcessingTimeTimeout$": ("ProcessingTimeTimeout", TimeMode.PROCESSING_TIME),
    "EventTimeTimeout$": ("EventTimeTimeout", TimeMode.EVENT_TIME),
}
_WATERMARK_METADATA = "spark.watermarkDelayMs"
_SCALAR_UDFS = (
    PythonEvalType.SQL_BATCHED_UDF,
    PythonEvalType.SQL_ARROW_BATCHED_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    PythonEvalType.SQL_SCALAR_ARROW_UDF,
    *ITERATOR_UDFS,
)

_session: ContextVar[SparkSession] = ContextVar("session")


@contextmanager
def session_of_plan(spark: SparkSession) -> Iterator[None]:
    """Whose settings the plan's functions run under, while it is read."""
    token = _session.set(spark)
    try:
        yield
    finally:
        _session.reset(token)


def session_being_read() -> SparkSession:
    return _session.get()


# -- batches


def read_map(tree: PlanTree, read: ReadChild) -> ReadNode:
    """mapInArrow and mapInPandas."""
    child, _ = read(tree.children[0])
    if tree.fields["isBarrier"]:
        raise UnsupportedPlan(f"Tidegate does not run Spark's {tree.name} with barrier=True: leave barrier out.")
    function = tree.expression("functionExpr")
    attributes = tree.expressions("output")
    method = "mapInPandas" if tree.name == "MapInPandas" else "mapInArrow"
    opened = _command(tree, tree.jvm.functionExpr(), function)
    if is_async_map(tree):
        return _async_map(child, opened, _schema(attributes)), _ids(attributes)
    command = encode_command(opened)
    return MapInArrow(child, command, function.fields["name"], _schema(attributes), method), _ids(attributes)


def _async_map(child: Node, command: Command, schema: pa.Schema) -> AsyncMap:
    call = async_call_in(command)
    return AsyncMap(
        child,
        encode_command(command),
        function_name(call.function),
        schema,
        capacity=call.capacity,
        order=call.order,
        timeout_ms=call.timeout_ms,
        time_zone=command.time_zone,
    )


# -- columns


def read_udfs(tree: PlanTree, read: ReadChild) -> ReadNode:
    """BatchEvalPython and ArrowEvalPython: the child's columns and one more for each function."""
    child, ids = read(tree.children[0])
    udfs, results = tree.expressions("udfs"), tree.expressions("resultAttrs")
    eval_type = udfs[0].fields["evalType"]
    if eval_type not in _SCALAR_UDFS:
        raise UnsupportedPlan(f"Tidegate does not run the Python function {udfs[0].fields['name']!r} of {tree.name}.")
    arguments = _Arguments(Scope(ids, child.schema))
    calls = [_udf_call(tree, udf, arguments) for udf in udfs]
    details = {INPUT_SCHEMA: arguments.schema_json(), OUTPUT_SCHEMA: _struct_json(results)}
    node = EvalPython(
        child,
        functions=encode_calls(UdfCalls(calls=calls, details=details)),
        function_name=", ".join(udf.fields["name"] for udf in udfs),
        shape=UdfShape.ITERATOR if eval_type in ITERATOR_UDFS else UdfShape.BATCH,
        arguments=tuple(arguments.expressions),
        result_count=len(results),
        schema=pa.schema([*child.schema, *_schema(results)]),
    )
    return node, ids + _ids(results)


class _Arguments:
    """The distinct arguments of all functions of a node."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.expressions: list[Expression] = []
        self._types: list[str] = []

    def position_of(self, tree: ExpressionTree) -> int:
        expression = read_expression(tree, self._scope)
        if expression not in self.expressions:
            self.expressions.append(expression)
            self._types.append(str(tree.jvm.dataType().json()))
        return self.expressions.index(expression)

    def schema_json(self) -> str:
        fields = [
            {"name": f"_{at}", "type": json.loads(kind), "nullable": True, "metadata": {}}
            for at, kind in enumerate(self._types)
        ]
        return json.dumps({"type": "struct", "fields": fields})


def _udf_call(tree: PlanTree, udf: ExpressionTree, arguments: _Arguments) -> UdfCall:
    functions = [udf]
    # A function whose only argument is another one is called on what that one gives, without a column between.
    while len(functions[-1].children) == 1 and functions[-1].children[0].name == "PythonUDF":
        functions.append(functions[-1].children[0])
    commands = [encode_command(_command(tree, function.jvm, function)) for function in reversed(functions)]
    positions: list[int] = []
    names: dict[str, int] = {}
    for argument in functions[-1].children:
        if argument.name == "NamedArgumentExpression":
            names[argument.fields["key"]] = arguments.position_of(argument.children[0])
        else:
            positions.append(arguments.position_of(argument))
    return UdfCall(functions=commands, positions=positions, names=names)


# -- state


def read_transform_with_state(tree: PlanTree, read: ReadChild) -> ReadNode:
    function = tree.expression("functionExpr")
    child, ids = read(tree.children[0])
    key_count = tree.fields["groupingAttributesLen"]
    if key_count == 0:
        raise UnsupportedPlan(f"Tidegate does not run Spark's {tree.name} without keys: use groupBy.")
    _check_keys(child, ids, key_count, method="transformWithState")
    time_mode = _time_mode(tree.fields["timeMode"]["object"])
    initial = _initial_state(tree) if tree.fields["hasInitialState"] else None
    attributes = tree.expressions("outputAttrs")
    details = {
        TIME_MODE: NO_TIME if time_mode is TimeMode.NONE else time_mode.value,
        OUTPUT_SCHEMA: _struct_json(attributes),
        KEY_POSITIONS: positions_detail(ids[key_count:].index(key) for key in ids[:key_count]),
    }
    if initial is not None:
        details[INITIAL_KEY_POSITIONS] = positions_detail(_initial_key_positions(tree, initial))
    command, declared = _checked(_command(tree, tree.jvm.functionExpr(), function, details))
    node = TransformWithState(
        child,
        key_count,
        encode_command(command),
        _schema(attributes),
        time_mode=time_mode,
        event_column=_event_column(tree.children[0], child, ids) if time_mode is TimeMode.EVENT_TIME else None,
        time_zone=command.time_zone,
        style=RowStyle.ROWS if command.eval_type in ROW_PROCESSORS else RowStyle.BATCHES,
        initial=initial,
        states=declared.states,
        deleted=declared.deleted,
    )
    return node, _ids(attributes)


def read_group_state(tree: PlanTree, read: ReadChild) -> ReadNode:
    """applyInPandasWithState, as a processor with one value and one timer per key."""
    child, ids = read(tree.children[0])
    keys = tree.expressions("groupingAttributes")
    if not keys:
        raise UnsupportedPlan("Tidegate does not run applyInPandasWithState without keys: use groupBy.")
    timeout, time_mode = _TIMEOUTS[_object_name(tree.fields["timeout"]["object"])]
    event_column = _event_column(tree.children[0], child, ids)
    keyed, keyed_ids = _with_keys_in_front(child, ids, keys)
    _check_keys(keyed, keyed_ids, len(keys), method="applyInPandasWithState")
    attributes = tree.expressions("outputAttrs")
    details = {
        OUTPUT_SCHEMA: _struct_json(attributes),
        STATE_SCHEMA: json.dumps(tree.fields["stateType"]),
        TIMEOUT: timeout,
        HAS_WATERMARK: "true" if event_column is not None else "false",
        KEY_POSITIONS: positions_detail(ids.index(key.expression_id()) for key in keys),
    }
    command = _command(tree, tree.jvm.functionExpr(), tree.expression("functionExpr"), details)
    is_event_time = time_mode is TimeMode.EVENT_TIME and event_column is not None
    node = TransformWithState(
        keyed,
        len(keys),
        encode_command(command),
        _schema(attributes),
        time_mode=time_mode,
        event_column=len(keys) + event_column if is_event_time and event_column is not None else None,
        time_zone=command.time_zone,
        style=RowStyle.BATCHES,
        states=(declared_state(STATE_NAME, StateShape.VALUE, [schema_detail(details[STATE_SCHEMA])]),),
    )
    return node, _ids(attributes)


def read_cogroup(tree: PlanTree, read: ReadChild) -> ReadNode:
    """Only as the carrier of `tg.connect`: Spark itself has no streaming cogroup."""
    function = tree.expression("functionExpr")
    command = _command(tree, tree.jvm.functionExpr(), function)
    connection = connection_in(command)
    if connection is None:
        raise UnsupportedPlan(f"Tidegate does not run Spark's {tree.name}: use tg.connect, which keeps state.")
    left, left_ids = read(tree.children[0])
    right, right_ids = read(tree.children[1])
    grouped = tree.fields["leftGroupingLen"]
    keys = connection.left_key_count
    left, left_ids = _without_columns(left, left_ids, first=keys, last=grouped)
    is_keyed = connection.right_side is RightSide.KEYED
    right, right_ids = _without_columns(right, right_ids, first=keys if is_keyed else 0, last=grouped)
    right_keys = keys if is_keyed else 0
    _check_keys(left, left_ids, keys, method="tg.connect")
    _check_keys(right, right_ids, right_keys, method="tg.connect")
    time_mode = _time_mode(connection.time_mode)
    attributes = tree.expressions("output")
    details = {
        TIME_MODE: NO_TIME if time_mode is TimeMode.NONE else time_mode.value,
        LEFT_NAMES: names_detail(left.schema.names[keys:]),
        RIGHT_NAMES: names_detail(right.schema.names[right_keys:]),
        OUTPUT_NAMES: names_detail(attribute.fields["name"] for attribute in attributes),
    }
    schemas, declared = _connect_schemas(connection.processor)
    command = _with_details(command, {**details, **schemas})
    node = Connect(
        left,
        right,
        encode_command(command),
        connection.right_side,
        keys,
        right_keys,
        _schema(attributes),
        time_mode=time_mode,
        time_zone=command.time_zone,
        states=declared.states,
        deleted=declared.deleted,
    )
    return node, _ids(attributes)


@dataclass(frozen=True, slots=True)
class _Declared:
    """What `init` does about states."""

    states: tuple[DeclaredState, ...]
    deleted: tuple[str, ...]


def _connect_schemas(processor: ConnectProcessor) -> tuple[dict[str, str], _Declared]:
    handle, schemas = DeclaringHandle(), ParsedSchemas()

    def run() -> None:
        processor.init(ConnectProcessorHandle(handle, schemas))
        processor.close()

    details = check_init(run, schemas, name=type(processor).__name__)
    return details, _Declared(handle.states(schemas), handle.deleted())


def _without_columns(node: Node, ids: Ids, *, first: int, last: int) -> ReadNode:
    """Without those that only stood for a key."""
    if first == last:
        return node, ids
    kept = [at for at in range(len(node.schema)) if not first <= at < last]
    columns = tuple(Column(at, node.schema.field(at).name, node.schema.field(at).type) for at in kept)
    return Project(node, columns, pa.schema([node.schema.field(at) for at in kept])), [ids[at] for at in kept]


def read_event_time_column(tree: PlanTree, read: ReadChild) -> ReadNode:
    child, ids = read(tree.children[0])
    column = Scope(ids, child.schema).column(tree.expression("eventTime"))
    return EventTimeColumn(child, column.index, child.schema), ids


def _checked(command: Command) -> tuple[Command, _Declared]:
    processor = stateful_processor(command)
    handle, schemas = DeclaringHandle(), ParsedSchemas()

    def run() -> None:
        processor.init(TypedHandle(handle, schemas))  # type: ignore[arg-type]
        processor.close()

    command = _with_details(command, check_init(run, schemas, name=type(processor).__name__))
    return command, _Declared(handle.states(schemas), handle.deleted())


def _with_details(command: Command, details: dict[str, str]) -> Command:
    return Command(
        eval_type=command.eval_type,
        pickled=command.pickled,
        name=command.name,
        broadcasts=command.broadcasts,
        settings=command.settings,
        details={**command.details, **details},
    )


def _check_keys(child: Node, ids: Ids, key_count: int, *, method: str) -> None:
    """Spark delivers [key columns..., all columns...]; each key is one of the columns the user's rows show."""
    for key, key_id in zip(child.schema, ids[:key_count], strict=False):
        if key_id not in ids[key_count:]:
            raise UnsupportedPlan(
                f"Tidegate does not run {method} grouped by {key.name!r}, which is no column of its input: "
                f"add it with withColumn before groupBy."
            )
        if pa.types.is_floating(key.type):
            raise UnsupportedPlan(
                f"Tidegate does not run {method} grouped by {key.name!r}, a floating point number: "
                f"cast it to a long, a decimal or a string."
            )
        if pa.types.is_nested(key.type):
            raise UnsupportedPlan(
                f"Tidegate does not run {method} grouped by {key.name!r}, a column of type {key.type}: "
                f"group by its parts."
            )


def _with_keys_in_front(child: Node, ids: Ids, keys: Sequence[ExpressionTree]) -> ReadNode:
    scope = Scope(ids, child.schema)
    key_columns = [scope.column(key) for key in keys]
    own = [Column(at, field.name, field.type) for at, field in enumerate(child.schema)]
    columns = (*key_columns, *own)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return Project(child, columns, schema), [key.expression_id() for key in keys] + ids


def _event_column(tree: PlanTree, child: Node, ids: Ids) -> int | None:
    """The first column under a watermark, as Catalyst marks it."""
    output: Any = tree.jvm.output()
    for index in range(output.size()):
        if output.apply(index).metadata().contains(_WATERMARK_METADATA):
            field = child.schema.field(index)
            if not pa.types.is_timestamp(field.type):
                raise UnsupportedPlan(
                    f"Tidegate does not run a stateful function over {field.name!r} under a watermark, a column of "
                    f"type {field.type}: give it a timestamp, such as window_time(...) of a window."
                )
            return index
    return None


def _initial_state(tree: PlanTree) -> InitialState:
    """Collected now: it is data of the query's start."""
    spark: Any = _session.get()
    plan = tree.jvm.initialState()
    dataset = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    key_count = tree.fields["initGroupingAttrsLen"]
    attributes = [plan.output().apply(index) for index in range(plan.output().size())]
    # Keys come twice, in front and among the columns; a DataFrame needs names that differ.
    unique = DataFrame(dataset, spark).toDF(*[f"_{index}" for index in range(len(attributes))])
    table = unique.limit(MAX_INITIAL_STATE_ROWS + 1).toArrow()
    if table.num_rows > MAX_INITIAL_STATE_ROWS or table.nbytes > MAX_INITIAL_STATE_BYTES:
        raise UnsupportedPlan(
            f"The initial state of transformWithState has more than {MAX_INITIAL_STATE_ROWS} rows or "
            f"{MAX_INITIAL_STATE_BYTES >> 20} MiB: put it into the stream, in front of the other rows."
        )
    schema = to_arrow_schema(
        {
            "type": "struct",
            "fields": [
                {"name": each.name(), "type": json.loads(each.dataType().json()), "metadata": {}} for each in attributes
            ],
        }
    )
    columns = [column.combine_chunks().cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return InitialState(key_count, schema, sink.getvalue().to_pybytes())


def _initial_key_positions(tree: PlanTree, initial: InitialState) -> list[int]:
    output: Any = tree.jvm.initialState().output()
    ids = [int(output.apply(index).exprId().id()) for index in range(output.size())]
    return [ids[initial.key_count :].index(id) for id in ids[: initial.key_count]]


def _time_mode(class_name: str) -> TimeMode:
    return _TIME_MODES[_object_name(class_name)]


def _object_name(class_name: str) -> str:
    return str(class_name).rsplit(".", 1)[-1]


# -- functions and schemas


def _command(tree: PlanTree, jvm_udf: Any, function: ExpressionTree, details: dict[str, str] | None = None) -> Command:
    return command_of(
        jvm_udf.func(),
        spark=_session.get(),
        eval_type=function.fields["evalType"],
        name=function.fields["name"],
        node=tree.name,
        details=details,
    )


def _ids(outputs: list[ExpressionTree]) -> Ids:
    return [output.expression_id() for output in outputs]


def _schema(attributes: list[ExpressionTree]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(
                attribute.fields["name"],
                to_arrow_type(attribute.fields["dataType"], of=f"Column {attribute.fields['name']!r}"),
            )
            for attribute in attributes
        ]
    )


def _struct_json(attributes: list[ExpressionTree]) -> str:
    fields = [
        {
            "name": attribute.fields["name"],
            "type": attribute.fields["dataType"],
            "nullable": True,
            "metadata": {},
        }
        for attribute in attributes
    ]
    return json.dumps({"type": "struct", "fields": fields})
