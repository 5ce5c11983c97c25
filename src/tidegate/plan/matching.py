"""Which part of a query takes over what a checkpoint holds of another, or of the same query before it was changed.

Names go before everything else. What has no name in the checkpoint goes by its kind and shape, in the order of the
plan, and only where that leaves no choice. It never decides whether a difference is allowed, and reads no state.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.model.ids import EdgeId, VertexId
from tidegate.plan.naming import names_in
from tidegate.plan.parts import SOURCE_POSITION, Part, Place, PlanParts, Way, read_parts
from tidegate.plan.physical import JobPlan


@dataclass(frozen=True, slots=True)
class PlanMatch:
    """Everything by the new plan's numbers, to those of the checkpoint.

    `added`: start empty. `missing`: of the checkpoint, without anybody to take them over. `unclear`: parts of the
    checkpoint that several might take over, or that have another shape now, each with one sentence.
    """

    operators: Mapping[Place, Place]
    vertices: Mapping[VertexId, VertexId]
    ways: Mapping[EdgeId, Way]
    added: tuple[Part, ...] = ()
    missing: tuple[Part, ...] = ()
    unclear: tuple[tuple[Part, str], ...] = ()
    lost_ways: tuple[Way, ...] = ()


@dataclass(slots=True)
class _Pairs:
    taken: dict[Place, Part] = field(default_factory=dict)  # by the new place
    unclear: list[tuple[Part, str]] = field(default_factory=list)

    def add(self, old: Part, new: Part) -> None:
        self.taken[new.place] = old


def match_stored(
    plan: JobPlan, fingerprint: Sequence[str], *, stored: Sequence[str], stored_names: Mapping[str, str]
) -> PlanMatch | None:
    """What `plan` takes over from a checkpoint with this fingerprint and these names; None if it cannot be told."""
    names = names_in(plan)
    if list(stored) == list(fingerprint) and stored_names == names:
        return _unchanged(plan)
    old, new = read_parts(stored, stored_names), read_parts(fingerprint, names)
    return None if old is None or new is None else match_plans(old, new)


def _unchanged(plan: JobPlan) -> PlanMatch:
    places = [Place(vertex.id, at) for vertex in plan.vertices for at in range(SOURCE_POSITION, len(vertex.operators))]
    return PlanMatch(
        operators={place: place for place in places},
        vertices={vertex.id: vertex.id for vertex in plan.vertices},
        ways={each.id: Way(each.id, each.sender, each.receiver, each.input, "") for each in plan.edges},
    )


def match_plans(old: PlanParts, new: PlanParts) -> PlanMatch:
    pairs = _Pairs()
    old_left, new_left = _by_name(old.parts, new.parts, pairs)
    old_left = _by_shape(old_left, new_left, pairs)
    vertices = _vertices(old, new, pairs)
    found = {way.id: before for way in new.ways if (before := _way(way, old, new, vertices)) is not None}
    claims = Counter(before.id for before in found.values())
    # Where one vertex has become two, both may lay claim to its rows in flight: then nobody takes them.
    ways = {edge: before for edge, before in found.items() if claims[before.id] == 1}
    return PlanMatch(
        operators={place: part.place for place, part in pairs.taken.items()},
        vertices=vertices,
        ways=ways,
        added=tuple(part for part in new.parts if part.place not in pairs.taken),
        missing=tuple(old_left),
        unclear=tuple(pairs.unclear),
        lost_ways=tuple(way for way in old.ways if way not in ways.values()),
    )


def _by_name(old: Iterable[Part], new: Iterable[Part], pairs: _Pairs) -> tuple[list[Part], list[Part]]:
    named = {part.name: part for part in old if part.name is not None}
    left = list(new)
    for part in list(left):
        before = None if part.name is None else named.pop(part.name, None)
        if before is None:
            continue
        left.remove(part)
        if (before.kind, before.shape) == (part.kind, part.shape):
            pairs.add(before, part)
        else:
            pairs.unclear.append((before, f"it is {_described(before)} there and {_described(part)} in the query"))
    return [part for part in old if part.name is None or part.name in named], left


def _by_shape(old: list[Part], new: list[Part], pairs: _Pairs) -> list[Part]:
    """Of those without a name in the checkpoint; gives what is left. Who had a name is found by it or not at all."""
    missing = [part for part in old if part.name is not None]
    for kind_and_shape in dict.fromkeys((part.kind, part.shape) for part in old if part.name is None):
        before = [part for part in old if part.name is None and (part.kind, part.shape) == kind_and_shape]
        after = [part for part in new if (part.kind, part.shape) == kind_and_shape]
        if len(before) == len(after):
            for one, other in zip(before, after, strict=True):
                pairs.add(one, other)
        elif not after:
            missing += before
        else:
            said = (
                f"the checkpoint has {len(before)} of {_described(before[0])} without a name and the query {len(after)}"
            )
            pairs.unclear += [(part, said) for part in before]
    return missing


def _described(part: Part) -> str:
    return f"{part.kind} {part.shape}".strip()


def _vertices(old: PlanParts, new: PlanParts, pairs: _Pairs) -> dict[VertexId, VertexId]:
    """Whose event time a vertex takes over: that of the first part in it that was there before."""
    found: dict[VertexId, VertexId] = {}
    for place, part in sorted(pairs.taken.items()):
        found.setdefault(place.vertex, part.place.vertex)
    for before, now in ((old.bare_vertices(), new.bare_vertices()), (old.bare_sinks(), new.bare_sinks())):
        if len(before) == len(now):
            found.update(zip(now, before, strict=True))
    return found


def _way(way: Way, old: PlanParts, new: PlanParts, vertices: Mapping[VertexId, VertexId]) -> Way | None:
    """The edge whose rows in flight it takes over: into the same input of the same vertex, with the same rows."""

    def same_input(other: Way, receiver: VertexId | None) -> bool:
        return (other.receiver, other.input) == (receiver, way.input)

    candidates = [each for each in old.ways if same_input(each, vertices.get(way.receiver))]
    beside = [each for each in new.ways if same_input(each, way.receiver)]
    if len(candidates) != 1 or len(beside) != 1:
        sender = vertices.get(way.sender)
        candidates = [each for each in candidates if each.sender == sender]
        beside = [each for each in beside if vertices.get(each.sender) == sender]
    if len(candidates) != 1 or len(beside) != 1 or candidates[0].shape != way.shape:
        return None
    return candidates[0]
