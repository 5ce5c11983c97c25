"""Whom `why` blames, cause by cause, what it advises, and what it says that a checkpoint cost."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.facts_by_hand import barrier, expired, facts, keyed, slot, source, task_id
from tidegate.api.options import read_options
from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.checkpoint_facts import (
    BarrierFacts,
    CheckpointFacts,
    Configured,
    InputBefore,
    Outcome,
    StepFacts,
    TaskFacts,
)
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.critical_path import PhaseKind
from tidegate.protocol.culprits import (
    BehindSavepoint,
    BigState,
    BigSynchronousPart,
    Cause,
    GaveWay,
    LateChannel,
    LongCall,
    NotWritten,
    SilentSlot,
    SkewedSubtask,
    SlowOperator,
    SlowStore,
    root_of,
)
from tidegate.protocol.why import why
from tidegate.protocol.why_costs import CostToStream


def behind_data(*others: TaskFacts, **more: Any) -> CheckpointFacts:
    """Two seconds of data stood in front of the barrier of the keyed task of slot 0."""
    steps = more.pop("long_steps", ())
    waiting = keyed(snapshot_ms=2_003.0, queued_bytes=400, **{"busy_ms": 1_990.0, **more})
    return facts(
        source(), waiting, *others, slots=(slot(from_ms=2_005.0, long_steps=steps),), duration_ms=2_020.0
    )  # fmt: skip


# -- complete, but slow


def test_the_slot_that_was_ready_last_decides() -> None:
    late = slot(1, storing_ms=1_900.0)
    found = facts(source(0), keyed(0), source(1), keyed(1), slots=(slot(0), late, slot(2)), duration_ms=1_910.0)
    culprit = why(found).culprit
    assert isinstance(culprit, SlowStore) and culprit.where.what == "checkpointLocation, written by slot 1"
    assert (culprit.duration_ms, culprit.stored_bytes) == (1_900.0, 100)


def test_an_aligned_one_waits_for_its_last_barrier_and_an_unaligned_one_only_for_its_first() -> None:
    last = barrier(task_id(0, 1), 0, 2_002.0)
    tasks = source(0), source(1), keyed(0, snapshot_ms=2_003.0, last=last)
    aligned = facts(*tasks, slots=(slot(0, from_ms=2_005.0), slot(1)), duration_ms=2_020.0)
    culprit = why(aligned).culprit
    assert isinstance(culprit, LateChannel), culprit
    assert (culprit.where.what, culprit.sender, culprit.late_ms) == ("e0:1->0", "v0.1", 2_000.0)
    snapshot = keyed(0, snapshot_ms=4.0, kind="unaligned", last=barrier(task_id(0, 1), 0, 4.5))
    unaligned = facts(*tasks[:2], snapshot, slots=(slot(0), slot(1)), duration_ms=20.0, kind="unaligned")
    assert {phase.barrier.sender for phase in why(unaligned).critical_path if phase.barrier} == {task_id(0, 0)}


def test_a_long_step_that_was_over_before_the_wait_is_not_to_blame() -> None:
    over = StepFacts(task_id(1), -1_990.0, 2_000.0, 1)
    assert why(behind_data(long_steps=(over,))).cause is Cause.SLOW_OPERATOR
    meanwhile = replace(over, started_ms=0.0)
    assert why(behind_data(long_steps=(meanwhile,))).cause is Cause.LONG_CALL


@pytest.mark.parametrize(("own", "other", "share"), [(500, 500, None), (690, 310, None), (710, 290, 0.71)])
def test_a_subtask_is_skewed_if_it_gets_far_more_than_its_fair_share(own: int, other: int, share: float | None) -> None:
    culprit = why(behind_data(keyed(1, epoch_bytes=other), epoch_bytes=own, epoch_rows=7)).culprit
    if share is None:
        assert isinstance(culprit, SlowOperator), culprit
    else:
        assert isinstance(culprit, SkewedSubtask), culprit
        assert (culprit.where.what, culprit.share, culprit.subtasks, culprit.rows) == ("v1.0", share, 2, 7)


def test_what_stands_before_the_barrier_and_is_not_done_counts_for_skew_too() -> None:
    culprit = why(behind_data(keyed(1, epoch_bytes=100), epoch_bytes=100, left_bytes=800)).culprit
    assert isinstance(culprit, SkewedSubtask) and culprit.share == 0.9


def captured(
    subtask: int, *, epoch_bytes: int, queued_bytes: int, processed_bytes: int, before: InputBefore
) -> TaskFacts:
    """A task that took its snapshot before it had processed what stood in front of its barrier."""
    return keyed(
        subtask,
        kind="switched",
        snapshot_ms=4.0 if subtask else 2_003.0,
        busy_ms=0.0 if subtask else 1_990.0,
        async_ms=5.0,
        epoch_bytes=epoch_bytes,
        queued_bytes=queued_bytes,
        processed_bytes=processed_bytes,
        inflight_bytes=queued_bytes - processed_bytes,
        before=before,
    )


def switched(*tasks: TaskFacts) -> CheckpointFacts:
    return facts(source(), *tasks, slots=(slot(from_ms=2_005.0),), duration_ms=2_020.0, kind="switched")


def test_a_subtask_is_not_skewed_because_it_worked_on_while_the_other_had_captured() -> None:
    """Nearly all that it worked on had come before; the other has more in front of it."""
    slow = captured(0, epoch_bytes=3_400, queued_bytes=5_500, processed_bytes=2_700, before=InputBefore(5_000, 3_000))
    other = captured(1, epoch_bytes=800, queued_bytes=17_700, processed_bytes=0, before=InputBefore(17_700, 4_000))
    report = why(switched(slow, other))
    assert isinstance(report.culprit, SlowOperator) and report.culprit.where.what == "v1.0", report


def test_a_subtask_is_not_skewed_because_it_drains_what_an_earlier_checkpoint_captured() -> None:
    other = keyed(1, epoch_bytes=1_700, before=InputBefore(0, 5_200))
    assert why(behind_data(other, epoch_bytes=16_600)).cause is Cause.SKEW, "if all of it came in one epoch"
    report = why(behind_data(other, epoch_bytes=16_600, before=InputBefore(16_000, 9_000)))
    assert isinstance(report.culprit, SlowOperator), report


def test_a_skewed_subtask_is_found_by_what_came_in_the_epochs_before() -> None:
    """Nothing came in this one; it only drains."""
    cold = keyed(1, epoch_bytes=0, before=InputBefore(0, 1_000))
    culprit = why(behind_data(cold, epoch_bytes=13_900, before=InputBefore(15_500, 9_000))).culprit
    assert isinstance(culprit, SkewedSubtask) and culprit.share == 0.9, culprit


def test_what_a_skewed_subtask_captured_came_for_it() -> None:
    hot = captured(0, epoch_bytes=2_000, queued_bytes=17_000, processed_bytes=1_500, before=InputBefore(9_500, 1_000))
    cold = keyed(1, epoch_bytes=1_000, before=InputBefore(0, 0))
    report = why(switched(hot, cold))
    assert isinstance(report.culprit, SkewedSubtask) and report.culprit.share == 0.9, report
    assert report.advice[-1].startswith("a smaller checkpoint.alignedTimeout, or checkpoint.unaligned=true")


def test_a_batch_in_work_is_waiting_only_as_far_as_it_was_captured() -> None:
    task = captured(0, epoch_bytes=0, queued_bytes=1_000, processed_bytes=400, before=InputBefore(0, 0))
    assert task.waiting_bytes == 600
    assert replace(task, inflight_bytes=100).waiting_bytes == 100
    assert replace(task, inflight_bytes=0, async_ms=None).waiting_bytes == 600, "its slot has not acknowledged"
    assert replace(task, kind="aligned").waiting_bytes == 0
    assert replace(task, kind=None, left_bytes=70).waiting_bytes == 70


def test_a_task_that_only_waits_for_its_turn_is_not_to_blame_but_the_busy_one_of_its_slot() -> None:
    busy = TaskFacts(task=task_id(2), name="MapInArrow(hash)", kind="aligned", snapshot_ms=3.0, busy_ms=1_900.0)
    culprit = why(behind_data(busy, busy_ms=10.0)).culprit
    assert isinstance(culprit, SlowOperator) and culprit.where.what == "v2.0"
    culprit = why(behind_data(busy, busy_ms=1_000.0)).culprit
    assert isinstance(culprit, SlowOperator) and culprit.where.what == "v1.0"


def test_a_task_that_waits_for_calls_is_named_and_not_one_that_did_a_little_beside_it() -> None:
    """It neither works nor lacks room; nor does anybody else keep its slot from it."""
    beside = TaskFacts(task=task_id(2), name="MapInArrow(hash)", kind="aligned", snapshot_ms=3.0, busy_ms=40.0)
    culprit = why(behind_data(beside, busy_ms=2.0)).culprit
    assert isinstance(culprit, SlowOperator) and culprit.where.what == "v1.0", culprit


def test_a_task_whose_changes_of_state_are_not_stored_yet_waits_for_the_store_and_not_for_those_behind_it() -> None:
    behind = TaskFacts(task=task_id(2), name="Sink", kind="aligned", snapshot_ms=3.0, busy_ms=5.0)
    found = why(behind_data(behind, busy_ms=10.0, backpressured_ms=1_900.0, unstored_ms=1_800.0))
    assert isinstance(found.culprit, SlowStore), found.culprit
    assert "changes of state of v1.0" in found.culprit.where.what
    assert "use a faster store for checkpointLocation" in found.advice
    other = why(behind_data(behind, busy_ms=10.0, backpressured_ms=1_900.0, unstored_ms=100.0)).culprit
    assert not isinstance(other, SlowStore), other


def test_one_that_shows_in_several_phases_is_blamed_for_all_of_them() -> None:
    """A task without room, then the one that took it: together longer than the upload, each alone not."""
    middle = keyed(snapshot_ms=1_000.0, backpressured_ms=990.0)
    seen = BarrierFacts(ChannelId(EdgeId(1), 0, 0), task_id(1), 1_002.0)
    slow = TaskFacts(
        task=task_id(2), name="Slow", kind="aligned", first=seen, last=seen, snapshot_ms=2_000.0, busy_ms=990.0
    )
    stored = slot(from_ms=2_000.0, storing_ms=1_500.0)
    found = facts(source(), middle, slow, slots=(stored,), duration_ms=3_510.0, edges=((0, 1), (1, 2)))
    culprit = why(found).culprit
    assert isinstance(culprit, SlowOperator) and culprit.where.what == "v2.0", culprit


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_task_that_waited_while_another_of_its_slot_took_its_snapshot_has_a_big_synchronous_part(
    is_in_step: bool,
) -> None:
    """Whether a step or a message of a peer set it off."""
    big = TaskFacts(task=task_id(2), name="Aggregate(slow)", kind="aligned", snapshot_ms=50.0, sync_ms=1_900.0)
    steps = (StepFacts(task_id(2), 49.0, 1_902.0, 0),) if is_in_step else ()
    culprit = why(behind_data(big, busy_ms=0.0, long_steps=steps)).culprit
    assert isinstance(culprit, BigSynchronousPart), culprit
    assert (culprit.where.what, culprit.duration_ms) == ("v2.0", 1_900.0)


def test_one_that_was_ready_and_waited_for_a_savepoint() -> None:
    report = why(facts(source(), keyed(), slots=(slot(),), duration_ms=2_000.0))
    assert report.culprit == BehindSavepoint(1_988.0)
    assert "waited 1.99 s for an older savepoint" in report.summary and "savepoints come first" in report.advice[0]


def test_much_state_to_encode() -> None:
    encoding = slot(queued_ms=2_005.0, uploading_ms=2_005.0, acknowledged_ms=2_010.0, stored_bytes=5_000)
    culprit = why(facts(source(), keyed(), slots=(encoding,), duration_ms=2_015.0)).culprit
    assert isinstance(culprit, BigState), culprit
    assert (culprit.where.what, culprit.duration_ms, culprit.stored_bytes) == ("slot 0", 2_000.0, 5_000)


def test_much_state_to_encode_is_not_said_to_leave_the_stream_alone() -> None:
    encoding = slot(queued_ms=2_005.0, uploading_ms=2_005.0, acknowledged_ms=2_010.0)
    summary = why(facts(source(), keyed(), slots=(encoding,), duration_ms=2_015.0)).summary
    assert "in turns with the stream, which was slower meanwhile" in summary and "beside" not in summary


def test_a_sink_that_takes_long_for_its_own_files_is_not_told_as_a_slow_checkpoint_location() -> None:
    closing = slot(sink_ms=2_000.0, acknowledged_ms=2_010.0)
    report = why(facts(source(), keyed(), slots=(closing,), duration_ms=2_015.0))
    assert isinstance(report.culprit, SlowStore) and report.culprit.where.what == "the sink of slot 0"
    assert report.advice[0] == "look at what the sink does at the end of an epoch"


def test_an_upload_that_waits_for_the_one_before_it_has_a_slow_store() -> None:
    queued = slot(uploading_ms=2_000.0, acknowledged_ms=2_004.0)
    report = why(facts(source(), keyed(), slots=(queued,), duration_ms=2_010.0))
    assert report.cause is Cause.SLOW_STORE
    assert max(report.critical_path, key=lambda phase: phase.duration_ms).kind is PhaseKind.UPLOAD_QUEUE


@pytest.mark.parametrize(("kind", "is_advised"), [("aligned", False), ("unaligned", True), ("switched", True)])
def test_with_a_slow_store_unaligned_checkpoints_are_advised_against(kind: str, is_advised: bool) -> None:
    found = facts(source(), keyed(), slots=(slot(storing_ms=2_000.0),), duration_ms=2_010.0, kind=kind)
    report = why(found)
    assert report.cause is Cause.SLOW_STORE
    assert any("checkpoint.unaligned=false" in line for line in report.advice) is is_advised


# -- advice


def configured(*given: str) -> Configured:
    """As a query is with these options, and the others as they are by default."""
    options = read_options(dict(option.split("=") for option in given), {})
    return Configured(
        guarantee=options.guarantee,
        switch_after_ms=options.switch_after_ms,
        debloat_target_ms=options.debloat_target_ms,
        active_backpressure=options.active_backpressure,
    )


def settings_advised(found: CheckpointFacts, *given: str) -> list[str]:
    """Without what each is for."""
    report = why(replace(found, configured=configured(*given)))
    assert report.cause in (Cause.SLOW_OPERATOR, Cause.SKEW, Cause.SLOW_STORE), report
    return [line.split(":")[0] for line in report.advice if "=" in line or "network." in line or "checkpoint." in line]


SOONER = "a smaller checkpoint.alignedTimeout, or checkpoint.unaligned=true"
OVERTAKE = "checkpoint.unaligned=auto or true"
QUICKER, DEBLOAT = "a smaller network.target", "network.debloat=true, or a smaller network.window"
PAUSE = "source.activeBackpressure=true"


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ([], [SOONER, QUICKER]),
        (["checkpoint.unaligned=false"], [OVERTAKE, QUICKER]),
        (["checkpoint.mode=at_least_once"], [QUICKER]),
        (["network.debloat=false"], [SOONER, DEBLOAT]),
        (["source.activebackpressure=false"], [SOONER, QUICKER, PAUSE]),
        (["source.activebackpressure=strict"], [SOONER, QUICKER]),
    ],
    ids=str,
)
def test_a_setting_is_not_advised_where_it_is_set_by_default_or_by_the_user(
    given: list[str], advised: list[str]
) -> None:
    assert settings_advised(behind_data(), *given) == advised
    hot = behind_data(keyed(1, epoch_bytes=100), epoch_bytes=900)
    assert settings_advised(hot, *given) == [line for line in advised if "checkpoint." in line]


def test_one_that_overtakes_at_once_is_not_advised_to_do_so_sooner() -> None:
    found = replace(behind_data(), kind="switched")
    assert settings_advised(found) == [SOONER, QUICKER]
    assert settings_advised(found, "checkpoint.unaligned=true") == [QUICKER]


def test_a_savepoint_is_advised_what_savepoints_are_asked_for() -> None:
    """Whether checkpoints are unaligned is nothing to it."""
    found = replace(behind_data(), is_savepoint=True)
    for given in ([], ["checkpoint.unaligned=false"], ["checkpoint.unaligned=true"]):
        assert settings_advised(found, *given)[0] == "query.savepoint(unaligned=True)"
    store = facts(source(), keyed(), slots=(slot(storing_ms=2_000.0),), duration_ms=2_010.0, kind="unaligned")
    assert settings_advised(replace(store, is_savepoint=True))[0] == "leave out unaligned=True"
    assert settings_advised(store) == ["checkpoint.unaligned=false", QUICKER]


def test_one_that_was_stored_before_settings_were_noted_is_advised_all() -> None:
    assert [line.split(":")[0] for line in why(behind_data()).advice[1:]] == [
        OVERTAKE,
        "network.debloat=true and a smaller network.target",
        PAUSE,
    ]


def test_a_step_of_several_rows_is_not_said_to_be_one_call() -> None:
    step = StepFacts(task_id(1), 0.0, 2_000.0, 1)
    assert "took 2.00 s for 1 row; no barrier interrupts it" in why(behind_data(long_steps=(step,))).summary
    many = why(behind_data(long_steps=(replace(step, rows=3),)))
    assert "took 2.00 s for 3 rows, in one call or several; no barrier comes between them" in many.summary


# -- failed


def test_a_slot_that_took_the_trigger_and_fell_silent_is_to_blame() -> None:
    quiet = slot(encoding_ms=None, queued_ms=None, uploading_ms=None, acknowledged_ms=None, last_word_ms=2_000.0)
    culprit = root_of(why(expired(source(), keyed(snapshot_ms=None), slots=(quiet,))).culprit)
    assert isinstance(culprit, SilentSlot), culprit
    assert (culprit.where.what, culprit.silent_ms) == ("slot 0", 58_000.0)


def test_a_slot_that_heard_of_no_trigger_because_a_peers_barrier_came_first_had_a_big_synchronous_part() -> None:
    busy = slot(triggered_ms=None, encoding_ms=None, acknowledged_ms=None, last_word_ms=90_000.0)
    big = keyed(snapshot_ms=4.0, sync_ms=80_000.0, kind="unaligned")
    culprit = root_of(why(expired(source(snapshot_ms=None), big, slots=(busy,))).culprit)
    assert isinstance(culprit, BigSynchronousPart), culprit
    assert (culprit.where.what, culprit.duration_ms) == ("v1.0", 80_000.0)


def test_a_silent_slot_that_told_afterwards_of_its_snapshot_had_a_big_synchronous_part() -> None:
    quiet = slot(encoding_ms=None, queued_ms=None, uploading_ms=None, acknowledged_ms=None, last_word_ms=2_000.0)
    big = keyed(snapshot_ms=2_000.0, sync_ms=90_000.0)
    culprit = root_of(why(expired(source(), big, slots=(quiet,))).culprit)
    assert isinstance(culprit, BigSynchronousPart), culprit
    assert (culprit.where.what, culprit.duration_ms) == ("v1.0", 90_000.0)


def test_a_silent_slot_that_told_afterwards_what_it_did_was_in_one_long_call() -> None:
    step = StepFacts(task_id(1), 2_000.0, 70_000.0, 3)
    quiet = slot(acknowledged_ms=None, last_word_ms=2_000.0, long_steps=(step,))
    culprit = root_of(why(expired(source(), keyed(snapshot_ms=None), slots=(quiet,))).culprit)
    assert isinstance(culprit, LongCall) and (culprit.where.what, culprit.rows) == ("v1.0", 3)


def test_an_expired_one_whose_barrier_was_sent_and_never_heard_had_a_late_channel() -> None:
    waiting = keyed(0, snapshot_ms=None, missing=(task_id(0, 1),))
    talking = slot(0, acknowledged_ms=None, last_word_ms=59_900.0), slot(1, last_word_ms=59_900.0)
    culprit = root_of(why(expired(source(0), source(1), waiting, keyed(1), slots=talking)).culprit)
    assert isinstance(culprit, LateChannel), culprit
    assert (culprit.where.what, culprit.sender, culprit.late_ms) == ("v0.1 -> v1.0", "v0.1", 59_999.0)


def test_what_an_expired_one_waited_for_is_looked_for_up_the_stream() -> None:
    """Whatever the numbers of the vertices."""
    upstream = TaskFacts(task=task_id(2), name="Slow", first=barrier(task_id(0), 0, 3.0), queued_bytes=9, busy_ms=50.0)
    waiting = keyed(snapshot_ms=None, missing=(task_id(2),))
    talking = slot(acknowledged_ms=None, last_word_ms=59_900.0)
    found = expired(source(), waiting, upstream, slots=(talking,), edges=((0, 2), (2, 1)))
    culprit = root_of(why(found).culprit)
    assert isinstance(culprit, SlowOperator) and culprit.where.what == "v2.0"


def test_an_expired_one_advises_first_about_what_it_waited_for_and_last_about_the_timeout() -> None:
    talking = slot(acknowledged_ms=None, last_word_ms=59_900.0)
    report = why(expired(source(), keyed(snapshot_ms=None, busy_ms=9.0), slots=(talking,)))
    assert report.summary.startswith("It was given up after 60.00 s (checkpoint.timeout): its barrier waited behind")
    assert report.advice[0] == "make v1.0 faster, or give it more subtasks (parallelism)"
    assert report.advice[-1].startswith("raise checkpoint.timeout only if")


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (FailureReason.STORE_FAILED, "The manifest or the log entry could not be written: disk full."),
        (FailureReason.INCONSISTENT, "a bug in Tidegate: disk full."),
    ],
)
def test_one_that_could_not_be_written_by_the_driver_is_no_slots_fault(reason: FailureReason, says: str) -> None:
    report = why(expired(source(), keyed(), slots=(slot(),), failure=reason.value, detail="disk full."))
    assert report.culprit == NotWritten(reason.value, "disk full.")
    assert report.summary.endswith(says)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (FailureReason.SUBSUMED, "A newer checkpoint was complete first."),
        (FailureReason.JOB_STOPPED, "The query ended while it was under way."),
    ],
)
def test_one_that_gave_way_did_nothing_wrong(reason: FailureReason, says: str) -> None:
    report = why(expired(source(), keyed(), slots=(slot(),), failure=reason.value))
    assert isinstance(report.culprit, GaveWay)
    assert report.summary == says and report.advice == ()


# -- costs


def test_the_cost_is_the_worst_slots_snapshots_all_waits_of_tasks_and_the_longest_pause_of_a_source() -> None:
    tasks = (
        replace(source(0, sync_ms=10.0), paused_ms=70.0),
        keyed(0, barrier_ms=3.0, snapshot_ms=103.0, sync_ms=20.0, busy_ms=30.0, backpressured_ms=25.0),
        replace(source(1, sync_ms=5.0), paused_ms=40.0),
        keyed(1, barrier_ms=3.0, snapshot_ms=53.0, sync_ms=6.0, busy_ms=10.0),
    )
    report = why(facts(*tasks, slots=(slot(0), slot(1)), duration_ms=200.0))
    cost = CostToStream(sync_ms=30.0, encoding_ms=None, blocked_ms=45.0 + 40.0, paused_ms=70.0)
    assert report.cost_to_stream == cost
    assert "30 ms of a slot for snapshots, 85 ms of tasks that waited" in str(report)


def test_what_encoding_cost_is_that_of_the_slot_that_encoded_longest_and_unknown_if_none_told() -> None:
    told = facts(source(), slots=(slot(0, encoded_for_ms=5.0), slot(1, encoded_for_ms=90.0)), duration_ms=200.0)
    assert why(told).cost_to_stream.encoding_ms == 90.0
    assert "1 ms of a slot for snapshots, 90 ms of one for encoding them, 0 ms of tasks" in str(why(told))
    one = replace(told, slots=(slot(0), slot(1, encoded_for_ms=0.0)))
    assert why(one).cost_to_stream.encoding_ms == 0.0


def test_a_task_that_waited_for_barriers_before_it_switched_is_counted() -> None:
    waiting = keyed(barrier_ms=3.0, snapshot_ms=1_003.0, kind="switched", busy_ms=300.0, backpressured_ms=100.0)
    report = why(facts(source(), waiting, slots=(slot(from_ms=1_005.0),), duration_ms=1_020.0, kind="switched"))
    assert report.cost_to_stream.blocked_ms == 600.0


def test_an_unaligned_one_lets_no_task_wait() -> None:
    waiting = keyed(snapshot_ms=103.0, kind="unaligned")
    report = why(facts(source(), waiting, slots=(slot(),), duration_ms=200.0, kind="unaligned"))
    assert report.cost_to_stream.blocked_ms == 0.0


def test_what_an_aligned_one_would_have_cost_is_told_by_the_slowest_of_each_vertex_in_turn() -> None:
    tasks = (
        replace(source(0), inflight_bytes=10_000, kind="unaligned"),  # held before those that take it
        keyed(0, kind="unaligned", inflight_bytes=3_000, drain_bytes_per_ms=4.0),
        keyed(1, kind="unaligned", inflight_bytes=2_000, drain_bytes_per_ms=1.0),
    )
    other = why(facts(*tasks, slots=(slot(0), slot(1)), duration_ms=500.0, kind="unaligned")).other_mode
    assert other is not None and other.mode == "aligned" and other.inflight_bytes == 0
    assert other.duration_ms == 500.0 + 10_000.0 + 2_000.0


def test_what_is_under_way_for_long_says_how_old_it_is() -> None:
    talking = slot(acknowledged_ms=None, last_word_ms=10_900.0)
    found = facts(
        source(), keyed(snapshot_ms=None), slots=(talking,), duration_ms=11_000.0, outcome=Outcome.IN_PROGRESS
    )
    assert why(found).summary.startswith("It is 11.00 s old and not complete: its barrier waited behind")
