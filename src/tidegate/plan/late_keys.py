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
        if isinstance(operator, PartialAggregateSpec):
            made, operator = _with_late_keys(made, operator)
        made.append(operator)
    return tuple(made)


def _with_late_keys(
    before: list[OperatorSpec], combining: PartialAggregateSpec
) -> tuple[list[OperatorSpec], PartialAggregateSpec]:
    are_used = {column.index for call in combining.calls for column in _columns(call)}
    fields = list(combining.input_schema)
    keys: list[Expression] = [Column(at, fields[at].name, fields[at].type) for at in range(combining.key_count)]
    made = before
    for at in range(combining.key_count):
        found = None if at in are_used else _numbers_instead(made, at)
        if found is not None:
            made, text, number = found
            fields[at] = pa.field(fields[at].name, number)
            keys[at] = _with_number(text, Column(at, fields[at].name, number))
    if made is before:
        return before, combining
    return made, replace(combining, input_schema=pa.schema(fields), keys=tuple(keys))


def _numbers_instead(
    operators: list[OperatorSpec], at: int
) -> tuple[list[OperatorSpec], Expression, pa.DataType] | None:
    """The same with the number in place of its text in that column of the last one; the text, and the number's type."""
    last = operators[-1] if operators else None
    if not isinstance(last, ProjectSpec):
        return None
    made = last.columns[at]
    if isinstance(made, Column):
        others = [column for index, column in enumerate(last.columns) if index != at]
        if not all(isinstance(other, Column) and other.index != made.index for other in others):
            return None  # another column may need the text
        found = _numbers_instead(operators[:-1], made.index)
        if found is None:
            return None
        earlier, text, kind = found
        return [*earlier, _with_column(last, at, replace(made, type=kind))], text, kind
    number = _number_in(made)
    if number is None:
        return None
    return [*operators[:-1], _with_column(last, at, number)], made, number.type


def _with_column(spec: ProjectSpec, at: int, column: Expression) -> ProjectSpec:
    columns = (*spec.columns[:at], column, *spec.columns[at + 1 :])
    return ProjectSpec(columns, spec.schema.set(at, pa.field(spec.schema.field(at).name, column.type)))


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
