"""What views say of checkpoints under way and failed ones: as much as is known, and the same as from storage."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.test_checkpoint_facts import JOB, PLAN
from tidegate.coordinator.facts import checkpoint_facts
from tidegate.coordinator.history import History, Underway, in_progress_view
from tidegate.coordinator.slot_clocks import SlotClocks
from tidegate.coordinator.stored_views import stored_views
from tidegate.coordinator.views import CheckpointView
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, SlotIndex, TaskId, VertexId
from tidegate.network.messages import Acknowledge, BarrierSeen, SlotStanding, TaskPart, TaskStanding
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.protocol.checkpoints import FailureReason
from tidegate.storage import layout
from tidegate.storage.manifests import SharedFile
from tidegate.storage.statistics import put_failed
from tidegate.storage.store import LocalFiles

NAMES = {vertex.id: vertex.name for vertex in PLAN.vertices}
SEVEN = CheckpointId(7)
ONE, TWO = SlotIndex(0), SlotIndex(1)
TRIGGERED_MS, ENDED_MS = 1_000.0, 6_000.0


def source(slot: int) -> TaskId:
    return TaskId(VertexId(0), slot)


def keyed(slot: int) -> TaskId:
    return TaskId(VertexId(1), slot)


def standing(
    slot: int, *, has_snapshot: bool = True, processed_bytes: int = 300, stored_bytes: int = 0
) -> SlotStanding:
    """The keyed task has had its barriers; its snapshot, if it has come, is unaligned."""
    seen = BarrierSeen(ChannelId(EdgeId(0), 0, slot), TRIGGERED_MS + 20.0)
    snapshot = {"kind": "unaligned", "snapshot_at_ms": TRIGGERED_MS + 500.0, "state_bytes": 64} if has_snapshot else {}
    return SlotStanding(
        checkpoint=SEVEN,
        triggered_at_ms=TRIGGERED_MS + 5.0,
        stored_bytes=stored_bytes,
        tasks=[
            TaskStanding(source(slot), kind="unaligned", snapshot_at_ms=TRIGGERED_MS + 5.0, state_bytes=8),
            TaskStanding(keyed(slot), first=seen, last=seen, processed_bytes=processed_bytes, **snapshot),
        ],
    )


def acknowledgement(slot: int) -> Acknowledge:
    """Its state file has 800 bytes, and a file of captured rows 200."""
    folder = layout.CheckpointFolder(SEVEN, Generation(1))
    captured = SharedFile(layout.channel_file(folder, SlotIndex(slot)), 200, 1)
    return Acknowledge(
        Generation(1),
        SEVEN,
        "0.state",
        800,
        2,
        [
            TaskPart(source(slot), "unaligned", 5.0, 0.0, 0.0, 40.0, 8, 0, 0, []),
            TaskPart(keyed(slot), "unaligned", 20.0, 480.0, 0.0, 50.0, 64, 200, 200, []),
        ],
        [],
        [],
        shared=[captured],
        standing=standing(slot, stored_bytes=1_000),
    )


def clocks() -> SlotClocks:
    made = SlotClocks()
    for slot in (ONE, TWO):
        made.on_word(slot, said_at_ms=TRIGGERED_MS, now_ms=TRIGGERED_MS)
    return made


@pytest.fixture
def underway() -> Underway:
    """The first slot has acknowledged; in the second one the keyed task works on rows in front of its last barrier."""
    made = Underway(SEVEN, TRIGGERED_MS, 1_700_000_000_000, names=NAMES)
    made.acknowledged[ONE] = acknowledgement(0)
    made.acknowledged_at_ms[ONE] = TRIGGERED_MS + 600.0
    made.standings[TWO] = standing(1, has_snapshot=False, processed_bytes=50)
    return made


def facts_of(underway: Underway, *, ended_ms: float = ENDED_MS) -> CheckpointFacts:
    return checkpoint_facts(
        JOB,
        underway.heard({ONE: 5_900.0, TWO: 5_900.0}),
        clocks(),
        outcome=Outcome.FAILED,
        duration_ms=ended_ms - TRIGGERED_MS,
        failure=FailureReason.EXPIRED.value,
    )


def expire(history: History, underway: Underway, *, ended_ms: float = ENDED_MS) -> CheckpointView:
    facts = facts_of(underway, ended_ms=ended_ms)
    history.failed(underway, reason=FailureReason.EXPIRED, detail=None, now_ms=ended_ms, facts=facts)
    return history.views()[0]


def from_storage(folder: Path, facts: tuple[CheckpointFacts, ...]) -> CheckpointView:
    put_failed(LocalFiles(folder), facts)
    (view,) = stored_views(str(folder))
    return view


def test_a_failed_checkpoint_has_the_figures_of_its_tasks(underway: Underway) -> None:
    view = expire(History(), underway)
    assert (view.status, view.kind, view.failure_reason) == ("failed", "unaligned", "expired")
    assert (view.state_bytes, view.new_state_bytes) == (8 + 64 + 8, 800)
    assert (view.inflight_bytes, view.new_inflight_bytes, view.processed_bytes) == (200, 200, 300 + 50)
    assert [task.task for task in view.tasks] == ["v0.0", "v1.0", "v0.1"]
    assert view.unreported == ("v1.1",)


def test_a_failed_checkpoint_looks_the_same_from_the_running_query_and_from_storage(
    underway: Underway, tmp_path: Path
) -> None:
    history = History()
    view = expire(history, underway)
    assert from_storage(tmp_path, history.facts()) == view


def test_what_a_slot_tells_later_of_a_failed_checkpoint_is_in_all_its_figures(
    underway: Underway, tmp_path: Path
) -> None:
    history = History()
    expire(history, underway)
    underway.standings[TWO] = standing(1, processed_bytes=70)
    history.failed_later_known(facts_of(underway))
    (view,) = history.views()
    assert (view.state_bytes, view.processed_bytes) == (2 * (8 + 64), 300 + 70)
    assert [task.processed_bytes for task in view.tasks] == [0, 300, 0, 70]
    assert view.unreported == ()
    assert from_storage(tmp_path, history.facts()) == view


def test_a_task_that_is_in_an_acknowledgement_is_reported_whenever_it_seems_to_have_been(
    underway: Underway, tmp_path: Path
) -> None:
    """Clocks are known to about a message's time: its snapshot may seem to have come after the end."""
    history = History()
    view = expire(history, underway, ended_ms=TRIGGERED_MS + 499.0)
    assert "v1.0" in {task.task for task in view.tasks}
    assert view.unreported == ("v1.1",)
    assert from_storage(tmp_path, history.facts()) == view


