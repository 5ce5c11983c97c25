"""A slot from its first word to the coordinator until it is told to leave. Runs in a Spark task, or in any process."""

import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from tidegate.model.clock import SystemClock
from tidegate.model.errors import Damaged, Missing, SlotLost, TidegateError, UserCodeFailure, UserError
from tidegate.model.ids import SlotIndex
from tidegate.network.address import Listener
from tidegate.network.connection import ConnectionLost, ControlConnection
from tidegate.network.handshake_server import dial
from tidegate.network.mesh import Mesh, PeerLinks
from tidegate.network.messages import (
    Deploy,
    Failed,
    FromSlot,
    Ready,
    SlotIntroduction,
    decode_to_slot,
    encode,
)
from tidegate.operators.contract import UserCode
from tidegate.storage.store import Store, open_place, open_shared
from tidegate.worker.freed_memory import keep_freed_memory
from tidegate.worker.heard import Heard, Over
from tidegate.worker.local_copies import open_local_copies
from tidegate.worker.machine_memory import machine_memory_bytes
from tidegate.worker.mailbox import BackgroundThread, Mailbox
from tidegate.worker.session import SlotSession, restore_for
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slot import SlotRun, close_links
from tidegate.worker.state_backends import local_folder
from tidegate.worker.waiting_calls import open_waiting_calls

log = logging.getLogger("tidegate")

_DIAL_TIMEOUT_MS = 15_000.0
_MESH_TIMEOUT_MS = 15_000.0
# Time for the coordinator to learn by itself why a peer is gone, and to act on it.
_LOST_PEER_GRACE_MS = 1_000.0
# With the default of 5 ms a helper thread beside a busy loop costs up to two switches, 10 ms, a hop.
_SWITCH_INTERVAL_S = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """All a slot must know to come up; the same for every slot of a launch."""

    job: str
    launch: int
    coordinator_host: str
    coordinator_port: int
    secret: bytes
    settings: SlotSettings
    bind_host: str
    advertised_host: str | None
    ports: str
    versions: Mapping[str, str]


def run_slot(order: SlotOrder, slot: SlotIndex, user_code: UserCode) -> None:
    """Serves until the coordinator says leave or is gone. Leaves no thread or socket behind, and of what it sets for
    the process only how much freed memory is kept.
    """
    keep_freed_memory()
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        # One that cannot connect fails its Spark task, which is how the driver learns of it.
        serving = _Slot(order, slot, user_code)
        try:
            serving.serve()
        except ConnectionLost:
            return  # the driver is gone, and with it everybody who could be told
    finally:
        sys.setswitchinterval(switch_interval_s)


