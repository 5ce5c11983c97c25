"""A driver without thread, socket or real time: the test makes everything around it happen."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from obstore.store import MemoryStore

from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import LaunchExit
from tidegate.coordinator.roster import SlotGone, SlotJoined, SlotSaid
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.address import SlotAddress
from tidegate.network.messages import Acknowledge, Failed, FromSlot, Ready, SlotIntroduction, ToSlot
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Scan, Sink
from tidegate.protocol.commit import CommitPermit
from tidegate.protocol.restart import FixedDelay, RestartStrategy
from tidegate.storage.object_store import ObjectStore
from tidegate.testing.local_jobs import local_job
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.main import SlotOrder
from tidegate.worker.settings import SlotSettings

SLOTS = (SlotIndex(0), SlotIndex(1))
LEAVE_TIMEOUT_MS = 10_000.0
ROOM_TIMEOUT_MS = 6_000.0
SLOTS_TIMEOUT_MS = 40_000.0
DELAY_MS = 1_000.0
RESTARTS = FixedDelay(3, DELAY_MS)
SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])


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

    def slots(self) -> list[int]:
        return [launch.slots for launch in self.launches]

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

    def __init__(
        self,
        *,
        restart: RestartStrategy | None = None,
        versions: dict[str, str] | None = None,
        change: Callable[[JobSpec], JobSpec] = lambda spec: spec,
    ) -> None:
        plan = lower(
            Scan("rate", {"rowsPerSecond": "1"}, SCHEMA), Sink("noop", {}, SCHEMA), parallelism=2, max_parallelism=8
        )
        spec = local_job(
            "job",
            SlotSettings(plan=plan, checkpoint_location="", window_bytes=1 << 16, state_backend="heap"),
            interval_ms=60_000.0,
            switch_after_ms=None,
            restart=restart,
        )
        self.spec = change(spec)
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
        self.clock.advance(ms)
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

    def run(self) -> None:
        self.start()
        for slot in SLOTS:
            self.join(slot)
        self.all_say(ready(1))
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


def running(*, restart: RestartStrategy | None = None) -> Hand:
    job = Hand(restart=restart)
    job.run()
    return job


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
