"""What `why` concludes from the facts of one checkpoint."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.facts_by_hand import expired, facts, keyed, slot, source, task_id
from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.checkpoint_facts import (
    BarrierFacts,
    CheckpointFacts,
    CommitFacts,
    Outcome,
    SlotFacts,
    StepFacts,
    TaskFacts,
)
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.critical_path import PhaseKind
from tidegate.protocol.culprits import Cause, Expired, LateSlot, LongCall, SilentSlot, SlowOperator
from tidegate.protocol.switching import StorageSpeed
from tidegate.protocol.why import choose, why


def test_the_critical_path_goes_back_along_what_came_last() -> None:
    found = facts(source(), keyed(snapshot_ms=2_003.0), slots=(slot(from_ms=2_005.0),), duration_ms=2_020.0)
    path = why(found).critical_path
    assert [(phase.kind, phase.where, phase.duration_ms) for phase in path] == [
        (PhaseKind.TRIGGER, "slot 0", 1.0),
        (PhaseKind.SYNC, "v0.0", 1.0),
        (PhaseKind.ON_THE_WAY, "v1.0", 1.0),
        (PhaseKind.ALIGNING, "v1.0", 2_000.0),
        (PhaseKind.SYNC, "v1.0", 1.0),
        (PhaseKind.SETTLING, "slot 0", 1.0),
        (PhaseKind.ENCODING, "slot 0", 1.0),
        (PhaseKind.UPLOAD, "slot 0", 4.0),
        (PhaseKind.HELD_BACK, "driver", 8.0),
        (PhaseKind.LOGGING, "driver", 2.0),
    ]


@given(
    st.lists(st.floats(0, 10_000), min_size=14, max_size=14),
    st.sampled_from(["aligned", "unaligned", "switched"]),
    st.sampled_from([None, *FailureReason]),
    st.lists(st.none() | st.floats(-5_000, 15_000), min_size=5, max_size=5),
)
def test_whatever_the_times_are_the_path_adds_up_and_has_a_culprit(
    times: list[float], kind: str, reason: FailureReason | None, drivers_times: list[float | None]
) -> None:
    """Clocks are never exactly right, and messages come in any order."""
    tasks = (
        source(0, snapshot_ms=times[0], sync_ms=times[1]),
        source(1, snapshot_ms=None if kind == "switched" else times[2]),
        keyed(0, barrier_ms=times[3], snapshot_ms=times[4], busy_ms=times[5]),
        keyed(1, barrier_ms=times[6], snapshot_ms=None if reason else times[7], backpressured_ms=times[8]),
    )
    step = StepFacts(task_id(1, 1), times[9] - 100, 100 + times[10], 1)
    slots = (
        slot(0, from_ms=times[11]),
        slot(1, from_ms=times[12], acknowledged_ms=None if reason else times[13], long_steps=(step,)),
    )
    completing_ms, writing_ms, *ended_ms = drivers_times
    commits = tuple(
        CommitFacts(checkpoint=at, started_ms=times[at] - 200, ended_ms=end_ms, written_ms=times[9])
        for at, end_ms in enumerate(ended_ms)
    )
    found = facts(
        *tasks,
        slots=slots,
        duration_ms=10_500.0,
        kind=kind,
        completing_ms=completing_ms,
        writing_ms=writing_ms,
        commits_before=commits,
        outcome=Outcome.COMPLETED if reason is None else Outcome.FAILED,
        failure=None if reason is None else reason.value,
    )
    report = why(found)
    assert sum(phase.duration_ms for phase in report.critical_path) == pytest.approx(10_500.0)
    assert all(phase.duration_ms > 0 for phase in report.critical_path)
    assert all(later.started_ms == pytest.approx(phase.ended_ms) for phase, later in pairwise(report.critical_path))
    assert report.summary.endswith(".") and report.summary in str(report)


def test_a_task_without_room_is_not_to_blame_but_the_one_that_takes_the_room() -> None:
    middle = keyed(snapshot_ms=3_000.0, backpressured_ms=2_900.0, busy_ms=50.0, queued_bytes=10)
    slow = TaskFacts(
        task=task_id(2),
        name="MapInArrow(slow) -> Sink[noop]",
        kind="aligned",
        first=BarrierFacts(ChannelId(EdgeId(1), 0, 0), task_id(1), 3_001.0),
        last=BarrierFacts(ChannelId(EdgeId(1), 0, 0), task_id(1), 3_001.0),
        snapshot_ms=4_000.0,
        busy_ms=990.0,
        queued_bytes=5_000,
        drain_bytes_per_ms=2.0,
    )
    found = facts(source(), middle, slow, slots=(slot(from_ms=4_001.0),), duration_ms=4_020.0, edges=((0, 1), (1, 2)))
    culprit = why(found).culprit
    assert isinstance(culprit, SlowOperator)
    assert (culprit.where.what, culprit.queued_bytes, culprit.bytes_per_s) == ("v2.0", 5_000, 2_000.0)


def test_a_step_that_makes_up_most_of_the_wait_is_the_one_to_blame() -> None:
    """Before the slot heard of the trigger, it sat in a call."""
    late = slot(from_ms=905.0, triggered_ms=900.0, long_steps=(StepFacts(task_id(1), -50.0, 945.0, 1),))
    found = facts(
        source(snapshot_ms=900.0), keyed(barrier_ms=902.0, snapshot_ms=903.0), slots=(late,), duration_ms=915.0
    )
    culprit = why(found).culprit
    assert isinstance(culprit, LongCall)
    assert (culprit.where.what, culprit.duration_ms, culprit.rows) == ("v1.0", 945.0, 1)


def test_a_slot_that_was_late_without_a_long_step_is_told_as_such() -> None:
    late = slot(from_ms=905.0, triggered_ms=900.0)
    found = facts(
        source(snapshot_ms=900.0), keyed(barrier_ms=902.0, snapshot_ms=903.0), slots=(late,), duration_ms=915.0
    )
    assert isinstance(why(found).culprit, LateSlot)


def test_many_slow_calls_are_a_slow_operator() -> None:
    steps = tuple(StepFacts(task_id(1), 100.0 * at, 90.0, 1) for at in range(4))
    found = facts(
        source(),
        keyed(snapshot_ms=2_003.0, busy_ms=1_990.0, queued_bytes=400),
        slots=(slot(from_ms=2_005.0, long_steps=steps),),
        duration_ms=2_020.0,
    )
    assert why(found).cause is Cause.SLOW_OPERATOR


def test_an_expired_one_blames_a_slot_that_never_answered_before_all_others() -> None:
    silent = SlotFacts(slot=1, last_word_ms=-120.0)
    waiting = keyed(0, snapshot_ms=None, missing=(task_id(0, 1),), left_bytes=10)
    unheard = (source(1, snapshot_ms=None), TaskFacts(task=task_id(1, 1), name="Aggregate"))
    found = expired(source(0), waiting, *unheard, slots=(slot(0, acknowledged_ms=None, last_word_ms=59_900.0), silent))
    culprit = why(found).culprit
    assert isinstance(culprit, Expired) and isinstance(culprit.waiting_for, SilentSlot)
    assert culprit.waiting_for.where.what == "slot 1"
    assert culprit.waiting_for.silent_ms == 60_000.0


def test_an_expired_one_whose_parts_were_taken_waited_for_the_store() -> None:
    uploading = slot(acknowledged_ms=None, storing_ms=0.0, last_word_ms=59_900.0)
    report = why(expired(source(), keyed(), slots=(uploading,)))
    assert report.cause is Cause.SLOW_STORE
    assert report.critical_path[-1].kind is PhaseKind.UPLOAD


def test_what_an_unaligned_one_would_have_cost_rests_on_the_queue_and_the_stores_speed() -> None:
    stored = slot(from_ms=2_005.0, storing_ms=10.0, stored_bytes=1_000_000)
    found = facts(source(), keyed(snapshot_ms=2_003.0, queued_bytes=500_000), slots=(stored,), duration_ms=2_030.0)
    other = why(found).other_mode
    assert other is not None
    assert (other.mode, other.inflight_bytes, other.duration_ms) == ("unaligned", 500_000, pytest.approx(35.0))


def behind_half_a_megabyte(*slots: SlotFacts) -> CheckpointFacts:
    """Without the two seconds that its barrier waited, it would have taken 30 ms."""
    return facts(source(), keyed(snapshot_ms=2_003.0, queued_bytes=500_000), slots=slots, duration_ms=2_030.0)


@pytest.mark.parametrize("stored", [0, 100], ids=["in the manifest", "too little"])
def test_what_an_unaligned_one_would_have_cost_rests_on_an_earlier_upload_where_its_own_tells_nothing(
    stored: int,
) -> None:
    own = slot(from_ms=2_005.0, stored_bytes=stored, storage=StorageSpeed(1_000_000, 20.0))
    other = why(behind_half_a_megabyte(own)).other_mode
    assert other is not None and other.duration_ms == other.least_ms == pytest.approx(40.0)
    assert other.basis.endswith("; slot 0 stored 976.6 KiB of an earlier checkpoint in 20 ms"), other.basis


def test_an_upload_that_is_mostly_the_call_leaves_a_range_for_what_an_unaligned_one_would_have_cost() -> None:
    report = why(behind_half_a_megabyte(slot(from_ms=2_005.0, storage=StorageSpeed(10_000, 20.0))))
    other = report.other_mode
    assert other is not None
    assert (other.least_ms, other.duration_ms) == (pytest.approx(50.0), pytest.approx(1_030.0))
    assert "too little to tell" in other.basis
    assert "As unaligned: 50 ms to 1.03 s, 488.3 KiB of rows in flight stored" in str(report)


def test_what_an_unaligned_one_would_have_cost_is_told_by_the_slot_that_would_have_stored_longest() -> None:
    """The slot with most in its queues, or one that has only the other's upload to go by."""
    measured = slot(0, from_ms=2_005.0, storage=StorageSpeed(1_000_000, 20.0))
    hot, cold = keyed(0, snapshot_ms=2_003.0, queued_bytes=500_000), keyed(1, queued_bytes=100_000)
    for other_slot in (slot(1, storage=StorageSpeed()), slot(1, storage=StorageSpeed(1_000_000, 30.0))):
        found = facts(source(), hot, cold, slots=(measured, other_slot), duration_ms=2_030.0)
        other = why(found).other_mode
        assert other is not None and (other.inflight_bytes, other.duration_ms) == (600_000, pytest.approx(40.0))
        assert "slot 0 stored" in other.basis


