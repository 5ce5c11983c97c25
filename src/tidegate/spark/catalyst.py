"""Reads Catalyst's optimised plan of a streaming DataFrame into `plan.nodes`.

The only module that knows Catalyst's node classes. What Tidegate does not run is refused here, before anything
starts, by Spark's name for it; nothing is dropped or approximated.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from tidegate.model.errors import EnvironmentProblem, OptionError, UnsupportedPlan
from tidegate.plan.expressions import Expression
from tidegate.plan.nodes import (
    EventTimeWatermark,
    Expand,
    Filter,
    Node,
    Project,
    Repartition,
    RowOrder,
    Spread,
    Union,
)
from tidegate.spark.bounded import check_bounded
from tidegate.spark.catalyst_aggregates import read_aggregate
from tidegate.spark.catalyst_distinct import has_distinct, optimised_with_distinct, without_distinct
from tidegate.spark.catalyst_expressions import Scope, read_expression
from tidegate.spark.catalyst_generators import kept_columns, read_generate, read_projections
from tidegate.spark.catalyst_joins import read_deduplicate, read_join
from tidegate.spark.catalyst_order import below_order, read_order
from tidegate.spark.catalyst_sources import read_file_relation, read_table_relation
from tidegate.spark.catalyst_trees import ExpressionTree, PlanTree, plan_tree
from tidegate.spark.catalyst_user_code import (
    ReadChild,
    ReadNode,
    read_cogroup,
    read_event_time_column,
    read_group_state,
    read_map,
    read_transform_with_state,
    read_udfs,
    session_of_plan,
)
from tidegate.spark.ingest_plan import read_or_ingest
from tidegate.spark.naming import put_names, with_name
from tidegate.spark.types import to_arrow_type

_OUTPUT_MODES = ("append", "update", "complete")
# The optimiser turns these into the time of planning; in a stream they mean the time of each micro-batch.
_CURRENT_TIME = re.compile(
    r'"class":"org\.apache\.spark\.sql\.catalyst\.expressions\.'
    r'(CurrentTimestamp|Now|CurrentDate|CurrentTime|LocalTimestamp|CurrentBatchTimestamp)"'
)
_ADVICE: Mapping[str, str] = {
    "Window": "use groupBy with an aggregate function, or transformWithState",
    "LocalRelation": "the query can have no rows, or reads a fixed table, so there is no stream to run",
    "CollectMetrics": "remove observe; query.lastProgress counts the rows of every task",
    "GlobalLimit": "remove limit; behind orderBy and in output mode complete it may stand last",
    "LocalLimit": "remove limit; behind orderBy and in output mode complete it may stand last",
    "Sort": "remove orderBy; a stream has no end to sort before. In output mode complete it may stand last",
}
_SUPPORTED = "supported are select, where, groupBy with aggregate functions, mapInArrow and transformWithState"


@dataclass(frozen=True, slots=True)
class Read:
    """A node and the expression ids of its columns."""

    node: Node
    ids: list[tuple[int, str]]

    def scope(self) -> Scope:
        return Scope(self.ids, self.node.schema)


def read_plan(df: DataFrame) -> Node:
    """The plan Tidegate runs for a DataFrame; raises `UnsupportedPlan` for what it does not run."""
    tree = _optimized(df)
    with session_of_plan(df.sparkSession):
        return _read(tree).node


def read_ordered_plan(df: DataFrame) -> tuple[Node, RowOrder | None]:
    """The same, and the order in which a sink shows all of its result, if the query ends with one."""
    tree = _optimized(df)
    with session_of_plan(df.sparkSession):
        read = _read(below_order(tree))
        return read.node, read_order(tree, read.scope())


def _optimized(df: DataFrame) -> PlanTree:
    require_classic(df)
    analyzed = df._jdf.queryExecution().analyzed()
    if not df.isStreaming:
        check_bounded(analyzed)
    current_time = _CURRENT_TIME.search(analyzed.toJSON())
    if current_time is not None:
        raise UnsupportedPlan(
            f"{current_time.group(1)} would be fixed at the time of planning: "
            f"take the time in mapInArrow, or use the timestamp of the source."
        )
    optimizer = df.sparkSession._jsparkSession.sessionState().optimizer()
    optimized = optimised_with_distinct(optimizer, analyzed) if has_distinct(analyzed) else optimizer.execute(analyzed)
    return put_names(analyzed, plan_tree(optimized))


def check_output_mode(df: DataFrame, output_mode: str) -> None:
    """Asks Spark whether the query may be written in this mode; raises `UnsupportedPlan` with Spark's sentence."""
    require_classic(df)
    mode = output_mode.lower()
    if mode not in _OUTPUT_MODES:
        raise OptionError(f"Output mode {output_mode!r} does not exist: use append, update or complete.")
    if not df.isStreaming:
        return  # what Spark asks of streams does not concern it; `check_bounded_output` does
    plan = without_distinct(df._jdf.queryExecution().analyzed())
    jvm: Any = df.sparkSession._jvm
    if (words := _refusal(jvm, plan, mode)) is not None:
        others = (other for other in _OUTPUT_MODES if other != mode and _refusal(jvm, plan, other) is None)
        raise UnsupportedPlan(words + "".join(f" Use outputMode('{other}')." for other in islice(others, 1)))


