"""Connects every slot of one generation with every other: one control and one data connection per pair.

Slot i dials every j < i and accepts from every j > i. Both sides see both introductions before either keeps the
connection, so they always judge alike; who was turned away, for example because the other side still runs the
generation before, dials again. It must never block beyond its timeout, nor keep a connection of another job or
generation.
"""

import enum
import selectors
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import Generation, SlotIndex
from tidegate.network.address import Listener, Route, SlotAddress, begin_connect, routes
from tidegate.network.connection import ControlConnection, DataConnection
from tidegate.network.handshake import Refused, Role
from tidegate.network.handshake_server import (
    HANDSHAKE_DEADLINE_MS,
    MAX_UNAUTHENTICATED,
    Accepted,
    Acceptor,
    Gone,
    HandshakeExchange,
    Underway,
)
from tidegate.storage.decoding import from_msgpack

# Soon enough to be unnoticed in a restart, seldom enough to cost a busy peer nothing.
REDIAL_DELAY_MS = 50


class Lane(enum.Enum):
    CONTROL = "control"
    DATA = "data"


class ListenIntroduction(msgspec.Struct, frozen=True, kw_only=True, tag="listen"):
    job_id: str
    generation: int
    slot: int


class DialIntroduction(msgspec.Struct, frozen=True, kw_only=True, tag="dial"):
    job_id: str
    generation: int
    slot: int
    target: int
    lane: Lane


@dataclass(frozen=True, slots=True)
class PeerLinks:
    control: ControlConnection
    data: DataConnection


@dataclass(slots=True)
class _Dial:
    """One connection that is ours to make, until it is made."""

    peer: SlotIndex
    lane: Lane
    due_ms: float
    trouble: str = "has not answered yet"
    routes_left: list[Route] = field(default_factory=list)
    exchange: HandshakeExchange | None = None
    deadline_ms: float = 0


