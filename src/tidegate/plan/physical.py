"""What the slots run: vertices of chained operators, joined by edges. Built from nodes by `lower`."""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.expressions import Expression
from tidegate.plan.nodes import AggregateCall, Scan, Sink


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    columns: tuple[Expression, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class FilterSpec:
    condition: Expression
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class MapInArrowSpec:
    function: bytes
    function_name: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """Keyed by the first `key_count` columns of its input; update mode."""

    key_count: int
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]
    input_schema: pa.Schema
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class TransformWithStateSpec:
    """Keyed by the first `key_count` columns of its input; the rest are the user's row."""

    key_count: int
    processor: bytes
    input_schema: pa.Schema
    schema: pa.Schema


OperatorSpec: TypeAlias = ProjectSpec | FilterSpec | MapInArrowSpec | AggregateSpec | TransformWithStateSpec


@dataclass(frozen=True, slots=True)
class HashPartitioning:
    """Rows go to the owner of the key group of their first `key_count` columns."""

    key_count: int


@dataclass(frozen=True, slots=True)
class Edge:
    id: EdgeId
    sender: VertexId
    receiver: VertexId
    partitioning: HashPartitioning
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Vertex:
    """One chain: a source or an incoming edge at its head, a sink or an outgoing edge at its end."""

    id: VertexId
    name: str
    source: Scan | None
    operators: tuple[OperatorSpec, ...]
    sink: Sink | None


@dataclass(frozen=True, slots=True)
class JobPlan:
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    parallelism: int
    max_parallelism: int
