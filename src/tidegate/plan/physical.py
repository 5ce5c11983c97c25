"""What the slots run: vertices of chained operators, joined by edges. Built from nodes by `lower`."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

import pyarrow as pa

from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Expression
from tidegate.plan.nodes import (
    AggregateCall,
    AnswerOrder,
    DeclaredState,
    EmptyCollections,
    EventTime,
    ExplodedAs,
    Forget,
    GroupRows,
    InitialState,
    JoinEventTime,
    JoinType,
    OutputMode,
    RightSide,
    RowStyle,
    Scan,
    Sink,
    StaticTable,
    StreamSide,
    TimeMode,
    UdfShape,
)
from tidegate.protocol.rescale import EdgeKind, EdgeShape


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    columns: tuple[Expression, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class FilterSpec:
    condition: Expression
    schema: pa.Schema


class Giving(Enum):
    """When an operator gives what a batch makes."""

    IN_SLICES = "in slices"  # a barrier may fall in between
    AT_ONCE = "at once"  # all of it belongs to the epoch of the batch


@dataclass(frozen=True, slots=True)
class MapInArrowSpec:
    function: bytes
    function_name: str
    schema: pa.Schema
    method: str = "mapInArrow"
    giving: Giving = Giving.AT_ONCE


@dataclass(frozen=True, slots=True)
class AsyncMapSpec:
    """Calls a function that waits for each row of `input_schema`, for so many rows at once."""

    function: bytes
    function_name: str
    input_schema: pa.Schema
    schema: pa.Schema
    capacity: int
    order: AnswerOrder = AnswerOrder.AS_TAKEN
    timeout_ms: float | None = None
    time_zone: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class EvalPythonSpec:
    """Its input's columns and `result_count` more."""

    functions: bytes
    function_name: str
    shape: UdfShape
    arguments: tuple[Expression, ...]
    result_count: int
    schema: pa.Schema
    giving: Giving = Giving.AT_ONCE


