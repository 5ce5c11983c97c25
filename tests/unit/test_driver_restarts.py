"""What follows a failure: another generation in place, another launch, or the end."""

import logging

import pytest

from tests.unit.driver_by_hand import (
    DELAY_MS,
    LEAVE_TIMEOUT_MS,
    RESTARTS,
    ROOM_TIMEOUT_MS,
    SLOTS,
    Hand,
    failed,
    ready,
    running,
)
from tidegate.coordinator.launch import Broken, Ended, Impossible
from tidegate.coordinator.roster import SlotGone
from tidegate.model.errors import DidNotHappen, SlotLost, UserCodeFailure
from tidegate.model.ids import Generation
from tidegate.network.messages import Deploy, InputEnded, Leave, Progress
from tidegate.protocol.restart import STABLE_AFTER_MS, FixedDelay


def without_its_executor(*, free: int) -> Hand:
    """A job of two slots whose launch broke, after the delay: Spark has so many cores for it now."""
    job = running(restart=RESTARTS)
    job.launcher.free = free
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    return job


def test_a_slot_that_is_gone_brings_a_new_launch_once_the_old_one_has_exited() -> None:
    job = running(restart=RESTARTS)
    job.lose(SLOTS[1])
    assert job.state == "restarting"
    assert job.heard(SLOTS[0]) == [Leave("another slot is gone or does not answer", comes_back=True)]
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.exit(Ended())
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)
    assert job.driver.view().generation == 2


@pytest.mark.parametrize("is_slot_heard_first", [True, False])
def test_a_new_launch_waits_for_the_delay_too(is_slot_heard_first: bool) -> None:
    job = running(restart=RESTARTS)
    if is_slot_heard_first:
        job.lose(SLOTS[0])
    job.exit(Broken("executor lost"))
    assert job.driver.next_deadline_ms() == job.clock.monotonic_ms() + DELAY_MS
    job.pass_ms(DELAY_MS - 1)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.pass_ms(1)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_a_new_launch_waits_for_cores_and_then_takes_what_there_is() -> None:
    job = without_its_executor(free=1)
    job.pass_ms(ROOM_TIMEOUT_MS - 1)
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.pass_ms(200)
    job.store_all()
    assert job.launcher.slots() == [2, 1]
    job.join(SLOTS[0])
    job.say(SLOTS[0], ready(2))
    assert job.state == "running"


def test_cores_that_come_back_in_time_are_used() -> None:
    job = without_its_executor(free=0)
    job.launcher.free = 5
    job.pass_ms(200)
    job.store_all()
    assert job.launcher.slots() == [2, 2]


def test_without_any_core_a_new_launch_waits_for_one_and_says_once_that_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = without_its_executor(free=0)
    with caplog.at_level(logging.WARNING, "tidegate"):
        job.pass_ms(ROOM_TIMEOUT_MS - 1)
        assert caplog.text == "", "executors may be replaced in a few seconds"
        for _ in range(5):
            job.pass_ms(ROOM_TIMEOUT_MS)
    assert caplog.text.count("waits for an executor") == 1
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.launcher.free = 1
    job.pass_ms(200)
    job.store_all()
    assert job.launcher.slots() == [2, 1]


def test_a_job_that_had_fewer_slots_gets_all_back_with_the_next_launch() -> None:
    job = without_its_executor(free=1)
    job.pass_ms(ROOM_TIMEOUT_MS)
    job.store_all()
    job.launcher.free = 2
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert job.launcher.slots() == [2, 1, 2]


def test_the_exit_of_an_earlier_launch_is_not_taken_for_the_present_one() -> None:
    job = running(restart=RESTARTS)
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.launcher.launches[0].on_exit(Ended())
    job.take_turn()
    assert job.state == "starting"


def test_a_launch_that_does_not_exit_for_a_restart_is_cancelled() -> None:
    job = running(restart=RESTARTS)
    job.lose(SLOTS[1])
    job.pass_ms(DELAY_MS)
    assert job.driver.next_deadline_ms() == job.clock.monotonic_ms() + LEAVE_TIMEOUT_MS
    job.pass_ms(LEAVE_TIMEOUT_MS)
    assert (job.state, job.launcher.launches[0].cancels) == ("restarting", 1)
    job.exit(Ended())
    assert job.state == "starting"


def test_an_error_in_user_code_is_deployed_again_in_the_same_processes() -> None:
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    assert (job.state, job.members.told) == ("restarting", [])
    assert "seven is not allowed" in str(job.driver.view().last_failure)
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert len(job.launcher.launches) == 1
    assert job.heard(SLOTS[1]) == [Deploy(Generation(2), job.members.addresses(), None)]
    job.all_say(ready(2))
    assert job.state == "running"


def test_slots_that_come_or_go_during_a_restart_are_not_kept_for_it() -> None:
    job = Hand(restart=RESTARTS)
    job.start()
    job.join(SLOTS[0])
    job.lose(SLOTS[0])
    job.join(SLOTS[1])
    assert job.heard(SLOTS[1]) == [Leave("another slot is gone or does not answer", comes_back=True)]


