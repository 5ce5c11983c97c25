"""When checkpoints start, complete and fail, as exact lists of actions."""

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint_moves import (
    DECLINED,
    EXPIRED,
    NOT_RUNNING,
    ONE_MORE,
    SLOTS,
    SUBSUMED,
    TOO_MANY_REQUESTS,
    abort,
    acknowledge,
    checkpoints,
    commit,
    complete,
    fail,
    savepoint,
    store,
    trigger,
    triggered,
)
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.protocol.checkpoints import (
    MAX_UNCOMMITTED,
    Abort,
    CheckpointAction,
    Checkpoints,
    Complete,
    FailJob,
    FailureReason,
    Refuse,
    Trigger,
)
from tidegate.protocol.requests import MAX_WAITING_REQUESTS

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
    assert machine.request(ONE_MORE, 10.0) == [trigger(1)]
    acknowledge(machine, 1)
    store(machine, 1, 20.0)
    assert machine.request(ONE_MORE, 30.0) == [trigger(2)]


def test_a_requested_one_waits_for_a_free_place() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    assert machine.request(ONE_MORE, 110.0) == []
    acknowledge(machine, 1)
    assert store(machine, 1, 120.0) == [trigger(2)]


def test_requested_ones_do_not_push_the_periodic_ones_away() -> None:
    machine = checkpoints()
    for number in range(1, 6):
        assert machine.request(ONE_MORE, float(number)) == [trigger(number)]
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


def test_an_older_one_never_completes_behind_a_newer_one_whose_log_entry_may_be_there() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=10_000.0, tolerable_failures=1)
    machine.on_time(100.0)
    machine.on_time(200.0)
    assert acknowledge(machine, 2) == [complete(2)]
    reason = FailureReason.STORE_FAILED
    assert fail(machine, 2, reason) == [abort(2, reason)]
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
    assert machine.request(ONE_MORE, 5000.0) == [Refuse(ONE_MORE, NOT_RUNNING)]
    assert machine.next_deadline_ms() == float("inf")


def test_no_checkpoint_starts_in_the_moment_in_which_one_fails_the_job() -> None:
    machine = checkpoints(interval_ms=100.0, timeout_ms=150.0, tolerable_failures=0)
    assert machine.on_time(100.0) == [trigger(1)]
    assert machine.on_time(250.0) == [abort(1, EXPIRED), FailJob(CheckpointId(1), EXPIRED)]
    assert machine.close(FailureReason.JOB_RESTARTED) == []


def test_the_job_is_failed_once_however_many_expire_in_one_moment() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=150.0)
    machine.on_time(100.0)
    machine.on_time(200.0)
    expired = [abort(1, EXPIRED), FailJob(CheckpointId(1), EXPIRED), abort(2, EXPIRED)]
    assert machine.on_time(400.0) == expired


# -- what was asked for and failed

HOUR_MS = 3_600_000.0


def asked_at_10_ms(**settings: Any) -> Checkpoints:
    """Its first periodic checkpoint is an hour away; number 1 was asked for."""
    machine = checkpoints(interval_ms=HOUR_MS, timeout_ms=HOUR_MS, **settings)
    assert machine.request(ONE_MORE, 10.0) == [trigger(1)]
    return machine


def test_one_that_was_asked_for_is_tried_again_if_it_fails() -> None:
    machine = asked_at_10_ms(tolerable_failures=1)
    assert fail(machine, 1) == [abort(1, DECLINED)]
    assert machine.next_deadline_ms() == 1_010.0
    assert machine.on_time(1_009.0) == []
    assert machine.on_time(1_010.0) == [trigger(2)]
    acknowledge(machine, 2)
    assert store(machine, 2, 1_020.0) == []
    assert machine.next_deadline_ms() == HOUR_MS


def test_one_that_was_asked_for_is_tried_again_as_often_as_failures_are_tolerated_and_later_each_time() -> None:
    machine = asked_at_10_ms(tolerable_failures=3)
    started_ms = [10.0]
    for checkpoint in (1, 2, 3):
        assert fail(machine, checkpoint) == [abort(checkpoint, DECLINED)]
        started_ms.append(machine.next_deadline_ms())
        assert machine.on_time(started_ms[-1]) == [trigger(checkpoint + 1)]
    assert started_ms == [10.0, 1_010.0, 3_010.0, 7_010.0]
    assert fail(machine, 4) == [abort(4, DECLINED), FailJob(CheckpointId(4), DECLINED)]
    assert machine.next_deadline_ms() == float("inf")


