"""How deduplications and joins are laid out: keys in front of the row, and what is said of them in plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Column, Expression
from tidegate.plan.nodes import (
    Deduplicate,
    EndsByEventTime,
    EndsByKey,
    ForgetAfterDelay,
    ForgetByKey,
    JoinInput,
    StaticJoin,
)
from tidegate.plan.physical import (
    DeduplicateSpec,
    JoinInputSpec,
    ProjectSpec,
    RowEnd,
    StaticJoinSpec,
    StreamJoinSpec,
)

JoinSpec: TypeAlias = DeduplicateSpec | StreamJoinSpec | StaticJoinSpec


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A row as [keys..., others...]. `columns`: where the columns of the row as it was stand in it."""

    expressions: tuple[Expression, ...]
    schema: pa.Schema
    columns: tuple[int, ...]

    def is_as_it_was(self) -> bool:
        return self.columns == tuple(range(len(self.schema)))

    def to_keyed(self) -> ProjectSpec:
        return ProjectSpec(self.expressions, self.schema)

    def back(self, schema: pa.Schema) -> ProjectSpec:
        columns = [Column(at, field.name, field.type) for at, field in zip(self.columns, schema, strict=True)]
        return ProjectSpec(tuple(columns), schema)


def keyed_row(keys: Sequence[Expression], schema: pa.Schema) -> KeyedRow:
    """A key that is a column of the row stands in for it, so that it travels once."""
    for at, key in enumerate(keys):
        _check_key(key, at)
    expressions = list(keys)
    fields = [pa.field(_key_name(key, at), key.type) for at, key in enumerate(keys)]
    columns = []
    for at, field in enumerate(schema):
        column = Column(at, field.name, field.type)
        if column not in expressions:
            expressions.append(column)
            fields.append(field)
        columns.append(expressions.index(column))
    return KeyedRow(tuple(expressions), pa.schema(fields), tuple(columns))


def deduplicate_spec(node: Deduplicate, row: KeyedRow) -> DeduplicateSpec:
    event_time = None if node.event_time is None else row.columns[node.event_time]
    return DeduplicateSpec(len(node.keys), event_time, node.forget, row.schema)


def input_spec(side: JoinInput, row: KeyedRow) -> JoinInputSpec:
    event_time = None if side.event_time is None else row.columns[side.event_time]
    return JoinInputSpec(len(side.keys), row.columns, row.schema, side.only_if, event_time, _row_end(side, event_time))


def static_join_spec(node: StaticJoin) -> StaticJoinSpec:
    for at, key in enumerate((*node.keys, *node.table.keys)):
        _check_key(key, at)
    schema = node.child.schema
    return StaticJoinSpec(node.type, node.stream_side, node.keys, node.table, node.condition, schema, node.schema)


def join_name(spec: JoinSpec) -> str:
    match spec:
        case DeduplicateSpec():
            return "Deduplicate"
        case StreamJoinSpec(type=kind):
            return f"Join({kind.value})"
        case StaticJoinSpec(type=kind):
            return f"StaticJoin({kind.value})"
        case _:
            assert_never(spec)


def join_details(spec: JoinSpec) -> str:
    match spec:
        case DeduplicateSpec():
            return f"by {_names(spec.schema, spec.key_count)}{_forgetting(spec)}"
        case StreamJoinSpec():
            left, right = spec.left, spec.right
            keys = f"{_names(left.schema, left.key_count)} = {_names(right.schema, right.key_count)}"
            return f"by {keys}, left{_keeping(left)}, right{_keeping(right)}"
        case StaticJoinSpec():
            return f"stream on the {spec.stream_side.value}, table of {len(spec.table.rows)} bytes"
        case _:
            assert_never(spec)


def join_shape(spec: JoinSpec) -> str:
    """What must be the same for stored rows to fit."""
    match spec:
        case DeduplicateSpec():
            forgets = "never" if spec.forget is None else type(spec.forget).__name__
            return f"Deduplicate keys={_types(spec.schema.types[: spec.key_count])} forgets={forgets}"
        case StreamJoinSpec():
            return f"Join {spec.type.value} left={_side_shape(spec.left)} right={_side_shape(spec.right)}"
        case StaticJoinSpec():
            return "StaticJoin"
        case _:
            assert_never(spec)


def _check_key(key: Expression, position: int) -> None:
    """Keys are compared by the fields of structs and the elements of lists, down to plain values."""
    if not _has_plain_leaves(key.type):
        raise UnsupportedPlan(
            f"Tidegate does not compare {_key_name(key, position)!r}, of type {key.type}, as a key: "
            f"use a string or the fields of the value instead."
        )


def _has_plain_leaves(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_has_plain_leaves(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_plain_leaves(kind.value_type)
    return not (pa.types.is_nested(kind) or pa.types.is_interval(kind))


def _row_end(side: JoinInput, event_time: int | None) -> RowEnd | None:
    match side.end:
        case None:
            return None
        case EndsByKey(key=key):
            return RowEnd(key, 0)
        case EndsByEventTime(ahead_ms=ahead_ms):
            assert event_time is not None, "rows end by the event time they have"
            return RowEnd(event_time, ahead_ms)
        case _:
            assert_never(side.end)


def _forgetting(spec: DeduplicateSpec) -> str:
    match spec.forget:
        case None:
            return ", for ever"
        case ForgetByKey(key=key):
            return f", until {spec.schema.field(key).name} has passed"
        case ForgetAfterDelay(delay_ms=delay_ms):
            return f", for {delay_ms} ms"
        case _:
            assert_never(spec.forget)


def _keeping(side: JoinInputSpec) -> str:
    if side.end is None:
        return " kept for ever"
    return f" kept until {side.schema.field(side.end.column).name} has passed by {-side.end.ahead_ms} ms"


def _side_shape(side: JoinInputSpec) -> str:
    return f"keys={_types(side.schema.types[: side.key_count])} rows={_types(side.schema.types)}"


def _key_name(key: Expression, position: int) -> str:
    return key.name if isinstance(key, Column) else f"_key{position}"


def _names(schema: pa.Schema, count: int) -> str:
    return f"[{', '.join(schema.names[:count])}]"


def _types(kinds: Sequence[pa.DataType]) -> str:
    return f"[{', '.join(str(kind) for kind in kinds)}]"
