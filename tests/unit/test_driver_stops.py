"""A job that is stopped, crashes or was superseded: who leaves, and what is removed."""

import logging
import threading

import pytest

from tests.unit.driver_by_hand import DELAY_MS, LEAVE_TIMEOUT_MS, RESTARTS, SLOTS, Hand, acknowledge, failed, running
from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.launch import Cancelled, Ended
from tidegate.model.errors import JobFailure, StorageFailure, Superseded, UserCodeFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import Failed, InputEnded, Leave


def test_a_stop_before_the_generation_is_known_asks_for_no_slots() -> None:
    job = Hand()
    job.driver.begin()
    job.stop()
    assert (job.state, job.driver.is_over) == ("stopped", True)
    job.store_all()
    assert job.launcher.launches == []


def test_a_stop_while_slots_come_up_waits_for_them_and_tells_late_ones_to_leave() -> None:
    job = Hand()
    job.start()
    job.join(SLOTS[0])
    job.stop()
    assert (job.state, job.heard(SLOTS[0])) == ("stopping", [Leave("stopped")])
    job.join(SLOTS[1])
    assert job.heard(SLOTS[1]) == [Leave("the query ends")]
    job.exit(Ended())
    job.store_all()
    assert (job.state, job.driver.is_over, job.has_cleaned_up()) == ("stopped", True, True)


def test_a_stop_while_the_job_waits_to_start_again_is_a_stop() -> None:
    job = running(restart=RESTARTS)
    job.lose(SLOTS[1])
    job.pass_ms(DELAY_MS)
    job.stop()
    job.exit(Ended())
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("stopped", 1)
    assert job.driver.view().last_failure is None


def test_a_stop_while_the_job_ends_changes_nothing() -> None:
    job = running()
    job.say(SLOTS[0], failed(1))
    told = job.members.told.copy()
    job.stop()
    job.stop()
    assert job.members.told == told
    job.exit(Cancelled())
    job.store_all()
    assert job.state == "failed" and isinstance(job.driver.failure, UserCodeFailure)


def test_what_slots_say_while_they_leave_changes_nothing() -> None:
    job = running(restart=RESTARTS)
    job.stop()
    job.say(SLOTS[0], failed(1))
    job.all_say(InputEnded(Generation(1)))
    job.lose(SLOTS[0])
    assert (job.state, job.driver.view().last_failure) == ("stopping", None)


def test_a_launch_that_is_cancelled_from_outside_stops_the_job() -> None:
    job = running(restart=RESTARTS)
    job.exit(Cancelled())
    job.store_all()
    assert (job.state, job.driver.failure) == ("stopped", None)


def test_slots_that_do_not_leave_are_cancelled() -> None:
    job = running()
    job.stop()
    assert job.driver.next_deadline_ms() == job.clock.monotonic_ms() + LEAVE_TIMEOUT_MS
    job.pass_ms(LEAVE_TIMEOUT_MS - 1)
    assert job.launcher.launches[0].cancels == 0
    job.pass_ms(1)
    assert (job.state, job.launcher.launches[0].cancels) == ("stopping", 1)
    job.exit(Ended())
    assert job.state == "stopped"


def test_slots_that_cannot_be_ended_are_given_up_and_nothing_is_removed_behind_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = running()
    job.stop()
    job.pass_ms(LEAVE_TIMEOUT_MS)
    with caplog.at_level(logging.ERROR, "tidegate"):
        job.pass_ms(LEAVE_TIMEOUT_MS)
    assert "Spark did not end the slots" in caplog.text
    assert (job.state, job.driver.is_over) == ("stopped", True)
    assert job.launcher.launches[0].cancels == 2
    job.exit(Ended())
    job.store_all()
    assert not job.has_cleaned_up()


def test_who_was_superseded_removes_nothing() -> None:
    job = running(restart=RESTARTS)
    job.durable_job().start_generation(at_ms=0)
    job.committer.discarded_before.clear()
    job.all_say(InputEnded(Generation(1)))
    job.all_say(acknowledge(1))
    job.store_all()
    assert job.heard(SLOTS[0])[-1] == Leave("the query failed")
    job.exit(Ended())
    job.store_all()
    assert job.driver.is_over and isinstance(job.driver.failure, Superseded)
    assert (job.committer.committed, job.committer.discarded_before) == ([], [])


def test_who_was_superseded_says_so_whatever_it_stumbled_over() -> None:
    job = running()
    job.durable_job().start_generation(at_ms=0)
    job.committer.discarded_before.clear()
    failed = Failed(Generation(1), is_user_code=False, is_final=True, message="a file is gone", traceback="")
    job.say(SLOTS[0], failed)
    job.exit(Ended())
    job.store_all()
    assert job.driver.is_over and isinstance(job.driver.failure, Superseded)
    assert job.committer.discarded_before == []


def test_files_that_cannot_be_removed_do_not_fail_the_job(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DurableJob, generation: Generation) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(DurableJob, "clean_up", refuse)
    job = running()
    job.stop()
    job.exit(Ended())
    with caplog.at_level(logging.WARNING, "tidegate"):
        job.store_all()
    assert (job.state, job.driver.is_over) == ("stopped", True)
    assert "left unfinished files behind: read-only file system" in caplog.text


def test_rows_that_are_held_back_appear_though_files_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    ending: list[str] = []
    monkeypatch.setattr(DurableJob, "publish_held", lambda self: ending.append("published"))

    def refuse(self: DurableJob, pending: frozenset[CheckpointId]) -> None:
        ending.append("refused")
        raise StorageFailure("read-only file system")

    monkeypatch.setattr(DurableJob, "retire", refuse)
    job = running()
    job.stop()
    job.exit(Ended())
    job.store_all()
    assert (job.driver.is_over, ending) == (True, ["published", "refused"])


def test_rows_that_stay_hidden_at_the_end_are_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DurableJob) -> None:
        raise OSError("read-only file system.")

    monkeypatch.setattr(DurableJob, "publish_held", refuse)
    job = running()
    job.stop()
    job.exit(Ended())
    with caplog.at_level(logging.WARNING, "tidegate"):
        job.store_all()
    assert (job.state, job.driver.is_over, job.has_cleaned_up()) == ("stopped", True, True)
    assert "has committed rows that no reader sees yet: read-only file system. Started again" in caplog.text


def test_whoever_waits_for_the_job_to_be_drained_is_let_go() -> None:
    job, done = running(), threading.Event()
    job.driver.ask_to_drain(done)
    job.stop()
    assert not done.is_set()
    job.driver.release_waiting()
    assert done.is_set()


@pytest.mark.parametrize("are_slots_there", [True, False])
def test_a_crash_ends_the_job_at_once_and_cleans_up_only_where_no_slot_is(are_slots_there: bool) -> None:
    job = running(restart=RESTARTS)
    if not are_slots_there:
        job.exit(Ended())
    job.driver.crash(JobFailure("a bug"))
    job.store_all()
    assert (job.state, job.driver.is_over, str(job.driver.failure)) == ("failed", True, "a bug")
    assert job.launcher.launches[0].cancels == (1 if are_slots_there else 0)
    assert job.has_cleaned_up() == (not are_slots_there)
