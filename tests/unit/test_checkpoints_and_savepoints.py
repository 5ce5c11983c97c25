"""How savepoints and checkpoints get along, as exact lists of actions."""

from tests.unit.checkpoint_moves import (
    DECLINED,
    EXPIRED,
    NOT_RUNNING,
    ONE_MORE,
    SUBSUMED,
    abort,
    acknowledge,
    checkpoints,
    commit,
    complete,
    fail,
    savepoint,
    stop_with_savepoint,
    store,
    trigger,
)
from tidegate.model.ids import CheckpointId
from tidegate.protocol.checkpoints import FailJob, FailureReason, Refuse

# -- savepoints


def test_a_savepoint_starts_at_once_whatever_interval_and_pause_say() -> None:
    machine = checkpoints(min_pause_ms=500.0)
    machine.on_time(100.0)
    acknowledge(machine, 1)
    store(machine, 1, 110.0)
    assert machine.request(savepoint(), 120.0) == [trigger(2, savepoint())]


def test_a_savepoint_starts_beside_as_many_checkpoints_as_may_run() -> None:
    machine = checkpoints(max_concurrent=1)
    machine.on_time(100.0)
    assert machine.request(savepoint(), 110.0) == [trigger(2, savepoint())]


def test_a_savepoint_takes_no_place_of_a_checkpoint() -> None:
    machine = checkpoints(max_concurrent=1)
    machine.request(savepoint(), 10.0)
    assert machine.on_time(100.0) == [trigger(2)]
    assert machine.on_time(200.0) == []


def test_one_savepoint_is_under_way_at_a_time_and_the_others_follow_as_they_were_asked_for() -> None:
    machine = checkpoints()
    machine.request(savepoint(7), 10.0)
    assert machine.request(savepoint(9), 20.0) == []
    assert machine.request(savepoint(8), 30.0) == []
    acknowledge(machine, 1)
    assert store(machine, 1, 40.0) == [trigger(2, savepoint(9))]
    assert fail(machine, 2) == [abort(2, DECLINED, savepoint(9))]
    assert machine.on_time(50.0) == [trigger(3, savepoint(8))]


def test_a_savepoint_comes_before_checkpoints_that_were_asked_for_earlier() -> None:
    machine = checkpoints(max_concurrent=1)
    machine.request(savepoint(1), 10.0)
    machine.on_time(100.0)
    machine.request(ONE_MORE, 110.0)
    machine.request(savepoint(2), 120.0)
    fail(machine, 1)
    acknowledge(machine, 2)
    assert store(machine, 2, 130.0) == [trigger(3, savepoint(2)), trigger(4)]


def test_a_waiting_savepoint_keeps_no_checkpoint_from_starting() -> None:
    machine = checkpoints()
    machine.request(savepoint(1), 10.0)
    machine.request(savepoint(2), 20.0)
    assert machine.request(ONE_MORE, 30.0) == [trigger(2)]


def test_a_failed_savepoint_does_not_count_towards_the_tolerated_failures() -> None:
    machine = checkpoints(tolerable_failures=0, timeout_ms=50.0)
    machine.request(savepoint(1), 10.0)
    assert fail(machine, 1) == [abort(1, DECLINED, savepoint(1))]
    machine.request(savepoint(2), 20.0)
    assert machine.on_time(70.0) == [abort(2, EXPIRED, savepoint(2))]
    assert machine.failures == {DECLINED: 1, EXPIRED: 1}
    assert machine.on_time(100.0) == [trigger(3)]


def test_a_stored_savepoint_subsumes_the_older_checkpoints_that_still_run() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    machine.request(savepoint(), 110.0)
    assert acknowledge(machine, 2) == [complete(2)]
    assert acknowledge(machine, 1) == [abort(1, SUBSUMED)]
    assert store(machine, 2, 120.0) == []


# -- a newer checkpoint does not overtake a savepoint


def test_a_newer_checkpoint_is_held_back_until_the_savepoint_is_stored() -> None:
    machine = checkpoints()
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    assert acknowledge(machine, 2) == []
    assert acknowledge(machine, 1) == [complete(1)]
    assert machine.on_time(110.0) == []
    assert store(machine, 1, 120.0) == [complete(2)]
    assert store(machine, 2, 130.0) == []
    assert machine.pending() == ()


def test_a_newer_checkpoint_is_held_back_while_the_savepoint_is_being_stored() -> None:
    machine = checkpoints()
    machine.request(savepoint(), 10.0)
    acknowledge(machine, 1)
    machine.on_time(100.0)
    assert acknowledge(machine, 2) == []
    reason = FailureReason.STORE_FAILED
    assert fail(machine, 1, reason) == [abort(1, reason, savepoint()), complete(2)]