@pytest.mark.parametrize("storage", [None, StorageSpeed()], ids=["before it was noted", "nothing uploaded"])
def test_what_is_not_measured_is_not_estimated(storage: StorageSpeed | None) -> None:
    report = why(behind_half_a_megabyte(slot(from_ms=2_005.0, storage=storage)))
    other = report.other_mode
    assert other is not None and other.duration_ms is None and other.least_ms is None
    assert "no upload has told how fast the store is" in other.basis
    assert "As unaligned: an unknown time" in str(report)


def test_where_nothing_is_queued_an_unaligned_one_stores_nothing() -> None:
    other = why(facts(source(), keyed(snapshot_ms=2_003.0), slots=(slot(from_ms=2_005.0),), duration_ms=2_030.0))
    assert other.other_mode is not None
    assert (other.other_mode.duration_ms, other.other_mode.inflight_bytes) == (pytest.approx(30.0), 0)


def test_without_an_id_the_newest_that_was_slow_or_failed_is_explained() -> None:
    quick = facts(source(), slots=(slot(),), duration_ms=20.0, checkpoint=9)
    slow = facts(source(), slots=(slot(),), duration_ms=2_000.0, checkpoint=8)
    stopped = expired(source(), slots=(slot(),), checkpoint=10, failure=FailureReason.JOB_STOPPED.value)
    failed = expired(source(), slots=(slot(),), checkpoint=6)
    running = facts(source(), slots=(slot(),), duration_ms=400.0, checkpoint=11, outcome=Outcome.IN_PROGRESS)
    assert choose([running, stopped, quick, slow, failed], None) is slow
    assert choose([stopped, quick, failed], None) is failed
    assert choose([quick], None) is quick
    assert choose([quick, slow], 8) is slow
    assert choose([quick, slow], 5) is None and choose([], None) is None


def test_one_under_way_is_explained_once_the_next_is_due() -> None:
    overdue = facts(source(), slots=(slot(),), duration_ms=11_000.0, checkpoint=11, outcome=Outcome.IN_PROGRESS)
    slow = facts(source(), slots=(slot(),), duration_ms=2_000.0, checkpoint=8)
    assert choose([overdue, slow], None) is overdue
    assert "not complete" in why(overdue).summary
