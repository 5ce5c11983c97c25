"""Reads Catalyst's Aggregate: group keys, which of them carries event time, and the results computed from calls."""

from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.operators.columnar import KeyIndex
from tidegate.plan.expressions import Call, Column, Expression
from tidegate.plan.nodes import Aggregate, AggregateCall, EventTime, EventTimeKey, Node
from tidegate.spark.catalyst_calls import read_call, read_small_decimal_sum
from tidegate.spark.catalyst_expressions import Scope, canonical, read_expression
from tidegate.spark.catalyst_trees import ExpressionTree

_WATERMARK = "spark.watermarkDelayMs"
_SESSION = "spark.sessionWindow"


@dataclass(frozen=True, slots=True)
class ReadAggregate:
    """All of an `Aggregate` but its output names."""

    child: Node
    keys: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]
    event_time: EventTime | None

    def __call__(self, schema: pa.Schema) -> Aggregate:
        return Aggregate(self.child, self.keys, self.calls, self.results, schema, self.event_time)


def read_aggregate(
    child: Node, scope: Scope, *, keys: list[ExpressionTree], outputs: list[ExpressionTree]
) -> ReadAggregate:
    keys = sorted(keys, key=_is_session)  # the session last, the others as they are
    key_expressions = tuple(_read_key(key, scope) for key in keys)
    KeyIndex([key.type for key in key_expressions])  # refuses types that it cannot compare
    results = _Results(scope, {canonical(key): index for index, key in enumerate(keys)}, key_expressions)
    read = tuple(read_expression(output, results.empty_scope, results.substitute) for output in outputs)
    return ReadAggregate(child, key_expressions, tuple(results.calls), read, _event_time(keys))


def _event_time(keys: list[ExpressionTree]) -> EventTime | None:
    """As Spark: the first key with a watermark; a session is one also without."""
    for position, key in enumerate(keys):
        if _is_session(key):
            return EventTime(position, EventTimeKey.SESSION)
        if _has_mark(key, _WATERMARK):
            is_window = isinstance(key.fields["dataType"], dict)
            return EventTime(position, EventTimeKey.WINDOW if is_window else EventTimeKey.TIMESTAMP)
    return None


def _is_session(key: ExpressionTree) -> bool:
    return _has_mark(key, _SESSION)


def _has_mark(key: ExpressionTree, mark: str) -> bool:
    # Catalyst's JSON leaves metadata out.
    return key.name == "AttributeReference" and bool(key.jvm.metadata().contains(mark))


def _read_key(tree: ExpressionTree, scope: Scope) -> Expression:
    key = read_expression(tree, scope)
    if pa.types.is_floating(key.type):
        # Spark groups 0.0 with -0.0 and every NaN with every other, and shows the normalised key.
        return Call("NormalizeNaNAndZero", (key,), key.type, ansi=False)
    return key


@dataclass(slots=True)
class _Results:
    """Replaces group keys and aggregate calls in result expressions by columns of [keys..., calls...]."""

    scope: Scope
    key_positions: dict[object, int]
    keys: tuple[Expression, ...]
    calls: list[AggregateCall] = field(default_factory=list)
    empty_scope: Scope = field(default_factory=lambda: Scope([], pa.schema([])))

    def substitute(self, tree: ExpressionTree) -> Expression | None:
        if tree.name == "AggregateExpression":
            return self._column_of(read_call(tree, self.scope))
        if tree.name == "MakeDecimal" and (small := read_small_decimal_sum(tree, self.scope)) is not None:
            return self._column_of(small)
        position = self.key_positions.get(canonical(tree)) if tree.name != "Literal" else None
        if position is None:
            return None
        return Column(position, f"key{position}", self.keys[position].type)

    def _column_of(self, call: AggregateCall) -> Column:
        if call not in self.calls:
            self.calls.append(call)
        position = len(self.keys) + self.calls.index(call)
        return Column(position, call.function.value, call.type)