def test_however_many_failures_are_tolerated_the_interval_is_waited_for_at_most() -> None:
    machine = checkpoints(interval_ms=30_000.0, tolerable_failures=1_000_000)
    machine.request(ONE_MORE, 10.0)
    now_ms, started_ms = 10.0, []
    for checkpoint in range(1, 2_000):
        fail(machine, checkpoint)
        now_ms = machine.next_deadline_ms()
        assert machine.on_time(now_ms) == [trigger(checkpoint + 1)]
        started_ms.append(now_ms)
    assert max(later - earlier for earlier, later in itertools.pairwise(started_ms)) == 30_000.0


def test_one_that_expired_is_tried_again_at_once() -> None:
    machine = checkpoints(interval_ms=HOUR_MS, timeout_ms=5_000.0, tolerable_failures=1)
    machine.request(ONE_MORE, 10.0)
    assert machine.on_time(5_010.0) == [abort(1, EXPIRED), trigger(2)]


def test_another_try_keeps_the_pause() -> None:
    machine = asked_at_10_ms(tolerable_failures=1, min_pause_ms=30_000.0)
    fail(machine, 1)
    assert machine.next_deadline_ms() == 30_010.0
    machine = checkpoints(interval_ms=HOUR_MS, tolerable_failures=1, min_pause_ms=30_000.0, max_concurrent=2)
    machine.request(ONE_MORE, 10.0)
    machine.request(ONE_MORE, 20.0)
    fail(machine, 2)
    acknowledge(machine, 1)
    store(machine, 1, 900.0)
    assert machine.next_deadline_ms() == 30_900.0, "from the end of the completed one"


def test_tries_do_not_push_the_periodic_ones_away() -> None:
    machine = checkpoints(interval_ms=1_500.0, timeout_ms=HOUR_MS, tolerable_failures=5)
    machine.request(ONE_MORE, 10.0)
    fail(machine, 1)
    assert machine.on_time(1_010.0) == [trigger(2)]
    acknowledge(machine, 2)
    store(machine, 2, 1_020.0)
    assert machine.next_deadline_ms() == 1_500.0


def test_a_periodic_one_that_fails_is_not_tried_again() -> None:
    machine = checkpoints(interval_ms=60_000.0, tolerable_failures=1)
    assert machine.on_time(60_000.0) == [trigger(1)]
    fail(machine, 1)
    assert machine.next_deadline_ms() == 120_000.0


def test_a_newer_one_that_is_under_way_does_for_one_that_failed() -> None:
    machine = checkpoints(interval_ms=60_000.0, timeout_ms=HOUR_MS, tolerable_failures=5, max_concurrent=2)
    machine.request(ONE_MORE, 59_000.0)
    assert machine.on_time(60_000.0) == [trigger(2)]
    fail(machine, 1)
    assert machine.next_deadline_ms() == 120_000.0
    fail(machine, 2)
    assert machine.next_deadline_ms() == 62_000.0, "only now nobody would do"
    assert machine.on_time(62_000.0) == [trigger(3)]


def test_an_older_one_does_not_do_for_one_that_failed() -> None:
    machine = checkpoints(interval_ms=60_000.0, timeout_ms=HOUR_MS, tolerable_failures=5, max_concurrent=2)
    machine.on_time(60_000.0)
    assert machine.request(ONE_MORE, 60_010.0) == [trigger(2)]
    fail(machine, 2)
    acknowledge(machine, 1)
    assert store(machine, 1, 60_020.0) == []
    assert machine.next_deadline_ms() == 61_010.0
    assert machine.on_time(61_010.0) == [trigger(3)]


def test_one_that_was_subsumed_by_one_that_could_not_be_stored_is_tried_again() -> None:
    machine = checkpoints(interval_ms=60_000.0, timeout_ms=HOUR_MS, tolerable_failures=5, max_concurrent=2)
    machine.request(ONE_MORE, 59_990.0)
    machine.on_time(60_000.0)
    acknowledge(machine, 2)
    assert acknowledge(machine, 1) == [abort(1, SUBSUMED)]
    assert machine.next_deadline_ms() == 120_000.0, "the newer one is being stored"
    fail(machine, 2, FailureReason.STORE_FAILED)
    assert machine.on_time(61_000.0) == [trigger(3)]


