"""Where the event time of each edge begins: which `withWatermark`s its rows have passed.

Several of them meet in a union or a join. As in Spark, each holds the others back, also while its stream has no rows;
a stream without any holds nothing back.
"""

from collections.abc import Sequence
from dataclasses import replace

from tidegate.model.ids import VertexId
from tidegate.plan.physical import Edge, Vertex, WatermarkSpec


def with_event_times(vertices: Sequence[Vertex], edges: Sequence[Edge]) -> list[Edge]:
    """The edges with what is known of their event time; `vertices`: senders before receivers."""
    own = {vertex.id: _watermark_of(vertex) for vertex in vertices}
    if all(watermark is None for watermark in own.values()):
        return list(edges)
    origins = _origins(vertices, edges)
    made: list[Edge] = []
    for edge in edges:
        watermark = own[edge.sender]
        # One `withWatermark` over a union is one object in each of its chains.
        same = (
            other.id
            for other in made
            if (other.receiver, other.input) == (edge.receiver, edge.input)
            and watermark is not None
            and own[other.sender] is watermark
        )
        made.append(replace(edge, event_time_of=next(same, None), event_times=origins[edge.sender]))
    return made


def _origins(vertices: Sequence[Vertex], edges: Sequence[Edge]) -> dict[VertexId, frozenset[int]]:
    """Of what leaves each vertex, by the numbers of the watermarks."""
    numbers: dict[int, int] = {}
    origins: dict[VertexId, frozenset[int]] = {}
    for vertex in vertices:
        watermark = _watermark_of(vertex)
        if watermark is not None:
            origins[vertex.id] = frozenset([numbers.setdefault(id(watermark), len(numbers))])
        else:
            senders = [edge.sender for edge in edges if edge.receiver == vertex.id]
            origins[vertex.id] = frozenset(number for sender in senders for number in origins[sender])
    return origins


def _watermark_of(vertex: Vertex) -> WatermarkSpec | None:
    return next((each for each in reversed(vertex.operators) if isinstance(each, WatermarkSpec)), None)
