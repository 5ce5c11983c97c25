"""A checkpoint that is restored without the rows it holds in flight: they are counted, and all else stays."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.stored_checkpoint import RECEIVER, SENDER, Captured
from tests.unit.test_restoring import EDGES, SCHEMA, Job, ends_agree, in_flight, plan_of, recovered_values, rows, store
from tidegate.model.elements import Batch
from tidegate.model.ids import ChannelId, EdgeId, TaskId
from tidegate.plan.physical import BroadcastPartitioning, Edge, JobPlan
from tidegate.protocol.recovery import CapturedRows
from tidegate.state.contract import Redistribution, Section
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import ChannelEnds, SlotRestore, StoredFiles

__all__ = ["store"]

OLD = 3
FURTHEST = OLD - 1  # the receiver of a broadcast that has the least left in `in_flight`


def lost_channels(job: Job, kind: str) -> dict[ChannelId, Captured]:
    """Every receiver has rows of a broadcast in flight; lost are those that the furthest of them had."""
    return {at: c for at, c in job.channels.items() if kind != "broadcast" or at.receiver == FURTHEST}


def rules_of(task: TaskId) -> list[Section]:
    return [Section("rules", None, lambda: b"of %d" % task.subtask, Redistribution.BROADCAST)]


def restored_rules(restores: Iterable[SlotRestore]) -> list[list[bytes]]:
    return [
        [bytes(section.data) for section in restore.tasks[TaskId(RECEIVER, slot)].sections[0]]
        for slot, restore in enumerate(restores)
    ]


@pytest.mark.parametrize("new", [OLD, 2, 4])
@pytest.mark.parametrize("kind", EDGES)
def test_without_captured_rows_every_element_keeps_its_place_and_marks_stay(
    store: LocalFiles, kind: str, new: int
) -> None:
    plan = plan_of(OLD, EDGES[kind])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    job.write()
    restores = job.restore(plan_of(new, EDGES[kind]), CapturedRows.DROP)
    whole = job.restore(plan_of(new, EDGES[kind]))
    ends_agree(restores)
    assert [recovered_values(restore) for restore in restores] == [[]] * new
    assert all(restore.known == [] for restore in restores), "a later checkpoint must not refer to rows that are gone"
    lost = [part for restore in restores for part in restore.dropped]
    assert sum(part.rows for part in lost) == sum(len(c.values()) for c in lost_channels(job, kind).values())
    # Of a broadcast, at another parallelism, all take the same.
    counting = [whole[FURTHEST if new == OLD else 0]] if kind == "broadcast" else whole
    assert sum(part.bytes for part in lost) == sum(restore.recovered_bytes for restore in counting)
    assert {part.edge for part in lost} == {0}
    for without, complete in zip(restores, whole, strict=True):
        assert complete.dropped == () and without.next_sequences == complete.next_sequences
        for channel, recovered in complete.recovered.items():
            for kept, element in zip(without.recovered[channel].elements, recovered.elements, strict=True):
                assert (kept.sequence, kept.first_row) == (element.sequence, element.first_row)
                assert isinstance(kept.element, Batch) or kept.element == element.element


@pytest.mark.parametrize("new", [OLD, 1, 2, 4])
def test_all_go_on_with_the_broadcast_state_of_the_one_that_had_the_least_left(store: LocalFiles, new: int) -> None:
    """Else a row that one has applied, and that was on its way to another, would be seen by the one alone."""
    plan = plan_of(OLD, EDGES["broadcast"])
    job = Job(store, plan, in_flight(plan), sections=rules_of)
    job.write()
    restores = job.restore(plan_of(new, EDGES["broadcast"]), CapturedRows.DROP)
    assert restored_rules(restores) == [[b"of %d" % FURTHEST]] * new


def test_a_row_that_one_receiver_has_applied_is_not_lost(store: LocalFiles) -> None:
    plan = plan_of(2, EDGES["broadcast"], senders=1)
    behind, ahead = ChannelId(EdgeId(0), 0, 0), ChannelId(EdgeId(0), 0, 1)
    channels = {behind: Captured((rows(1, 2), rows(3)), first=4), ahead: Captured((), first=6)}
    job = Job(store, plan, channels, sections=rules_of)
    job.write()
    restores = job.restore(plan, CapturedRows.DROP)
    assert restored_rules(restores) == [[b"of 1"]] * 2
    assert [restore.dropped for restore in restores] == [(), ()]
    assert [kept.sequence for kept in restores[0].recovered[behind].elements] == [4, 5]


@pytest.mark.parametrize("new", [2, 3])
def test_of_a_union_of_broadcasts_one_receiver_is_the_furthest_and_counts_both(store: LocalFiles, new: int) -> None:
    def union(parallelism: int) -> JobPlan:
        plan = plan_of(parallelism, EDGES["broadcast"], senders=1)
        second = Edge(EdgeId(1), SENDER, RECEIVER, BroadcastPartitioning(), SCHEMA)
        return replace(plan, edges=(*plan.edges, second))

    first, second = EdgeId(0), EdgeId(1)
    channels = {
        ChannelId(first, 0, 0): Captured((rows(1),), first=1),
        ChannelId(first, 0, 1): Captured((rows(1),), first=1),
        ChannelId(second, 0, 0): Captured((rows(5, 6), rows(7)), first=1),
        ChannelId(second, 0, 1): Captured((rows(7),), first=2),
    }
    job = Job(store, union(2), channels, sections=rules_of)
    job.write()
    restores = job.restore(union(new), CapturedRows.DROP)
    ends_agree(restores)
    assert restored_rules(restores) == [[b"of 1"]] * new
    assert sorted((part.edge, part.rows) for restore in restores for part in restore.dropped) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("new", [OLD, 2, 4])
@pytest.mark.parametrize("kind", EDGES)
def test_captured_rows_that_cannot_be_read_are_counted_once_by_their_bytes(
    store: LocalFiles, kind: str, new: int
) -> None:
    plan = plan_of(OLD, EDGES[kind])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    manifest = job.write()
    stored_bytes = sum(_stored_bytes(store, manifest, channel) for channel in lost_channels(job, kind))
    for slot in manifest.slots:
        for file in slot.shared:
            store.put(file.path, b"x" * file.length)
    restores = job.restore(plan_of(new, EDGES[kind]), CapturedRows.DROP)
    lost = [part for restore in restores for part in restore.dropped]
    assert sum(part.rows for part in lost) == 0
    assert sum(part.unread_bytes for part in lost) == stored_bytes


def _stored_bytes(store: LocalFiles, manifest: Manifest, channel: ChannelId) -> int:
    (stored,) = [each for each in manifest.channels if each.channel == channel]
    parts = StoredFiles(store, manifest).captured_parts(stored, ChannelEnds(sender=SENDER, receiver=RECEIVER))
    return sum(element.length for part in parts for element in part.elements)