def _refusal(jvm: Any, plan: Any, mode: str) -> str | None:
    """Spark's own words without its codes; None if the plan may be written in this mode."""
    from pyspark.errors import AnalysisException

    spark_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, spark_mode)
    except AnalysisException as refusal:
        words = re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+$", "", str(refusal).split(";\n", 1)[0].strip())
        return f"{words.rstrip('.')}."
    return None


def require_classic(df: object) -> None:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    if isinstance(df, ClassicDataFrame):
        return
    if isinstance(df, DataFrame):
        raise EnvironmentProblem(
            "The DataFrame belongs to a Spark Connect session, which gives no access to Catalyst's plan: "
            "create it with a classic SparkSession (SparkSession.builder.master(...), not remote(...))."
        )
    raise OptionError(f"A streaming DataFrame is needed, not {type(df).__name__}.")


def _read(tree: PlanTree) -> Read:
    read = read_or_ingest(tree, _read_natively, Read)
    return Read(with_name(tree, read.node), read.ids)


def _read_natively(tree: PlanTree) -> Read:
    reader = _READERS.get(tree.name)
    if reader is None:
        _refuse(tree)
    return reader(tree)


def _refuse(tree: PlanTree) -> NoReturn:
    advice = _ADVICE.get(tree.name, _SUPPORTED)
    raise UnsupportedPlan(f"Tidegate does not run Spark's {tree.name}: {advice}.")


def _read_source(tree: PlanTree) -> Read:
    attributes = tree.expressions("output")
    schema = _attribute_schema(attributes)
    read_relation = read_file_relation if tree.name == "StreamingRelation" else read_table_relation
    return Read(read_relation(tree.jvm, schema), [attribute.expression_id() for attribute in attributes])


