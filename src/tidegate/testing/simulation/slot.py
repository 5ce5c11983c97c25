"""A slot's process in the simulation: production tasks and session, called in the order that the scheduler chooses."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tidegate.model.clock import Clock
from tidegate.model.ids import Generation, SlotIndex
from tidegate.network.frames import DataFrame
from tidegate.network.messages import (
    Deploy,
    Failed,
    FromSlot,
    Ready,
    ToSlot,
    decode_from_slot,
    decode_peer,
    decode_to_slot,
    encode,
)
from tidegate.operators.contract import UserCode
from tidegate.plan.physical import AsyncMapSpec
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.store import Store
from tidegate.testing.simulation.calls import SlotCalls
from tidegate.testing.simulation.lanes import LaneLink
from tidegate.testing.simulation.restored import check_restored
from tidegate.testing.simulation.stored_ahead_checks import Rest, check_images_go_on
from tidegate.testing.simulation.taken_states import TakenStates
from tidegate.testing.simulation.world import Crash, SimBackground, SimulationFailed
from tidegate.worker.gate import Arrived
from tidegate.worker.heard import Heard
from tidegate.worker.links import LocalLink
from tidegate.worker.output import Link
from tidegate.worker.session import SlotSession, restore_for
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slices import SliceSizer
from tidegate.worker.slot_tasks import SlotTasks

EVEN_PACES = (0.3, 1.0, 3.0)
# Tasks that fall behind their senders, so that checkpoints find rows in flight.
SLOW_PACES = (0.01, 0.1, 0.5)
# What finds nothing to do most of the time.
RARE_PACES = (0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Action:
    """`act` says whether it did anything; `paces` are the weights the scheduler chooses from."""

    act: Callable[[], bool]
    paces: tuple[float, ...]


class RandomSlices(SliceSizer):
    def __init__(self, random: Random, most_rows: int) -> None:
        super().__init__(1.0)
        self._random = random
        self._most_rows = most_rows

    @property
    def rows(self) -> int:
        return self._random.randint(1, self._most_rows)

    @property
    def hurried_rows(self) -> int:
        return self.rows


Lanes = Mapping[SlotIndex, LaneLink]


class SimSlot:
    """`connect` gives the lanes to and from the other slots of a generation."""

    def __init__(
        self,
        index: SlotIndex,
        *,
        settings: SlotSettings,
        store: Store,
        open_location: Callable[[str], Store],
        clock: Clock,
        user_code: UserCode,
        slices: RandomSlices,
        connect: Callable[[SlotIndex, Generation], tuple[Lanes, Lanes]],
        taken: TakenStates,
    ) -> None:
        self.index = index
        self.is_alive = True
        self.background = SimBackground()
        self._inbox: deque[bytes] = deque()
        self._heard = Heard()
        self._outbox: deque[bytes] = deque()
        self._settings = settings
        self._store = store
        self._open_location = open_location
        self._clock = clock
        self._user_code = user_code
        self._slices = slices
        self._connect = connect
        self._taken = taken
        self._rest = Rest()
        self._calls = SlotCalls(slices._random)
        self._session = SlotSession(begin=self._begin, on_error=self._raise)
        self._local: LocalLink | None = None
        self._incoming: Lanes = {}
        self._actions: list[Action] = []
        self.tasks: SlotTasks | None = None

    # -- its connection to the coordinator

    def tell(self, message: ToSlot) -> None:
        self._inbox.append(encode(message))

    def hear(self) -> FromSlot | None:
        return decode_from_slot(self._outbox.popleft()) if self._outbox else None

    def has_said_all(self) -> bool:
        return not self._outbox

    # -- its end

    def kill(self) -> None:
        """Without a word: what it had not sent is gone; what it had begun to write may still get through."""
        self.is_alive = False
        self._inbox.clear()
        self._heard.clear()
        if self.tasks is not None:
            # The system takes back what a process had open; what it had begun to store may still get through.
            self.tasks._state.close()
            self.tasks._snapshots._assemblies.clear()
            self.tasks._snapshots._last_snapshot.clear()
        self.tasks = None

    def fail_in_user_code(self) -> bool:
        """As if a user's function had raised; the process stays."""
        if self.tasks is None:
            return False
        generation = self._session.generation
        self._send(Failed(generation, is_user_code=True, is_final=False, message=INJECTED, traceback=""))
        self._tear_down()
        return True

    # -- actions

    def actions(self, peers: list[SlotIndex]) -> list[Action]:
        """Everything this slot can do next; the same for as long as it lives."""
        if not self._actions:
            self._actions = self._all_actions(peers)
        return self._actions

    def _all_actions(self, peers: list[SlotIndex]) -> list[Action]:
        vertices = self._settings.plan.vertices
        steps = [
            Action(self._step_of(position), EVEN_PACES if vertex.source is not None else SLOW_PACES)
            for position, vertex in enumerate(vertices)
        ]
        lanes = [lane for peer in peers for lane in (self._data_from(peer), self._control_from(peer))]
        work = [self._work, self._note]
        others = [*lanes, *work, self._read_inbox, self._send_elements, self._encode]
        rare = [self._on_time, self._report]
        if any(isinstance(each, AsyncMapSpec) for vertex in vertices for each in vertex.operators):
            others.append(self._answer)
        return steps + [Action(a, EVEN_PACES) for a in others] + [Action(a, RARE_PACES) for a in rare]

    def _work(self) -> bool:
        return self.is_alive and self.background.work_once()

    def _note(self) -> bool:
        return self.is_alive and self.background.note_once()

    def _answer(self) -> bool:
        return self.is_alive and self._calls.answer_one()

    def _step_of(self, position: int) -> Callable[[], bool]:
        def step() -> bool:
            tasks = self._running()
            if tasks is None or position >= len(tasks.tasks):
                return False
            moved = tasks.tasks[position].step()
            self._after_step(tasks)
            return moved

        return step

    def _data_from(self, peer: SlotIndex) -> Callable[[], bool]:
        def receive() -> bool:
            link, tasks = self._incoming.get(peer), self._running()
            if link is None or tasks is None:
                return False
            elements = link.receive()
            if elements is None:
                return False
            for element in elements:
                match element:
                    case DataFrame() as frame:
                        tasks.on_frame(frame)
                    case (channel, arrived):
                        tasks.on_element(channel, arrived)
            self._after_step(tasks)
            return True

        return receive

    def _control_from(self, peer: SlotIndex) -> Callable[[], bool]:
        def receive() -> bool:
            link, tasks = self._incoming.get(peer), self._running()
            if link is None or tasks is None or not link.control:
                return False
            tasks.on_peer_message(decode_peer(link.control.popleft()))
            self._after_step(tasks)
            return True

        return receive

    def _read_inbox(self) -> bool:
        if not self.is_alive:
            return False
        while self._inbox:
            if (over := self._heard.add(decode_to_slot(self._inbox.popleft()))) is not None:
                self._session.on_over(over)
                return self._has_acted()
        if (message := self._heard.next()) is None:
            return False
        self._session.on_message(message)
        return self._has_acted()

    def _has_acted(self) -> bool:
        if self._session.has_left:
            self._tear_down()
            self.background.close()
            self.is_alive = False
        elif (tasks := self._running()) is not None:
            self._after_step(tasks)
        return True

    def _send_elements(self) -> bool:
        if (tasks := self._running()) is not None:
            tasks.send_elements()
            self._after_step(tasks)
        return False

    def _on_time(self) -> bool:
        if (tasks := self._running()) is not None:
            tasks.on_time()
            self._rest.check(tasks, self._clock.monotonic_ms())
            self._after_step(tasks)
        return False

    def _encode(self) -> bool:
        tasks = self._running()
        if tasks is None or not tasks.has_work():
            return False
        tasks.encode_some(self._clock.monotonic_ms())
        return True

    def _report(self) -> bool:
        if (tasks := self._running()) is not None:
            tasks.report()
        return False

    # -- inside

    def _begin(self, deploy: Deploy) -> None:
        self._tear_down()
        outgoing, self._incoming = self._connect(self.index, deploy.generation)
        links: dict[SlotIndex, Link] = dict(outgoing)
        self._local = None
        if self.index not in links:
            self._local = links[self.index] = LocalLink(self._deliver)
        restore = restore_for(deploy, self._store, self._open_location, self._settings.plan, self.index)
        check_restored(restore, self._settings.plan, self.index)
        self.tasks = SlotTasks(
            settings=self._settings,
            slot=self.index,
            generation=deploy.generation,
            restore=restore,
            links=links,
            store=self._store,
            open_location=self._open_location,
            background=self.background,
            clock=self._clock,
            user_code=self._user_code,
            open_calls=self._calls.open,
            wake=lambda: None,  # no sink here works beside the loop
            send=self._send,
        )
        self._check_state(deploy)
        for task in self.tasks.tasks:
            task.sizer = task._timer_sizer = task.giving_sizer = self._slices
        self._session.on_built(self.tasks)
        self._send(Ready(deploy.generation, restore.recovered_bytes, list(restore.dropped)))

    def _check_state(self, deploy: Deploy) -> None:
        """What the tasks begin with, and from now on what they take snapshots of."""
        assert self.tasks is not None
        plan, location = self._settings.plan, self._settings.checkpoint_location
        if deploy.restore_manifest is not None:
            elsewhere = deploy.restore_location
            store = self._store if elsewhere is None else self._open_location(elsewhere)
            manifest = decode_manifest(store.read(deploy.restore_manifest), name=deploy.restore_manifest)
            took_it = location if elsewhere is None else None
            self._taken.check_restored(self.tasks, manifest, plan, location=took_it)
        self._taken.watch(self.tasks, plan, location=location, generation=deploy.generation)

    def _tear_down(self) -> None:
        self._session.on_torn_down()
        if self.tasks is not None:
            tasks, self.tasks = self.tasks, None
            tasks.close()
        self._calls.forget()

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, Crash):
            raise error
        raise SimulationFailed(f"slot {self.index}: {type(error).__name__}: {error}") from error

    def _send(self, message: FromSlot) -> None:
        self._outbox.append(encode(message))

    def _after_step(self, tasks: SlotTasks) -> None:
        tasks.send_grants()
        while self._local is not None and self._local.messages:
            tasks.on_peer_message(self._local.messages.popleft())
        tasks.collect_held()
        check_images_go_on(tasks)

    def _deliver(self, channel: int, arrived: Arrived) -> None:
        assert self.tasks is not None
        self.tasks.on_element(channel, arrived)

    def _running(self) -> SlotTasks | None:
        return self.tasks if self.is_alive and self._session.is_running else None


# What a failure that the simulation injected says, so that any other one is a finding.
INJECTED = "a failure that the simulation injected"
