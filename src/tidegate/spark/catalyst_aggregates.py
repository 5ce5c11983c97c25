"""Reads Catalyst's Aggregate: group keys, count and sum, and the results computed from them."""

from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.nodes import Aggregate, AggregateCall, AggregateFunction, Node
from tidegate.spark.catalyst_expressions import Scope, canonical, evaluation_is_ansi, read_expression
from tidegate.spark.catalyst_trees import ExpressionTree


@dataclass(frozen=True, slots=True)
class ReadAggregate:
    """All of an `Aggregate` but its output names."""

    child: Node
    keys: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]

    def __call__(self, schema: pa.Schema) -> Aggregate:
        return Aggregate(self.child, self.keys, self.calls, self.results, schema)


def read_aggregate(
    child: Node, scope: Scope, *, keys: list[ExpressionTree], outputs: list[ExpressionTree]
) -> ReadAggregate:
    key_expressions = tuple(_read_key(key, scope) for key in keys)
    results = _Results(scope, {canonical(key): index for index, key in enumerate(keys)}, key_expressions)
    read = tuple(read_expression(output, results.empty_scope, results.substitute) for output in outputs)
    if not results.calls:
        raise UnsupportedPlan(
            "Tidegate does not run Spark's Aggregate without count or sum (SELECT DISTINCT, dropDuplicates): "
            "add a count, or keep the keys seen in a ValueState of transformWithState."
        )
    return ReadAggregate(child, key_expressions, tuple(results.calls), read)


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
            return self._call(tree)
        if tree.name == "MakeDecimal":  # Catalyst's way to sum small decimals as longs.
            raise _refused_sum(tree)
        position = self.key_positions.get(canonical(tree)) if tree.name != "Literal" else None
        if position is None:
            return None
        return Column(position, f"key{position}", self.keys[position].type)

    def _call(self, tree: ExpressionTree) -> Column:
        call = _read_call(tree, self.scope)
        if call not in self.calls:
            self.calls.append(call)
        position = len(self.keys) + self.calls.index(call)
        return Column(position, call.function.value, call.type)


def _read_call(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    if tree.fields["isDistinct"]:
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: remove DISTINCT.")
    if len(tree.children) > 1:
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: write FILTER as sum(if(condition, value, null)).")
    function = tree.children[0]
    match function.name:
        case "Count":
            return _count(function, scope)
        case "Sum":
            return _sum(function, scope)
        case name:
            raise UnsupportedPlan(
                f"Tidegate does not run Spark's aggregate {name} in `{tree.sql()}`: "
                f"use count or sum, or transformWithState."
            )


def _count(function: ExpressionTree, scope: Scope) -> AggregateCall:
    arguments = tuple(read_expression(argument, scope) for argument in function.children)
    counted = tuple(argument for argument in arguments if not _is_never_null(argument))
    kind = AggregateFunction.COUNT if counted else AggregateFunction.COUNT_ROWS
    return AggregateCall(kind, counted, pa.int64(), ansi=False)


def _is_never_null(argument: Expression) -> bool:
    return isinstance(argument, Literal) and argument.value is not None


def _sum(function: ExpressionTree, scope: Scope) -> AggregateCall:
    argument = read_expression(function.children[0], scope)
    if pa.types.is_integer(argument.type):
        type_ = pa.int64()
    elif pa.types.is_floating(argument.type):
        type_ = pa.float64()
    else:
        raise _refused_sum(function)
    if argument.type != type_:
        argument = Cast(argument, type_, ansi=False, zone="UTC")
    return AggregateCall(AggregateFunction.SUM, (argument,), type_, evaluation_is_ansi(function))


def _refused_sum(tree: ExpressionTree) -> UnsupportedPlan:
    return UnsupportedPlan(f"Tidegate does not run `{tree.sql()}` on decimals: cast its argument to long or double.")
