"""Reads `orderBy` and `limit` at the end of a query, which Spark allows over all groups in complete mode.

They are no steps of the stream: the sink puts each complete result in order when it shows it.
"""

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.kernels.ordering import is_orderable
from tidegate.plan.nodes import RowOrder, SortKey
from tidegate.spark.catalyst_expressions import Scope
from tidegate.spark.catalyst_trees import ExpressionTree, PlanTree


def below_order(tree: PlanTree) -> PlanTree:
    """The plan whose rows are put in order; the plan itself if they are not."""
    return _sort_of(tree).children[0] if _sort_of(tree).name == "Sort" else tree


def read_order(tree: PlanTree, scope: Scope) -> RowOrder | None:
    """`scope`: the columns of the plan below."""
    sort = _sort_of(tree)
    if sort.name != "Sort":
        return None
    keys = tuple(_key(key, scope) for key in sort.expressions("order"))
    return RowOrder(keys, None if sort is tree else _most_rows(tree.expression("limitExpr")))


def _sort_of(tree: PlanTree) -> PlanTree:
    below = tree
    for name in ("GlobalLimit", "LocalLimit"):
        if below.name == name:
            below = below.children[0]
    return below


def _key(tree: ExpressionTree, scope: Scope) -> SortKey:
    value = tree.children[0]
    if value.name != "AttributeReference":
        raise UnsupportedPlan(
            f"Tidegate does not run orderBy by {value.sql()}: select it as a column, and order by that."
        )
    column = scope.column(value)
    if not is_orderable(column.type):
        raise UnsupportedPlan(f"Tidegate does not run orderBy by {column.name!r}, a column of type {column.type}.")
    direction, nulls = str(tree.jvm.direction().sql()), str(tree.jvm.nullOrdering().sql())
    return SortKey(column.index, is_ascending=direction == "ASC", are_nulls_first=nulls == "NULLS FIRST")


def _most_rows(limit: ExpressionTree) -> int:
    if limit.name != "Literal":
        raise UnsupportedPlan(f"Tidegate does not run limit by {limit.sql()}: write a number.")
    return int(limit.fields["value"])
