"""Expressions as Catalyst resolved them, bound to column positions. `plan.kernels` turns them into functions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.plan.parsing.java_doubles import Digits
from tidegate.plan.zones import ZoneRules


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
    """A function by Catalyst's short class name (`Add`, `GreaterThan`, `And`); `ansi` raises on overflow.

    `settings`: the plain fields of Catalyst's expression beside its arguments (`timeZoneId`, `ordinal`), as text.
    `rules`: those of the zone that `timeZoneId` names.
    """

    function: str
    arguments: "tuple[Expression, ...]"
    type: pa.DataType
    ansi: bool
    settings: tuple[tuple[str, str], ...] = ()
    rules: ZoneRules | None = None

    def setting(self, name: str) -> str | None:
        return dict(self.settings).get(name)


@dataclass(frozen=True, slots=True)
class Cast:
    """`digits`: how Spark's Java prints a double."""

    child: "Expression"
    type: pa.DataType
    ansi: bool
    zone: str
    rules: ZoneRules | None = None
    digits: Digits = Digits.SHORTEST


@dataclass(frozen=True, slots=True)
class Lambda:
    """A function argument of a higher-order function.

    The columns of `body` are [parameters..., captured...]; `captured` are expressions over the row around it.
    """

    parameters: tuple[pa.DataType, ...]
    captured: "tuple[Expression, ...]"
    body: "Expression"
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Try:
    """TRY mode (`try_add`, `try_cast`): null where `of` itself would raise in ANSI mode; its arguments still raise."""

    of: Call | Cast

    @property
    def type(self) -> pa.DataType:
        return self.of.type


Expression: TypeAlias = Column | Literal | Call | Cast | Try | Lambda
