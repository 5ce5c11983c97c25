"""Bounded DataFrames: what Spark scans of them, what Tidegate runs, and which of them it cannot run as Spark does.

Spark's optimiser takes event time out of a plan without a stream and turns the removal of duplicates into an
aggregation, so a few plans mean something else here than in a stream: those are refused.
"""

import re
from typing import Any

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.nodes import Aggregate, Connect, Node, OutputMode, RowOrder, Scan, StreamJoin, Union
from tidegate.spark.async_mapped import is_async_map
from tidegate.spark.catalyst_trees import PlanTree

# What Tidegate runs itself, above the scan.
_WITH_STATE = frozenset({"Aggregate", "TransformWithStateInPySpark", "FlatMapCoGroupsInArrow"})
_DUPLICATES = re.compile(r'plans\.logical\.(Deduplicate|DeduplicateWithinWatermark|Distinct)"')


def is_without_state(tree: PlanTree) -> bool:
    runs_elsewhere = tree.name in _WITH_STATE or is_async_map(tree)
    return not runs_elsewhere and all(is_without_state(child) for child in tree.children)


def check_bounded(analyzed: Any) -> None:
    """Raises `UnsupportedPlan` for what would come out otherwise than Spark's batch."""
    if _DUPLICATES.search(analyzed.toJSON()):
        raise UnsupportedPlan(
            "Tidegate does not run dropDuplicates or distinct on a DataFrame without a stream: "
            "read its source with spark.readStream, or use df.write for a batch."
        )


def check_bounded_output(root: Node, mode: OutputMode, order: RowOrder | None) -> None:
    """In place of what Spark asks of a streaming query."""
    has_groups = _has_groups(root)
    if has_groups and mode is OutputMode.APPEND:
        raise UnsupportedPlan(
            "An aggregation of a DataFrame without a stream has no watermark after which a group is final: "
            "use outputMode('update') or outputMode('complete')."
        )
    if not has_groups and mode is OutputMode.COMPLETE:
        raise UnsupportedPlan("Output mode complete needs an aggregation: use outputMode('append').")
    if order is not None and mode is not OutputMode.COMPLETE:
        raise UnsupportedPlan("orderBy at the end of a query needs outputMode('complete'): use that, or leave it out.")


def _has_groups(node: Node) -> bool:
    match node:
        case Aggregate():
            return True
        case Scan() | StreamJoin():  # joins are in what Spark scans
            return False
        case Union(children):
            return any(_has_groups(child) for child in children)
        case Connect(left, right):
            return _has_groups(left) or _has_groups(right)
        case _:
            return _has_groups(node.child)