def test_a_savepoint_does_for_one_that_failed_unless_it_fails_too() -> None:
    machine = asked_at_10_ms(tolerable_failures=1)
    machine.request(savepoint(1), 20.0)
    fail(machine, 1)
    assert machine.next_deadline_ms() == HOUR_MS
    fail(machine, 2)
    assert machine.next_deadline_ms() == 1_020.0
    machine.request(savepoint(2), 30.0)
    acknowledge(machine, 3)
    assert store(machine, 3, 40.0) == []
    assert machine.next_deadline_ms() == HOUR_MS


# -- requests


def test_as_many_requested_ones_start_at_once_as_there_are_places() -> None:
    machine = checkpoints(max_concurrent=2)
    machine.request(ONE_MORE, 10.0)
    machine.request(ONE_MORE, 11.0)
    machine.request(ONE_MORE, 12.0)
    machine.request(ONE_MORE, 13.0)
    assert machine.pending() == (1, 2)
    acknowledge(machine, 2)
    assert store(machine, 2, 20.0) == [abort(1, SUBSUMED), trigger(3), trigger(4)]


def test_a_request_that_may_start_is_due_at_once() -> None:
    machine = checkpoints(tolerable_failures=1)
    machine.on_time(100.0)
    machine.request(ONE_MORE, 110.0)
    assert machine.next_deadline_ms() == 1100.0  # the timeout of the first: nothing may start
    fail(machine, 1)
    assert machine.next_deadline_ms() <= 110.0
    assert machine.on_time(111.0) == [trigger(2)]


def test_more_requests_than_may_wait_are_refused_before_anything_starts() -> None:
    machine = checkpoints(timeout_ms=10_000.0)
    machine.on_time(100.0)
    assert [machine.request(ONE_MORE, 110.0) for _ in range(MAX_WAITING_REQUESTS)] == [[]] * MAX_WAITING_REQUESTS
    for request in (ONE_MORE, savepoint()):
        assert machine.request(request, 120.0) == [Refuse(request, TOO_MANY_REQUESTS)]
    assert machine.failures == {TOO_MANY_REQUESTS: 2}
    acknowledge(machine, 1)
    assert store(machine, 1, 130.0) == [trigger(2)]
    assert machine.request(savepoint(), 140.0) == [trigger(3, savepoint())]


def test_pre_flight_reasons_never_count_as_failures() -> None:
    pre_flight = {reason for reason in FailureReason if reason.is_pre_flight}
    assert pre_flight == {TOO_MANY_REQUESTS, NOT_RUNNING}
    assert not any(reason.counts_as_failure for reason in pre_flight)


def test_refusing_does_not_fail_the_job() -> None:
    machine = checkpoints(timeout_ms=10_000.0, tolerable_failures=0)
    machine.on_time(100.0)
    for _ in range(MAX_WAITING_REQUESTS):
        machine.request(ONE_MORE, 110.0)
    assert machine.request(ONE_MORE, 120.0) == [Refuse(ONE_MORE, TOO_MANY_REQUESTS)]
    acknowledge(machine, 1)
    assert store(machine, 1, 130.0) == [trigger(2)]


def test_closing_refuses_what_waits_savepoints_first() -> None:
    machine = checkpoints()
    machine.request(savepoint(1), 10.0)
    machine.on_time(100.0)
    machine.request(ONE_MORE, 110.0)
    machine.request(savepoint(2), 120.0)
    reason = FailureReason.JOB_STOPPED
    assert machine.close(reason) == [
        abort(1, reason, savepoint(1)),
        abort(2, reason),
        Refuse(savepoint(2), NOT_RUNNING),
        Refuse(ONE_MORE, NOT_RUNNING),
    ]
    assert machine.close(reason) == []


