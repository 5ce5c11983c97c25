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


@pytest.mark.parametrize("state", sorted(set(JobState) - FINAL - {JobState.STOPPING}, key=lambda state: state.value))
def test_a_job_can_be_stopped_whatever_it_does(state: JobState) -> None:
    assert next_state(state, JobEvent.STOP_ASKED) is JobState.STOPPING


def test_the_diagram_shows_every_move() -> None:
    lines = diagram().splitlines()
    for (state, event), following in TRANSITIONS.items():
        assert f"    {state.value} --> {following.value}: {event.value}" in lines
    assert {f"    {state.value} --> [*]" for state in FINAL} <= set(lines)
