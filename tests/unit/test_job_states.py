"""The life of a job, by its table."""

import pytest

from tidegate.model.errors import ProtocolViolation
from tidegate.protocol.job import TRANSITIONS, JobEvent, JobState, diagram, next_state

FINAL = {state for state in JobState if state.is_final}


def test_a_bounded_job_starts_runs_and_finishes() -> None:
    state = JobState.STARTING
    for event in (JobEvent.SLOTS_READY, JobEvent.INPUT_ENDED, JobEvent.LAST_COMMITTED):
        state = next_state(state, event)
    assert state is JobState.FINISHED


def test_a_failed_generation_is_followed_by_another() -> None:
    state = JobState.RUNNING
    for event in (JobEvent.FAILURE, JobEvent.GENERATION_STARTED, JobEvent.SLOTS_READY):
        state = next_state(state, event)
    assert state is JobState.RUNNING


def follow(state: JobState, *events: JobEvent) -> JobState:
    for event in events:
        state = next_state(state, event)
    return state


def test_a_job_stops_once_its_savepoint_is_committed() -> None:
    asked = follow(JobState.RUNNING, JobEvent.SAVEPOINT_ASKED)
    assert asked is JobState.SUSPENDING
    assert follow(asked, JobEvent.SAVEPOINT_COMMITTED, JobEvent.SLOTS_GONE) is JobState.STOPPED


def test_a_job_runs_on_when_the_savepoint_that_should_stop_it_fails() -> None:
    assert follow(JobState.RUNNING, JobEvent.SAVEPOINT_ASKED, JobEvent.SAVEPOINT_FAILED) is JobState.RUNNING


def test_a_failure_while_the_savepoint_is_on_its_way_restarts_the_job() -> None:
    assert follow(JobState.SUSPENDING, JobEvent.FAILURE) is JobState.RESTARTING


def test_a_job_whose_input_ends_while_the_savepoint_is_on_its_way_ends_by_whichever_comes_first() -> None:
    ended = follow(JobState.SUSPENDING, JobEvent.INPUT_ENDED)
    assert follow(ended, JobEvent.SAVEPOINT_COMMITTED) is JobState.STOPPING
    assert follow(ended, JobEvent.LAST_COMMITTED) is JobState.FINISHED
    assert follow(ended, JobEvent.SAVEPOINT_FAILED, JobEvent.LAST_COMMITTED) is JobState.FINISHED


def test_a_job_that_finishes_is_not_suspended() -> None:
    assert follow(JobState.FINISHING, JobEvent.SAVEPOINT_ASKED) is JobState.FINISHING


def test_only_a_job_that_runs_or_finishes_is_suspended() -> None:
    asked = {state for state, event in TRANSITIONS if event is JobEvent.SAVEPOINT_ASKED}
    assert asked == {JobState.RUNNING, JobState.FINISHING}


def test_checkpoints_are_taken_wherever_one_can_be_committed() -> None:
    commits = {JobEvent.LAST_COMMITTED, JobEvent.SAVEPOINT_COMMITTED}
    assert {state for state in JobState if state.takes_checkpoints} == {JobState.RUNNING} | {
        state for state, event in TRANSITIONS if event in commits
    }


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("event", JobEvent)
def test_a_move_that_is_not_in_the_table_is_refused_by_name(state: JobState, event: JobEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(ProtocolViolation) as raised:
        next_state(state, event)
    assert state.value in str(raised.value)
    assert event.value in str(raised.value)


def test_nothing_follows_a_final_state() -> None:
    assert {state.value for state in FINAL} == {"finished", "failed", "stopped"}
    assert not [state for state, _ in TRANSITIONS if state in FINAL]


def test_every_state_can_reach_a_final_one() -> None:
    reaching = set(FINAL)
    for _ in JobState:
        reaching |= {state for (state, _), following in TRANSITIONS.items() if following in reaching}
    assert reaching == set(JobState)


def test_every_state_can_be_reached_from_the_start() -> None:
    reached = {JobState.STARTING}
    for _ in JobState:
        reached |= {following for (state, _), following in TRANSITIONS.items() if state in reached}
    assert reached == set(JobState)


@pytest.mark.parametrize("state", [state for state in JobState if state not in FINAL | {JobState.STOPPING}])
def test_a_job_can_be_stopped_whatever_it_does(state: JobState) -> None:
    assert next_state(state, JobEvent.STOP_ASKED) is JobState.STOPPING


def test_the_diagram_shows_every_move() -> None:
    lines = diagram().splitlines()
    for (state, event), following in TRANSITIONS.items():
        assert f"    {state.value} --> {following.value}: {event.value}" in lines
    assert {f"    {state.value} --> [*]" for state in FINAL} <= set(lines)
