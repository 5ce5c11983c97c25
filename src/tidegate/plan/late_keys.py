"""Keys that are numbers written as text: rows are combined by the numbers, and the text is made once for each group.

Making texts and finding equal ones costs several times what it costs for numbers, and rows are combined to have fewer
of them. Only for texts that differ whenever the numbers do: else rows of one key would be combined into several, in
another order than they came.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.nodes import AggregateCall
from tidegate.plan.physical import OperatorSpec, PartialAggregateSpec, ProjectSpec, Vertex


def write_keys_late(vertices: Sequence[Vertex]) -> list[Vertex]:
    return [replace(vertex, operators=with_late_keys(vertex.operators)) for vertex in vertices]


def with_late_keys(operators: Sequence[OperatorSpec]) -> tuple[OperatorSpec, ...]:
    made: list[OperatorSpec] = []
    for operator in operators:
        before = made[-1] if made else None
        if isinstance(operator, PartialAggregateSpec) and isinstance(before, ProjectSpec):
            made[-1:] = _with_late_keys(before, operator)
        else:
            made.append(operator)
    return tuple(made)


def _with_late_keys(making: ProjectSpec, combining: PartialAggregateSpec) -> tuple[ProjectSpec, PartialAggregateSpec]:
    is_used = {column.index for call in combining.calls for column in _columns(call)}
    columns, fields = list(making.columns), list(making.schema)
    keys: list[Expression] = []
    for at in range(combining.key_count):
        number = None if at in is_used else _number_in(columns[at])
        if number is None:
            keys.append(Column(at, fields[at].name, fields[at].type))
        else:
            read = Column(at, fields[at].name, number.type)
            keys.append(_with_number(columns[at], read))
            columns[at], fields[at] = number, pa.field(read.name, read.type)
    if tuple(columns) == making.columns:
        return making, combining
    numbers = pa.schema(fields)
    return ProjectSpec(tuple(columns), numbers), replace(combining, input_schema=numbers, keys=tuple(keys))


def _columns(call: AggregateCall) -> list[Column]:
    """Over the projection, so that all of them are its columns."""
    used = [*call.arguments, *call.distinct, *(() if call.condition is None else (call.condition,))]
    columns = [each for each in used if isinstance(each, Column)]
    assert len(columns) == len(used), "an aggregation's arguments are projected before it"
    return columns


def _number_in(text: Expression) -> Expression | None:
    """What the text is made of, if it is another for every other number, and making it cannot fail."""
    match text:
        case Cast(child=child, type=kind) if kind == pa.string() and _is_number(child.type):
            return child
        case Call(function="Concat", arguments=parts, type=kind) if kind == pa.string():
            written = [part for part in parts if not isinstance(part, Literal)]
            has_null = any(isinstance(part, Literal) and part.value is None for part in parts)
            return _number_in(written[0]) if len(written) == 1 and not has_null else None
        case _:
            return None


def _with_number(text: Expression, number: Column) -> Expression:
    """The text of that number, where the one it was made of stood."""
    match text:
        case Cast():
            return replace(text, child=number)
        case Call(arguments=parts):
            return replace(
                text,
                arguments=tuple(part if isinstance(part, Literal) else _with_number(part, number) for part in parts),
            )
        case _:
            raise AssertionError(f"{text} is no text of a number")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))
