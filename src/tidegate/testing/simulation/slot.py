"""A slot of a simulated job: the production `SlotTasks`, called in an order that only the scheduler decides."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tidegate.coordinator.durable import GenerationBasis
from tidegate.model.clock import Clock
from tidegate.model.ids import Generation, SlotIndex
from tidegate.network.frames import DataFrame
from tidegate.network.messages import (
    AbortCheckpoint,
    AssignSplits,
    CheckpointDone,
    FromSlot,
    ToSlot,
    TriggerCheckpoint,
    decode_peer,
    decode_to_slot,
    encode,
)
from tidegate.operators.contract import UserCode
from tidegate.storage.store import Store
from tidegate.testing.simulation.world import LaneLink, SimBackground
from tidegate.worker.gate import Arrived
from tidegate.worker.links import LocalLink
from tidegate.worker.output import Link
from tidegate.worker.restoring import NOTHING_TO_RESTORE, restore_slot
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


class SimSlot:
    def __init__(
        self,
        index: SlotIndex,
        *,
        settings: SlotSettings,
        store: Store,
        clock: Clock,
        user_code: UserCode,
        slices: RandomSlices,
    ) -> None:
        self.index = index
        self.background = SimBackground()
        self.inbox: deque[bytes] = deque()
        self.outbox: deque[FromSlot] = deque()
        self._settings = settings
        self._store = store
        self._clock = clock
        self._user_code = user_code
        self._slices = slices
        self._generation = Generation(0)
        self._local: LocalLink | None = None
        self._incoming: Mapping[SlotIndex, LaneLink] = {}
        self.tasks: SlotTasks | None = None

    def deploy(
        self, basis: GenerationBasis, *, outgoing: Mapping[SlotIndex, LaneLink], incoming: Mapping[SlotIndex, LaneLink]
    ) -> None:
        """Lanes to and from every slot; without one to itself the slot uses the production link."""
        if self.tasks is not None:
            self.tasks.close()
        self._generation = basis.generation
        self._incoming = incoming
        path = basis.restore_manifest
        plan = self._settings.plan
        links: dict[SlotIndex, Link] = dict(outgoing)
        if self.index not in links:
            self._local = links[self.index] = LocalLink(self._deliver)
        self.tasks = SlotTasks(
            settings=self._settings,
            slot=self.index,
            generation=basis.generation,
            restore=NOTHING_TO_RESTORE if path is None else restore_slot(self._store, path, plan, self.index),
            links=links,
            store=self._store,
            background=self.background,
            clock=self._clock,
            user_code=self._user_code,
            send=self.outbox.append,
        )
        for task in self.tasks.tasks:
            task._sizer = self._slices

    def tell(self, message: ToSlot) -> None:
        self.inbox.append(encode(message))

    def actions(self, peers: list[SlotIndex]) -> list[Action]:
        """Everything this slot can do next."""
        vertices = self._settings.plan.vertices
        steps = [
            Action(self._step_of(position), EVEN_PACES if vertex.source is not None else SLOW_PACES)
            for position, vertex in enumerate(vertices)
        ]
        lanes = [lane for peer in peers for lane in (self._data_from(peer), self._control_from(peer))]
        work = [self.background.work_once, self.background.note_once]
        others = [*lanes, *work, self._read_inbox, self._send, self._encode]
        rare = [self._on_time, self._report]
        return steps + [Action(a, EVEN_PACES) for a in others] + [Action(a, RARE_PACES) for a in rare]

    # -- actions

    def _step_of(self, position: int) -> Callable[[], bool]:
        def step() -> bool:
            moved = self._running().tasks[position].step()
            self._after_step()
            return moved

        return step

    def _data_from(self, peer: SlotIndex) -> Callable[[], bool]:
        def receive() -> bool:
            link = self._incoming.get(peer)
            if link is None or not link.data:
                return False
            match link.data.popleft():
                case DataFrame() as frame:
                    self._running().on_frame(frame)
                case (channel, arrived):
                    self._running().on_element(channel, arrived)
            self._after_step()
            return True

        return receive

    def _control_from(self, peer: SlotIndex) -> Callable[[], bool]:
        def receive() -> bool:
            link = self._incoming.get(peer)
            if link is None or not link.control:
                return False
            self._running().on_peer_message(decode_peer(link.control.popleft()))
            self._after_step()
            return True

        return receive

    def _read_inbox(self) -> bool:
        if not self.inbox:
            return False
        tasks = self._running()
        match decode_to_slot(self.inbox.popleft()):
            case message if not hasattr(message, "generation") or message.generation != self._generation:
                return True  # of a generation that this slot has left
            case AssignSplits() as message:
                tasks.on_splits(message)
            case TriggerCheckpoint() as message:
                tasks.on_trigger(message)
            case AbortCheckpoint() as message:
                tasks.on_abort(message)
            case CheckpointDone() as message:
                tasks.on_done(message)
        self._after_step()
        return True

    def _send(self) -> bool:
        self._running().send_elements()
        self._after_step()
        return False

    def _on_time(self) -> bool:
        self._running().on_time()
        self._after_step()
        return False

    def _encode(self) -> bool:
        has_work = self._running().has_work()
        self._running().encode_some(self._clock.monotonic_ms())
        return has_work

    def _report(self) -> bool:
        self._running().report()
        return False

    # -- inside

    def _after_step(self) -> None:
        tasks = self._running()
        tasks.send_grants()
        while self._local is not None and self._local.messages:
            tasks.on_peer_message(self._local.messages.popleft())
        tasks.collect_held()

    def _deliver(self, channel: int, arrived: Arrived) -> None:
        self._running().on_element(channel, arrived)

    def _running(self) -> SlotTasks:
        assert self.tasks is not None, "deployed before anything is scheduled"
        return self.tasks
