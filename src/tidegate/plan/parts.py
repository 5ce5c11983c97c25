"""What of a plan may have something in a checkpoint, and under which id it is found there again.

An id is the user's name, or the operator's kind and its place among its kind, from the sources on: operators without
state count for nothing, so that adding or removing them changes no id. Read from the lines of a plan's fingerprint,
which a checkpoint holds too; so old and new are told apart by the same words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.model.ids import EdgeId, VertexId

SOURCE = "Source"
SOURCE_POSITION = -1  # a source stands before the first operator of its chain

# Rows that go in have come out before the next barrier.
_STATELESS = frozenset({"Project", "Filter", "Expand", "PartialAggregate", "EventTimeColumn"})
# What the state of user code looks like depends on its keys alone; what it holds, its own schemas say.
_SHAPED_BY_KEYS = {"TransformWithState": " in=", "Connect": " left="}

_SOURCE_LINE = re.compile(r"v(\d+) source (.*)")
_OPERATOR_LINE = re.compile(r"v(\d+) op(\d+) (\w+)(.*)")
_SINK_LINE = re.compile(r"v(\d+) sink (.*)")
_EDGE_LINE = re.compile(r"e(\d+) v(\d+) -> v(\d+)(?: \(input (\d+)\))? (.*)")


class Place(NamedTuple):
    vertex: VertexId
    position: int


@dataclass(frozen=True, slots=True)
class Part:
    """`name`: the user's, or None. `shape`: what must be the same for its state to fit."""

    id: str
    name: str | None
    kind: str
    place: Place
    shape: str

    def __str__(self) -> str:
        return repr(self.name) if self.name is not None else self.id


@dataclass(frozen=True, slots=True)
class Way:
    """An edge; `shape`: how its rows are dealt out, and their types."""

    id: EdgeId
    sender: VertexId
    receiver: VertexId
    input: int
    shape: str


@dataclass(frozen=True, slots=True)
class PlanParts:
    parts: tuple[Part, ...]
    ways: tuple[Way, ...]
    sinks: tuple[tuple[VertexId, str], ...]
    vertices: tuple[VertexId, ...]

    def at(self, place: Place) -> Part | None:
        return next((part for part in self.parts if part.place == place), None)

    def bare_vertices(self) -> list[VertexId]:
        """Those on the way, in which nothing has an id."""
        known = self._with_parts() | {vertex for vertex, _ in self.sinks}
        return [vertex for vertex in self.vertices if vertex not in known]

    def bare_sinks(self) -> list[VertexId]:
        """The same at the end."""
        return [vertex for vertex, _ in self.sinks if vertex not in self._with_parts()]

    def _with_parts(self) -> set[VertexId]:
        return {part.place.vertex for part in self.parts}


def read_parts(fingerprint: Iterable[str], names: Mapping[str, str]) -> PlanParts | None:
    """`names`: as `plan.naming.names_in` gives them. None if a line is not understood."""
    parts: list[Part] = []
    ways: list[Way] = []
    sinks: list[tuple[VertexId, str]] = []
    vertices: set[int] = set()
    of_kind: Counter[str] = Counter()
    of_name: Counter[str] = Counter()

    def add(place: Place, kind: str, shape: str, name: str | None) -> None:
        of_kind[kind] += 1
        id = f"{kind}#{of_kind[kind]}"
        if name is not None:
            # One withWatermark over a union is an operator in each of its branches.
            of_name[name] += 1
            id = name = name if of_name[name] == 1 else f"{name} ({of_name[name]})"
        parts.append(Part(id, name, kind, place, shape))

    for line in fingerprint:
        if found := _EDGE_LINE.fullmatch(line):
            edge, sender, receiver, input, shape = found.groups()
            at = 0 if input is None else int(input) - 1
            ways.append(Way(EdgeId(int(edge)), VertexId(int(sender)), VertexId(int(receiver)), at, shape))
            vertices |= {int(sender), int(receiver)}
        elif found := _SOURCE_LINE.fullmatch(line):
            vertex = VertexId(int(found[1]))
            add(Place(vertex, SOURCE_POSITION), SOURCE, found[2], names.get(f"v{vertex} source"))
            vertices.add(vertex)
        elif found := _SINK_LINE.fullmatch(line):
            sinks.append((VertexId(int(found[1])), found[2]))
            vertices.add(int(found[1]))
        elif found := _OPERATOR_LINE.fullmatch(line):
            vertex, position, kind = VertexId(int(found[1])), int(found[2]), found[3]
            if kind not in _STATELESS:
                add(Place(vertex, position), kind, _shape(kind, found[4]), names.get(f"v{vertex} op{position}"))
            vertices.add(vertex)
        else:
            return None
    return PlanParts(tuple(parts), tuple(ways), tuple(sinks), tuple(VertexId(each) for each in sorted(vertices)))


def _shape(kind: str, details: str) -> str:
    cut_at = _SHAPED_BY_KEYS.get(kind)
    kept = details if cut_at is None else details.partition(cut_at)[0]
    has_initial = kind == "TransformWithState" and details.endswith(" with initial state")
    return f"{kept.strip()} with initial state" if has_initial else kept.strip()
