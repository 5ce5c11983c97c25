"""Reads Catalyst's Generate and Expand: which columns stay, and what stands for each element or projection."""

from collections.abc import Mapping

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Column, Expression, Literal
from tidegate.plan.kernels import check_supported
from tidegate.plan.nodes import EmptyCollections, Expand, ExplodedAs, Generate, Node, Project
from tidegate.spark.catalyst_expressions import Scope, read_expression
from tidegate.spark.catalyst_json import json_settings
from tidegate.spark.catalyst_trees import ExpressionTree, PlanTree

_EXPLODED_AS: Mapping[str, ExplodedAs] = {
    "Explode": ExplodedAs.VALUE,
    "PosExplode": ExplodedAs.POSITION_AND_VALUE,
    "Inline": ExplodedAs.FIELDS,
}


def kept_columns(tree: PlanTree, width: int) -> tuple[int, ...]:
    """The positions of the child's columns that a Generate gives on."""
    unrequired = tree.jvm.unrequiredChildIndex()
    dropped = {int(unrequired.apply(at)) for at in range(unrequired.size())}
    return tuple(index for index in range(width) if index not in dropped)


def read_generate(tree: PlanTree, child: Node, scope: Scope, kept: tuple[int, ...], made: pa.Schema) -> Node:
    """`made`: the columns that stand for an element, behind those that are kept."""
    generator = tree.expression("generator")
    schema = pa.schema([*(child.schema.field(index) for index in kept), *made])
    if generator.name == "Stack":
        return Expand(child, _stacked(generator, child, scope, kept, made), schema)
    if generator.name == "JsonTuple":
        return Project(child, (*_kept(child, kept), *json_tuple_fields(generator, scope)), schema)
    if generator.name not in _EXPLODED_AS:
        raise UnsupportedPlan(
            f"Tidegate does not run Spark's Generate with {generator.name}, needed for `{generator.sql()}`: "
            f"use explode, posexplode, inline, stack or json_tuple, or make the rows in mapInArrow."
        )
    collection = read_expression(generator.children[0], scope)
    of_empty = EmptyCollections.ONE_ROW if tree.fields["outer"] else EmptyCollections.NO_ROW
    return Generate(child, collection, _EXPLODED_AS[generator.name], of_empty, kept, schema)


def read_projections(tree: PlanTree, scope: Scope) -> tuple[tuple[Expression, ...], ...]:
    """The rows that an Expand makes of each row."""
    return tuple(
        tuple(read_expression(column, scope) for column in projection)
        for projection in tree.expression_rows("projections")
    )


def _stacked(
    generator: ExpressionTree, child: Node, scope: Scope, kept: tuple[int, ...], made: pa.Schema
) -> tuple[tuple[Expression, ...], ...]:
    """`stack(n, ...)` deals its arguments to n rows; what is missing in the last is null."""
    count, *values = (read_expression(argument, scope) for argument in generator.children)
    assert isinstance(count, Literal), "Spark takes a constant number of rows only"
    front = _kept(child, kept)
    width = len(made)
    filled = [*values, *(Literal(None, made.field(at % width).type) for at in range(len(values), count.value * width))]
    return tuple((*front, *filled[row * width : (row + 1) * width]) for row in range(count.value))


def _kept(child: Node, kept: tuple[int, ...]) -> tuple[Column, ...]:
    return tuple(Column(index, child.schema.field(index).name, child.schema.field(index).type) for index in kept)


def json_tuple_fields(generator: ExpressionTree, scope: Scope) -> tuple[Expression, ...]:
    """`json_tuple` gives exactly one row for each, so each of its fields is a function of the text."""
    text, *names = (read_expression(argument, scope) for argument in generator.children)
    settings = json_settings(generator)
    fields = tuple(Call("JsonTuple", (text, name), pa.string(), ansi=False, settings=settings) for name in names)
    try:
        for field in fields:
            check_supported(field)
    except UnsupportedPlan as refusal:
        raise UnsupportedPlan(f"{refusal}, needed for `{generator.sql()}`: name the fields by constants.") from None
    return fields
