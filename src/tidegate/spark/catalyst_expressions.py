"""Reads Catalyst's expressions into `plan.expressions`, bound to positions of the child's columns.

Refuses what has no kernel, by Spark's name and SQL text; never guesses an evaluation mode.
"""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan import kernels
from tidegate.plan.expressions import Call, Cast, Column, Expression, Lambda, Literal, Try
from tidegate.spark.catalyst_json import is_to_json, json_settings, to_json_call
from tidegate.spark.catalyst_nested import check_settings_of_session, nested_settings, read_jvm_value
from tidegate.spark.catalyst_text import (
    LIKE_LISTS,
    invoked_name,
    java_digits,
    jvm_settings,
    like_patterns,
    require_known_case,
    require_known_digits,
)
from tidegate.spark.catalyst_times import (
    ZONE_CONVERSIONS,
    check_formats,
    constant_interval,
    interval_values,
    rules_of_call,
    rules_of_cast,
    times_of_conversion,
    zone_conversion,
)
from tidegate.spark.catalyst_trees import ExpressionTree
from tidegate.spark.types import to_arrow_type

# What an expression may stand for before it is read in the ordinary way: a column of an aggregate, or nothing.
Substitute: TypeAlias = Callable[[ExpressionTree], Expression | None]

_BOOLEAN_FUNCTIONS = frozenset(
    {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"}
    | {"And", "Or", "Not", "IsNull", "IsNotNull", "IsNaN", "In", "AtLeastNNonNulls"}
    | {"StartsWith", "EndsWith", "Contains", "Like", "RLike", "LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny"}
)
# Known without asking the JVM, which takes a call for every expression.
_TYPE_OF_FIRST_ARGUMENT = frozenset(
    {"Add", "Subtract", "Multiply", "Remainder", "Pmod", "UnaryMinus", "Abs", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
    | {"BitwiseNot", "Greatest", "Least", "Coalesce", "NaNvl", "NormalizeNaNAndZero"}
)
# Marks that change no value.
_TRANSPARENT = frozenset(
    {"Alias", "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "KnownNotContainsNull"}
)


class Scope:
    """The columns an expression can refer to, by Catalyst's expression id."""

    def __init__(self, ids: list[tuple[int, str]], schema: pa.Schema) -> None:
        self._columns: dict[tuple[int, str], Column] = {}
        for index, expression_id in enumerate(ids):
            column = Column(index, schema.field(index).name, schema.field(index).type)
            # The same attribute may appear twice (keys before values); both hold the same values.
            self._columns.setdefault(expression_id, column)

    def column(self, tree: ExpressionTree) -> Column:
        try:
            return self._columns[tree.expression_id()]
        except KeyError:
            name = tree.fields["name"]
            raise UnsupportedPlan(
                f"Column {name!r} is not among the columns of the node below it, such as a correlated subquery's: "
                f"rewrite the query without it."
            ) from None


def read_expression(tree: ExpressionTree, scope: Scope, substitute: Substitute = lambda _tree: None) -> Expression:
    expression = _convert(tree, scope, substitute)
    try:
        kernels.check_supported(expression)
    except UnsupportedPlan as refusal:
        culprit, reason = _smallest_refused(tree, scope, substitute) or (tree, refusal)
        raise _refused(culprit, str(reason)) from None
    return expression


def evaluation_is_ansi(tree: ExpressionTree) -> bool:
    """Whether errors are raised; TRY mode, which turns them into nulls, is refused."""
    mode = _evaluation_mode(tree)
    if mode not in ("ANSI", "LEGACY"):
        raise _refused(tree, f"Tidegate has no kernel for {tree.name} in {mode} mode")
    return mode == "ANSI"


def _evaluation_mode(tree: ExpressionTree) -> str:
    """ANSI, LEGACY or TRY; functions that raise no errors of their own have none and count as LEGACY."""
    for flag in ("failOnError", "ansiEnabled"):
        if flag in tree.fields:
            return "ANSI" if tree.fields[flag] else "LEGACY"
    if "evalContext" in tree.fields:
        return str(tree.jvm.evalContext().evalMode().toString())
    return str(tree.jvm.evalMode().toString()) if "evalMode" in tree.fields else "LEGACY"


def _convert(tree: ExpressionTree, scope: Scope, substitute: Substitute) -> Expression:
    replaced = substitute(tree)
    if replaced is not None:
        return replaced
    if tree.name in _TRANSPARENT:
        return _convert(tree.children[0], scope, substitute)
    match tree.name:
        case "AttributeReference":
            return scope.column(tree)
        case "Literal":
            return _literal(tree)
        case "InSet":
            return _in_set(tree, scope, substitute)
        case "LambdaFunction":
            return _lambda(tree, scope, substitute)
    check_settings_of_session(tree)
    if is_to_json(tree):
        return to_json_call(tree, _convert(tree.children[1], scope, substitute))
    if tree.name in ZONE_CONVERSIONS:
        return zone_conversion(tree, _convert(times_of_conversion(tree), scope, substitute))
    name = invoked_name(tree) or tree.name
    if name != "Cast" and name not in kernels.supported_functions():
        raise _refused(tree, f"Tidegate has no kernel for {name}")
    check_formats(tree)
    if (values := interval_values(tree)) is not None:
        return _chosen_interval(tree, values, scope, substitute)
    children = tuple(constant_interval(child, tree) or _convert(child, scope, substitute) for child in tree.children)
    return _in_its_mode(tree, _function(tree, name, children))


def _chosen_interval(tree: ExpressionTree, values: list[int], scope: Scope, substitute: Substitute) -> Expression:
    """`ts + CASE ... THEN interval ...` as a CASE over sums: an interval of days and time is no value of a column."""
    times, chooser = _convert(tree.children[0], scope, substitute), tree.children[1]

    def argument(at: int) -> Expression:
        child = chooser.children[at]
        if at not in values:
            return _convert(child, scope, substitute)
        interval = constant_interval(child, tree)
        assert interval is not None, "all of these are constant"
        return _in_its_mode(tree, _function(tree, tree.name, (times, interval)))

    arguments = tuple(argument(at) for at in range(len(chooser.children)))
    return Call(chooser.name, arguments, times.type, ansi=False)


def _in_its_mode(tree: ExpressionTree, expression: Call | Cast) -> Expression:
    return Try(expression) if _evaluation_mode(tree) == "TRY" else expression


def _function(tree: ExpressionTree, name: str, children: tuple[Expression, ...]) -> Call | Cast:
    is_ansi = _evaluation_mode(tree) == "ANSI"
    if name == "Cast":
        target = to_arrow_type(tree.fields["dataType"], of=f"Expression {tree.sql()}")
        zone = tree.fields.get("timeZoneId")
        rules = rules_of_cast(children[0].type, target, zone)
        if children[0].type == pa.float64() and target == pa.string():
            return Cast(children[0], target, is_ansi, zone or "unknown", rules, java_digits())
        require_known_digits(tree, children[0].type, target)
        return Cast(children[0], target, is_ansi, zone or "unknown", rules)
    if name == "AtLeastNNonNulls":
        children = (Literal(tree.fields["n"], pa.int32()), *children)
    if name in LIKE_LISTS:
        children = (*children, *like_patterns(tree))
    require_known_case(tree)
    type_ = _result_type(tree, children)
    if name in ("Round", "BRound"):
        require_known_digits(tree, children[0].type, type_)
    settings = (*_settings(tree), *jvm_settings(tree), *json_settings(tree))
    return Call(name, children, type_, is_ansi, settings, rules_of_call(tree))


# Where an expression stands, how it raises errors, what else is read elsewhere.
_NOT_SETTINGS = frozenset({"class", "dataType", "name", "evalMode", "evalContext", "failOnError", "queryContext"})
# Catalyst's JSON gives a child as its index, so that only these numbers are known to be values.
_NUMERIC_SETTINGS = frozenset({"ordinal", "seed"})


def _settings(tree: ExpressionTree) -> tuple[tuple[str, str], ...]:
    """What may change the result beside the arguments."""
    plain = (
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in tree.fields.items()
        if (name not in _NOT_SETTINGS and isinstance(value, str | bool)) or name in _NUMERIC_SETTINGS
    )
    return tuple(sorted([*plain, *nested_settings(tree)]))


def _lambda(tree: ExpressionTree, scope: Scope, substitute: Substitute) -> Lambda:
    """Children are the body and its variables; what the body takes from the row around it becomes captured columns."""
    body, *variables = tree.children
    parameters = {
        variable.expression_id(): Column(index, variable.fields["name"], _variable_type(variable))
        for index, variable in enumerate(variables)
    }
    captured: list[Expression] = []

    def inside(part: ExpressionTree) -> Expression | None:
        if part.name == "NamedLambdaVariable" and part.expression_id() in parameters:
            return parameters[part.expression_id()]
        outer = substitute(part)
        if outer is None and part.name == "AttributeReference":
            outer = scope.column(part)
        if outer is None:
            return None
        if outer not in captured:
            captured.append(outer)
        return Column(len(parameters) + captured.index(outer), "captured", outer.type)

    converted = _convert(body, scope, inside)
    types = tuple(column.type for column in parameters.values())
    return Lambda(types, tuple(captured), converted, converted.type)


def _variable_type(variable: ExpressionTree) -> pa.DataType:
    return to_arrow_type(variable.fields["dataType"], of=f"Variable {variable.fields['name']!r}")


def _result_type(tree: ExpressionTree, children: tuple[Expression, ...]) -> pa.DataType:
    if tree.name in _BOOLEAN_FUNCTIONS:
        return pa.bool_()
    if tree.name in ("If", "CaseWhen"):
        return children[1].type
    if tree.name in _TYPE_OF_FIRST_ARGUMENT and not pa.types.is_decimal(children[0].type):
        return children[0].type
    # Only Spark knows, such as the precision and scale of decimal arithmetic.
    return to_arrow_type(json.loads(tree.jvm.dataType().json()), of=f"Expression {tree.sql()}")


def _literal(tree: ExpressionTree) -> Literal:
    type_ = to_arrow_type(tree.fields["dataType"], of=f"Literal {tree.fields.get('value')}")
    text = tree.fields.get("value")
    return Literal(None if text is None else _literal_value(tree, text, type_), type_)


def _literal_value(tree: ExpressionTree, text: str, type_: pa.DataType) -> Any:
    if pa.types.is_nested(type_):
        return read_jvm_value(tree.jvm.value(), tree.jvm.dataType(), type_)
    if pa.types.is_temporal(type_) or type_ == pa.binary():
        # Their text depends on the zone or is an address; the JVM holds days, microseconds, bytes.
        return tree.jvm.value()
    return _value_of_text(text, type_)


def _value_of_text(text: str, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return text == "true"
    if pa.types.is_integer(type_):
        return int(text)
    if pa.types.is_floating(type_):
        return float(text)
    if pa.types.is_decimal(type_):
        return Decimal(text)
    return text


def _in_set(tree: ExpressionTree, scope: Scope, substitute: Substitute) -> Expression:
    """A long `IN` list of constants, which Catalyst keeps as a set that only the JVM can show."""
    value = _convert(tree.children[0], scope, substitute)
    if not (pa.types.is_integer(value.type) or value.type == pa.string()):
        raise _refused(tree, f"Tidegate has no kernel for InSet on {value.type}")
    elements = []
    stored = tree.jvm.hset().iterator()
    while stored.hasNext():
        element = stored.next()
        is_null = element is None
        elements.append(Literal(None if is_null else _value_of_text(str(element), value.type), value.type))
    return Call("In", (value, *elements), pa.bool_(), ansi=False)


def _smallest_refused(
    tree: ExpressionTree, scope: Scope, substitute: Substitute
) -> tuple[ExpressionTree, UnsupportedPlan] | None:
    """The deepest expression that has no kernel itself, so that the refusal names it and not what surrounds it."""
    if substitute(tree) is not None or tree.name == "LambdaFunction":
        # Inside of a lambda its variables mean something, outside they do not: the function around it is named.
        return None
    for child in tree.children:
        found = _smallest_refused(child, scope, substitute)
        if found is not None:
            return found
    try:
        kernels.check_supported(_convert(tree, scope, substitute))
    except UnsupportedPlan as refusal:
        return tree, refusal
    return None


def _refused(tree: ExpressionTree, reason: str) -> UnsupportedPlan:
    return UnsupportedPlan(
        f"{reason}, needed for `{tree.sql()}`: rewrite it with supported functions, or compute it in mapInArrow."
    )


def canonical(tree: ExpressionTree) -> object:
    """Equal for expressions that compute the same: names, qualifiers and metadata do not count."""
    if tree.name == "AttributeReference":
        return tree.expression_id()
    ignored = {"qualifier", "metadata", "nonInheritableMetadataKeys", "explicitMetadata", "num-children"}
    own = tuple(sorted((key, str(value)) for key, value in _own_fields(tree.fields) if key not in ignored))
    return own, tuple(canonical(child) for child in tree.children)


def _own_fields(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    # Lists hold copies of children, which are compared by themselves.
    return [(key, value) for key, value in fields.items() if not isinstance(value, list)]