class _Slot:
    def __init__(self, order: SlotOrder, slot: SlotIndex, user_code: UserCode) -> None:
        self._order = order
        self._slot = slot
        self._user_code = user_code
        self._clock = SystemClock()
        self._store = open_shared(order.settings.checkpoint_location, order.settings.access)
        self._listener = Listener(bind_host=order.bind_host, advertised_host=order.advertised_host, ports=order.ports)
        settings = order.settings
        self._copies = open_local_copies(
            settings.local_recovery,
            settings.checkpoint_location,
            folder=local_folder(),
            slot=slot,
            slots=settings.plan.parallelism,
            least_bytes=settings.inline_below_bytes,
        )
        self._coordinator = self._dial_coordinator()
        self._mailbox = Mailbox()
        self._background = BackgroundThread(self._mailbox, name=f"tidegate-upload-{slot}")
        self._mesh: Mesh | None = None
        self._mesh_deadline_ms = 0.0
        self._heard = Heard()
        self._session = SlotSession(begin=self._begin, on_error=self._report_failure)
        self._peers: Mapping[SlotIndex, PeerLinks] = {}  # until tasks have them
        self._run: SlotRun | None = None
        self._lost_peer: ConnectionLost | None = None
        self._lost_peer_due_ms = 0.0

    def serve(self) -> None:
        try:
            while not self._session.has_left:
                self._turn()
        finally:
            try:
                self._tear_down()
            finally:
                self._background.close()
                if self._copies is not None and self._session.has_left and not self._session.comes_back:
                    self._copies.discard()
                self._mailbox.close()
                self._coordinator.close()
                self._listener.close()

    def _turn(self) -> None:
        try:
            if self._mesh is not None:
                self._build_mesh(self._mesh)
            elif self._run is not None and self._session.is_running:
                own_fds = [self._coordinator.fileno(), self._mailbox.fileno()]
                self._run.turn(own_fds)
            else:
                self._wait()
            for note in self._mailbox.take():
                note()
            self._report_lost_peer_if_due()
        except ConnectionLost as error:
            self._tear_down_what_failed()
            self._lost_peer = error
            self._lost_peer_due_ms = self._clock.monotonic_ms() + _LOST_PEER_GRACE_MS
        except KeyboardInterrupt:
            raise  # somebody ends the process
        except BaseException as error:  # sys.exit and a panic of native code too: not to end without a word
            self._report_failure(error)
        # Outside: a lost coordinator ends the slot, it is not a failure of the job.
        self._coordinator.flush()
        self._listen(self._session.on_over)
        while (message := self._heard.next()) is not None:
            self._session.on_message(message)
            # That may have taken long.
            self._listen(self._session.on_over)

    def _listen(self, on_over: Callable[[Over], None]) -> None:
        for data in self._coordinator.receive():
            over = self._heard.add(decode_to_slot(data))
            if over is not None:
                on_over(over)

    def _listen_amid_turn(self) -> bool:
        with suppress(ConnectionLost):  # shows again at the end of the turn
            self._listen(self._on_over_amid_turn)
        return self._heard.is_any()

    def _on_over_amid_turn(self, over: Over) -> None:
        """What it raises fails the turn, as anything else in it."""
        if self._run is not None and over.abort.generation == self._session.generation:
            if over.unbegun is not None:
                self._run.note_unbegun(over.unbegun)
            self._run.on_abort(over.abort)

    def _report_lost_peer_if_due(self) -> None:
        """A peer that fails closes its connections: the coordinator must hear the reason before it hears of these."""
        if self._lost_peer is not None and self._clock.monotonic_ms() >= self._lost_peer_due_ms:
            error, self._lost_peer = self._lost_peer, None
            raise SlotLost(str(error)) from error

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._coordinator.fileno(), select.POLLIN)
        poll.register(self._mailbox.fileno(), select.POLLIN)
        poll.poll(100)

    def _begin(self, deploy: Deploy) -> None:
        self._tear_down()
        self._lost_peer = None
        self._mesh = Mesh(
            self._slot, deploy.peers, self._listener, self._order.secret, self._order.job, deploy.generation
        )
        self._mesh_deadline_ms = self._clock.monotonic_ms() + _MESH_TIMEOUT_MS

    def _build_mesh(self, mesh: Mesh) -> None:
        if not mesh.step(20.0):
            if self._clock.monotonic_ms() > self._mesh_deadline_ms:
                raise SlotLost(f"Slot {self._slot} could not connect to its peers: {mesh.waiting_for()}.")
            return
        deploy = self._session.deploy
        assert deploy is not None
        self._peers = peers = mesh.take()
        mesh.close()
        self._mesh = None
        plan = self._order.settings.plan
        restore = restore_for(deploy, self._store, self._open_location, plan, self._slot, copies=self._copies)
        self._run = SlotRun(
            settings=self._order.settings,
            slot=self._slot,
            generation=deploy.generation,
            peers=peers,
            restore=restore,
            store=self._store,
            open_location=self._open_location,
            background=self._background,
            clock=self._clock,
            user_code=self._user_code,
            open_calls=partial(open_waiting_calls, self._mailbox),
            wake=self._mailbox.wake,
            send=self._send,
            listen=self._listen_amid_turn,
            copies=self._copies,
        )
        self._peers = {}
        self._session.on_built(self._run)
        self._send(
            Ready(
                deploy.generation,
                restore.recovered_bytes,
                list(restore.dropped),
                local_bytes=restore.reads.locally,
                remote_bytes=restore.reads.remotely,
                damaged_copies=restore.reads.damaged_copies,
            )
        )

    def _open_location(self, location: str) -> Store:
        return open_place(location, self._order.settings.access)

    def _send(self, message: FromSlot) -> None:
        self._coordinator.send(encode(message))

    def _report_failure(self, error: BaseException) -> None:
        # What is missing here may be there for others: the driver looks for itself before it goes back behind it.
        is_damage = isinstance(error, Damaged) and not isinstance(error, Missing)
        # Before the connections to the peers are closed, which they will report as well.
        self._send(
            Failed(
                self._session.generation,
                is_user_code=isinstance(error, UserCodeFailure),
                is_final=isinstance(error, UserError) or is_damage,
                message=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
                is_damage=is_damage,
            )
        )
        self._tear_down_what_failed()

    def _tear_down(self) -> None:
        self._session.on_torn_down()
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None
        close_links(self._peers)  # of tasks that could not be built
        self._peers = {}
        if self._run is not None:
            run, self._run = self._run, None
            run.close()

    def _tear_down_what_failed(self) -> None:
        """What user code raises when it is closed is not what went wrong, and the slot is needed for the next try."""
        try:
            self._tear_down()
        except Exception:
            log.exception("Slot %d: a task that has failed could not be closed", self._slot)

    def _dial_coordinator(self) -> ControlConnection:
        order = self._order
        introduction = SlotIntroduction(
            job=order.job,
            launch=order.launch,
            slot=self._slot,
            pid=os.getpid(),
            address=self._listener.addresses,
            versions=dict(order.versions),
            memory_bytes=machine_memory_bytes(),
        )
        sock, _ = dial(
            (order.coordinator_host, order.coordinator_port),
            secret=order.secret,
            introduction=msgspec.msgpack.encode(introduction),
            timeout_ms=_DIAL_TIMEOUT_MS,
        )
        return ControlConnection(sock, peer="the coordinator")
