"""Which streams wait for one another's event time where they meet, and which hold nothing back."""

import pytest

from tests.unit.test_lower import SCAN, SINK, summed
from tidegate.model.ids import EdgeId
from tidegate.plan.lower import lower
from tidegate.plan.nodes import EventTimeWatermark, Node, Union
from tidegate.protocol.input_watermarks import NO_EVENT_TIME
from tidegate.worker.build import waiting_inputs

SCHEMA = SCAN.schema


def marked(node: Node) -> EventTimeWatermark:
    return EventTimeWatermark(node, 1, 0, node.schema)


def union(*nodes: Node) -> Union:
    return Union(nodes, SCHEMA)


ONE = marked(SCAN)


@pytest.mark.parametrize(
    ("node", "waiting"),
    [
        (SCAN, None),
        (union(SCAN, SCAN), None),
        (ONE, None),
        (marked(union(SCAN, SCAN)), None),
        (union(marked(SCAN), marked(SCAN)), [0, 1]),
        (union(marked(SCAN), SCAN), [0, NO_EVENT_TIME]),
        (union(SCAN, marked(SCAN), marked(union(SCAN, SCAN))), [NO_EVENT_TIME, 1, 2, 2]),
    ],
    ids=[
        "no event time", "a union without any", "one stream", "one watermark over a union", "two watermarks",
        "one has none", "of all kinds",
    ],
)  # fmt: skip
def test_streams_with_watermarks_of_their_own_wait_for_one_another(node: Node, waiting: list[int] | None) -> None:
    plan = lower(summed(node), SINK, parallelism=1, max_parallelism=16)
    receiver = plan.vertices[-1]
    edges = [edge for edge in plan.edges if edge.receiver == receiver.id]
    found = waiting_inputs(receiver, edges)
    assert found == (None if waiting is None else {EdgeId(at): number for at, number in enumerate(waiting)})


def test_event_time_is_known_behind_an_exchange_too() -> None:
    """Of what leaves an aggregation it is what came in."""
    behind = summed(union(summed(union(marked(SCAN), marked(SCAN))), SCAN))
    plan = lower(behind, SINK, parallelism=1, max_parallelism=16)
    last = [edge.event_times for edge in plan.edges if edge.receiver == plan.vertices[-1].id]
    assert last == [frozenset({0, 1}), frozenset()]
