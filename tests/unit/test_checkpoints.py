"""When checkpoints start, complete and fail, as exact lists of actions."""

from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.protocol.checkpoints import (
    Abort,
    CheckpointAction,
    Checkpoints,
    CheckpointSettings,
    Complete,
    FailJob,
    FailureReason,
    Trigger,
)

EXPIRED, DECLINED, SUBSUMED = FailureReason.EXPIRED, FailureReason.DECLINED, FailureReason.SUBSUMED
SLOTS = (SlotIndex(0), SlotIndex(1))


def checkpoints(
    *,
    interval_ms: float = 100.0,
    timeout_ms: float = 1000.0,
    min_pause_ms: float = 0.0,
    max_concurrent: int = 1,
    tolerable_failures: int = 0,
    next_id: int = 1,
) -> Checkpoints:
    settings = CheckpointSettings(
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        min_pause_ms=min_pause_ms,
        max_concurrent=max_concurrent,
        tolerable_failures=tolerable_failures,
    )
    return Checkpoints(settings, slots=SLOTS, next_id=CheckpointId(next_id), now_ms=0.0)


def trigger(checkpoint: int) -> Trigger:
    return Trigger(CheckpointId(checkpoint))


def complete(checkpoint: int) -> Complete:
    return Complete(CheckpointId(checkpoint))


def abort(checkpoint: int, reason: FailureReason) -> Abort:
    return Abort(CheckpointId(checkpoint), reason)


def acknowledge(machine: Checkpoints, checkpoint: int) -> list[CheckpointAction]:
    """By every slot; what the last one sets off."""
    actions = [machine.on_acknowledged(CheckpointId(checkpoint), slot) for slot in SLOTS]
    assert actions[:-1] == [[]]
    return actions[-1]


def store(machine: Checkpoints, checkpoint: int, now_ms: float) -> list[CheckpointAction]:
    return machine.on_stored(CheckpointId(checkpoint), now_ms)


# -- starting


def test_the_first_one_starts_after_one_interval() -> None:
    machine = checkpoints()
    assert machine.next_deadline_ms() == 100.0
    assert machine.on_time(99.0) == []
    assert machine.on_time(100.0) == [trigger(1)]
    assert machine.pending() == (CheckpointId(1),)


def test_they_start_at_a_fixed_rate_however_late_the_clock_is_looked_at() -> None:
    machine = checkpoints(max_concurrent=3)
    assert machine.on_time(130.0) == [trigger(1)]
    assert machine.on_time(199.0) == []
    assert machine.on_time(200.0) == [trigger(2)]


def test_those_missed_while_none_could_start_are_not_made_up_for() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    acknowledge(machine, 1)
    assert store(machine, 1, 350.0) == [trigger(2)]
    acknowledge(machine, 2)
    assert store(machine, 2, 360.0) == []
    assert machine.next_deadline_ms() == 400.0
    assert machine.on_time(400.0) == [trigger(3)]


def test_after_a_pause_of_the_machine_only_one_starts_although_more_may() -> None:
    machine = checkpoints(max_concurrent=3)
    assert machine.on_time(1050.0) == [trigger(1)]
    assert machine.on_time(1051.0) == []
    assert machine.on_time(1100.0) == [trigger(2)]


def test_the_pause_counts_from_the_end_of_the_last_completed_one() -> None:
    machine = checkpoints(min_pause_ms=500.0)
    machine.on_time(100.0)
    acknowledge(machine, 1)
    assert store(machine, 1, 150.0) == []
    assert machine.next_deadline_ms() == 650.0
    assert machine.on_time(649.0) == []
    assert machine.on_time(650.0) == [trigger(2)]


def test_no_more_than_the_allowed_number_run_at_once() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=10_000.0)
    assert [machine.on_time(ms) for ms in (100.0, 200.0, 300.0)] == [[trigger(1)], [trigger(2)], []]
    acknowledge(machine, 1)
    assert machine.on_time(310.0) == []  # being stored counts
    assert store(machine, 1, 320.0) == [trigger(3)]


def test_a_requested_one_starts_at_once_whatever_interval_and_pause_say() -> None:
    machine = checkpoints(min_pause_ms=500.0)
    assert machine.request(10.0) == [trigger(1)]
    acknowledge(machine, 1)
    store(machine, 1, 20.0)
    assert machine.request(30.0) == [trigger(2)]


def test_a_requested_one_waits_for_a_free_place() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    assert machine.request(110.0) == []
    acknowledge(machine, 1)
    assert store(machine, 1, 120.0) == [trigger(2)]


def test_requested_ones_do_not_push_the_periodic_ones_away() -> None:
    machine = checkpoints()
    for number in range(1, 6):
        assert machine.request(float(number)) == [trigger(number)]
        acknowledge(machine, number)
        store(machine, number, number + 0.5)
    assert machine.on_time(100.0) == [trigger(6)]


def test_ids_go_on_from_the_one_given() -> None:
    machine = checkpoints(next_id=41)
    assert machine.on_time(100.0) == [trigger(41)]
    assert machine.next_id == 42


# -- completing


def test_complete_when_every_slot_has_acknowledged_and_over_when_it_is_stored() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(0)) == []
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(1)) == [complete(1)]
    assert machine.pending() == (CheckpointId(1),)
    assert store(machine, 1, 150.0) == []
    assert machine.pending() == ()


