"""The lowered plan: one node per Catalyst node that Tidegate runs, children first, columns by position."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from tidegate.plan.expressions import Expression


@dataclass(frozen=True, slots=True)
class Scan:
    """A leaf. `schema` is the full schema of the source, in the order of the plan's attributes.

    `payload`: what only the spark layer can make and open, for connectors that need more than options.
    """

    format: str
    options: Mapping[str, str]
    schema: pa.Schema
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Project:
    child: "Node"
    columns: tuple[Expression, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Filter:
    child: "Node"
    condition: Expression
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class MapInArrow:
    """`function` is PySpark's pickled command; only the spark layer can open it."""

    child: "Node"
    function: bytes
    function_name: str
    schema: pa.Schema


class AggregateFunction(Enum):
    COUNT_ROWS = "count(*)"  # counts rows
    COUNT = "count"  # counts rows whose arguments are all not null
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class AggregateCall:
    function: AggregateFunction
    arguments: tuple[Expression, ...]
    type: pa.DataType
    ansi: bool


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups by `keys` (over the child's columns), computes `calls`; `results` are over the row [keys..., calls...]."""

    child: "Node"
    keys: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class TransformWithState:
    """The child's row is [key columns..., value columns...]; `processor` is PySpark's pickled command."""

    child: "Node"
    key_count: int
    processor: bytes
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class EventTimeWatermark:
    """Event time follows the largest value of a column, `delay_ms` behind."""

    child: "Node"
    column: int
    delay_ms: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Union:
    """Columns by position; names are the first child's."""

    children: "tuple[Node, ...]"
    schema: pa.Schema


class Spread(Enum):
    """How rows reach the tasks behind a repartitioning."""

    EVENLY = "evenly"  # by turns
    BY_KEY = "by key"  # equal keys to the same task
    TO_NEIGHBOURS = "to neighbours"  # no more exchange than fewer tasks need


@dataclass(frozen=True, slots=True)
class Repartition:
    """`partitions`: None for as many as there are slots. `keys` are over the child's columns."""

    child: "Node"
    spread: Spread
    keys: tuple[Expression, ...]
    partitions: int | None
    schema: pa.Schema


Node: TypeAlias = (
    Scan | Project | Filter | MapInArrow | Aggregate | TransformWithState | EventTimeWatermark | Union | Repartition
)


@dataclass(frozen=True, slots=True)
class Sink:
    format: str
    options: Mapping[str, str]
    schema: pa.Schema
