"""Expressions as Catalyst resolved them, bound to column positions. `plan.kernels` turns them into functions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the input batch by position: names may repeat in a Spark plan, positions cannot."""

    index: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Call:
    """A function by Catalyst's short class name (`Add`, `GreaterThan`, `And`); `ansi` raises on overflow."""

    function: str
    arguments: "tuple[Expression, ...]"
    type: pa.DataType
    ansi: bool


@dataclass(frozen=True, slots=True)
class Cast:
    child: "Expression"
    type: pa.DataType
    ansi: bool
    zone: str


Expression: TypeAlias = Column | Literal | Call | Cast
