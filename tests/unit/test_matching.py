"""Which operator goes on with which state, when the query is not the one that took the checkpoint."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.test_restoring import MANIFEST, Captured, Job, recovered_values, rows
from tidegate.coordinator.compatibility import NotRestored, check_fits
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.plan.expressions import Column, Literal
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.naming import names_in
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    Deduplicate,
    EventTimeWatermark,
    Filter,
    ForgetAfterDelay,
    Named,
    Node,
    Project,
    Scan,
    Sink,
    TransformWithState,
    Union,
)
from tidegate.plan.parts import _STATELESS, SOURCE_POSITION, Place, PlanParts, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.state.contract import Redistribution, Section
from tidegate.storage.manifests import ChannelRange, Manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import restore_slot

INT64 = pa.int64()
SCHEMA = pa.schema([("k", INT64), ("v", INT64)])
SCAN = Scan("parquet", {"path": "/in"}, SCHEMA)
K, V = Column(0, "k", INT64), Column(1, "v", INT64)


def lowered(root: Node, *, sink: str = "noop") -> JobPlan:
    return lower(root, Sink(sink, {}, root.schema), parallelism=2, max_parallelism=16)


def summed(child: Node, function: AggregateFunction = AggregateFunction.SUM) -> Aggregate:
    call = AggregateCall(function, (V,), INT64, ansi=True)
    return Aggregate(child, (K,), (call,), (K, Column(1, "v", INT64)), SCHEMA)


def once(child: Node, *keys: int) -> Deduplicate:
    return Deduplicate(child, keys or (0,), None, None, SCHEMA)


def where(child: Node) -> Filter:
    return Filter(child, Literal(True, pa.bool_()), SCHEMA)


def named(child: Node, name: str) -> Node:
    return dataclasses.replace(child, name=name) if isinstance(child, Scan) else Named(child, name, child.schema)


def parts_of(root: Node) -> PlanParts:
    plan = lowered(root)
    parts = read_parts(fingerprint(plan), names_in(plan))
    assert parts is not None
    return parts


def ids(root: Node) -> list[str]:
    return [part.id for part in parts_of(root).parts]


def stored(root: Node, *, channels: list[ChannelRange] | None = None, sink: str = "noop") -> Manifest:
    plan = lowered(root, sink=sink)
    return Manifest(
        checkpoint=CheckpointId(7),
        generation=Generation(1),
        kind="aligned",
        is_savepoint=True,
        triggered_at_ms=0,
        duration_ms=1.0,
        plan_fingerprint=fingerprint(plan),
        operator_names=names_in(plan),
        parallelism=2,
        max_parallelism=16,
        vertex_parallelism=[2] * len(plan.vertices),
        slots=[],
        channels=channels or [],
    )


def fits(
    old: Manifest, new: Node, not_restored: NotRestored = NotRestored.REFUSED, *, without: str | None = None
) -> PlanMatch:
    """As if every operator had something in the checkpoint, except for `without`."""
    plan = lowered(new)
    parts = read_parts(old.plan_fingerprint, old.operator_names)
    assert parts is not None
    places = frozenset(part.place for part in parts.parts if part.id != without)
    return check_fits(old, plan, fingerprint(plan), not_restored=not_restored, stored_places=lambda: places)


def refusal(old: Manifest, new: Node, not_restored: NotRestored = NotRestored.REFUSED) -> str:
    with pytest.raises(IncompatibleCheckpoint) as caught:
        fits(old, new, not_restored)
    said = str(caught.value)
    assert said.endswith(".") and "\n" not in said
    return said


def taken_over(old: Node, new: Node) -> dict[str, str]:
    """From the ids of the new plan to those of the old."""
    before, after = parts_of(old), parts_of(new)
    match = fits(stored(old), new)
    pairs = {}
    for part in after.parts:
        if part.place in match.operators:
            source = before.at(match.operators[part.place])
            assert source is not None
            pairs[part.id] = source.id
    return pairs


# -- ids


def test_an_id_is_the_kind_and_the_place_among_its_kind() -> None:
    assert ids(once(summed(once(SCAN)))) == ["Source#1", "Deduplicate#1", "Aggregate#1", "Deduplicate#2"]


def test_operators_without_state_change_no_id() -> None:
    plain, busy = once(summed(SCAN)), once(where(summed(Project(where(SCAN), (K, V), SCHEMA))))
    assert ids(plain) == ids(busy) == ["Source#1", "Aggregate#1", "Deduplicate#1"]
    assert taken_over(plain, busy) == {each: each for each in ids(plain)}


def test_a_name_is_the_id_and_moves_nobody_elses() -> None:
    assert ids(once(named(summed(named(SCAN, "orders")), "totals"))) == ["orders", "totals", "Deduplicate#1"]


def test_one_watermark_over_a_union_is_named_in_each_branch() -> None:
    schema = pa.schema([("k", INT64), ("t", pa.timestamp("us"))])
    union = Union((Scan("rate", {}, schema), Scan("parquet", {}, schema)), schema)
    assert ids(named(EventTimeWatermark(union, 1, 0, schema), "time")) == ["Source#1", "time", "Source#2", "time (2)"]


def test_only_operators_that_never_hold_a_row_have_no_id() -> None:
    """Whoever may have something in a checkpoint must be found again, or be missed."""
    from tidegate.operators import event_time_column, partial_aggregate, project_filter, row_makers
    from tidegate.operators.contract import Stateless

    assert {"Project", "Filter", "Expand", "PartialAggregate", "EventTimeColumn"} == _STATELESS
    for kind in (
        event_time_column.EventTimeColumnOperator,
        partial_aggregate.PartialAggregateOperator,
        project_filter.KernelOperator,
        row_makers.ExpandOperator,
    ):
        assert kind.snapshot is Stateless.snapshot, f"{kind.__name__} keeps something"


# -- what goes where


def test_named_operators_are_found_wherever_they_stand() -> None:
    old = named(once(named(once(SCAN), "first")), "second")
    new = named(once(named(once(SCAN), "second")), "first")
    assert taken_over(old, new) == {"Source#1": "Source#1", "first": "first", "second": "second"}


def test_an_added_operator_starts_empty() -> None:
    match = fits(stored(once(SCAN)), summed(once(SCAN)))
    assert [part.id for part in match.added] == ["Aggregate#1"]
    assert taken_over(once(SCAN), summed(once(SCAN))) == {"Source#1": "Source#1", "Deduplicate#1": "Deduplicate#1"}


def test_an_operator_that_gets_a_name_keeps_its_state() -> None:
    assert taken_over(summed(SCAN), named(summed(SCAN), "totals")) == {"Source#1": "Source#1", "totals": "Aggregate#1"}


def test_a_processor_goes_by_its_keys_and_not_by_its_rows() -> None:
    wide = pa.schema([*SCHEMA, ("more", pa.string())])
    old, new = TransformWithState(SCAN, 1, b"p", SCHEMA), TransformWithState(Scan("parquet", {}, wide), 1, b"q", wide)
    assert taken_over(old, new)["TransformWithState#1"] == "TransformWithState#1"


def test_an_operator_that_is_gone_is_named_unless_its_state_may_be_dropped() -> None:
    old = stored(summed(named(once(SCAN), "orders once")))
    said = refusal(old, summed(SCAN))
    assert said.startswith("Savepoint 7 has state of 'orders once' (Deduplicate keys=[int64]")
    assert "tg.named" in said and "restore.allowNonRestored" in said
    match = fits(old, summed(SCAN), NotRestored.DROPPED)
    assert [part.id for part in match.missing] == ["orders once"]


def test_an_operator_that_is_gone_and_had_nothing_stored_is_no_loss() -> None:
    assert fits(stored(summed(once(SCAN))), summed(SCAN), without="Deduplicate#1").missing


def test_another_name_is_another_operator() -> None:
    said = refusal(stored(named(summed(SCAN), "totals")), named(summed(SCAN), "sums"))
    assert "'totals'" in said and "which this query lacks and has 'sums'" in said
    assert "'totals'" in refusal(stored(named(summed(SCAN), "totals")), summed(SCAN))


def test_another_operator_under_the_same_name_is_refused_even_if_state_may_be_dropped() -> None:
    old, new = stored(named(summed(SCAN), "it")), named(summed(SCAN, AggregateFunction.COUNT), "it")
    said = refusal(old, new, NotRestored.DROPPED)
    assert "under the name 'it'" in said and "sum:int64" in said and "count:int64" in said


def test_equal_operators_without_names_are_told_apart_by_order_only_if_none_came_or_went() -> None:
    assert taken_over(once(once(SCAN)), once(where(once(SCAN))))["Deduplicate#2"] == "Deduplicate#2"
    said = refusal(stored(once(once(SCAN))), once(once(once(SCAN))), NotRestored.DROPPED)
    assert "which operator of the query goes on with Deduplicate#1" in said and "tg.named" in said


def test_another_sink_is_refused() -> None:
    assert "sink noop and this one has sink parquet" in refusal_of_sink()


def refusal_of_sink() -> str:
    plan = lowered(summed(SCAN), sink="parquet")
    with pytest.raises(IncompatibleCheckpoint) as caught:
        check_fits(
            stored(summed(SCAN)),
            plan,
            fingerprint(plan),
            not_restored=NotRestored.REFUSED,
            stored_places=frozenset,
        )
    return str(caught.value)


# -- rows in flight


def in_flight(edge: int) -> list[ChannelRange]:
    return [ChannelRange(ChannelId(EdgeId(edge), 0, 1), Sequence(3), 0, Sequence(4), Sequence(5))]


def test_rows_in_flight_go_to_the_same_input_of_the_same_operator() -> None:
    old, new = summed(SCAN), summed(once(SCAN))
    match = match_stored(lowered(new), fingerprint(lowered(new)), stored=fingerprint(lowered(old)), stored_names={})
    assert match is not None
    ((edge, before),) = match.ways.items()
    assert (edge, before.id) == (1, 0), "the edge into the aggregation has another number now"
    fits(stored(old, channels=in_flight(0)), new)


def test_an_operator_added_behind_the_last_takes_nothing_of_it() -> None:
    """The sink stands behind the new one now, in another vertex."""
    match = fits(stored(once(SCAN), channels=in_flight(0)), summed(once(SCAN)))
    assert match.vertices == {0: 0, 1: 1}, "event time of the vertex that had the sink is that of its operator"
    assert [(edge, way.id) for edge, way in match.ways.items()] == [(0, 0)]


def test_rows_in_flight_to_an_operator_that_is_gone_are_never_dropped() -> None:
    said = refusal(stored(summed(once(SCAN)), channels=in_flight(0)), summed(SCAN), NotRestored.DROPPED)
    assert (
        "rows in flight from vertex 0 to vertex 1 (hash keys=[int64]" in said and "query.stop(savepoint=True)" in said
    )
    fits(stored(summed(once(SCAN))), summed(SCAN), NotRestored.DROPPED)


# -- in the slots


def test_state_positions_and_rows_in_flight_move_with_their_operators(tmp_path: Path) -> None:
    """A filter before, a deduplication in between: every vertex, position and edge number is another."""
    schema = pa.schema([("v", INT64)])
    scan, column = Scan("parquet", {}, schema), Column(0, "v", INT64)
    old, new = (
        lower(root, Sink("noop", {}, schema), parallelism=2, max_parallelism=16)
        for root in (
            Deduplicate(scan, (0,), None, None, schema),
            Deduplicate(
                Named(
                    Deduplicate(Project(scan, (column,), schema), (0,), None, ForgetAfterDelay(5), schema),
                    "new",
                    schema,
                ),
                (0,),
                None,
                None,
                schema,
            ),
        )
    )
    assert [len(plan.vertices) for plan in (old, new)] == [2, 3]
    sections: Callable[[TaskId], list[Section]] = lambda task: (  # noqa: E731
        [Section("all", None, lambda: b"state", Redistribution.UNION)] if task.vertex == 1 else []
    )
    job = Job(
        LocalFiles(tmp_path),
        old,
        sections=sections,
        sources={TaskId(VertexId(0), 0): b"here", TaskId(VertexId(0), 1): b"there"},
        channels={ChannelId(EdgeId(0), s, r): Captured((rows(r),)) for s in (0, 1) for r in (0, 1)},
        inline_below_bytes=0,
    )
    job.write()
    for slot in (0, 1):
        restored = restore_slot(LocalFiles(tmp_path), MANIFEST, new, SlotIndex(slot))
        assert restored.tasks[TaskId(VertexId(0), slot)].source_state == (b"here", b"there")[slot]
        assert restored.tasks[TaskId(VertexId(1), slot)].sections == {}
        assert list(restored.tasks[TaskId(VertexId(2), slot)].sections) == [0]
        assert set(restored.recovered) == {ChannelId(EdgeId(1), 0, slot), ChannelId(EdgeId(1), 1, slot)}
        assert recovered_values(restored) == [slot, slot]
        assert set(restored.next_sequences.values()) == {1}
        assert restored.known == [], "what later checkpoints refer to goes by the channel's name"


def test_a_slot_does_not_start_where_rows_would_be_lost(tmp_path: Path) -> None:
    schema = pa.schema([("v", INT64)])
    scan = Scan("parquet", {}, schema)
    old, new = (
        lower(root, Sink("noop", {}, schema), parallelism=1, max_parallelism=16)
        for root in (Deduplicate(scan, (0,), None, None, schema), scan)
    )
    here = {TaskId(VertexId(0), 0): b"here"}
    Job(LocalFiles(tmp_path), old, channels={ChannelId(EdgeId(0), 0, 0): Captured((rows(1),))}, sources=here).write()
    with pytest.raises(IncompatibleCheckpoint):
        restore_slot(LocalFiles(tmp_path), MANIFEST, new, SlotIndex(0))


def test_a_source_is_found_before_the_first_operator() -> None:
    assert parts_of(SCAN).at(Place(VertexId(0), SOURCE_POSITION)) is not None
