"""Which states of user code may change their schema between a checkpoint and the query that goes on from it."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from tidegate.coordinator.state_evolution import check_states, left_out_states, other_time_modes, with_left_out
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import VertexId
from tidegate.operators.described import describe_plan
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.matching import match_stored
from tidegate.plan.nodes import (
    Connect,
    DeclaredState,
    Node,
    RightSide,
    Scan,
    Sink,
    StateShape,
    TimeMode,
    TransformWithState,
)
from tidegate.plan.parts import Place
from tidegate.plan.physical import JobPlan
from tidegate.storage.stored_plan import StoredPlan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
N = pa.field("n", pa.int64())


def planned(*states: DeclaredState) -> JobPlan:
    node = TransformWithState(Scan("rate", {}, SCHEMA), 1, b"p", SCHEMA, states=states)
    return lower(node, Sink("noop", {}, SCHEMA), parallelism=1, max_parallelism=16)


def value(*fields: pa.Field, name: str = "count") -> DeclaredState:
    return DeclaredState(name, StateShape.VALUE, pa.schema(fields))


def check(old: DeclaredState, new: DeclaredState) -> None:
    before, after = planned(old), planned(new)
    match = match_stored(after, fingerprint(after), stored=fingerprint(before), stored_names={})
    assert match is not None
    check_states("Checkpoint 7", after, match, describe_plan(before))


def refused(old: DeclaredState, new: DeclaredState) -> str:
    with pytest.raises(IncompatibleCheckpoint) as caught:
        check(old, new)
    said = str(caught.value)
    assert said.startswith("Checkpoint 7 has state 'count'") and said.endswith(".") and "\n" not in said
    return said


def test_nullable_fields_may_be_added_at_the_end() -> None:
    check(value(N), value(N))
    check(value(N), value(N, pa.field("last", pa.string()), pa.field("best", pa.float64())))


def test_a_field_that_must_not_be_null_cannot_be_added() -> None:
    said = refused(value(N), value(N, pa.field("last", pa.string(), nullable=False)))
    assert "'last', which is NOT NULL" in said


@pytest.mark.parametrize(
    "fields",
    [
        [pa.field("n", pa.int32())],
        [pa.field("m", pa.int64())],
        [pa.field("first", pa.string()), N],
        [],
    ],
    ids=["another type", "another name", "in front", "removed"],
)
def test_every_other_change_is_refused_with_both_types(fields: list[pa.Field]) -> None:
    new = value(*fields)
    said = refused(value(N), new)
    written = ", ".join(f"{field.name}: {field.type}" for field in fields)
    assert f"as (n: int64), and the query declares it as ({written})" in said


def test_the_keys_of_a_map_stay_as_they_are_and_its_values_may_grow() -> None:
    keys, more = pa.schema([("k", pa.string())]), pa.schema([("k", pa.string()), ("l", pa.string())])
    old = DeclaredState("count", StateShape.MAP, pa.schema([N]), keys)
    check(old, DeclaredState("count", StateShape.MAP, pa.schema([N, ("x", pa.int64())]), keys))
    assert "a map by (k: string)" in refused(old, DeclaredState("count", StateShape.MAP, pa.schema([N]), more))


def test_another_kind_of_state_is_refused() -> None:
    assert "as a value state, and the query declares it as a list state" in refused(
        value(N), DeclaredState("count", StateShape.LIST, pa.schema([N]))
    )


def test_states_that_came_or_went_are_fine() -> None:
    check(value(N), value(pa.field("other", pa.string()), name="other"))


@pytest.mark.parametrize("had_ttl", [True, False])
def test_a_ttl_is_neither_added_nor_taken_away(had_ttl: bool) -> None:
    old, new = replace(value(N), has_ttl=had_ttl), replace(value(N), has_ttl=not had_ttl)
    before, now = ("with", "without") if had_ttl else ("without", "with")
    assert f"{before} a TTL, and the query opens it {now} a TTL" in refused(old, new)
    check(old, replace(value(N, pa.field("last", pa.string())), has_ttl=had_ttl))


def goes_on(stored: StoredPlan, *states: DeclaredState, deleted: tuple[str, ...] = ()) -> StoredPlan:
    """The query's next version, with these states, from a checkpoint of the one before; what its checkpoints say."""
    node = TransformWithState(Scan("rate", {}, SCHEMA), 1, b"p", SCHEMA, states=states, deleted=deleted)
    plan = lower(node, Sink("noop", {}, SCHEMA), parallelism=1, max_parallelism=16)
    match = match_stored(plan, fingerprint(plan), stored=fingerprint(planned()), stored_names={})
    assert match is not None
    check_states("Checkpoint 7", plan, match, stored)
    return with_left_out(describe_plan(plan), left_out_states(plan, match, stored))