def _read_project(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    scope = child.scope()
    outputs = tree.expressions("projectList")
    if not outputs:
        raise UnsupportedPlan("Tidegate does not run Spark's Project without columns: select at least one column.")
    columns = tuple(read_expression(output, scope) for output in outputs)
    return Read(Project(child.node, columns, _named_schema(outputs, columns)), _ids(outputs))


def _read_filter(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    condition = read_expression(tree.expression("condition"), child.scope())
    return Read(Filter(child.node, condition, child.node.schema), child.ids)


def _read_watermark(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    event_time = tree.expression("eventTime")
    column = child.scope().column(event_time)
    if not pa.types.is_timestamp(column.type):
        raise UnsupportedPlan(
            f"Tidegate does not run withWatermark on {column.name!r}, a column of type {column.type}: "
            f"name a timestamp column, such as window_time(...) of a window."
        )
    jvm: Any = tree.jvm
    delay_ms = int(_spark_class("sql.catalyst.plans.logical.EventTimeWatermark").getDelayMs(jvm.delay()))
    return Read(EventTimeWatermark(child.node, column.index, delay_ms, child.node.schema), child.ids)


def _read_generate(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    attributes = tree.expressions("generatorOutput")
    kept = kept_columns(tree, len(child.ids))
    node = read_generate(tree, child.node, child.scope(), kept, _attribute_schema(attributes))
    return Read(node, [*(child.ids[index] for index in kept), *_ids(attributes)])


def _read_expand(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    attributes = tree.expressions("output")
    node = Expand(child.node, read_projections(tree, child.scope()), _attribute_schema(attributes))
    return Read(node, _ids(attributes))


def _read_union(tree: PlanTree) -> Read:
    children = [_read(child) for child in tree.children]
    first = children[0]
    return Read(Union(tuple(child.node for child in children), first.node.schema), first.ids)


def _read_repartition(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    spread = Spread.EVENLY if tree.fields["shuffle"] else Spread.TO_NEIGHBOURS
    return Read(Repartition(child.node, spread, (), tree.fields["numPartitions"], child.node.schema), child.ids)


def _read_repartition_by_expression(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    trees = tree.expressions("partitionExpressions")
    if any(key.name == "SortOrder" for key in trees):
        raise UnsupportedPlan("Tidegate does not run repartitionByRange: use repartition with the same columns.")
    keys = tuple(read_expression(key, child.scope()) for key in trees)
    spread = Spread.BY_KEY if keys else Spread.EVENLY
    partitions = tree.fields.get("optNumPartitions")
    return Read(Repartition(child.node, spread, keys, partitions, child.node.schema), child.ids)


def _read_aggregate(tree: PlanTree) -> Read:
    keys = tree.expressions("groupingExpressions")
    below = tree.children[0]
    # Rows that are only counted: Spark drops all columns, which changes nothing about how many there are.
    child = _read(below.children[0] if below.name == "Project" and not below.fields["projectList"] else below)
    outputs = tree.expressions("aggregateExpressions")
    read = read_aggregate(child.node, child.scope(), keys=keys, outputs=outputs)
    return Read(read(_named_schema(outputs, read.results)), _ids(outputs))


def _read_deduplicate(tree: PlanTree) -> Read:
    child = _read(tree.children[0])
    return Read(read_deduplicate(tree, child), child.ids)


def _read_join(tree: PlanTree) -> Read:
    node, ids = read_join(tree, _read)
    return Read(node, ids)


def _user_code(reader: Callable[[PlanTree, ReadChild], ReadNode]) -> Callable[[PlanTree], Read]:
    def read_child(tree: PlanTree) -> ReadNode:
        child = _read(tree)
        return child.node, child.ids

    return lambda tree: Read(*reader(tree, read_child))


def _spark_class(name: str) -> Any:
    """A JVM class under `org.apache.spark`."""
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    found: Any = context._jvm.org.apache.spark
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _ids(outputs: list[ExpressionTree]) -> list[tuple[int, str]]:
    return [output.expression_id() for output in outputs]


def _attribute_schema(attributes: list[ExpressionTree]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(
                attribute.fields["name"],
                to_arrow_type(attribute.fields["dataType"], of=f"Column {attribute.fields['name']!r}"),
            )
            for attribute in attributes
        ]
    )


def _named_schema(outputs: list[ExpressionTree], columns: tuple[Expression, ...]) -> pa.Schema:
    named = zip(outputs, columns, strict=True)
    return pa.schema([pa.field(output.fields["name"], column.type) for output, column in named])


_READERS: Mapping[str, Callable[[PlanTree], Read]] = {
    "StreamingRelation": _read_source,
    "StreamingRelationV2": _read_source,
    "Project": _read_project,
    "Filter": _read_filter,
    "MapInArrow": _user_code(read_map),
    "MapInPandas": _user_code(read_map),
    "BatchEvalPython": _user_code(read_udfs),
    "ArrowEvalPython": _user_code(read_udfs),
    "EventTimeWatermark": _read_watermark,
    "Generate": _read_generate,
    "Expand": _read_expand,
    "Union": _read_union,
    "Repartition": _read_repartition,
    "RepartitionByExpression": _read_repartition_by_expression,
    "RebalancePartitions": _read_repartition_by_expression,
    "Aggregate": _read_aggregate,
    "TransformWithStateInPySpark": _user_code(read_transform_with_state),
    "FlatMapGroupsInPandasWithState": _user_code(read_group_state),
    "FlatMapCoGroupsInArrow": _user_code(read_cogroup),
    "UpdateEventTimeWatermarkColumn": _user_code(read_event_time_column),
    "Deduplicate": _read_deduplicate,
    "DeduplicateWithinWatermark": _read_deduplicate,
    "Join": _read_join,
}
