"""Sees to it that sinks get the groups of an aggregation together and in order; refuses what cannot do that."""

from collections.abc import Sequence
from dataclasses import replace

from tidegate.model.errors import UnsupportedPlan
from tidegate.model.ids import VertexId
from tidegate.plan.nodes import GroupRows, OutputMode, Sink
from tidegate.plan.physical import (
    AggregateSpec,
    AsyncMapSpec,
    ConnectSpec,
    Edge,
    EvalPythonSpec,
    GenerateSpec,
    Giving,
    MapInArrowSpec,
    OperatorSpec,
    StaticJoinSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    Vertex,
)

# Of one row, or of one watermark, they may make very many. `explode` is not among them: it gives no more in a step than
# takes a slice in all that is behind it.
_MAKING_MANY = (
    AggregateSpec,
    AsyncMapSpec,
    ConnectSpec,
    MapInArrowSpec,
    StaticJoinSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
)


def require_whole_groups(vertices: Sequence[Vertex], sink: Sink) -> None:
    """A writer that replaces what it showed, or shows a group once, must get a task's groups epoch by epoch.

    On the way between two tasks a barrier may pass rows, which then belong to the next epoch.
    """
    if sink.mode is not OutputMode.COMPLETE and sink.group_rows is not GroupRows.ONCE_PER_EPOCH:
        return
    aggregating = [vertex for vertex in vertices if any(isinstance(each, AggregateSpec) for each in vertex.operators)]
    if sink.mode is not OutputMode.APPEND and any(vertex.sink is None for vertex in aggregating):
        raise UnsupportedPlan(
            f"Tidegate does not run repartition or union behind an aggregation in {sink.mode.value} mode with this "
            f"sink: put it before groupBy."
        )


def give_in_slices(vertices: Sequence[Vertex]) -> list[Vertex]:
    """User code behind what may make very many rows of one takes them slice by slice."""
    return [replace(vertex, operators=_in_slices(vertex.operators)) for vertex in vertices]


def _in_slices(operators: Sequence[OperatorSpec]) -> tuple[OperatorSpec, ...]:
    made: list[OperatorSpec] = []
    follows_many = False
    for operator in operators:
        if follows_many and isinstance(operator, EvalPythonSpec | MapInArrowSpec):
            made.append(replace(operator, giving=Giving.IN_SLICES))
        else:
            made.append(operator)
        follows_many |= isinstance(operator, _MAKING_MANY)
    return tuple(made)


def keep_groups_in_order(vertices: Sequence[Vertex], edges: Sequence[Edge], sink: Sink) -> list[Vertex]:
    """Where a later row of a group replaces the one before it, a sink must not get them the other way round.

    Rows that an operator holds belong to the next epoch, and are dealt to other tasks when the parallelism changes,
    ahead of or behind newer ones. So behind an aggregation nothing is held, unless each group comes out once.
    """
    if sink.mode is OutputMode.APPEND:
        return list(vertices)
    behind: set[VertexId] = set()
    kept: list[Vertex] = []
    for vertex in vertices:
        is_behind = vertex.id in behind
        operators: list[OperatorSpec] = []
        for operator in vertex.operators:
            operators.append(_without_holding(operator, sink) if is_behind else operator)
            is_behind |= isinstance(operator, AggregateSpec)
        if is_behind:
            behind |= {edge.receiver for edge in edges if edge.sender == vertex.id}
        kept.append(replace(vertex, operators=tuple(operators)))
    return kept


def _without_holding(operator: OperatorSpec, sink: Sink) -> OperatorSpec:
    match operator:
        case AsyncMapSpec():
            raise UnsupportedPlan(
                f"Tidegate does not run tg.async_map behind an aggregation in {sink.mode.value} mode, because an older "
                f"row of a group could come last: put it before groupBy, or use append mode."
            )
        case GenerateSpec() | MapInArrowSpec() | EvalPythonSpec() | StreamJoinSpec() | StaticJoinSpec():
            return replace(operator, giving=Giving.AT_ONCE)
        case _:
            return operator
