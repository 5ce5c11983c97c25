"""A job's life, driven by hand: how it comes up and ends, and what holds whatever happens."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.driver_by_hand import (
    DELAY_MS,
    LEAVE_TIMEOUT_MS,
    RESTARTS,
    SLOTS,
    SLOTS_TIMEOUT_MS,
    Hand,
    acknowledge,
    failed,
    introduction,
    ready,
    running,
)
from tidegate.coordinator.launch import Broken, Ended
from tidegate.coordinator.roster import SlotJoined
from tidegate.model.errors import EnvironmentProblem
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import Decline, Deploy, InputEnded, Leave, Run, TriggerCheckpoint
from tidegate.protocol.restart import FixedDelay

# -- coming up


def test_slots_are_asked_for_once_the_log_knows_the_generation() -> None:
    job = Hand()
    job.driver.begin()
    job.take_turn()
    assert (job.state, job.launcher.launches) == ("starting", [])
    job.store_all()
    assert len(job.launcher.launches) == 1
    assert job.driver.view().generation == 1


def test_a_generation_is_deployed_when_all_slots_are_here_and_runs_when_all_are_ready() -> None:
    job = Hand()
    job.start()
    job.join(SLOTS[0])
    assert job.members.told == []
    job.join(SLOTS[1])
    assert job.heard(SLOTS[0]) == job.heard(SLOTS[1]) == [Deploy(Generation(1), job.members.addresses(), None)]
    job.say(SLOTS[0], ready(1))
    assert (job.state, len(job.members.told)) == ("starting", 2)
    job.say(SLOTS[1], ready(1))
    assert job.state == "running"
    assert [job.heard(slot)[1:] for slot in SLOTS] == [[Run(Generation(1), CheckpointId(1))]] * 2
    assert job.driver.view().slot_pids == (1000, 1001)


def test_slots_that_are_all_here_when_the_first_is_looked_at_are_deployed_once() -> None:
    job = Hand()
    job.start()
    for slot in SLOTS:
        job.members.here[slot] = introduction(slot)
    for slot in SLOTS:
        job.driver.on_event(SlotJoined(slot, introduction(slot)))
    assert [type(message) for message in job.heard(SLOTS[0])] == [Deploy]


def test_slots_that_do_not_come_end_the_first_launch_with_what_to_change() -> None:
    job = Hand(restart=RESTARTS)
    job.start()
    assert job.driver.next_deadline_ms() == job.clock.monotonic_ms() + SLOTS_TIMEOUT_MS
    job.pass_ms(SLOTS_TIMEOUT_MS)
    assert job.driver.is_leaving
    job.exit(Ended())
    assert isinstance(job.driver.failure, EnvironmentProblem)
    assert "Only 0 of 2 slots" in str(job.driver.failure)


def test_slots_that_run_get_more_time_to_report() -> None:
    job = Hand()
    job.start()
    job.launcher.launches[0].running = 2
    job.pass_ms(SLOTS_TIMEOUT_MS)
    assert job.state == "starting" and not job.driver.is_leaving
    job.pass_ms(45_000.0)
    assert job.driver.is_leaving


def test_slots_that_are_all_here_may_take_long_to_read_their_state_back() -> None:
    job = Hand()
    job.start()
    for slot in SLOTS:
        job.join(slot)
    for _ in range(20):
        job.pass_ms(SLOTS_TIMEOUT_MS)
    assert job.state == "starting"
    job.all_say(ready(1))
    assert job.state == "running"


def test_slots_that_never_get_ready_are_given_up_and_named() -> None:
    job = Hand()
    job.start()
    for slot in SLOTS:
        job.join(slot)
    job.say(SLOTS[0], ready(1))
    job.pass_ms(3_600_001.0)
    assert "have not read their state back" in str(job.driver.view().last_failure or job.driver.failure())


def test_a_slot_with_other_versions_ends_the_job() -> None:
    job = Hand(restart=RESTARTS, versions={"pyarrow": "1"})
    job.start()
    job.join(SLOTS[0], versions={"pyarrow": "2"})
    assert job.heard(SLOTS[0]) == [Leave("the query failed")]
    job.exit(Ended())
    assert "The workers run pyarrow 2" in str(job.driver.failure)


# -- ending


def test_when_the_input_has_ended_the_job_is_over_after_checkpoint_commit_leave_and_clean_up() -> None:
    job = running()
    job.all_say(InputEnded(Generation(1)))
    assert job.state == "finishing"
    triggered = [message for message in job.heard(SLOTS[0]) if isinstance(message, TriggerCheckpoint)]
    assert [message.checkpoint for message in triggered] == [1]
    job.all_say(acknowledge(1))
    assert not job.driver.is_leaving, "not committed yet"
    job.store_all()
    assert job.committer.committed == [1]
    assert job.heard(SLOTS[0])[-1] == Leave("the input has ended")
    assert (job.state, job.driver.is_leaving) == ("finishing", True)
    job.exit(Ended())
    assert (job.state, job.driver.is_over, job.has_cleaned_up()) == ("finished", False, False)
    job.store_all()
    assert job.driver.is_over and job.has_cleaned_up()
    assert job.driver.failure is None


def test_a_checkpoint_from_before_the_end_of_the_input_does_not_end_the_job() -> None:
    job = running()
    job.pass_ms(job.spec.checkpoints.interval_ms)
    job.all_say(InputEnded(Generation(1)))
    job.all_say(acknowledge(1))
    job.store_all()
    assert (job.committer.committed, job.driver.is_leaving) == ([1], False)
    job.all_say(acknowledge(2))
    job.store_all()
    assert (job.committer.committed, job.driver.is_leaving) == ([1, 2], True)


def test_a_last_checkpoint_that_fails_is_asked_for_again() -> None:
    """Else the job would wait for the next periodic one, although all of its input is read."""
    job = Hand(change=lambda spec: replace(spec, checkpoints=replace(spec.checkpoints, tolerable_failures=1)))
    job.run()
    job.all_say(InputEnded(Generation(1)))
    job.say(SLOTS[0], Decline(Generation(1), CheckpointId(1), "the disk is full"))
    assert job.driver.next_deadline_ms() <= job.clock.monotonic_ms() + 1_000.0
    job.pass_ms(1_000.0)
    job.all_say(acknowledge(2))
    job.store_all()
    assert (job.committer.committed, job.driver.is_leaving) == ([2], True)


def test_input_that_ended_before_a_restart_has_to_end_again() -> None:
    job = running(restart=RESTARTS)
    job.say(SLOTS[0], InputEnded(Generation(1)))
    job.say(SLOTS[1], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.all_say(ready(2))
    job.say(SLOTS[1], InputEnded(Generation(2)))
    assert job.state == "running"
    job.say(SLOTS[0], InputEnded(Generation(2)))
    assert job.state == "finishing"


# -- whatever happens


def may_join(job: Hand, slot: SlotIndex) -> bool:
    return job.launcher.is_out() and slot not in job.members.here


def end_input(job: Hand) -> None:
    job.all_say(InputEnded(Generation(job.driver.view().generation)))


def acknowledge_all(job: Hand) -> None:
    for message in [message for message in job.heard(SLOTS[0]) if isinstance(message, TriggerCheckpoint)]:
        job.all_say(acknowledge(message.checkpoint, message.generation))


ANYTHING: dict[str, Callable[[Hand, SlotIndex], None]] = {
    "store one": lambda job, slot: job.storing.run_one() if job.storing.waiting else None,
    "store all": lambda job, slot: job.store_all(),
    "turn": lambda job, slot: job.take_turn(),
    "join": lambda job, slot: job.join(slot) if may_join(job, slot) else None,
    "lose": lambda job, slot: job.lose(slot) if slot in job.members.here else None,
    "ready": lambda job, slot: job.all_say(ready(job.driver.view().generation)) if job.state == "starting" else None,
    "fail": lambda job, slot: job.say(slot, failed(job.driver.view().generation)),
    "end input": lambda job, slot: end_input(job) if job.state == "running" else None,
    "acknowledge": lambda job, slot: acknowledge_all(job),
    "exit": lambda job, slot: job.exit(Ended()) if job.launcher.is_out() else None,
    "break": lambda job, slot: job.exit(Broken("lost")) if job.launcher.is_out() else None,
    "wait": lambda job, slot: job.pass_ms(DELAY_MS),
    "wait long": lambda job, slot: job.pass_ms(LEAVE_TIMEOUT_MS),
    "stop": lambda job, slot: job.stop(),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ANYTHING)), st.sampled_from(SLOTS)), max_size=60), st.booleans())
@settings(max_examples=100)
def test_whatever_happens_a_job_that_is_stopped_ends_and_leaves_no_launch_that_it_has_not_cancelled(
    events: list[tuple[str, SlotIndex]], runs_at_first: bool
) -> None:
    job = Hand(restart=FixedDelay(5, DELAY_MS))
    if runs_at_first:
        job.run()
    else:
        job.driver.begin()
    for name, slot in events:
        ANYTHING[name](job, slot)
    job.take_turn()
    assert job.driver.next_deadline_ms() > job.clock.monotonic_ms(), "it would not wait at all"
    job.stop()
    job.pass_ms(LEAVE_TIMEOUT_MS)
    job.pass_ms(LEAVE_TIMEOUT_MS)
    job.store_all()
    assert job.driver.is_over and job.state in ("stopped", "finished", "failed")
    assert job.driver.next_deadline_ms() == float("inf")
    assert [launch for launch in job.launcher.launches if not launch.has_exited and launch.cancels == 0] == []
