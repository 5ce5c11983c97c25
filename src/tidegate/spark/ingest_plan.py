"""Which part of a plan Spark ingests: a source without a connector, or a stateless prefix without kernels.

Decides while the plan is read, node by node, so that the part is the smallest that lets the rest run here; with
`ingest=spark` it is the largest. Everything stateful, and what event time hangs on, stays outside of it. Of a bounded
DataFrame Spark scans the largest part: its files and tables are Spark's to read.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tidegate.connectors.staged_source import STAGED, IngestMode
from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.nodes import Scan
from tidegate.spark.async_mapped import is_async_map
from tidegate.spark.bounded import is_without_state
from tidegate.spark.catalyst_trees import PlanTree
from tidegate.spark.types import to_arrow_schema

R = TypeVar("R")

# Each row of these depends on one row of their streaming input alone, in whatever micro-batch it comes.
_STATELESS = frozenset(
    {
        "StreamingRelation", "StreamingRelationV2", "Project", "Filter", "Generate", "Expand", "Union", "MapInArrow",
        "MapInPandas", "ArrowEvalPython", "BatchEvalPython", "Repartition", "RepartitionByExpression",
        "RebalancePartitions", "Join",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IngestedPart:
    """`name` is that of its folder; `reason` says why Spark runs it."""

    name: str
    plan: Any
    reason: str
    is_bounded: bool = False

    def describe(self) -> str:
        return f"{self.name}: {self.reason}\n{str(self.plan.toString()).rstrip()}"

    def frame(self, spark: SparkSession) -> DataFrame:
        return _frame(spark, self.plan)


@dataclass(slots=True)
class _Reading:
    spark: SparkSession
    mode: IngestMode
    is_bounded: bool
    parts: list[IngestedPart] = field(default_factory=list)


_reading: ContextVar[_Reading | None] = ContextVar("tidegate_ingest", default=None)


@contextmanager
def ingesting(df: DataFrame, mode: IngestMode) -> Iterator[list[IngestedPart]]:
    """While a plan is read: what Spark has to ingest of it is added to the list."""
    reading = _Reading(df.sparkSession, mode, is_bounded=not df.isStreaming)
    token = _reading.set(reading)
    try:
        yield reading.parts
    finally:
        _reading.reset(token)


def read_or_ingest(
    tree: PlanTree, read: Callable[[PlanTree], R], made: Callable[[Scan, list[tuple[int, str]]], R]
) -> R:
    reading = _reading.get()
    if reading is not None and reading.is_bounded:
        if reading.mode is IngestMode.NATIVE:
            raise UnsupportedPlan("A DataFrame without a stream is scanned by Spark: leave out ingest=native.")
        return made(*_ingest(reading, tree, "a bounded DataFrame")) if is_without_state(tree) else read(tree)
    if reading is None or reading.mode is IngestMode.NATIVE:
        return read(tree)
    if reading.mode is IngestMode.SPARK and _is_ingestible(tree):
        return made(*_ingest(reading, tree, "asked for by ingest=spark"))
    before = len(reading.parts)
    try:
        return read(tree)
    except UnsupportedPlan as refusal:
        if not _is_ingestible(tree):
            raise
        del reading.parts[before:]
        try:
            return made(*_ingest(reading, tree, str(refusal)))
        except UnsupportedPlan:
            raise refusal from None


def _ingest(reading: _Reading, tree: PlanTree, reason: str) -> tuple[Scan, list[tuple[int, str]]]:
    frame = _frame(reading.spark, tree.jvm)
    schema = to_arrow_schema(frame.schema.jsonValue())
    part = IngestedPart(f"source-{len(reading.parts)}", tree.jvm, reason, reading.is_bounded)
    reading.parts.append(part)
    options = {"path": part.name, "bounded": str(part.is_bounded).lower()}
    return Scan(STAGED, options, schema), _expression_ids(tree.jvm)


def _is_ingestible(tree: PlanTree) -> bool:
    return bool(tree.jvm.isStreaming()) and _is_stateless(tree)


def _is_stateless(tree: PlanTree) -> bool:
    if not tree.jvm.isStreaming():
        return True
    if tree.name not in _STATELESS or is_async_map(tree):
        return False
    if tree.name == "Join" and all(child.jvm.isStreaming() for child in tree.children):
        return False
    return all(_is_stateless(child) for child in tree.children)


def _expression_ids(plan: Any) -> list[tuple[int, str]]:
    output = plan.output()
    ids = [output.apply(at).exprId() for at in range(output.size())]
    return [(int(each.id()), str(each.jvmId().toString())) for each in ids]


def _frame(spark: SparkSession, plan: Any) -> DataFrame:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    dataset = context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(dataset, spark)