def test_a_state_that_a_version_left_out_is_still_known_by_its_type() -> None:
    """Its values stay stored: declared again as something else, they would be read as that."""
    first = goes_on(describe_plan(planned()), value(N))
    second = goes_on(first, value(N, name="other"))
    third = goes_on(second, value(N, name="other"))
    with pytest.raises(IncompatibleCheckpoint, match="has state 'count' as"):
        goes_on(third, value(pa.field("n", pa.string())))
    again = goes_on(third, value(N))
    assert [state.name for state in again.operators[0].left_out] == ["other"]


def test_a_state_that_a_version_deleted_may_come_back_as_something_else() -> None:
    first = goes_on(describe_plan(planned()), value(N))
    second = goes_on(first, deleted=("count",))
    assert second.operators[0].left_out == []
    goes_on(second, value(pa.field("n", pa.string())))


# -- timers


def transforming(mode: TimeMode) -> JobPlan:
    return lowered(TransformWithState(Scan("rate", {}, SCHEMA), 1, b"p", SCHEMA, mode))


def connecting(mode: TimeMode) -> JobPlan:
    left, right = Scan("rate", {}, SCHEMA), Scan("parquet", {}, SCHEMA)
    return lowered(Connect(left, right, b"p", RightSide.KEYED, 1, 1, SCHEMA, mode))


def lowered(node: Node) -> JobPlan:
    return lower(node, Sink("noop", {}, SCHEMA), parallelism=1, max_parallelism=16)


def changed(before: JobPlan, after: JobPlan, stored: StoredPlan | None) -> list[tuple[Place, str, str]]:
    match = match_stored(after, fingerprint(after), stored=fingerprint(before), stored_names={})
    assert match is not None
    return [(other.stored, other.before, other.now) for other in other_time_modes(after, match, stored)]


@pytest.mark.parametrize("planned_in", [transforming, connecting])
@pytest.mark.parametrize("now", TimeMode)
@pytest.mark.parametrize("before", TimeMode)
def test_timers_never_fire_in_another_time_mode_than_theirs(
    planned_in: Callable[[TimeMode], JobPlan], before: TimeMode, now: TimeMode
) -> None:
    """Where there could be none before, any time mode will do."""
    old, new = planned_in(before), planned_in(now)
    stored = describe_plan(old)
    (operator,) = stored.operators
    place = Place(VertexId(operator.vertex), operator.position)
    is_fine = before in (TimeMode.NONE, now)
    assert changed(old, new, stored) == ([] if is_fine else [(place, before.value, now.value)])


def test_of_a_checkpoint_that_does_not_say_its_time_mode_the_slots_find_out() -> None:
    old, new = transforming(TimeMode.EVENT_TIME), transforming(TimeMode.PROCESSING_TIME)
    said = msgspec.to_builtins(describe_plan(old))
    for operator in said["operators"]:
        del operator["time_mode"]
    earlier = msgspec.convert(said, StoredPlan)
    assert earlier.operators[0].has_timers
    assert changed(old, new, earlier) == []
    assert changed(old, new, None) == []