def test_held_back_ones_go_on_in_the_order_of_their_ids() -> None:
    machine = checkpoints(max_concurrent=3, timeout_ms=10_000.0)
    machine.request(savepoint(), 10.0)
    for ms in (100.0, 200.0, 300.0):
        machine.on_time(ms)
    assert [acknowledge(machine, id) for id in (4, 2)] == [[], []]
    assert fail(machine, 1) == [abort(1, DECLINED, savepoint()), complete(2), complete(4)]
    assert acknowledge(machine, 3) == [abort(3, SUBSUMED)]


def test_an_older_checkpoint_is_not_held_back_by_a_savepoint_nor_by_what_is_held_back_behind_it() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=10_000.0)
    machine.on_time(100.0)
    machine.request(savepoint(), 110.0)
    machine.on_time(200.0)
    assert acknowledge(machine, 3) == []
    assert acknowledge(machine, 1) == [complete(1)]


def test_one_that_is_held_back_does_not_expire() -> None:
    machine = checkpoints(timeout_ms=150.0)
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    acknowledge(machine, 2)
    acknowledge(machine, 1)
    assert machine.on_time(10_000.0) == []
    assert machine.next_deadline_ms() == float("inf")
    assert store(machine, 1, 10_001.0) == [complete(2)]


def test_a_savepoint_that_expires_lets_go_of_what_it_held_back() -> None:
    machine = checkpoints(timeout_ms=150.0, tolerable_failures=0)
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    acknowledge(machine, 2)
    assert machine.next_deadline_ms() == 160.0
    assert machine.on_time(160.0) == [abort(1, EXPIRED, savepoint()), complete(2)]
    assert machine.on_time(250.0) == []


def test_one_that_is_held_back_keeps_its_place() -> None:
    machine = checkpoints(max_concurrent=1, timeout_ms=10_000.0)
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    acknowledge(machine, 2)
    assert machine.on_time(200.0) == []
    assert machine.request(ONE_MORE, 210.0) == []


def test_one_that_is_held_back_can_fail() -> None:
    machine = checkpoints(tolerable_failures=1)
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    acknowledge(machine, 2)
    assert fail(machine, 2) == [abort(2, DECLINED)]
    acknowledge(machine, 1)
    assert store(machine, 1, 120.0) == []


def test_closing_completes_nothing_that_was_held_back() -> None:
    machine = checkpoints()
    machine.request(savepoint(), 10.0)
    machine.on_time(100.0)
    acknowledge(machine, 2)
    reason = FailureReason.JOB_RESTARTED
    assert machine.close(reason) == [abort(1, reason, savepoint()), abort(2, reason)]


def test_nothing_held_back_completes_in_the_moment_in_which_a_checkpoint_fails_the_job() -> None:
    machine = checkpoints(max_concurrent=2, timeout_ms=100.0)
    machine.on_time(100.0)
    machine.request(savepoint(), 100.0)
    machine.request(ONE_MORE, 110.0)
    assert acknowledge(machine, 3) == []
    assert machine.on_time(200.0) == [
        abort(1, EXPIRED),
        FailJob(CheckpointId(1), EXPIRED),
        abort(2, EXPIRED, savepoint()),
    ]


# -- stop with savepoint


def test_nothing_starts_behind_a_savepoint_that_suspends() -> None:
    machine = checkpoints(max_concurrent=3)
    assert machine.request(stop_with_savepoint(1), 10.0) == [trigger(1, stop_with_savepoint(1))]
    assert machine.request(ONE_MORE, 20.0) == []
    assert machine.request(savepoint(2), 30.0) == []
    assert machine.on_time(500.0) == []
    assert machine.next_deadline_ms() == 1010.0  # its timeout


def test_nothing_starts_after_a_savepoint_that_suspended_the_job() -> None:
    machine = checkpoints()
    machine.request(stop_with_savepoint(), 10.0)
    machine.request(ONE_MORE, 20.0)
    acknowledge(machine, 1)
    assert store(machine, 1, 30.0) == []
    assert commit(machine, 1, 40.0) == []
    assert machine.on_time(5000.0) == []
    assert machine.next_deadline_ms() == float("inf")
    assert machine.close(FailureReason.JOB_STOPPED) == [Refuse(ONE_MORE, NOT_RUNNING)]


def test_everything_goes_on_when_a_savepoint_that_suspends_fails() -> None:
    machine = checkpoints()
    machine.request(stop_with_savepoint(1), 10.0)
    machine.request(ONE_MORE, 20.0)
    machine.request(savepoint(2), 30.0)
    assert fail(machine, 1) == [abort(1, DECLINED, stop_with_savepoint(1))]
    assert machine.next_deadline_ms() <= 30.0
    assert machine.on_time(40.0) == [trigger(2, savepoint(2)), trigger(3)]


def test_checkpoints_that_run_when_a_savepoint_suspends_may_still_complete() -> None:
    machine = checkpoints()
    machine.on_time(100.0)
    machine.request(stop_with_savepoint(), 110.0)
    assert acknowledge(machine, 1) == [complete(1)]
    assert acknowledge(machine, 2) == [complete(2)]
    assert store(machine, 1, 120.0) == []
