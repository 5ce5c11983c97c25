"""Reads Catalyst's aggregate functions. Refuses by Spark's name what has no accumulator with Spark's very result."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.operators.accumulators.build import accumulator_of
from tidegate.operators.accumulators.distinct import DistinctRows
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.spark.catalyst_expressions import Scope, evaluation_is_ansi, read_expression
from tidegate.spark.catalyst_sketches import read_sketch
from tidegate.spark.catalyst_trees import ExpressionTree
from tidegate.spark.types import to_arrow_type

_F = AggregateFunction
# Those whose result has the type Spark says, and that have nothing but arguments.
_PLAIN: Mapping[str, AggregateFunction] = {
    "Min": _F.MIN,
    "Max": _F.MAX,
    "MinBy": _F.MIN_BY,
    "MaxBy": _F.MAX_BY,
    "BitAndAgg": _F.BIT_AND,
    "BitOrAgg": _F.BIT_OR,
    "BitXorAgg": _F.BIT_XOR,
}
_STATISTICS: Mapping[str, AggregateFunction] = {
    "StddevPop": _F.STDDEV_POP,
    "StddevSamp": _F.STDDEV_SAMP,
    "VariancePop": _F.VAR_POP,
    "VarianceSamp": _F.VAR_SAMP,
    "Skewness": _F.SKEWNESS,
    "Kurtosis": _F.KURTOSIS,
    "CovPopulation": _F.COVAR_POP,
    "CovSample": _F.COVAR_SAMP,
    "Corr": _F.CORR,
}
# By whether nulls are ignored.
_CHOOSING: Mapping[tuple[str, bool], AggregateFunction] = {
    ("First", False): _F.FIRST,
    ("First", True): _F.FIRST_NON_NULL,
    ("Last", False): _F.LAST,
    ("Last", True): _F.LAST_NON_NULL,
    ("CollectList", True): _F.COLLECT_LIST,
    ("CollectList", False): _F.COLLECT_LIST_WITH_NULLS,
    ("CollectSet", True): _F.COLLECT_SET,
    ("CollectSet", False): _F.COLLECT_SET_WITH_NULLS,
}


def read_call(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    """An `AggregateExpression`: a function, and what stands in FILTER."""
    call = _read_function(tree.children[0], scope)
    accumulator_of(call)  # refuses types that it cannot take
    if tree.fields["isDistinct"]:
        call = _distinct(call, _arguments(tree.children[0], scope), tree)
    return _filtered(call, tree, scope)


def read_small_decimal_sum(tree: ExpressionTree, scope: Scope) -> AggregateCall | None:
    """`MakeDecimal(sum(UnscaledValue(x)))`, which is how Catalyst sums decimals of few digits, as the sum it means."""
    outer = tree.children[0]
    if outer.name != "AggregateExpression" or outer.children[0].name != "Sum":
        return None
    summed = outer.children[0].children[0]
    if summed.name != "UnscaledValue":
        return None
    kind = pa.decimal128(tree.fields["precision"], tree.fields["scale"])
    argument = read_expression(summed.children[0], scope)
    call = AggregateCall(_F.SUM, (argument,), kind, evaluation_is_ansi(outer.children[0]))
    if outer.fields["isDistinct"]:
        call = _distinct(call, (argument,), outer)
    return _filtered(call, outer, scope)


def _distinct(call: AggregateCall, values: tuple[Expression, ...], tree: ExpressionTree) -> AggregateCall:
    """The call over the rows of these values, each of which it sees once."""
    try:
        DistinctRows([value.type for value in values])
    except UnsupportedPlan as refusal:
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: {refusal}") from None

    def over(argument: Expression) -> Expression:
        if argument in values:
            position = values.index(argument)
            return Column(position, f"value_{position}", argument.type)
        match argument:
            case Cast(child=child):
                return replace(argument, child=over(child))
            case Call(arguments=arguments):
                return replace(argument, arguments=tuple(over(each) for each in arguments))
            case Literal():
                return argument
            case _:
                raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: remove DISTINCT.")

    return replace(call, arguments=tuple(over(argument) for argument in call.arguments), distinct=values)


def _filtered(call: AggregateCall, tree: ExpressionTree, scope: Scope) -> AggregateCall:
    if len(tree.children) == 1:
        return call
    condition = read_expression(tree.children[1], scope)
    if call.distinct:
        # Spark evaluates these of every row.
        return replace(call, condition=condition)
    return replace(call, arguments=tuple(_only_where(condition, each) for each in call.arguments), condition=condition)


def _read_function(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    if (plain := _PLAIN.get(tree.name)) is not None:
        return AggregateCall(plain, _arguments(tree, scope), _type_of(tree), ansi=False)
    if (statistic := _STATISTICS.get(tree.name)) is not None:
        return _statistic(tree, statistic, scope)
    if (choosing := _CHOOSING.get((tree.name, bool(tree.fields.get("ignoreNulls", True))))) is not None:
        return AggregateCall(choosing, (read_expression(tree.children[0], scope),), _type_of(tree), ansi=False)
    match tree.name:
        case "Count":
            return _count(tree, scope)
        case "Sum":
            return _sum(tree, scope)
        case "Average":
            return _average(tree, scope)
        case "HyperLogLogPlusPlus":
            return read_sketch(tree, scope)
        case name:
            raise UnsupportedPlan(
                f"Tidegate does not run Spark's aggregate {name} in `{tree.sql()}`: "
                f"use another aggregate function, or transformWithState."
            )


def _count(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    counted = tuple(argument for argument in _arguments(tree, scope) if not _is_never_null(argument))
    kind = _F.COUNT if counted else _F.COUNT_ROWS
    return AggregateCall(kind, counted, pa.int64(), ansi=False)


def _is_never_null(argument: Expression) -> bool:
    return isinstance(argument, Literal) and argument.value is not None


def _sum(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    kind = _type_of(tree)
    argument = read_expression(tree.children[0], scope)
    if not (pa.types.is_int64(kind) or pa.types.is_float64(kind) or pa.types.is_decimal128(kind)):
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}` over {argument.type}: cast it to a number.")
    return AggregateCall(_F.SUM, (_as_number(argument, kind),), kind, evaluation_is_ansi(tree))


def _average(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    kind = _type_of(tree)
    argument = read_expression(tree.children[0], scope)
    if not (pa.types.is_float64(kind) or pa.types.is_decimal128(kind)):
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}` over {argument.type}: cast it to a number.")
    return AggregateCall(_F.AVG, (_as_number(argument, kind),), kind, evaluation_is_ansi(tree))


def _as_number(argument: Expression, kind: pa.DataType) -> Expression:
    """As the sum is kept: long or double; decimals as they are."""
    if argument.type == kind or pa.types.is_decimal128(kind):
        return argument
    return Cast(argument, kind, ansi=False, zone="UTC")


def _statistic(tree: ExpressionTree, function: AggregateFunction, scope: Scope) -> AggregateCall:
    if not tree.fields.get("nullOnDivideByZero", True):
        raise UnsupportedPlan(
            f"Tidegate does not run `{tree.sql()}` with spark.sql.legacy.statisticalAggregate: set it to false."
        )
    return AggregateCall(function, _arguments(tree, scope), pa.float64(), ansi=False)


def _arguments(tree: ExpressionTree, scope: Scope) -> tuple[Expression, ...]:
    return tuple(read_expression(argument, scope) for argument in tree.children)


def _only_where(condition: Expression, argument: Expression) -> Expression:
    """Spark evaluates the argument of a row only if its condition is true, which shows if it could raise."""
    if isinstance(argument, Column | Literal):
        return argument
    return Call("If", (condition, argument, Literal(None, argument.type)), argument.type, ansi=False)


def _type_of(tree: ExpressionTree) -> pa.DataType:
    return to_arrow_type(json.loads(tree.jvm.dataType().json()), of=f"Expression {tree.sql()}")
