"""Savepoints of a running job, and stopping with one."""

import pytest

from tests.unit.driver_by_hand import RESTARTS, SLOTS, Hand, acknowledge, failed, running
from tidegate.coordinator.launch import Ended
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.model.errors import JobFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import AbortCheckpoint, Decline, Leave, TriggerCheckpoint
from tidegate.protocol.requests import Afterwards, SavepointAlignment


def wish(afterwards: Afterwards = Afterwards.GO_ON) -> SavepointWish:
    return SavepointWish("mine", SavepointAlignment.ALIGNED, afterwards)


def triggered(checkpoint: int, *, suspends: bool = False) -> TriggerCheckpoint:
    return TriggerCheckpoint(
        Generation(1), CheckpointId(checkpoint), None, f"mine/savepoint-{checkpoint}-g1", suspends=suspends
    )


def test_a_savepoint_is_taken_at_once_and_its_path_is_told_when_it_is_committed() -> None:
    job, asked = running(), wish()
    job.driver.ask_for_savepoint(asked)
    assert [job.heard(slot) for slot in SLOTS] == [[triggered(1)], [triggered(1)]]
    job.all_say(acknowledge(1))
    assert not asked.answer.done() and job.committer.committed == []
    job.store_all()
    assert asked.answer.result(0) == "mine/savepoint-1-g1"
    assert (job.state, job.committer.committed) == ("running", [1])
    assert job.places["mine/savepoint-1-g1"].list() == ["manifest.json"]
    (view,) = job.driver.view().checkpoints
    assert (view.is_savepoint, view.status) == (True, "completed")


def test_a_stop_with_a_savepoint_ends_the_job_once_it_is_committed() -> None:
    job, asked = running(), wish(Afterwards.SUSPEND)
    job.driver.ask_for_savepoint(asked)
    assert job.state == "suspending"
    assert job.heard(SLOTS[0]) == [triggered(1, suspends=True)]
    job.all_say(acknowledge(1))
    assert not job.driver.is_leaving
    job.store_all()
    assert asked.answer.result(0) == "mine/savepoint-1-g1"
    assert (job.state, job.heard(SLOTS[0])[-1]) == ("stopping", Leave("stopped with a savepoint"))
    job.exit(Ended())
    job.store_all()
    assert (job.state, job.driver.failure, job.driver.is_over) == ("stopped", None, True)


def test_a_stop_with_a_savepoint_that_fails_leaves_the_job_running() -> None:
    job, asked = running(), wish(Afterwards.SUSPEND)
    job.driver.ask_for_savepoint(asked)
    job.say(SLOTS[0], Decline(Generation(1), CheckpointId(1), "the disk is full"))
    assert str(asked.answer.exception(0)) == ("The savepoint was not taken: declined: slot 0: the disk is full.")
    assert (job.state, job.driver.is_leaving) == ("running", False)
    assert job.heard(SLOTS[1])[-1] == AbortCheckpoint(Generation(1), CheckpointId(1))
    job.driver.ask_for_savepoint(again := wish(Afterwards.SUSPEND))
    job.all_say(acknowledge(2))
    job.store_all()
    assert (again.answer.result(0), job.state) == ("mine/savepoint-2-g1", "stopping")


def test_who_waits_for_a_savepoint_hears_of_a_failure_of_the_job() -> None:
    job, asked = running(restart=RESTARTS), wish(Afterwards.SUSPEND)
    job.driver.ask_for_savepoint(asked)
    job.say(SLOTS[0], failed(1))
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: job_restarted: seven is not allowed."
    assert job.state == "restarting"


@pytest.mark.parametrize("afterwards", Afterwards)
def test_a_savepoint_of_a_job_that_does_not_run_is_refused(afterwards: Afterwards) -> None:
    job, early, late = Hand(), wish(afterwards), wish(afterwards)
    job.start()
    job.driver.ask_for_savepoint(early)
    assert (job.state, type(early.answer.exception(0))) == ("starting", JobFailure)
    job.stop()
    job.exit(Ended())
    job.store_all()
    job.driver.ask_for_savepoint(late)
    assert (job.state, type(late.answer.exception(0))) == ("stopped", JobFailure)


def test_who_still_waits_for_a_savepoint_when_the_job_is_over_is_let_go() -> None:
    job, asked = running(), wish()
    job.driver.ask_for_savepoint(asked)
    job.driver.crash(JobFailure("a bug"))
    job.driver.release_waiting()
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: the query has ended."


def test_a_stop_does_not_wait_for_a_savepoint_to_stop_with() -> None:
    job, asked = running(), wish(Afterwards.SUSPEND)
    job.driver.ask_for_savepoint(asked)
    job.stop()
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: job_stopped."
    job.exit(Ended())
    job.store_all()
    assert (job.state, job.committer.committed) == ("stopped", [])
