"""Whether the states that user code declares now can go on with what was stored of them, and its timers.

Values are stored field by field, in order: fields may be added at the end, if null is a value of theirs, since that is
what older values have there. Everything else would read one field as another.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import VertexId
from tidegate.plan.matching import PlanMatch
from tidegate.plan.nodes import DeclaredState
from tidegate.plan.parts import Place
from tidegate.plan.physical import ConnectSpec, JobPlan, TransformWithStateSpec
from tidegate.storage.stored_plan import StoredPlan, TimeModeName, UserState, decode_schema


def check_states(where: str, plan: JobPlan, match: PlanMatch, stored: StoredPlan | None) -> None:
    """Raises `IncompatibleCheckpoint` with the state, its old and its new type. Without `stored` nothing is known."""
    before = {} if stored is None else dict(_stored_states(stored))
    for place, operator in _with_states(plan):
        old = before.get(match.operators[place], {}) if place in match.operators else {}
        for state in operator.states:
            if (known := old.get(state.name)) is not None:
                _check_state(where, known, state)


@dataclass(frozen=True, slots=True)
class OtherTimeMode:
    """`stored`: where the operator stands in the checkpoint."""

    stored: Place
    before: TimeModeName
    now: TimeModeName


def other_time_modes(plan: JobPlan, match: PlanMatch, stored: StoredPlan | None) -> Iterator[OtherTimeMode]:
    """The operators that may have timers in the checkpoint, and that would never fire them in the query."""
    operators = () if stored is None else stored.operators
    modes = {Place(VertexId(each.vertex), each.position): each.time_mode for each in operators if each.has_timers}
    for place, operator in _with_states(plan):
        old = match.operators.get(place)
        before = None if old is None else modes.get(old)
        if old is not None and before is not None and before != operator.time_mode.value:
            yield OtherTimeMode(old, before, operator.time_mode.value)


def left_out_states(plan: JobPlan, match: PlanMatch, stored: StoredPlan | None) -> dict[Place, list[UserState]]:
    """What stays stored of an operator though the query does not declare it: by the operator's place in the query.

    It must be remembered: whoever declares it again, in whatever later version, gets the old values.
    """
    before = {} if stored is None else dict(_stored_states(stored))
    found: dict[Place, list[UserState]] = {}
    for place, operator in _with_states(plan):
        old = before.get(match.operators[place], {}) if place in match.operators else {}
        known = {*(state.name for state in operator.states), *operator.deleted}
        if left := [state for name, state in old.items() if name not in known]:
            found[place] = left
    return found


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The names of an operator's states that are not as they were: `left_out` stays stored, `deleted` goes."""

    left_out: tuple[str, ...]
    deleted: tuple[str, ...]
    added: tuple[str, ...]


def state_changes(plan: JobPlan, match: PlanMatch, stored: StoredPlan | None) -> dict[Place, StateChanges]:
    """Of the operators that go on with what was stored of them, by their places in the query."""
    before = {} if stored is None else dict(_stored_states(stored))
    left_out = left_out_states(plan, match, stored)
    found: dict[Place, StateChanges] = {}
    for place, operator in _with_states(plan):
        if (old := before.get(match.operators[place]) if place in match.operators else None) is not None:
            found[place] = StateChanges(
                left_out=tuple(state.name for state in left_out.get(place, ())),
                deleted=tuple(name for name in operator.deleted if name in old),
                added=tuple(state.name for state in operator.states if state.name not in old),
            )
    return found


def with_left_out(stored: StoredPlan, left_out: Mapping[Place, list[UserState]]) -> StoredPlan:
    operators = [
        msgspec.structs.replace(each, left_out=left_out.get(Place(VertexId(each.vertex), each.position), []))
        for each in stored.operators
    ]
    return msgspec.structs.replace(stored, operators=operators)


def _stored_states(stored: StoredPlan) -> Iterator[tuple[Place, Mapping[str, UserState]]]:
    for operator in stored.operators:
        declared = (state for state in operator.states if isinstance(state, UserState))
        states = {state.name: state for state in (*operator.left_out, *declared)}
        yield Place(VertexId(operator.vertex), operator.position), states


def _with_states(plan: JobPlan) -> Iterator[tuple[Place, TransformWithStateSpec | ConnectSpec]]:
    for vertex in plan.vertices:
        for position, operator in enumerate(vertex.operators):
            if isinstance(operator, TransformWithStateSpec | ConnectSpec):
                yield Place(vertex.id, position), operator


def _check_state(where: str, old: UserState, new: DeclaredState) -> None:
    if old.shape != new.shape.value:
        raise _refused(where, new.name, f"a {old.shape} state", f"a {new.shape.value} state")
    if old.has_ttl != new.has_ttl:
        raise IncompatibleCheckpoint(
            f"{where} has state {new.name!r} {_ttl(old.has_ttl)}, and the query opens it {_ttl(new.has_ttl)}: open it "
            f"as it was stored, or give it another name."
        )
    subkeys = None if old.subkeys is None else decode_schema(old.subkeys)
    if subkeys is not None and new.subkeys is not None and not _starts_with(new.subkeys, subkeys, added=0):
        raise _refused(where, new.name, f"a map by {_written(subkeys)}", f"a map by {_written(new.subkeys)}")
    values = decode_schema(old.values)
    if not _starts_with(new.values, values):
        raise _refused(where, new.name, _written(values), _written(new.values))
    for field in list(new.values)[len(values) :]:
        if not field.nullable:
            raise IncompatibleCheckpoint(
                f"{where} has state {new.name!r} without the field {field.name!r}, which is NOT NULL in the query: "
                f"stored values have null there, so declare it without NOT NULL."
            )


def _ttl(has_ttl: bool) -> str:
    return "with a TTL" if has_ttl else "without a TTL"


def _starts_with(schema: pa.Schema, before: pa.Schema, *, added: int | None = None) -> bool:
    """`added`: how many fields may follow; None for any number."""
    if len(schema) < len(before) or (added is not None and len(schema) - len(before) > added):
        return False
    return all(new.name == old.name and new.type == old.type for new, old in zip(schema, before, strict=False))


def _refused(where: str, state: str, old: str, new: str) -> IncompatibleCheckpoint:
    return IncompatibleCheckpoint(
        f"{where} has state {state!r} as {old}, and the query declares it as {new}: only nullable fields may be added, "
        f"at the end; declare it as it was, or give it another name."
    )


def _written(fields: Iterable[pa.Field]) -> str:
    return f"({', '.join(f'{field.name}: {field.type}' for field in fields)})"