@dataclass(frozen=True, slots=True)
class EventTimeColumnSpec:
    """Rows pass through; one before the watermark is the user's mistake."""

    column: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class PartialAggregateSpec:
    """Combines rows with the same first `key_count` columns, as far as they come together; see `plan.partials`.

    `keys`: what is made of these columns then; None if they are the keys, see `plan.late_keys`.
    """

    key_count: int
    calls: tuple[AggregateCall, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    keys: tuple[Expression, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartialLayout:
    """Of rows that were combined: the columns of each call's parts, and the one that says how many rows each was."""

    columns: tuple[tuple[int, ...], ...]
    row_counts: int | None


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """Keyed by the first `key_count` columns of its input; a session, which is no key of the edge, is the last.

    `partials`: its input was combined before; the calls' arguments are then over what that was made of.
    """

    key_count: int
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    mode: OutputMode = OutputMode.UPDATE
    event_time: EventTime | None = None
    group_rows: GroupRows = GroupRows.NEWEST_LAST
    partials: PartialLayout | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TransformWithStateSpec:
    """Keyed by the first `key_count` columns of its input; the rest are the user's row."""

    key_count: int
    processor: bytes
    input_schema: pa.Schema
    schema: pa.Schema
    time_mode: TimeMode = TimeMode.NONE
    event_column: int | None = None
    time_zone: str | None = None
    style: RowStyle = RowStyle.ROWS
    initial: InitialState | None = None
    name: str | None = None
    states: tuple[DeclaredState, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatermarkSpec:
    """Event time follows the largest value of a timestamp column, `delay_ms` behind."""

    column: int
    delay_ms: int
    schema: pa.Schema
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectSpec:
    """Two inputs, told apart by their edges; stands at the head of its chain."""

    processor: bytes
    right_side: RightSide
    left_key_count: int
    right_key_count: int
    left_schema: pa.Schema
    right_schema: pa.Schema
    schema: pa.Schema
    time_mode: TimeMode = TimeMode.NONE
    time_zone: str | None = None
    name: str | None = None
    states: tuple[DeclaredState, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateSpec:
    collection: Expression
    exploded_as: ExplodedAs
    of_empty: EmptyCollections
    kept: tuple[int, ...]
    schema: pa.Schema
    giving: Giving = Giving.IN_SLICES


@dataclass(frozen=True, slots=True)
class ExpandSpec:
    projections: tuple[tuple[Expression, ...], ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class DeduplicateSpec:
    """Keyed by the first `key_count` columns; `event_time` is the column by which rows are late."""

    key_count: int
    event_time: int | None
    forget: Forget | None
    schema: pa.Schema
    name: str | None = None


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A row is done with when the time in `column` lies at or before event time plus `ahead_ms`."""

    column: int
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class JoinInputSpec:
    """Rows are [keys..., others...]; `columns` are the places of the side's own columns among them.

    `only_if` is over the side's own columns; `event_time` and the end's column are places in the row.
    """

    key_count: int
    columns: tuple[int, ...]
    schema: pa.Schema
    only_if: Expression | None
    event_time: int | None
    end: RowEnd | None


@dataclass(frozen=True, slots=True)
class StreamJoinSpec:
    """Two inputs by the same keys, at the head of a chain; `condition` is over [left columns..., right columns...]."""

    type: JoinType
    left: JoinInputSpec
    right: JoinInputSpec
    condition: Expression | None
    schema: pa.Schema
    event_time: JoinEventTime = JoinEventTime.OF_BOTH_SIDES
    giving: Giving = Giving.IN_SLICES
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StaticJoinSpec:
    """Joins each row with a table that every task holds."""

    type: JoinType
    stream_side: StreamSide
    keys: tuple[Expression, ...]
    table: StaticTable
    condition: Expression | None
    stream_schema: pa.Schema
    schema: pa.Schema
    giving: Giving = Giving.IN_SLICES


OperatorSpec: TypeAlias = (
    ProjectSpec
    | FilterSpec
    | MapInArrowSpec
    | AsyncMapSpec
    | EvalPythonSpec
    | PartialAggregateSpec
    | AggregateSpec
    | TransformWithStateSpec
    | EventTimeColumnSpec
    | WatermarkSpec
    | ConnectSpec
    | GenerateSpec
    | ExpandSpec
    | DeduplicateSpec
    | StreamJoinSpec
    | StaticJoinSpec
)


@dataclass(frozen=True, slots=True)
class HashPartitioning:
    """Rows go to the owner of the key group of their first `key_count` columns."""

    key_count: int


@dataclass(frozen=True, slots=True)
class RebalancePartitioning:
    """Batches go to all receivers in turn."""


@dataclass(frozen=True, slots=True)
class PointwisePartitioning:
    """Each sender has some receivers, or each receiver some senders, of its own; batches go to them in turn."""


@dataclass(frozen=True, slots=True)
class BroadcastPartitioning:
    """Every receiver gets every row."""


@dataclass(frozen=True, slots=True)
class ForwardPartitioning:
    """Subtask i to subtask i."""


Partitioning: TypeAlias = (
    HashPartitioning | RebalancePartitioning | PointwisePartitioning | BroadcastPartitioning | ForwardPartitioning
)

FIRST_INPUT = 0
SECOND_INPUT = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """`input`: which input of the receiver it feeds; several edges into one input are a union.

    `event_time_of`: an edge before it, into the same input, whose event time comes from the same `withWatermark`.
    `event_times`: the watermarks that its rows have passed, by number; None if nothing is known of them.
    """

    id: EdgeId
    sender: VertexId
    receiver: VertexId
    partitioning: Partitioning
    schema: pa.Schema
    input: int = FIRST_INPUT
    event_time_of: EdgeId | None = None
    event_times: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """One chain: a source or incoming edges at its head, a sink or outgoing edges at its end.

    `parallelism`: None for as many subtasks as the job has slots, else at most that many.
    """

    id: VertexId
    name: str
    source: Scan | None
    operators: tuple[OperatorSpec, ...]
    sink: Sink | None
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """`parallelism`: the number of slots; slot i hosts subtask i of every vertex that has one."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    parallelism: int
    max_parallelism: int

    def parallelism_of(self, vertex: VertexId) -> int:
        own = self.vertices[vertex].parallelism
        return self.parallelism if own is None else min(own, self.parallelism)

    def shape_of(self, edge: Edge) -> EdgeShape:
        return EdgeShape(
            edge=edge.id,
            kind=kind_of(edge.partitioning),
            senders=self.parallelism_of(edge.sender),
            receivers=self.parallelism_of(edge.receiver),
            key_groups=self.max_parallelism if isinstance(edge.partitioning, HashPartitioning) else None,
        )


def kind_of(partitioning: Partitioning) -> EdgeKind:
    match partitioning:
        case HashPartitioning():
            return EdgeKind.HASH
        case RebalancePartitioning():
            return EdgeKind.REBALANCE
        case PointwisePartitioning():
            return EdgeKind.POINTWISE
        case BroadcastPartitioning():
            return EdgeKind.BROADCAST
        case ForwardPartitioning():
            return EdgeKind.FORWARD
        case _:
            assert_never(partitioning)