def test_an_acknowledgement_said_twice_counts_once() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(0)) == []
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(0)) == []
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(1)) == [complete(1)]
    assert machine.on_acknowledged(CheckpointId(1), SlotIndex(1)) == []


def test_acknowledgements_of_unknown_and_aborted_checkpoints_are_ignored() -> None:
    machine = checkpoints(tolerable_failures=5)
    machine.on_time(100.0)
    machine.on_failed(CheckpointId(1), DECLINED)
    assert [machine.on_acknowledged(CheckpointId(id), slot) for id in (1, 7) for slot in SLOTS] == [[]] * 4
    assert store(machine, 1, 200.0) == []


def test_a_completed_one_subsumes_the_older_ones_that_still_run() -> None:
    machine = checkpoints(max_concurrent=3, timeout_ms=10_000.0)
    for ms in (100.0, 200.0, 300.0):
        machine.on_time(ms)
    assert acknowledge(machine, 2) == [complete(2)]
    assert store(machine, 2, 310.0) == [abort(1, SUBSUMED)]
    assert machine.pending() == (CheckpointId(3),)
    assert machine.failures == {SUBSUMED: 1}


def test_an_older_one_that_is_being_stored_is_not_subsumed() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=10_000.0)
    machine.on_time(100.0)
    machine.on_time(200.0)
    assert acknowledge(machine, 1) == [complete(1)]
    assert acknowledge(machine, 2) == [complete(2)]
    assert store(machine, 2, 210.0) == []
    assert store(machine, 1, 211.0) == []


def test_an_older_one_never_completes_behind_a_newer_one_that_is_being_stored() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=10_000.0)
    machine.on_time(100.0)
    machine.on_time(200.0)
    assert acknowledge(machine, 2) == [complete(2)]
    assert acknowledge(machine, 1) == [abort(1, SUBSUMED)]


# -- failing


def test_one_that_takes_too_long_expires_and_the_next_may_start() -> None:
    machine = checkpoints(timeout_ms=50.0, tolerable_failures=1)
    machine.on_time(100.0)
    assert machine.next_deadline_ms() == 150.0
    assert machine.on_time(149.0) == []
    assert machine.on_time(150.0) == [abort(1, EXPIRED)]
    assert machine.on_time(200.0) == [trigger(2)]


def test_one_that_is_being_stored_does_not_expire() -> None:
    machine = checkpoints(timeout_ms=50.0)
    machine.on_time(100.0)
    acknowledge(machine, 1)
    assert machine.on_time(10_000.0) == []


def test_the_job_fails_when_more_fail_in_a_row_than_are_tolerated() -> None:
    machine = checkpoints(tolerable_failures=1)
    machine.on_time(100.0)
    assert machine.on_failed(CheckpointId(1), DECLINED) == [abort(1, DECLINED)]
    machine.on_time(200.0)
    assert machine.on_failed(CheckpointId(2), DECLINED) == [abort(2, DECLINED), FailJob(CheckpointId(2), DECLINED)]


def test_a_completed_one_makes_the_count_of_failures_start_again() -> None:
    machine = checkpoints(tolerable_failures=1)
    machine.on_time(100.0)
    machine.on_failed(CheckpointId(1), DECLINED)
    machine.on_time(200.0)
    acknowledge(machine, 2)
    store(machine, 2, 210.0)
    machine.on_time(300.0)
    assert machine.on_failed(CheckpointId(3), DECLINED) == [abort(3, DECLINED)]


def test_only_faults_count_towards_the_tolerated_failures() -> None:
    counted = {reason for reason in FailureReason if reason.counts_as_failure}
    assert counted == {EXPIRED, DECLINED, FailureReason.STORE_FAILED, FailureReason.INCONSISTENT}


def test_one_that_cannot_be_stored_fails() -> None:
    machine = checkpoints(tolerable_failures=1)
    machine.on_time(100.0)
    acknowledge(machine, 1)
    reason = FailureReason.STORE_FAILED
    assert machine.on_failed(CheckpointId(1), reason) == [abort(1, reason)]


def test_a_failure_of_an_unknown_one_is_ignored() -> None:
    assert checkpoints().on_failed(CheckpointId(3), DECLINED) == []


def test_closing_aborts_what_is_pending_and_starts_nothing_any_more() -> None:
    machine = checkpoints(max_concurrent=2)
    machine.on_time(100.0)
    machine.on_time(200.0)
    reason = FailureReason.JOB_RESTARTED
    assert machine.close(reason) == [abort(1, reason), abort(2, reason)]
    assert machine.on_time(5000.0) == []
    assert machine.request(5000.0) == []
    assert machine.next_deadline_ms() == float("inf")


def test_no_checkpoint_starts_in_the_moment_in_which_one_fails_the_job() -> None:
    machine = checkpoints(interval_ms=100.0, timeout_ms=150.0, tolerable_failures=0)
    assert machine.on_time(100.0) == [trigger(1)]
    assert machine.on_time(250.0) == [abort(1, EXPIRED), FailJob(CheckpointId(1), EXPIRED)]
    assert machine.close(FailureReason.JOB_RESTARTED) == []
