"""Reads Catalyst's Deduplicate and Join: keys, what is left of the condition, and when state may go.

What decides results is asked of Spark: its own extraction of equal keys, and its own derivation of how long each side
of a join of streams must be kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Expression
from tidegate.plan.nodes import (
    Deduplicate,
    EndsByEventTime,
    EndsByKey,
    Forget,
    ForgetAfterDelay,
    ForgetByKey,
    JoinEnd,
    JoinEventTime,
    JoinInput,
    JoinType,
    Node,
    StaticJoin,
    StaticTable,
    StreamJoin,
    StreamSide,
)
from tidegate.spark.catalyst_expressions import Scope, read_expression
from tidegate.spark.catalyst_trees import ExpressionTree, PlanTree, expression_tree
from tidegate.spark.catalyst_user_code import session_being_read
from tidegate.spark.static_tables import collected_rows
from tidegate.spark.types import to_arrow_type

# The table of a join with a fixed side is sent to every task as a part of the plan, and held by each.
STATIC_TABLE_LIMIT_BYTES = 64 << 20

_DELAY_KEY = "spark.watermarkDelayMs"
# Spark is asked what it would keep at this watermark; far from 0, so that rounding to it plays no part.
_SAMPLE_WATERMARK_MS = 10**12
_JOIN_TYPES = {
    "Inner": JoinType.INNER,
    "Cross": JoinType.INNER,
    "LeftOuter": JoinType.LEFT_OUTER,
    "RightOuter": JoinType.RIGHT_OUTER,
    "FullOuter": JoinType.FULL_OUTER,
    "LeftSemi": JoinType.LEFT_SEMI,
    "LeftAnti": JoinType.LEFT_ANTI,
}
_ExpressionId = tuple[int, str]


class ReadNode(Protocol):
    """A node and the expression ids of its columns."""

    @property
    def node(self) -> Node: ...
    @property
    def ids(self) -> list[_ExpressionId]: ...
    def scope(self) -> Scope: ...


def read_deduplicate(tree: PlanTree, child: ReadNode) -> Deduplicate:
    if tree.fields.get("dedupSpec") is not None:
        raise UnsupportedPlan(
            f"Tidegate does not run Spark's {tree.name} with a specification of its own: leave it out."
        )
    keys = [child.scope().column(key) for key in tree.expressions("keys")]
    event_time = _event_time(tree.jvm.child(), child)
    within = tree.name == "DeduplicateWithinWatermark"
    if within and (event_time is None or not pa.types.is_timestamp(child.node.schema.field(event_time.column).type)):
        raise UnsupportedPlan(
            "Tidegate does not run dropDuplicatesWithinWatermark without a timestamp column that has a watermark: "
            "keep the column of withWatermark."
        )
    positions = tuple(key.index for key in keys)
    forget: Forget | None = None
    if event_time is not None:
        if within:
            forget = ForgetAfterDelay(event_time.delay_ms)
        elif event_time.column in positions:
            forget = ForgetByKey(positions.index(event_time.column))
    late_by = None if event_time is None else event_time.column
    return Deduplicate(child.node, positions, late_by, forget, child.node.schema)


def read_join(tree: PlanTree, read: Callable[[PlanTree], ReadNode]) -> tuple[Node, list[_ExpressionId]]:
    """The node, and the ids of its columns."""
    jvm: Any = tree.jvm
    kind = _join_type(jvm)
    match (bool(jvm.left().isStreaming()), bool(jvm.right().isStreaming())):
        case (True, True):
            return _stream_join(jvm, kind, read(tree.children[0]), read(tree.children[1]))
        case (True, False):
            return _static_join(jvm, kind, read(tree.children[0]), StreamSide.LEFT, jvm.right())
        case (False, True):
            return _static_join(jvm, kind, read(tree.children[1]), StreamSide.RIGHT, jvm.left())
        case _:
            raise UnsupportedPlan(
                "Tidegate does not run a join over an aggregation of a DataFrame without a stream: "
                "aggregate behind the join, or use df.write for a batch."
            )


@dataclass(frozen=True, slots=True)
class _Extracted:
    """Spark's split of a join's condition into equal keys and the rest."""

    left_keys: Any
    right_keys: Any
    condition: Any  # an Option

    def left(self, scope: Scope) -> tuple[Expression, ...]:
        return _expressions(self.left_keys, scope)

    def right(self, scope: Scope) -> tuple[Expression, ...]:
        return _expressions(self.right_keys, scope)

    def conjuncts(self) -> list[ExpressionTree]:
        return _conjuncts(expression_tree(self.condition.get())) if self.condition.isDefined() else []


@dataclass(frozen=True, slots=True)
class _EventTimeColumn:
    column: int
    delay_ms: int


def _join_type(jvm: Any) -> JoinType:
    name = str(jvm.joinType().toString())
    if name not in _JOIN_TYPES:
        raise UnsupportedPlan(
            f"Tidegate does not run Spark's Join of type {name}: write an inner, outer, left_semi or left_anti join."
        )
    return _JOIN_TYPES[name]


def _extract(jvm: Any) -> _Extracted | None:
    found = _spark("sql.catalyst.planning.ExtractEquiJoinKeys").unapply(jvm)
    return _Extracted(found.get()._2(), found.get()._3(), found.get()._4()) if found.isDefined() else None


def _stream_join(jvm: Any, kind: JoinType, left: ReadNode, right: ReadNode) -> tuple[Node, list[_ExpressionId]]:
    extracted = _extract(jvm)
    if extracted is None:
        raise UnsupportedPlan(
            "Tidegate does not run a join of two streams without an equality: add one to its condition."
        )
    if kind is JoinType.LEFT_ANTI:
        raise UnsupportedPlan(
            "Tidegate does not run a left_anti join of two streams: use left_outer and keep the nulls."
        )
    _refuse_max_policy()
    pair_scope = _pair_scope(left, right)
    conjuncts = extracted.conjuncts()
    left_ids, right_ids = set(left.ids), set(right.ids)
    left_only = [part for part in conjuncts if _references(part) <= left_ids]
    right_only = [part for part in conjuncts if _references(part) <= right_ids]
    both = [part for part in conjuncts if part not in left_only and part not in right_only]
    left_end, right_end = _ends(jvm, extracted)
    has_both = _has_watermark(left.node) and _has_watermark(right.node)
    if (left_end or right_end) and not has_both:
        raise UnsupportedPlan(
            "Tidegate does not run a join that keeps rows by a watermark on one side only: add withWatermark to both."
        )
    node = StreamJoin(
        kind,
        _input(left, extracted.left(left.scope()), left_only, jvm.left(), left_end),
        _input(right, extracted.right(right.scope()), right_only, jvm.right(), right_end),
        _read_conjunction(both, pair_scope),
        _output_schema(kind, left.node.schema, right.node.schema),
        JoinEventTime.OF_BOTH_SIDES if has_both else JoinEventTime.OF_ONE_SIDE,
    )
    return node, _output_ids(kind, left.ids, right.ids)


def _input(
    read: ReadNode, keys: tuple[Expression, ...], only: Sequence[ExpressionTree], plan: Any, end: JoinEnd | None
) -> JoinInput:
    event_time = _event_time(plan, read)
    late_by = None if event_time is None else event_time.column
    return JoinInput(read.node, keys, _read_conjunction(only, read.scope()), late_by, end)


def _ends(jvm: Any, extracted: _Extracted) -> tuple[JoinEnd | None, JoinEnd | None]:
    """How long the rows of each side are kept, as Spark derives it from the keys or the condition."""
    key = _key_with_watermark(extracted.left_keys)
    key = _key_with_watermark(extracted.right_keys) if key is None else key
    if key is not None:
        return EndsByKey(key), EndsByKey(key)
    helper = _spark("sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper")
    try:
        kept = helper.getStateWatermark(
            jvm.left().output(),
            jvm.right().output(),
            extracted.left_keys,
            extracted.right_keys,
            extracted.condition,
            _jvm().scala.Some(_SAMPLE_WATERMARK_MS),
            False,
        )
    except AnalysisException as refusal:
        raise UnsupportedPlan(_several_event_times(str(refusal))) from None
    return _end(kept._1()), _end(kept._2())


def _end(state_watermark: Any) -> JoinEnd | None:
    if not state_watermark.isDefined():
        return None
    return EndsByEventTime(int(state_watermark.get()) - _SAMPLE_WATERMARK_MS)


def _key_with_watermark(keys: Any) -> int | None:
    for at in range(keys.size()):
        key = keys.apply(at)
        if str(key.getClass().getSimpleName()) == "AttributeReference" and key.metadata().contains(_DELAY_KEY):
            return at
    return None


def _static_join(
    jvm: Any, kind: JoinType, stream: ReadNode, side: StreamSide, table_plan: Any
) -> tuple[Node, list[_ExpressionId]]:
    outputs = [expression_tree(table_plan.output().apply(at)) for at in range(table_plan.output().size())]
    ids = [output.expression_id() for output in outputs]
    schema = pa.schema(
        [
            pa.field(
                output.fields["name"], to_arrow_type(output.fields["dataType"], of=f"Column {output.fields['name']!r}")
            )
            for output in outputs
        ]
    )
    table_scope, stream_schema = Scope(ids, schema), stream.node.schema
    is_left = side is StreamSide.LEFT
    left_ids, right_ids = (stream.ids, ids) if is_left else (ids, stream.ids)
    left_schema, right_schema = (stream_schema, schema) if is_left else (schema, stream_schema)
    pair_scope = Scope([*left_ids, *right_ids], pa.schema([*left_schema, *right_schema]))
    extracted = _extract(jvm)
    stream_keys: tuple[Expression, ...] = ()
    table_keys: tuple[Expression, ...] = ()
    if extracted is None:
        conjuncts = _conjuncts(expression_tree(jvm.condition().get())) if jvm.condition().isDefined() else []
    else:
        conjuncts = extracted.conjuncts()
        by_side = (extracted.left, extracted.right) if is_left else (extracted.right, extracted.left)
        stream_keys, table_keys = by_side[0](stream.scope()), by_side[1](table_scope)
    node = StaticJoin(
        child=stream.node,
        stream_side=side,
        type=kind,
        keys=stream_keys,
        table=StaticTable(table_keys, schema, _table_rows(table_plan, schema)),
        condition=_read_conjunction(conjuncts, pair_scope),
        schema=_output_schema(kind, left_schema, right_schema),
    )
    return node, _output_ids(kind, left_ids, right_ids)


def _table_rows(plan: Any, schema: pa.Schema) -> bytes:
    """All rows, read by Spark now."""
    session = session_being_read()
    rows = _spark("sql.classic.Dataset").ofRows(session._jsparkSession, plan)
    # Names may repeat.
    named = DataFrame(rows, session).toDF(*(str(at) for at in range(len(schema))))
    return collected_rows(named, schema, limit_bytes=STATIC_TABLE_LIMIT_BYTES)


def _event_time(plan: Any, read: ReadNode) -> _EventTimeColumn | None:
    """The column that Spark has marked as event time."""
    found: dict[int, _EventTimeColumn] = {}
    output = plan.output()
    for at in range(output.size()):
        metadata = output.apply(at).metadata()
        if metadata.contains(_DELAY_KEY):
            id = read.ids.index(expression_tree(output.apply(at)).expression_id())
            found[id] = _EventTimeColumn(id, int(metadata.getLong(_DELAY_KEY)))
    if len(found) > 1:
        names = ", ".join(read.node.schema.field(at).name for at in found)
        raise UnsupportedPlan(_several_event_times(names))
    return next(iter(found.values()), None)


def _several_event_times(names: str) -> str:
    return (
        f"Several columns have a watermark ({names}), and a stateful operator goes by one: drop the others before it."
    )


def _refuse_max_policy() -> None:
    policy = session_being_read().conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    if str(policy).lower() != "min":
        raise UnsupportedPlan(
            f"Tidegate does not join streams by spark.sql.streaming.multipleWatermarkPolicy {policy!r}: set it to min."
        )


def _has_watermark(node: Node) -> bool:
    from tidegate.plan import nodes

    match node:
        case nodes.EventTimeWatermark():
            return True
        case nodes.Scan():
            return False
        case nodes.Union(children=children):
            return any(_has_watermark(child) for child in children)
        case StreamJoin(left=left, right=right):
            return _has_watermark(left.child) or _has_watermark(right.child)
        case nodes.Connect(left=first, right=second):
            return _has_watermark(first) or _has_watermark(second)
        case _:
            return _has_watermark(node.child)


def _pair_scope(left: ReadNode, right: ReadNode) -> Scope:
    return Scope([*left.ids, *right.ids], pa.schema([*left.node.schema, *right.node.schema]))


def _output_schema(kind: JoinType, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    return left if kind in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI) else pa.schema([*left, *right])


def _output_ids(kind: JoinType, left: list[_ExpressionId], right: list[_ExpressionId]) -> list[_ExpressionId]:
    return left if kind in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI) else [*left, *right]


def _expressions(sequence: Any, scope: Scope) -> tuple[Expression, ...]:
    return tuple(read_expression(expression_tree(sequence.apply(at)), scope) for at in range(sequence.size()))


def _conjuncts(tree: ExpressionTree) -> list[ExpressionTree]:
    return [part for child in tree.children for part in _conjuncts(child)] if tree.name == "And" else [tree]


def _references(tree: ExpressionTree) -> set[_ExpressionId]:
    if tree.name == "AttributeReference":
        return {tree.expression_id()}
    return {id for child in tree.children for id in _references(child)}


def _read_conjunction(parts: Sequence[ExpressionTree], scope: Scope) -> Expression | None:
    condition: Expression | None = None
    for part in parts:
        read = read_expression(part, scope)
        condition = read if condition is None else Call("And", (condition, read), pa.bool_(), ansi=False)
    return condition


def _spark(name: str) -> Any:
    """A JVM class or object under `org.apache.spark`."""
    found: Any = _jvm().org.apache.spark
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    return context._jvm