def test_one_failure_that_two_slots_report_late_is_one_failure() -> None:
    """The second report comes when the next generation is begun and not yet known: it is about the one before."""
    job = running(restart=FixedDelay(1, DELAY_MS))
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    assert job.state == "starting"
    job.say(SLOTS[1], failed(1))
    job.all_say(InputEnded(Generation(1)))
    job.store_all()
    job.all_say(ready(2))
    assert job.state == "running"


def test_what_was_found_for_a_generation_that_failed_meanwhile_is_not_used() -> None:
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    assert len(job.storing.waiting) == 1, "generation 2 is being begun"
    job.lose(SLOTS[0])
    job.exit(Ended())
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert job.driver.view().generation == 3
    assert len(job.launcher.launches) == 2


def test_a_slot_that_went_unheard_while_a_generation_was_begun_is_not_replaced_beside_the_others() -> None:
    """The connection is found broken, then notes are taken, then the event is looked at: all in one turn."""
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    del job.members.here[SLOTS[1]]
    job.store_all()
    job.driver.on_event(SlotGone(SLOTS[1], 1001))
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    assert set(job.heard(SLOTS[0])) == {Leave("another slot is gone or does not answer", comes_back=True)}
    job.exit(Ended())
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_without_a_restart_left_the_failure_is_what_the_job_ends_with() -> None:
    job = running(restart=FixedDelay(1, DELAY_MS))
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.say(SLOTS[0], failed(2))
    assert job.driver.is_leaving and job.driver.failure is None, "it has not ended yet"
    job.exit(Ended())
    assert job.state == "failed" and isinstance(job.driver.failure, UserCodeFailure)


def test_slots_that_return_before_the_end_are_a_failure() -> None:
    job = running()
    job.exit(Ended())
    assert job.driver.view().slot_pids == ()
    job.store_all()
    assert isinstance(job.driver.failure, SlotLost)


def test_what_starting_again_cannot_help_is_not_tried_again() -> None:
    job = Hand(restart=RESTARTS)
    job.start()
    job.exit(Impossible("Install it."))
    job.store_all()
    assert job.driver.is_over and str(job.driver.failure) == "Install it."


def test_slots_of_which_one_does_not_answer_are_not_asked_again_but_launched_anew() -> None:
    """It sits in a call that does not return, or still restores: it would not hear of the next generation."""
    job = running(restart=RESTARTS)
    job.clock.advance(10_001.0)
    job.say(SLOTS[0], failed(1))
    assert set(job.heard(SLOTS[1])) == {Leave("another slot is gone or does not answer", comes_back=True)}
    job.pass_ms(DELAY_MS)
    job.pass_ms(LEAVE_TIMEOUT_MS)
    assert job.launcher.launches[0].cancels == 1
    job.exit(Ended())
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_slots_that_all_answer_go_on_in_place() -> None:
    job = running(restart=RESTARTS)
    job.clock.advance(10_001.0)
    job.say(SLOTS[1], Progress(Generation(1), is_idle=True, splits_received=0, tasks=[]))
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert any(isinstance(message, Deploy) for message in job.heard(SLOTS[1]))
    assert len(job.launcher.launches) == 1


def test_slots_that_nobody_has_asked_for_anything_are_not_silent() -> None:
    """The next generation could not be begun for a while: they have nothing to answer."""
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    job.clock.advance(60_000.0)
    _, then = job.storing.waiting.popleft()
    then(DidNotHappen("the store is away"))
    job.take_turn()
    assert job.state == "restarting"
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert any(isinstance(message, Deploy) for message in job.heard(SLOTS[1]))
    assert len(job.launcher.launches) == 1


def test_the_end_of_a_slot_whose_launch_has_exited_is_no_failure_of_what_follows() -> None:
    job = running(restart=FixedDelay(1, DELAY_MS))
    job.lose(SLOTS[0])
    job.pass_ms(DELAY_MS)
    job.launcher.launches[-1].has_exited = True
    job.launcher.launches[-1].on_exit(Ended())
    # In one turn: notes are taken before what was found at the sockets is looked at.
    while job.notes:
        job.notes.popleft()()
    job.driver.on_event(SlotGone(SLOTS[1], 1001))
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_the_time_that_restoring_takes_does_not_count_as_having_run_well() -> None:
    job = Hand(restart=FixedDelay(1, DELAY_MS))
    job.start()
    for slot in SLOTS:
        job.join(slot)
    for generation in (1, 2):
        job.clock.advance(2 * STABLE_AFTER_MS)
        for slot in SLOTS:
            job.say(slot, Progress(Generation(generation), is_idle=True, splits_received=0, tasks=[]))
        job.all_say(ready(generation))
        job.say(SLOTS[0], failed(generation))
        job.pass_ms(DELAY_MS)
        job.store_all()
    job.exit(Ended())
    job.store_all()
    assert (job.state, job.driver.view().generation) == ("failed", 2), "it has failed twice in a row"


def test_a_last_commit_beside_a_failure_does_not_end_the_job() -> None:
    """Committing it made another checkpoint expire, which failed the generation: what follows ends by itself."""
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.driver.on_last_committed()
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert (job.state, job.driver.view().generation) == ("starting", 2)


def test_a_savepoint_to_stop_with_that_is_committed_beside_a_failure_stops_the_job() -> None:
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.driver.on_suspending_committed()
    job.exit(Ended())
    job.store_all()
    assert job.state == "stopped"
