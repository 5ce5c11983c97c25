"""Savepoints of a running job, and stopping with one."""

from typing import Any

import pytest

from tests.unit.driver_by_hand import DELAY_MS, RESTARTS, SLOTS, Hand, acknowledge, failed, memory_store, running
from tidegate.coordinator import durable
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.launch import Ended
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.model.errors import Damaged, JobFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import AbortCheckpoint, Decline, Deploy, Failed, Leave, TriggerCheckpoint
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


# -- slots that restore one, and find it damaged


@pytest.fixture
def without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an empty file will do as what slots stored."""
    monkeypatch.setattr(durable, "read_source_states", lambda *of: {})


def damage(generation: int) -> Failed:
    return Failed(Generation(generation), False, True, "0.state cannot be used", "Traceback: ...", is_damage=True)


def taken_behind_a_checkpoint(**job: Any) -> Hand:
    """Checkpoint 1, then savepoint 2."""
    made = running(**job)
    made.store.put("state", b"")
    made.pass_ms(made.spec.checkpoints.interval_ms)
    made.all_say(acknowledge(1))
    made.store_all()
    made.driver.ask_for_savepoint(wish())
    made.places["mine/savepoint-2-g1"] = memory_store()
    made.places["mine/savepoint-2-g1"].put("state", b"")
    made.all_say(acknowledge(2))
    made.store_all()
    assert made.committer.committed == [1, 2]
    return made


def deployed(job: Hand) -> Deploy:
    return [message for message in job.heard(SLOTS[0]) if isinstance(message, Deploy)][-1]


@pytest.mark.usefixtures("without_sources")
def test_a_savepoint_of_its_own_that_slots_find_damaged_makes_the_job_go_back() -> None:
    job = taken_behind_a_checkpoint(restart=RESTARTS)
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert deployed(job).restore_location == "mine/savepoint-2-g1"
    job.say(SLOTS[1], damage(2))
    job.store_all()
    again = deployed(job)
    assert (again.generation, again.restore_location) == (3, None)
    assert again.restore_manifest == "checkpoints/1-g1/manifest.json"


class FromElsewhere(Hand):
    def durable_job(self) -> DurableJob:
        made = taken_behind_a_checkpoint()
        return DurableJob(
            self.store,
            self.committer,
            self.spec.slot_settings.plan,
            DurableSettings(fingerprint=self.spec.fingerprint, keep=self.spec.keep, restore_from="mine/savepoint-2-g1"),
            open_location=lambda location: made.places[location],
            wall_ms=self.clock.wall_ms,
        )


@pytest.mark.usefixtures("without_sources")
def test_a_savepoint_of_another_job_that_slots_find_damaged_is_what_the_job_ends_with() -> None:
    job = FromElsewhere(restart=RESTARTS)
    job.start()
    for slot in SLOTS:
        job.join(slot)
    assert deployed(job).restore_location == "mine/savepoint-2-g1"
    job.say(SLOTS[1], damage(1))
    job.exit(Ended())
    job.store_all()
    assert job.state == "failed" and job.driver.view().generation == 1
    assert isinstance(job.driver.failure, Damaged) and str(job.driver.failure) == "0.state cannot be used"