def test_what_waits_when_a_checkpoint_fails_the_job_is_refused_when_the_generation_ends() -> None:
    machine = checkpoints()
    machine.request(savepoint(1), 10.0)
    machine.on_time(100.0)
    machine.request(savepoint(2), 110.0)
    assert fail(machine, 2) == [abort(2, DECLINED), FailJob(CheckpointId(2), DECLINED)]
    restarted = FailureReason.JOB_RESTARTED
    assert machine.close(restarted) == [abort(1, restarted, savepoint(1)), Refuse(savepoint(2), NOT_RUNNING)]


# -- uncommitted ones


def uncommitted(machine: Checkpoints, number: int) -> None:
    for id in range(1, number + 1):
        assert machine.request(ONE_MORE, float(id)) == [trigger(id)]
        acknowledge(machine, id)
        assert store(machine, id, float(id)) == []


def test_nothing_starts_while_too_many_are_stored_and_not_committed() -> None:
    machine = checkpoints()
    uncommitted(machine, MAX_UNCOMMITTED)
    assert machine.on_time(100.0) == []
    assert machine.request(ONE_MORE, 110.0) == []
    assert machine.request(savepoint(), 120.0) == []
    assert machine.next_deadline_ms() == float("inf")
    assert commit(machine, 1, 130.0) == [trigger(9, savepoint()), trigger(10)]


def test_one_fewer_keeps_nothing_from_starting() -> None:
    machine = checkpoints()
    uncommitted(machine, MAX_UNCOMMITTED - 1)
    assert machine.on_time(100.0) == [trigger(MAX_UNCOMMITTED)]


def test_a_commit_of_an_unknown_one_makes_no_room() -> None:
    machine = checkpoints()
    uncommitted(machine, MAX_UNCOMMITTED)
    assert commit(machine, 77, 100.0) == []


# -- invariants

MOVES = st.tuples(
    st.sampled_from(["time", "acknowledge", "store", "fail", "commit", "checkpoint", "savepoint"]), st.integers(0, 5)
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.lists(MOVES, max_size=60))
def test_what_is_stored_is_in_the_order_of_ids_and_no_savepoint_is_subsumed(
    max_concurrent: int, moves: list[tuple[str, int]]
) -> None:
    machine = checkpoints(max_concurrent=max_concurrent, tolerable_failures=1000, timeout_ms=700.0)
    now_ms, asked = 0.0, 0
    seen: list[CheckpointAction] = []
    storing: list[CheckpointId] = []
    stored: list[CheckpointId] = []
    committed: set[CheckpointId] = set()

    def perform(actions: list[CheckpointAction]) -> None:
        seen.extend(actions)
        storing.extend(action.checkpoint for action in actions if isinstance(action, Complete))
        for action in actions:
            if isinstance(action, Abort) and action.checkpoint in storing:
                storing.remove(action.checkpoint)

    for move, which in moves:
        now_ms += 40.0
        pending = machine.pending()
        chosen = pending[which % len(pending)] if pending else CheckpointId(0)
        match move:
            case "acknowledge":
                for slot in SLOTS:
                    perform(machine.on_acknowledged(chosen, slot))
            case "store" if storing:  # one after the other, as the log takes them
                stored.append(storing.pop(0))
                perform(machine.on_stored(stored[-1], now_ms))
            case "fail":
                perform(machine.on_failed(chosen, DECLINED))
            case "commit" if len(committed) < len(stored):
                committed.add(stored[len(committed)])
                perform(machine.on_committed(stored[len(committed) - 1], now_ms))
            case "checkpoint":
                perform(machine.request(ONE_MORE, now_ms))
            case "savepoint":
                asked += 1
                perform(machine.request(savepoint(asked), now_ms))
            case _:
                perform(machine.on_time(now_ms))
        running = [id for id in machine.pending() if Trigger(id) in seen]
        assert len(running) <= max_concurrent
        assert len(machine.pending()) <= len(running) + 1
        assert len(stored) - len(committed) <= MAX_UNCOMMITTED + max_concurrent

    assert stored == sorted(stored)
    assert triggered(seen) == list(range(1, machine.next_id))
    assert not [a for a in seen if isinstance(a, Abort) and a.savepoint is not None and a.reason is SUBSUMED]
    completed = [action.checkpoint for action in seen if isinstance(action, Complete)]
    assert completed == sorted(set(completed))
    machine.close(FailureReason.JOB_STOPPED)
    assert machine.pending() == ()
