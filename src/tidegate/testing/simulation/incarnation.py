"""One driver process and the slots it launched: the production `Driver` over lanes instead of sockets and threads."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import Broken, Ended, LaunchExit
from tidegate.coordinator.roster import SlotGone, SlotJoined, SlotSaid
from tidegate.model.ids import Generation, SlotIndex
from tidegate.network.address import SlotAddress
from tidegate.network.messages import Failed, SlotIntroduction, ToSlot
from tidegate.plan.physical import JobPlan
from tidegate.testing.simulation.connectors import SimSink
from tidegate.testing.simulation.lanes import ByteLaneLink, LaneLink, OwnLaneLink
from tidegate.testing.simulation.slot import EVEN_PACES, INJECTED, Action, Lanes, RandomSlices, SimSlot
from tidegate.testing.simulation.taken_states import TakenStates
from tidegate.testing.simulation.user_code import user_code
from tidegate.testing.simulation.world import SimBackground, SimStore, SimulationFailed, World
from tidegate.worker.main import SlotOrder

# A barrier stage of which one task is gone does not go on.
_SPARK_ENDS_THE_REST_MS = 300.0
# Now and then the log and the sinks are slower than checkpoints come, and several wait for them.
_STORING_PACES = (0.03, 0.3, 1.0, 3.0)
# Few, so that a log is shortened while drivers come and go.
_LOG_ENTRIES = 9
_NOBODY = SlotAddress(host_id="simulated", tcp_host="simulated", tcp_port=0, unix_name=None)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """`has_plain_local_link`: a slot talks to itself by the production link."""

    capacity: int
    has_plain_local_link: bool
    writes_in_pieces: bool
    most_rows_per_slice: int


@dataclass(slots=True)
class _Launch:
    """`Launched`. Exits once every process has ended."""

    slots: list[SimSlot]
    on_exit: Callable[[LaunchExit], None]
    joining: list[SimSlot]
    killed_at_ms: float | None = None
    has_exited: bool = False

    def running_slots(self) -> int | None:
        return len(self.slots)

    def cancel(self) -> None:
        for slot in self.slots:
            slot.kill()


class Incarnation:
    """Implements `Launcher` and `Members` for its driver. `spec.slot_settings` says where its files lie."""

    def __init__(
        self, world: World, random: Random, spec: JobSpec, network: NetworkSettings, taken: TakenStates
    ) -> None:
        self.world = world
        self._taken = taken
        self.spec = spec
        self._random = random
        self._network = network
        location = spec.slot_settings.checkpoint_location
        self.store = SimStore(world, location)
        self.storing = SimBackground()
        self.looking = SimBackground()
        self._notes: deque[Callable[[], None]] = deque()
        self._launch: _Launch | None = None
        self._launch_number = 0
        self.launches = 0
        self.has_checked_windows = False
        self._members: dict[SlotIndex, SimSlot] = {}
        self._lanes: dict[tuple[Generation, SlotIndex, SlotIndex], LaneLink] = {}
        self._slices = RandomSlices(random, network.most_rows_per_slice)
        self.indexes = [SlotIndex(index) for index in range(spec.slot_settings.plan.parallelism)]
        self.cores: int | None = None  # when executors have gone; None for as many as are wanted
        self.rescales = 0
        self.is_alive = True
        self.driver = Driver(
            spec,
            durable=DurableJob(
                self.store,
                SimSink(world).committer(),
                spec.slot_settings.plan,
                DurableSettings(
                    fingerprint=spec.fingerprint,
                    keep=spec.keep,
                    restore_from=spec.restore_from,
                    log_entries=_LOG_ENTRIES,
                ),
                open_location=partial(SimStore, world),
                wall_ms=world.clock.wall_ms,
            ),
            launcher=self,
            members=self,
            storing=self.storing,
            looking=self.looking,
            clock=world.clock,
            post=self._notes.append,
            secret=b"",
            versions={},
        )
        self.driver.begin()

    # -- the launcher

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> _Launch:
        self.rescales += slots != len(self.indexes)
        self.indexes = [SlotIndex(index) for index in range(slots)]
        made = [
            SimSlot(
                index,
                settings=order.settings,
                store=self.store,
                open_location=partial(SimStore, self.world),
                clock=self.world.clock,
                user_code=user_code(),
                slices=self._slices,
                connect=self._connect,
                taken=self._taken,
            )
            for index in self.indexes
        ]
        self.launches += 1
        self._launch = _Launch(made, on_exit, list(made))
        return self._launch

    def room(self) -> int | None:
        return self.cores

    # -- the members

    @property
    def port(self) -> int:
        return 0

    def expect_launch(self, launch: int) -> None:
        self.dismiss()
        self._launch_number = launch

    def members(self) -> frozenset[SlotIndex]:
        return frozenset(self._members)

    def addresses(self) -> dict[SlotIndex, SlotAddress]:
        return dict.fromkeys(self._members, _NOBODY)

    def pids(self) -> tuple[int, ...]:
        return tuple(self._members)

    def tell(self, slot: SlotIndex, message: ToSlot) -> None:
        if (member := self._members.get(slot)) is not None and member.is_alive:
            member.tell(message)

    def tell_all(self, message: ToSlot) -> None:
        for slot in list(self._members):
            self.tell(slot, message)

    def dismiss(self) -> None:
        for slot in self._members.values():
            slot.kill()
        self._members.clear()

    # -- the scheduler's side

    @property
    def plan(self) -> JobPlan:
        """At the parallelism that it runs at now."""
        return self.driver._spec.slot_settings.plan

    @property
    def slots(self) -> list[SimSlot]:
        return [] if self._launch is None else self._launch.slots

    def actions(self) -> list[tuple[Action, SlotIndex | None]]:
        """All that may happen next, each with the slot whose process does it; None for the driver's."""
        own: list[Callable[[], bool]] = [self._note, self._join, self._exit, self.storing.note_once]
        own += [self.looking.work_once, self.looking.note_once]
        found: list[tuple[Action, SlotIndex | None]] = [(Action(act, EVEN_PACES), None) for act in own]
        found.append((Action(self.storing.work_once, _STORING_PACES), None))
        found.append((Action(self._tick, EVEN_PACES), None))
        found += [(Action(partial(self._hear, index), EVEN_PACES), None) for index in self.indexes]
        for slot in self.slots:
            found += [(action, slot.index) for action in slot.actions(self.indexes)]
        return found

    def kill_slot(self, index: SlotIndex) -> bool:
        if self._launch is None or not self.slots[index].is_alive:
            return False
        self.slots[index].kill()
        self._launch.killed_at_ms = self.world.clock.monotonic_ms()
        return True

    def kill_driver(self) -> list[SimBackground]:
        """Its slots notice and leave. What either had begun to write may still get through: gives that."""
        self.is_alive = False
        begun = [slot.background for slot in self.slots]
        for slot in self.slots:
            slot.kill()
        return begun

    def forget_processes(self) -> None:
        """They have ended, and their memory is nobody's."""
        for slot in self.slots:
            slot.background.forget()

    def check_windows(self) -> None:
        """Bytes in flight are conserved: what a sender still counts, its receiver has consumed and not yet granted."""
        self.has_checked_windows = True
        gates = [task.gate for slot in self.slots if slot.tasks for task in slot.tasks.tasks if task.gate is not None]
        consumed = {channel: state.position() for gate in gates for channel, state in gate._channels.items()}
        for gate in gates:
            if gate.queued_bytes():
                raise SimulationFailed(f"{gate.queued_bytes()} bytes are queued although all input has ended")
        for output in [output for slot in self.slots if slot.tasks for output in slot.tasks.outputs]:
            counted = [sequence for sequence, _ in output._window._in_flight]
            if output._gathered_bytes or output._unsent or output._window.in_flight_bytes < 0:
                raise SimulationFailed(f"{output.channel} holds rows although all input has ended")
            if counted and output.channel in consumed and max(counted) >= consumed[output.channel]:
                raise SimulationFailed(f"{output.channel} counts element {max(counted)}, which nobody has consumed")

    # -- inside

    def _tick(self) -> bool:
        self.driver.on_time()
        return False

    def _note(self) -> bool:
        if not self._notes:
            return False
        self._notes.popleft()()
        return True

    def _join(self) -> bool:
        if self._launch is None or not self._launch.joining:
            return False
        slot = self._launch.joining.pop(self._random.randrange(len(self._launch.joining)))
        if not slot.is_alive:
            return True
        self._members[slot.index] = slot
        introduction = SlotIntroduction("job", self._launch_number, slot.index, slot.index, _NOBODY, {})
        self.driver.on_event(SlotJoined(slot.index, introduction))
        return True

    def _hear(self, index: SlotIndex) -> bool:
        slot = self._members.get(index)
        if slot is None:
            return False
        message = slot.hear()
        if message is not None:
            if isinstance(message, Failed) and message.message != INJECTED:
                raise SimulationFailed(f"slot {index} failed: {message.message}")
            self.driver.on_event(SlotSaid(index, message))
            return True
        if slot.is_alive:
            return False
        del self._members[index]
        self.driver.on_event(SlotGone(index, index))
        return True

    def _exit(self) -> bool:
        launch = self._launch
        if launch is None or launch.has_exited:
            return False
        killed_at_ms = launch.killed_at_ms
        if killed_at_ms is not None and self.world.clock.monotonic_ms() > killed_at_ms + _SPARK_ENDS_THE_REST_MS:
            launch.cancel()
        if any(slot.is_alive for slot in launch.slots):
            return False
        launch.has_exited = True
        launch.on_exit(Ended() if killed_at_ms is None else Broken("a process was killed"))
        return True

    def _connect(self, slot: SlotIndex, generation: Generation) -> tuple[Lanes, Lanes]:
        peers = [peer for peer in self.indexes if peer != slot or not self._network.has_plain_local_link]
        outgoing = {peer: self._lane(generation, slot, peer) for peer in peers}
        incoming = {peer: self._lane(generation, peer, slot) for peer in peers}
        return outgoing, incoming

    def _lane(self, generation: Generation, sender: SlotIndex, receiver: SlotIndex) -> LaneLink:
        key = (generation, sender, receiver)
        if key not in self._lanes:
            capacity = self._network.capacity
            if sender == receiver:
                self._lanes[key] = OwnLaneLink(capacity)
            elif self._network.writes_in_pieces:
                self._lanes[key] = ByteLaneLink(capacity, self._random)
            else:
                self._lanes[key] = LaneLink(capacity)
        return self._lanes[key]