class Mesh:
    """Building site of one generation's connections; `step` until it says True, then `take`."""

    def __init__(
        self,
        own: SlotIndex,
        peers: Mapping[SlotIndex, SlotAddress],
        listener: Listener,
        secret: bytes,
        job_id: str,
        generation: Generation,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._own = own
        self._peers = {slot: address for slot, address in peers.items() if slot != own}
        self._own_host_id = listener.addresses.host_id
        self._secret = secret
        self._job_id = job_id
        self._generation = generation
        self._clock = clock or SystemClock()
        self._selector = selectors.DefaultSelector()
        self._made: dict[tuple[SlotIndex, Lane], socket.socket] = {}
        now_ms = self._clock.monotonic_ms()
        self._dials = [_Dial(peer, lane, now_ms) for peer in sorted(self._peers) if peer < own for lane in Lane]
        self._acceptors = self._start_acceptors(listener)
        self._taken = False

    @property
    def complete(self) -> bool:
        return len(self._made) == len(self._peers) * len(Lane)

    def step(self, timeout_ms: float) -> bool:
        """Waits at most that long for something to do, does it, and says whether every connection is there."""
        if self.complete:
            return True
        self._begin_due_dials()
        for key, _ in self._selector.select(self._wait_ms(timeout_ms) / 1000):
            match key.data:
                case Acceptor() as acceptor:
                    for accepted in acceptor.on_ready(key):
                        self._welcome(accepted)
                case _Dial() as dial:
                    self._advance(dial)
        self._drop_expired()
        if self.complete:
            # What arrives from now on belongs to a later generation: the backlog keeps it for that one.
            self._leave_listener()
        return self.complete

    def waiting_for(self) -> str:
        """Which connections are missing and why, for the error of who ran out of patience."""
        dialled = [f"slot {dial.peer} ({dial.lane.value}): {dial.trouble}" for dial in self._dials]
        awaited = [
            f"slot {peer} ({lane.value}): has not connected"
            for peer in sorted(self._peers)
            for lane in Lane
            if peer > self._own and (peer, lane) not in self._made
        ]
        return "; ".join(dialled + awaited)

    def take(self) -> Mapping[SlotIndex, PeerLinks]:
        """Hands over the connections; they are the caller's from now on."""
        if not self.complete or self._taken:
            raise ProtocolViolation("A mesh can be taken once, when step() said True: this is a bug in Tidegate.")
        self._taken = True
        self._selector.close()
        return {
            peer: PeerLinks(
                control=ControlConnection(self._made[peer, Lane.CONTROL], peer=f"slot {peer}"),
                data=DataConnection(self._made[peer, Lane.DATA], peer=f"slot {peer}"),
            )
            for peer in sorted(self._peers)
        }

    def close(self) -> None:
        """Ends the building; closes what was not taken. The listener stays open for the next generation."""
        self._leave_listener()
        for dial in self._dials:
            self._abandon(dial)
        if not self._taken:
            for sock in self._made.values():
                sock.close()
        self._selector.close()

    def _start_acceptors(self, listener: Listener) -> list[Acceptor]:
        awaited = sum(len(Lane) for peer in self._peers if peer > self._own)
        if not awaited:
            return []
        own = ListenIntroduction(job_id=self._job_id, generation=self._generation, slot=self._own)
        acceptors = [
            # All awaited peers may be half-way at once and must not push each other out.
            Acceptor(
                sock,
                self._secret,
                msgspec.msgpack.encode(own),
                max_unauthenticated=MAX_UNAUTHENTICATED + awaited,
                clock=self._clock,
            )
            for sock in listener.sockets
        ]
        for acceptor in acceptors:
            acceptor.register(self._selector)
        return acceptors

    def _leave_listener(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []

    def _welcome(self, accepted: Accepted) -> None:
        try:
            dialer = from_msgpack(accepted.peer_introduction, DialIntroduction)
        except msgspec.DecodeError:
            accepted.sock.close()
            return
        peer = SlotIndex(dialer.slot)
        fits = (
            self._other_run(dialer.job_id, dialer.generation) is None
            and dialer.target == self._own
            and peer in self._peers
            and peer > self._own
        )
        if not fits:
            accepted.sock.close()
            return
        # Who dials again has given up its former connection.
        former = self._made.pop((peer, dialer.lane), None)
        if former is not None:
            former.close()
        self._made[peer, dialer.lane] = accepted.sock

    def _begin_due_dials(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for dial in self._dials:
            if dial.exchange is None and dial.due_ms <= now_ms:
                self._begin(dial, now_ms)

    def _begin(self, dial: _Dial, now_ms: float) -> None:
        try:
            if not dial.routes_left:
                dial.routes_left = routes(self._peers[dial.peer], own_host_id=self._own_host_id)
            sock = begin_connect(dial.routes_left[0])
        except OSError as error:
            self._try_next_way(dial, error.strerror or str(error))
            return
        own = DialIntroduction(
            job_id=self._job_id, generation=self._generation, slot=self._own, target=dial.peer, lane=dial.lane
        )
        dial.exchange = HandshakeExchange(
            sock, Role.DIALER, secret=self._secret, introduction=msgspec.msgpack.encode(own)
        )
        dial.deadline_ms = now_ms + HANDSHAKE_DEADLINE_MS
        self._selector.register(sock, dial.exchange.interest, dial)

    def _advance(self, dial: _Dial) -> None:
        exchange = dial.exchange
        if exchange is None:
            return
        before_bytes = exchange.received_bytes
        match exchange.advance():
            case Underway():
                self._selector.modify(exchange.sock, exchange.interest, dial)
                if exchange.received_bytes > before_bytes:
                    # An answering peer may already count us in: giving up now would leave it with a dead connection.
                    dial.deadline_ms = self._clock.monotonic_ms() + HANDSHAKE_DEADLINE_MS
            case Accepted() as accepted:
                self._on_answer(dial, accepted)
            case Refused(reason=reason):
                self._try_next_way(dial, reason.value)
            case Gone(reason=gone):
                self._on_silence(dial, exchange, gone)
            case unreachable:
                assert_never(unreachable)

    def _on_answer(self, dial: _Dial, accepted: Accepted) -> None:
        try:
            listener = from_msgpack(accepted.peer_introduction, ListenIntroduction)
        except msgspec.DecodeError:
            self._try_next_way(dial, "something of this job that is no slot answered")
            return
        trouble = self._other_run(listener.job_id, listener.generation)
        if trouble is not None:
            self._try_again(dial, trouble)
            return
        if listener.slot != dial.peer:
            self._try_next_way(dial, f"slot {listener.slot} answered instead")
            return
        self._selector.unregister(accepted.sock)
        dial.exchange = None
        self._dials.remove(dial)
        self._made[dial.peer, dial.lane] = accepted.sock

    def _on_silence(self, dial: _Dial, exchange: HandshakeExchange, trouble: str) -> None:
        if _is_connected(exchange.sock):
            self._try_again(dial, trouble)
        else:
            self._try_next_way(dial, trouble)

    def _other_run(self, job_id: str, generation: int) -> str | None:
        if job_id != self._job_id:
            return f"belongs to job {job_id}, not to {self._job_id}"
        if generation != self._generation:
            return f"is in generation {generation}, not in {self._generation}"
        return None

    def _try_next_way(self, dial: _Dial, trouble: str) -> None:
        """This way did not lead to the peer: goes the next one at once, or all of them again after a pause."""
        self._abandon(dial)
        way = f" by {dial.routes_left.pop(0)}" if dial.routes_left else ""
        dial.trouble = trouble + way
        dial.due_ms = self._clock.monotonic_ms() + (0 if dial.routes_left else REDIAL_DELAY_MS)

    def _try_again(self, dial: _Dial, trouble: str) -> None:
        """The peer is there but not ready for us: goes the best way again after a pause."""
        self._abandon(dial)
        dial.routes_left = []
        dial.trouble = trouble
        dial.due_ms = self._clock.monotonic_ms() + REDIAL_DELAY_MS

    def _abandon(self, dial: _Dial) -> None:
        if dial.exchange is not None:
            self._selector.unregister(dial.exchange.sock)
            dial.exchange.sock.close()
            dial.exchange = None

    def _drop_expired(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for acceptor in self._acceptors:
            acceptor.drop_expired(now_ms)
        for dial in self._dials:
            if dial.exchange is not None and dial.deadline_ms <= now_ms:
                self._on_silence(dial, dial.exchange, "did not answer in time")

    def _wait_ms(self, timeout_ms: float) -> float:
        now_ms = self._clock.monotonic_ms()
        alarms_ms = [dial.due_ms if dial.exchange is None else dial.deadline_ms for dial in self._dials]
        return max(0.0, min([timeout_ms, *(alarm_ms - now_ms for alarm_ms in alarms_ms)]))


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
