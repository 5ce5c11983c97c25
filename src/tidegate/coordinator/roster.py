"""The slots that are connected: accepts them by the handshake, hears them, notices when one is gone."""

import selectors
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from tidegate.model.clock import Clock
from tidegate.model.ids import SlotIndex
from tidegate.network.address import Listener, SlotAddress
from tidegate.network.connection import ConnectionLost, ControlConnection, NothingIsRead
from tidegate.network.handshake_server import Accepted, Acceptor
from tidegate.network.messages import FromSlot, SlotIntroduction, ToSlot, decode_from_slot, encode
from tidegate.storage.decoding import from_msgpack
from tidegate.worker.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class SlotJoined:
    slot: SlotIndex
    introduction: SlotIntroduction


@dataclass(frozen=True, slots=True)
class SlotSaid:
    slot: SlotIndex
    message: FromSlot


@dataclass(frozen=True, slots=True)
class SlotGone:
    """`why`: if it did not go by itself."""

    slot: SlotIndex
    pid: int
    why: str | None = None


RosterEvent: TypeAlias = SlotJoined | SlotSaid | SlotGone


@dataclass(frozen=True, slots=True)
class _Member:
    introduction: SlotIntroduction
    connection: ControlConnection


class Roster:
    """Members belong to one launch; who introduces himself with another one is turned away."""

    def __init__(self, *, job: str, slots: int, secret: bytes, bind_host: str, clock: Clock, mailbox: Mailbox) -> None:
        self._job = job
        self._clock = clock
        self._launch = 0
        self._members: dict[SlotIndex, _Member] = {}
        self._given_up: list[SlotGone] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(mailbox.fileno(), selectors.EVENT_READ, mailbox)
        self._listener = Listener(bind_host=bind_host)
        own = msgspec.msgpack.encode(job)
        self._acceptors = [
            Acceptor(sock, secret, own, max_unauthenticated=64 + slots, clock=clock) for sock in self._listener.sockets
        ]
        for acceptor in self._acceptors:
            acceptor.register(self._selector)

    @property
    def port(self) -> int:
        return self._listener.addresses.tcp_port

    def expect_launch(self, launch: int) -> None:
        self.dismiss()
        self._given_up.clear()
        self._launch = launch

    def members(self) -> frozenset[SlotIndex]:
        return frozenset(self._members)

    def addresses(self) -> dict[SlotIndex, SlotAddress]:
        return {slot: member.introduction.address for slot, member in self._members.items()}

    def pids(self) -> tuple[int, ...]:
        return tuple(member.introduction.pid for _, member in sorted(self._members.items()))

    def tell(self, slot: SlotIndex, message: ToSlot) -> None:
        member = self._members.get(slot)
        if member is None:
            return
        try:
            member.connection.send(encode(message))  # a lost peer shows when it is read
        except NothingIsRead as error:
            # That is the end of its generation, not of the driver.
            self._drop(slot)
            self._given_up.append(SlotGone(slot, member.introduction.pid, why=str(error)))

    def tell_all(self, message: ToSlot) -> None:
        for slot in list(self._members):
            self.tell(slot, message)

    def poll(self, timeout_ms: float) -> list[RosterEvent]:
        events: list[RosterEvent] = list(self._given_up)
        self._given_up.clear()
        for key, _ in self._selector.select(0.0 if events else max(0.0, timeout_ms) / 1000):
            match key.data:
                case Acceptor() as acceptor:
                    events += self._join(acceptor.on_ready(key))
                case Mailbox():
                    continue  # the caller takes its notes
                case slot:
                    events += self._hear(slot)
        now_ms = self._clock.monotonic_ms()
        for acceptor in self._acceptors:
            acceptor.drop_expired(now_ms)
        self._flush()
        return events

    def dismiss(self) -> None:
        """Close all connections: who is still there notices and leaves."""
        for slot in list(self._members):
            self._drop(slot)

    def close(self) -> None:
        self.dismiss()
        for acceptor in self._acceptors:
            acceptor.close()
        self._selector.close()
        self._listener.close()

    def _join(self, accepted: Iterable[Accepted]) -> list[RosterEvent]:
        joined: list[RosterEvent] = []
        for peer in accepted:
            try:
                introduction = from_msgpack(peer.peer_introduction, SlotIntroduction)
            except msgspec.DecodeError:
                peer.sock.close()
                continue
            slot = introduction.slot
            if introduction.job != self._job or introduction.launch != self._launch or slot in self._members:
                peer.sock.close()
                continue
            connection = ControlConnection(peer.sock, peer=f"slot {slot}")
            self._members[slot] = _Member(introduction, connection)
            self._selector.register(connection.fileno(), selectors.EVENT_READ, slot)
            joined.append(SlotJoined(slot, introduction))
        return joined

    def _hear(self, slot: SlotIndex) -> list[RosterEvent]:
        member = self._members.get(slot)
        if member is None:
            return []
        try:
            return [SlotSaid(slot, decode_from_slot(data)) for data in member.connection.receive()]
        except ConnectionLost:
            self._drop(slot)
            return [SlotGone(slot, member.introduction.pid)]

    def _flush(self) -> None:
        for slot, member in list(self._members.items()):
            try:
                written = member.connection.flush()
            except ConnectionLost:
                continue  # it shows when it is read, after its last words
            events = selectors.EVENT_READ if written else selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(member.connection.fileno(), events, slot)

    def _drop(self, slot: SlotIndex) -> None:
        connection = self._members.pop(slot).connection
        self._selector.unregister(connection.fileno())
        connection.close()
