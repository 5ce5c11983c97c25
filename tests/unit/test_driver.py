"""A job's life, driven by hand: no thread, no socket, no real time. What follows what, and what must not."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import Broken, Cancelled, Ended, Impossible, LaunchExit
from tidegate.coordinator.roster import SlotGone, SlotJoined, SlotSaid
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.model.errors import EnvironmentProblem, JobFailure, SlotLost, Superseded, UserCodeFailure
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.address import SlotAddress
from tidegate.network.messages import (
    AbortCheckpoint,
    Acknowledge,
    Decline,
    Deploy,
    Failed,
    FromSlot,
    InputEnded,
    Leave,
    Ready,
    Run,
    SlotIntroduction,
    ToSlot,
    TriggerCheckpoint,
)
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.nodes import Scan, Sink
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.commit import CommitPermit
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.restart import FixedDelay, NoRestart, RestartStrategy
from tidegate.protocol.retention import KeepNumber
from tidegate.storage.object_store import ObjectStore
from tidegate.worker.main import SlotOrder
from tidegate.worker.settings import SlotSettings

SLOTS = (SlotIndex(0), SlotIndex(1))
LEAVE_TIMEOUT_MS = 10_000.0
ROOM_TIMEOUT_MS = 6_000.0
SLOTS_TIMEOUT_MS = 40_000.0
DELAY_MS = 1_000.0
SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])


@dataclass
class ManualClock:
    now_ms: float = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


@dataclass
class WhenAsked:
    """Blocking work that happens when the test says so."""

    post: Callable[[Callable[[], None]], None]
    waiting: deque[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = field(default_factory=deque)

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        self.waiting.append((work, then))

    def close(self) -> None:
        self.waiting.clear()

    def run_one(self) -> None:
        work, then = self.waiting.popleft()
        raised: BaseException | None = None
        try:
            work()
        except Exception as error:
            raised = error
        self.post(lambda: then(raised))


@dataclass
class ToldMembers:
    """Members without connections: `told` has what was said to whom, in order."""

    port: int = 4711
    here: dict[SlotIndex, SlotIntroduction] = field(default_factory=dict)
    told: list[tuple[SlotIndex, ToSlot]] = field(default_factory=list)

    def expect_launch(self, launch: int) -> None:
        self.dismiss()

    def members(self) -> frozenset[SlotIndex]:
        return frozenset(self.here)

    def addresses(self) -> dict[SlotIndex, SlotAddress]:
        return {slot: introduction.address for slot, introduction in self.here.items()}

    def pids(self) -> tuple[int, ...]:
        return tuple(introduction.pid for _, introduction in sorted(self.here.items()))

    def tell(self, slot: SlotIndex, message: ToSlot) -> None:
        if slot in self.here:
            self.told.append((slot, message))

    def tell_all(self, message: ToSlot) -> None:
        for slot in self.here:
            self.tell(slot, message)

    def dismiss(self) -> None:
        self.here.clear()


@dataclass
class HandLaunch:
    on_exit: Callable[[LaunchExit], None]
    slots: int
    running: int | None = None
    cancels: int = 0
    has_exited: bool = False

    def running_slots(self) -> int | None:
        return self.running

    def cancel(self) -> None:
        self.cancels += 1


@dataclass
class HandLauncher:
    launches: list[HandLaunch] = field(default_factory=list)
    free: int | None = None

    def room(self) -> int | None:
        return self.free

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> HandLaunch:
        assert order.launch == len(self.launches) + 1
        assert all(launch.has_exited for launch in self.launches), "Spark has no cores for both"
        assert slots == order.settings.plan.parallelism
        self.launches.append(HandLaunch(on_exit, slots))
        return self.launches[-1]

    def is_out(self) -> bool:
        return bool(self.launches) and not self.launches[-1].has_exited


@dataclass
class NotingCommitter:
    committed: list[int] = field(default_factory=list)
    discarded_before: list[int] = field(default_factory=list)

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        self.committed.append(permit.checkpoint)

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        self.discarded_before.append(generation)


class Hand:
    """A driver and everything around it, turned by hand."""

    def __init__(self, *, restart: RestartStrategy | None = None, versions: dict[str, str] | None = None) -> None:
        plan = lower(
            Scan("rate", {"rowsPerSecond": "1"}, SCHEMA), Sink("noop", {}, SCHEMA), parallelism=2, max_parallelism=8
        )
        self.spec = JobSpec(
            name="job",
            job_id="job",
            slot_settings=SlotSettings(plan=plan, checkpoint_location="", window_bytes=1 << 16, state_backend="heap"),
            fingerprint=tuple(fingerprint(plan)),
            checkpoints=CheckpointSettings(
                interval_ms=60_000.0, timeout_ms=60_000.0, min_pause_ms=0, max_concurrent=1, tolerable_failures=0
            ),
            switch_after_ms=None,
            keep=KeepNumber(3),
            restart=restart or NoRestart(),
            available_now=False,
            driver_host="127.0.0.1",
            bind_host="127.0.0.1",
            slot_bind_host="127.0.0.1",
            advertised_host=None,
            ports="any",
        )
        self.clock = ManualClock()
        self.notes: deque[Callable[[], None]] = deque()
        self.storing, self.looking = WhenAsked(self.notes.append), WhenAsked(self.notes.append)
        self.members = ToldMembers()
        self.launcher = HandLauncher()
        self.committer = NotingCommitter()
        self.store = memory_store()
        self.places: dict[str, ObjectStore] = {}
        self.driver = Driver(
            self.spec,
            durable=self.durable_job(),
            launcher=self.launcher,
            members=self.members,
            storing=self.storing,
            looking=self.looking,
            clock=self.clock,
            post=self.notes.append,
            secret=b"secret",
            versions=versions or {},
        )

    def durable_job(self) -> DurableJob:
        return DurableJob(
            self.store,
            self.committer,
            self.spec.slot_settings.plan,
            DurableSettings(fingerprint=self.spec.fingerprint, keep=self.spec.keep),
            open_location=lambda location: self.places.setdefault(location, memory_store()),
            wall_ms=self.clock.wall_ms,
        )

    # -- what the test makes happen

    def take_turn(self) -> None:
        while self.notes:
            self.notes.popleft()()
        self.driver.on_time()

    def store_all(self) -> None:
        """Everything that waits to be stored, and what follows from it."""
        self.take_turn()
        while self.storing.waiting:
            self.storing.run_one()
            self.take_turn()

    def pass_ms(self, ms: float) -> None:
        self.clock.now_ms += ms
        self.take_turn()

    def join(self, slot: SlotIndex, *, versions: dict[str, str] | None = None) -> None:
        self.members.here[slot] = introduction(slot, versions=versions)
        self.driver.on_event(SlotJoined(slot, self.members.here[slot]))
        self.take_turn()

    def lose(self, slot: SlotIndex) -> None:
        del self.members.here[slot]
        self.driver.on_event(SlotGone(slot, 1000 + slot))
        self.take_turn()

    def say(self, slot: SlotIndex, message: FromSlot) -> None:
        self.driver.on_event(SlotSaid(slot, message))
        self.take_turn()

    def all_say(self, message: FromSlot) -> None:
        for slot in SLOTS:
            self.say(slot, message)

    def exit(self, exit: LaunchExit) -> None:
        launch = self.launcher.launches[-1]
        launch.has_exited = True
        launch.on_exit(exit)
        self.take_turn()

    def stop(self) -> None:
        self.driver.stop()
        self.take_turn()

    def start(self) -> None:
        """Up to the moment at which slots are asked for."""
        self.driver.begin()
        self.store_all()

    def run(self, generation: int = 1) -> None:
        self.start()
        for slot in SLOTS:
            self.join(slot)
        self.all_say(ready(generation))
        self.members.told.clear()

    # -- what the test looks at

    @property
    def state(self) -> str:
        return self.driver.view().state

    def heard(self, slot: SlotIndex) -> list[ToSlot]:
        return [message for told, message in self.members.told if told == slot]

    def has_cleaned_up(self) -> bool:
        """Cleaning up after generation n drops what is older than n + 1, which never began."""
        return max(self.committer.discarded_before, default=0) > self.driver.view().generation


def memory_store() -> ObjectStore:
    return ObjectStore("memory", MemoryStore())


def introduction(slot: SlotIndex, *, versions: dict[str, str] | None = None) -> SlotIntroduction:
    return SlotIntroduction(
        job="job",
        launch=1,
        slot=slot,
        pid=1000 + slot,
        address=SlotAddress(host_id="host", tcp_host="127.0.0.1", tcp_port=5000 + slot, unix_name=None),
        versions=versions or {},
    )


def ready(generation: int) -> Ready:
    return Ready(Generation(generation), 0)


def failed(generation: int, *, is_final: bool = False) -> Failed:
    return Failed(Generation(generation), True, is_final, "seven is not allowed", "Traceback: ...")


def acknowledge(checkpoint: int, generation: int = 1) -> Acknowledge:
    return Acknowledge(Generation(generation), CheckpointId(checkpoint), "state", 0, 0, [], [], [])


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
    assert [job.heard(slot)[1:] for slot in SLOTS] == [[Run(Generation(1))], [Run(Generation(1))]]
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
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.start()
    assert job.driver.next_deadline_ms() == job.clock.now_ms + SLOTS_TIMEOUT_MS
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


def test_a_slot_with_other_versions_ends_the_job() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS), versions={"pyarrow": "1"})
    job.start()
    job.join(SLOTS[0], versions={"pyarrow": "2"})
    assert job.heard(SLOTS[0]) == [Leave("the query failed")]
    job.exit(Ended())
    assert "The workers run pyarrow 2" in str(job.driver.failure)


# -- failing and starting again


def test_a_slot_that_is_gone_brings_a_new_launch_once_the_old_one_has_exited() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.lose(SLOTS[1])
    assert job.state == "restarting"
    assert job.heard(SLOTS[0]) == [Leave("another slot is gone")]
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.exit(Ended())
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)
    assert job.driver.view().generation == 2


@pytest.mark.parametrize("is_slot_heard_first", [True, False])
def test_a_new_launch_waits_for_the_delay_too(is_slot_heard_first: bool) -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    if is_slot_heard_first:
        job.lose(SLOTS[0])
    job.exit(Broken("executor lost"))
    assert job.driver.next_deadline_ms() == job.clock.now_ms + DELAY_MS
    job.pass_ms(DELAY_MS - 1)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.pass_ms(1)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_a_new_launch_waits_for_cores_and_then_takes_what_there_is() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.launcher.free = 1
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.pass_ms(ROOM_TIMEOUT_MS - 1)
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.pass_ms(200)
    job.store_all()
    assert [launch.slots for launch in job.launcher.launches] == [2, 1]
    job.join(SLOTS[0])
    job.say(SLOTS[0], ready(2))
    assert job.state == "running"


def test_cores_that_come_back_in_time_are_used() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.launcher.free = 0
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.launcher.free = 5
    job.pass_ms(200)
    job.store_all()
    assert [launch.slots for launch in job.launcher.launches] == [2, 2]


def test_without_any_core_a_new_launch_waits_for_one() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.launcher.free = 0
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    for _ in range(5):
        job.pass_ms(ROOM_TIMEOUT_MS)
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    job.launcher.free = 1
    job.pass_ms(200)
    job.store_all()
    assert [launch.slots for launch in job.launcher.launches] == [2, 1]


def test_a_job_that_had_fewer_slots_gets_all_back_with_the_next_launch() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.launcher.free = 1
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.pass_ms(ROOM_TIMEOUT_MS)
    job.store_all()
    job.launcher.free = 2
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert [launch.slots for launch in job.launcher.launches] == [2, 1, 2]


def test_the_exit_of_an_earlier_launch_is_not_taken_for_the_present_one() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.exit(Broken("executor lost"))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.launcher.launches[0].on_exit(Ended())
    job.take_turn()
    assert job.state == "starting"


def test_a_launch_that_does_not_exit_for_a_restart_is_cancelled() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.lose(SLOTS[1])
    job.pass_ms(DELAY_MS)
    assert job.driver.next_deadline_ms() == job.clock.now_ms + LEAVE_TIMEOUT_MS
    job.pass_ms(LEAVE_TIMEOUT_MS)
    assert (job.state, job.launcher.launches[0].cancels) == ("restarting", 1)
    job.exit(Ended())
    assert job.state == "starting"


def test_an_error_in_user_code_is_deployed_again_in_the_same_processes() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
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
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.start()
    job.join(SLOTS[0])
    job.lose(SLOTS[0])
    job.join(SLOTS[1])
    assert job.heard(SLOTS[1]) == [Leave("another slot is gone")]


def test_one_failure_that_two_slots_report_late_is_one_failure() -> None:
    """The second report comes when the next generation is begun and not yet known: it is about the one before."""
    job = Hand(restart=FixedDelay(1, DELAY_MS))
    job.run()
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    assert job.state == "starting"
    job.say(SLOTS[1], failed(1))
    job.all_say(InputEnded(Generation(1)))
    job.store_all()
    job.all_say(ready(2))
    assert job.state == "running"


def test_what_was_found_for_a_generation_that_failed_meanwhile_is_not_used() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
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
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    del job.members.here[SLOTS[1]]
    job.store_all()
    job.driver.on_event(SlotGone(SLOTS[1], 1001))
    assert (job.state, len(job.launcher.launches)) == ("restarting", 1)
    assert set(job.heard(SLOTS[0])) == {Leave("another slot is gone")}
    job.exit(Ended())
    job.pass_ms(DELAY_MS)
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("starting", 2)


def test_without_a_restart_left_the_failure_is_what_the_job_ends_with() -> None:
    job = Hand(restart=FixedDelay(1, DELAY_MS))
    job.run()
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.say(SLOTS[0], failed(2))
    assert job.driver.is_leaving and job.driver.failure is None, "it has not ended yet"
    job.exit(Ended())
    assert job.state == "failed" and isinstance(job.driver.failure, UserCodeFailure)


def test_slots_that_return_before_the_end_are_a_failure() -> None:
    job = Hand()
    job.run()
    job.exit(Ended())
    assert job.driver.view().slot_pids == ()
    job.store_all()
    assert isinstance(job.driver.failure, SlotLost)


def test_what_starting_again_cannot_help_is_not_tried_again() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.start()
    job.exit(Impossible("Install it."))
    job.store_all()
    assert job.driver.is_over and str(job.driver.failure) == "Install it."


# -- ending


def test_when_the_input_has_ended_the_job_is_over_after_checkpoint_commit_leave_and_clean_up() -> None:
    job = Hand()
    job.run()
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
    job = Hand()
    job.run()
    job.pass_ms(job.spec.checkpoints.interval_ms)
    job.all_say(InputEnded(Generation(1)))
    job.all_say(acknowledge(1))
    job.store_all()
    assert (job.committer.committed, job.driver.is_leaving) == ([1], False)
    job.all_say(acknowledge(2))
    job.store_all()
    assert (job.committer.committed, job.driver.is_leaving) == ([1, 2], True)


def test_input_that_ended_before_a_restart_has_to_end_again() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.say(SLOTS[0], InputEnded(Generation(1)))
    job.say(SLOTS[1], failed(1))
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.all_say(ready(2))
    job.say(SLOTS[1], InputEnded(Generation(2)))
    assert job.state == "running"
    job.say(SLOTS[0], InputEnded(Generation(2)))
    assert job.state == "finishing"


# -- savepoints


def wish(afterwards: Afterwards = Afterwards.GO_ON) -> SavepointWish:
    return SavepointWish("mine", SavepointAlignment.ALIGNED, afterwards)


def triggered(checkpoint: int, *, suspends: bool = False) -> TriggerCheckpoint:
    return TriggerCheckpoint(
        Generation(1), CheckpointId(checkpoint), None, f"mine/savepoint-{checkpoint}-g1", suspends=suspends
    )


def test_a_savepoint_is_taken_at_once_and_its_path_is_told_when_it_is_committed() -> None:
    job, asked = Hand(), wish()
    job.run()
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
    job, asked = Hand(), wish(Afterwards.SUSPEND)
    job.run()
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
    job, asked = Hand(), wish(Afterwards.SUSPEND)
    job.run()
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
    job, asked = Hand(restart=FixedDelay(3, DELAY_MS)), wish(Afterwards.SUSPEND)
    job.run()
    job.driver.ask_for_savepoint(asked)
    job.say(SLOTS[0], failed(1))
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: job_restarted."
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
    job, asked = Hand(), wish()
    job.run()
    job.driver.ask_for_savepoint(asked)
    job.driver.crash(JobFailure("a bug"))
    job.driver.release_waiting()
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: the query has ended."


def test_a_stop_does_not_wait_for_a_savepoint_to_stop_with() -> None:
    job, asked = Hand(), wish(Afterwards.SUSPEND)
    job.run()
    job.driver.ask_for_savepoint(asked)
    job.stop()
    assert str(asked.answer.exception(0)) == "The savepoint was not taken: job_stopped."
    job.exit(Ended())
    job.store_all()
    assert (job.state, job.committer.committed) == ("stopped", [])


# -- stopping


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
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.lose(SLOTS[1])
    job.pass_ms(DELAY_MS)
    job.stop()
    job.exit(Ended())
    job.store_all()
    assert (job.state, len(job.launcher.launches)) == ("stopped", 1)
    assert job.driver.view().last_failure is None


def test_a_stop_while_the_job_ends_changes_nothing() -> None:
    job = Hand()
    job.run()
    job.say(SLOTS[0], failed(1))
    told = job.members.told.copy()
    job.stop()
    job.stop()
    assert job.members.told == told
    job.exit(Cancelled())
    job.store_all()
    assert job.state == "failed" and isinstance(job.driver.failure, UserCodeFailure)


def test_what_slots_say_while_they_leave_changes_nothing() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.stop()
    job.say(SLOTS[0], failed(1))
    job.all_say(InputEnded(Generation(1)))
    job.lose(SLOTS[0])
    assert (job.state, job.driver.view().last_failure) == ("stopping", None)


def test_a_launch_that_is_cancelled_from_outside_stops_the_job() -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    job.exit(Cancelled())
    job.store_all()
    assert (job.state, job.driver.failure) == ("stopped", None)


def test_slots_that_do_not_leave_are_cancelled() -> None:
    job = Hand()
    job.run()
    job.stop()
    assert job.driver.next_deadline_ms() == job.clock.now_ms + LEAVE_TIMEOUT_MS
    job.pass_ms(LEAVE_TIMEOUT_MS - 1)
    assert job.launcher.launches[0].cancels == 0
    job.pass_ms(1)
    assert (job.state, job.launcher.launches[0].cancels) == ("stopping", 1)
    job.exit(Ended())
    assert job.state == "stopped"


def test_slots_that_cannot_be_ended_are_given_up_and_nothing_is_removed_behind_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Hand()
    job.run()
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
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
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
    job = Hand()
    job.run()
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
    job = Hand()
    job.run()
    job.stop()
    job.exit(Ended())
    with caplog.at_level(logging.WARNING, "tidegate"):
        job.store_all()
    assert (job.state, job.driver.is_over) == ("stopped", True)
    assert "left unfinished files behind: read-only file system" in caplog.text


def test_whoever_waits_for_the_job_to_be_drained_is_let_go() -> None:
    job, done = Hand(), threading.Event()
    job.run()
    job.driver.ask_to_drain(done)
    job.stop()
    assert not done.is_set()
    job.driver.release_waiting()
    assert done.is_set()


@pytest.mark.parametrize("are_slots_there", [True, False])
def test_a_crash_ends_the_job_at_once_and_cleans_up_only_where_no_slot_is(are_slots_there: bool) -> None:
    job = Hand(restart=FixedDelay(3, DELAY_MS))
    job.run()
    if not are_slots_there:
        job.exit(Ended())
    job.driver.crash(JobFailure("a bug"))
    job.store_all()
    assert (job.state, job.driver.is_over, str(job.driver.failure)) == ("failed", True, "a bug")
    assert job.launcher.launches[0].cancels == (1 if are_slots_there else 0)
    assert job.has_cleaned_up() == (not are_slots_there)


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
    assert job.driver.next_deadline_ms() > job.clock.now_ms, "it would not wait at all"
    job.stop()
    job.pass_ms(LEAVE_TIMEOUT_MS)
    job.pass_ms(LEAVE_TIMEOUT_MS)
    job.store_all()
    assert job.driver.is_over and job.state in ("stopped", "finished", "failed")
    assert job.driver.next_deadline_ms() == float("inf")
    assert [launch for launch in job.launcher.launches if not launch.has_exited and launch.cancels == 0] == []