def test_bytes_of_a_slot_that_has_not_acknowledged_count_as_no_state(underway: Underway) -> None:
    """They may as well be captured rows."""
    underway.standings[TWO] = standing(1, stored_bytes=5_000)
    assert expire(History(), underway).new_state_bytes == 800


def test_nor_does_what_was_to_be_in_the_manifest_of_a_failed_checkpoint(underway: Underway) -> None:
    """It is never written, with or without captured rows in it."""
    said = msgspec.structs.replace(standing(0), stored_bytes=0)
    parts = acknowledgement(0).parts
    underway.acknowledged[ONE] = Acknowledge(
        Generation(1), SEVEN, "0.state", 800, 2, parts, [], [], standing=said, content=b"x" * 800
    )
    assert in_progress_view(underway, ENDED_MS).new_state_bytes == 800 - 200
    assert expire(History(), underway).new_state_bytes == 0


def test_a_checkpoint_under_way_has_the_kind_that_its_tasks_told_before_any_slot_has_acknowledged() -> None:
    underway = Underway(SEVEN, TRIGGERED_MS, 1_700_000_000_000)
    assert in_progress_view(underway, ENDED_MS).kind == "aligned"
    underway.standings[TWO] = standing(1, has_snapshot=False)
    assert in_progress_view(underway, ENDED_MS).kind == "unaligned"


def test_a_checkpoint_under_way_has_the_figures_and_names_of_what_is_acknowledged(underway: Underway) -> None:
    view = in_progress_view(underway, ENDED_MS)
    assert (view.status, view.duration_ms) == ("in_progress", ENDED_MS - TRIGGERED_MS)
    assert (view.state_bytes, view.new_state_bytes) == (8 + 64, 800)
    assert (view.inflight_bytes, view.new_inflight_bytes, view.processed_bytes) == (200, 200, 300 + 50)
    assert [(task.task, task.name, task.processed_bytes) for task in view.tasks] == [
        ("v0.0", NAMES[VertexId(0)], 0),
        ("v1.0", NAMES[VertexId(1)], 300),
    ]


def test_figures_grow_with_each_slot_that_acknowledges(underway: Underway) -> None:
    in_progress_view(underway, ENDED_MS)
    underway.acknowledged[TWO] = acknowledgement(1)
    view = in_progress_view(underway, ENDED_MS)
    assert (view.state_bytes, view.new_state_bytes, view.processed_bytes) == (2 * (8 + 64), 2 * 800, 2 * 300)


def test_a_completed_checkpoint_has_the_figures_of_all_slots(underway: Underway) -> None:
    underway.acknowledged[TWO] = acknowledgement(1)
    underway.acknowledged_at_ms[TWO] = TRIGGERED_MS + 700.0
    history = History()
    history.completed(underway, path="7-g1", duration_ms=710.0, facts=facts_of(underway))
    (view,) = history.views()
    assert (view.status, view.kind, view.duration_ms, view.path) == ("completed", "unaligned", 710.0, "7-g1")
    assert (view.state_bytes, view.new_state_bytes, view.inflight_bytes) == (2 * (8 + 64), 2 * 800, 2 * 200)
    assert view.processed_bytes == 2 * 300 == sum(task.processed_bytes for task in view.tasks)
    statistics = history.statistics()
    assert statistics.completed == 1
