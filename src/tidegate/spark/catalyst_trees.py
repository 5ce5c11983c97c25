"""Catalyst's plans and expressions as trees of JSON fields, each with its JVM twin at hand.

Spark's `toJSON` has classes, ids and resolved types, but leaves out functions, options and evaluation modes; for
those the JVM object is asked, found by walking the same path, only when it is needed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(eq=False)
class ExpressionTree:
    fields: dict[str, Any]
    find_jvm: Callable[[], Any]
    children: "list[ExpressionTree]" = field(default_factory=list)

    @property
    def name(self) -> str:
        return short_name(self.fields["class"])

    @cached_property
    def jvm(self) -> Any:
        return self.find_jvm()

    def sql(self) -> str:
        return str(self.jvm.sql())

    def expression_id(self) -> tuple[int, str]:
        stored = self.fields["exprId"]
        return stored["id"], stored["jvmId"]


@dataclass(eq=False)
class PlanTree:
    """`given_name`: what the user calls the operator."""

    fields: dict[str, Any]
    find_jvm: Callable[[], Any]
    children: "list[PlanTree]" = field(default_factory=list)
    given_name: str | None = None

    @property
    def name(self) -> str:
        return short_name(self.fields["class"])

    @cached_property
    def jvm(self) -> Any:
        return self.find_jvm()

    def expression(self, name: str) -> ExpressionTree:
        return _expression(self.fields[name], lambda: getattr(self.jvm, name)())

    def expressions(self, name: str) -> list[ExpressionTree]:
        return [
            _expression(nodes, lambda index=index: getattr(self.jvm, name)().apply(index))  # type: ignore[misc]
            for index, nodes in enumerate(self.fields[name])
        ]

    def expression_rows(self, name: str) -> list[list[ExpressionTree]]:
        """Of a field that is a list of lists."""
        return [
            [
                _expression(nodes, lambda at=at, index=index: getattr(self.jvm, name)().apply(at).apply(index))  # type: ignore[misc]
                for index, nodes in enumerate(row)
            ]
            for at, row in enumerate(self.fields[name])
        ]


def plan_tree(jvm_plan: Any) -> PlanTree:
    """The tree of a JVM `LogicalPlan`."""
    return _plan(iter(json.loads(jvm_plan.toJSON())), lambda: jvm_plan)


def expression_tree(jvm_expression: Any) -> ExpressionTree:
    """The tree of a JVM `Expression`."""
    return _expression(json.loads(jvm_expression.toJSON()), lambda: jvm_expression)


def short_name(class_name: str) -> str:
    return class_name.rsplit(".", 1)[-1]


def _plan(preorder: Iterator[dict[str, Any]], find_jvm: Callable[[], Any]) -> PlanTree:
    tree = PlanTree(next(preorder), find_jvm)
    for index in range(tree.fields["num-children"]):
        tree.children.append(_plan(preorder, _child_finder(tree, index)))
    return tree


def _expression(nodes: list[dict[str, Any]], find_jvm: Callable[[], Any]) -> ExpressionTree:
    return _expression_from(iter(nodes), find_jvm)


def _expression_from(preorder: Iterator[dict[str, Any]], find_jvm: Callable[[], Any]) -> ExpressionTree:
    tree = ExpressionTree(next(preorder), find_jvm)
    for index in range(tree.fields["num-children"]):
        tree.children.append(_expression_from(preorder, _child_finder(tree, index)))
    return tree


def _child_finder(parent: PlanTree | ExpressionTree, index: int) -> Callable[[], Any]:
    return lambda: parent.jvm.children().apply(index)
