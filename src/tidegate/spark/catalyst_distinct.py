"""Plans with DISTINCT inside aggregate functions, which Spark analyses but starts no streaming query for.

Owns how such a plan is optimised and checked. Must never change what a plan without DISTINCT goes through.
"""

from typing import Any

from pyspark import SparkContext

_MARK = '"isDistinct":true'
# It spreads several sets of distinct values over two aggregations, one behind the other, which takes a whole batch.
_REWRITE = "org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates"


def has_distinct(plan: Any) -> bool:
    return _MARK in plan.toJSON()


def optimised_with_distinct(optimizer: Any, analyzed: Any) -> Any:
    """The plan behind all of the optimiser's rules, in its batches and their order, but for that one rule."""
    plan = analyzed
    for batch in _elements(optimizer.batches()):
        rules = [rule for rule in _elements(batch.rules()) if rule.ruleName() != _REWRITE]
        for _ in range(batch.strategy().maxIterations()):
            before = plan
            for rule in rules:
                plan = rule.apply(plan)
            if plan.fastEquals(before):
                break
    return plan


def without_distinct(plan: Any) -> Any:
    """The same analysed plan with DISTINCT left out: what else Spark asks of a streaming plan can be checked on it."""
    if not has_distinct(plan):
        return plan
    plan = plan.withNewChildren(_seq([without_distinct(child) for child in _elements(plan.children())]))
    if plan.nodeName() != "Aggregate":
        return plan
    outputs = _seq([_plain(output) for output in _elements(plan.aggregateExpressions())])
    return plan.copy(plan.groupingExpressions(), outputs, plan.child(), plan.hint())


def _plain(expression: Any) -> Any:
    if _MARK not in expression.toJSON():
        return expression
    if expression.nodeName() == "AggregateExpression":
        call = expression
        return call.copy(call.aggregateFunction(), call.mode(), False, call.filter(), call.resultId())
    return expression.withNewChildren(_seq([_plain(child) for child in _elements(expression.children())]))


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _seq(elements: list[Any]) -> Any:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    jvm: Any = context._jvm
    return jvm.PythonUtils.toSeq(elements)
