"""The names that users give to operators, on the specs that are run. A name says where state belongs, nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from tidegate.plan.physical import (
    AggregateSpec,
    AsyncMapSpec,
    ConnectSpec,
    DeduplicateSpec,
    JobPlan,
    OperatorSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    WatermarkSpec,
)

Nameable: TypeAlias = (
    AggregateSpec
    | AsyncMapSpec
    | ConnectSpec
    | DeduplicateSpec
    | StreamJoinSpec
    | TransformWithStateSpec
    | WatermarkSpec
)


def name_last(chains: Sequence[list[OperatorSpec]], name: str) -> None:
    """Names the last operator of each chain that can have a name.

    Chains of one union share an operator as one object, by which it is known that they share event time: it stays so.
    """
    named: dict[int, OperatorSpec] = {}
    for operators in chains:
        for at in reversed(range(len(operators))):
            operator = operators[at]
            if isinstance(operator, Nameable):
                operators[at] = named.setdefault(id(operator), replace(operator, name=name))
                break


def names_in(plan: JobPlan) -> dict[str, str]:
    """The users' names by place: `v1 op2` or `v0 source`, as in the plan's fingerprint."""
    return dict(_named_places(plan))


def _named_places(plan: JobPlan) -> Iterator[tuple[str, str]]:
    for vertex in plan.vertices:
        if vertex.source is not None and vertex.source.name is not None:
            yield f"v{vertex.id} source", vertex.source.name
        for position, operator in enumerate(vertex.operators):
            if isinstance(operator, Nameable) and operator.name is not None:
                yield f"v{vertex.id} op{position}", operator.name
