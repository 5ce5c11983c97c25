"""Names of operators, from `tg.named` to the nodes of the plan that is read.

The optimiser copies nodes without what is attached to them, so a name is put onto the analysed plan, which keeps it,
and carried over by order: the optimiser moves filters and projections past what has state, but leaves the sources, and
what has state, in their order. Where it does not, names are refused: none may land on another operator.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame

from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.plan.nodes import Named, Node, Scan
from tidegate.spark.async_mapped import is_async_map
from tidegate.spark.catalyst_trees import PlanTree, plan_tree

_TAG = "tidegate.name"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_STATEFUL = frozenset(
    {
        "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "EventTimeWatermark",
        "TransformWithStateInPySpark", "FlatMapGroupsInPandasWithState", "FlatMapCoGroupsInArrow",
    }
)  # fmt: skip
# The optimiser writes the one as the other.
_SAME_KIND = {"Distinct": "Aggregate"}

# Plans are looked through for names only once there is one.
_given: set[str] = set()


def named_frame(df: DataFrame, name: str) -> DataFrame:
    from tidegate.spark.catalyst import require_classic

    require_classic(df)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise OptionError(
            f"The operator's name is {name!r}: write up to 100 letters, digits, spaces, '.', '_' and '-', with a "
            f"letter or digit first."
        )
    if not df.isStreaming:
        raise OptionError(f"tg.named(df, {name!r}) names an operator of a stream, and df has none: leave it out.")
    analyzed: Any = df._jdf.queryExecution().analyzed()
    if _operator_of(plan_tree(analyzed)) is None:
        raise OptionError(
            f"tg.named(df, {name!r}) does not tell which operator is meant, because df is a union: name its parts."
        )
    # A copy, so that the DataFrame that was given does not bear the name as well.
    plan = analyzed.clone()
    plan.setTagValue(_tag(), name)
    _given.add(name)
    dataset = _jvm().org.apache.spark.sql.classic.Dataset.ofRows(df.sparkSession._jsparkSession, plan)
    return DataFrame(dataset, df.sparkSession)


def put_names(analyzed: Any, optimized: PlanTree) -> PlanTree:
    """Puts the names in the analysed plan onto the operators of the optimised one."""
    if not _given:
        return optimized
    before = plan_tree(analyzed)
    names = _names_in(before)
    if not names:
        return optimized
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise UnsupportedPlan(
            f"The name {twice[0]!r} is on {Counter(names.values())[twice[0]]} operators, because a DataFrame with that "
            f"name is used more than once, or several were given it: give each use a name of its own with tg.named."
        )
    operators, optimised = list(_operators(before)), list(_operators(optimized))
    if [_Token.of(each) for each in operators] != [_Token.of(each) for each in optimised]:
        raise UnsupportedPlan(
            f"Spark's optimiser changes the operators of this query, so that the name {next(iter(names.values()))!r} "
            f"cannot be kept with its operator: leave tg.named out."
        )
    for old, new in zip(operators, optimised, strict=True):
        new.given_name = names.get(id(old))
    return optimized


def with_name(tree: PlanTree, node: Node) -> Node:
    """What was read of an operator, with its name. A source's name is that of the scan that reads it."""
    if isinstance(node, Scan):
        # Spark may ingest it with what stands behind it: then all of that is one scan.
        names = [each.given_name for each in _all(tree) if each.given_name is not None]
        return replace(node, name=names[-1]) if names else node
    return node if tree.given_name is None else Named(node, tree.given_name, node.schema)


@dataclass(frozen=True, slots=True)
class _Token:
    """What an operator is known by in both plans; a source by the ids of its columns."""

    kind: str
    columns: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, tree: PlanTree) -> "_Token":
        columns = () if tree.children else tuple(each.expression_id() for each in tree.expressions("output"))
        return cls(_SAME_KIND.get(tree.name, tree.name), columns)


def _operators(tree: PlanTree) -> Iterator[PlanTree]:
    """Sources and what has state, senders before receivers."""
    for child in tree.children:
        yield from _operators(child)
    if _is_operator(tree):
        yield tree


def _is_operator(tree: PlanTree) -> bool:
    if not tree.children or tree.name in _STATEFUL or is_async_map(tree):
        return bool(tree.jvm.isStreaming())
    return tree.name == "Join" and all(child.jvm.isStreaming() for child in tree.children)


def _operator_of(tree: PlanTree) -> PlanTree | None:
    """The last operator that made the rows of a node; None if there are several."""
    while not _is_operator(tree):
        streaming = [child for child in tree.children if child.jvm.isStreaming()]
        if len(streaming) != 1:
            return None
        (tree,) = streaming
    return tree


def _names_in(tree: PlanTree) -> dict[int, str]:
    """By the identity of the operator's node. Of several names for one operator the last that was given counts."""
    names: dict[int, str] = {}
    tag = _tag()
    for each in _all(tree):
        found = each.jvm.getTagValue(tag)
        operator = _operator_of(each) if found.isDefined() else None
        if operator is not None:
            names[id(operator)] = str(found.get())
    return names


def _all(tree: PlanTree) -> Iterator[PlanTree]:
    for child in tree.children:
        yield from _all(child)
    yield tree


def _tag() -> Any:
    return _jvm().org.apache.spark.sql.catalyst.trees.TreeNodeTag(_TAG)


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    return context._jvm
