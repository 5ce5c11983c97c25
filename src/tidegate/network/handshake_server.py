"""Takes sockets through the handshake: many at once for a listener, one for who dials.

Owns sockets until their peer is known. It must never block for a stranger, nor hold more strangers than its limit.
"""

import errno
import secrets
import selectors
import socket
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import EnvironmentProblem, ProtocolViolation
from tidegate.network.connection import ConnectionLost
from tidegate.network.handshake import NONCE_BYTES, Established, Handshake, NeedMore, Refused, Role

# A peer of ours answers within a turn of its loop; who has not proved itself by then is a stranger.
HANDSHAKE_DEADLINE_MS = 5000
# Strangers held at once; beyond it the oldest goes, so that silent ones cannot keep others out.
MAX_UNAUTHENTICATED = 64
# A flood of connections must not take the loop for itself; the rest waits in the backlog.
_ACCEPTS_PER_TURN = 64

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE_BEFORE_ACCEPT = (
    errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN,
    errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Underway:
    """Waits for the socket."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The peer knows the secret and is who it says. Nothing after the handshake was read from its socket."""

    sock: socket.socket
    peer_introduction: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The peer closed, or the way to it is broken."""

    reason: str


Progress: TypeAlias = Underway | Accepted | Refused | Gone


class HandshakeExchange:
    """One socket on its way through the handshake; closing it is up to the owner."""

    def __init__(self, sock: socket.socket, role: Role, *, secret: bytes, introduction: bytes) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._handshake = Handshake(role, secret, introduction, secrets.token_bytes(NONCE_BYTES))
        self._outgoing = bytearray(self._handshake.start())
        self._peer_introduction: bytes | None = None
        self.received_bytes = 0

    @property
    def interest(self) -> int:
        """What to wait for, in the selector's words."""
        return selectors.EVENT_READ | selectors.EVENT_WRITE if self._outgoing else selectors.EVENT_READ

    def advance(self) -> Progress:
        """Goes as far as the socket lets it."""
        try:
            self._write()
            while self._peer_introduction is None:
                # Reads no further than the handshake: what follows stays in the kernel, where a selector sees it.
                data = self.sock.recv(self._handshake.wanted_bytes)
                if not data:
                    return Gone("it closed the connection during the handshake")
                self.received_bytes += len(data)
                match self._handshake.feed(data):
                    case NeedMore(send=send):
                        self._outgoing += send
                    case Established(send=send, peer_introduction=peer_introduction):
                        self._outgoing += send
                        self._peer_introduction = peer_introduction
                    case Refused() as refused:
                        return refused
                    case unreachable:
                        assert_never(unreachable)
                self._write()
        except BlockingIOError:
            return Underway()
        except OSError as error:
            return Gone(error.strerror or str(error))
        return Underway() if self._outgoing else Accepted(self.sock, self._peer_introduction)

    def _write(self) -> None:
        while self._outgoing:
            del self._outgoing[: self.sock.send(self._outgoing, getattr(socket, "MSG_NOSIGNAL", 0))]


@dataclass(frozen=True, slots=True)
class _Stranger:
    exchange: HandshakeExchange
    deadline_ms: float


class Acceptor:
    """Accepts on one listening socket inside somebody's selector loop.

    Every key it registers has `key.data is acceptor`; the loop hands such keys to `on_ready`. The listening socket
    stays its owner's.
    """

    def __init__(
        self,
        listener_sock: socket.socket,
        secret: bytes,
        introduction: bytes,
        *,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
        deadline_ms: float = HANDSHAKE_DEADLINE_MS,
        clock: Clock | None = None,
    ) -> None:
        listener_sock.setblocking(False)
        self._listener = listener_sock
        self._secret = secret
        self._introduction = introduction
        self._max_unauthenticated = max_unauthenticated
        self._deadline_ms = deadline_ms
        self._clock = clock or SystemClock()
        self._selector: selectors.BaseSelector | None = None
        # In the order of arrival, so the first is the oldest.
        self._strangers: dict[socket.socket, _Stranger] = {}

    @property
    def unauthenticated(self) -> int:
        return len(self._strangers)

    def register(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self)

    def on_ready(self, key: selectors.SelectorKey) -> list[Accepted]:
        """The peers that proved themselves; their sockets are no longer in the selector."""
        if key.fileobj is self._listener:
            return self._accept_waiting()
        # May have been dropped since the selector reported it.
        stranger = self._strangers.get(key.fileobj)  # type: ignore[call-overload]
        return [] if stranger is None else self._advance(stranger)

    def drop_expired(self, now_ms: float) -> None:
        for stranger in list(self._strangers.values()):
            if stranger.deadline_ms > now_ms:
                return
            self._drop(stranger)

    def close(self) -> None:
        """Drops every stranger and leaves the selector; whoever dials again finds the next acceptor."""
        for stranger in list(self._strangers.values()):
            self._drop(stranger)
        if self._selector is not None:
            self._selector.unregister(self._listener)
            self._selector = None

    def _accept_waiting(self) -> list[Accepted]:
        accepted: list[Accepted] = []
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _GONE_BEFORE_ACCEPT:
                    continue
                if error.errno in _OUT_OF_RESOURCES:
                    raise EnvironmentProblem(
                        f"Cannot accept a connection ({error.strerror}): raise the limit of open files (ulimit -n)."
                    ) from error
                raise
            accepted += self._admit(sock)
        return accepted

    def _admit(self, sock: socket.socket) -> list[Accepted]:
        if len(self._strangers) >= self._max_unauthenticated:
            self._drop(next(iter(self._strangers.values())))
        exchange = HandshakeExchange(sock, Role.ACCEPTOR, secret=self._secret, introduction=self._introduction)
        stranger = _Stranger(exchange, self._clock.monotonic_ms() + self._deadline_ms)
        self._strangers[sock] = stranger
        self._selector_in_use().register(sock, exchange.interest, self)
        return self._advance(stranger)

    def _advance(self, stranger: _Stranger) -> list[Accepted]:
        exchange = stranger.exchange
        match exchange.advance():
            case Underway():
                self._selector_in_use().modify(exchange.sock, exchange.interest, self)
                return []
            case Accepted() as accepted:
                self._forget(stranger)
                return [accepted]
            case Refused() | Gone():
                self._drop(stranger)
                return []
            case unreachable:
                assert_never(unreachable)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.exchange.sock.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._selector_in_use().unregister(stranger.exchange.sock)
        del self._strangers[stranger.exchange.sock]

    def _selector_in_use(self) -> selectors.BaseSelector:
        if self._selector is None:
            raise ProtocolViolation("An acceptor was used before register(): this is a bug in Tidegate.")
        return self._selector


def dial(
    address: tuple[str, int] | socket.socket,
    *,
    secret: bytes,
    introduction: bytes,
    timeout_ms: float,
    clock: Clock | None = None,
) -> tuple[socket.socket, bytes]:
    """Connects and proves itself, blocking; gives the non-blocking socket and the peer's introduction."""
    clock = clock or SystemClock()
    deadline_ms = clock.monotonic_ms() + timeout_ms
    sock, name = _connected(address, timeout_ms)
    try:
        exchange = HandshakeExchange(sock, Role.DIALER, secret=secret, introduction=introduction)
        with selectors.DefaultSelector() as selector:
            selector.register(sock, exchange.interest)
            return sock, _until_known(exchange, selector, name=name, deadline_ms=deadline_ms, clock=clock)
    except BaseException:
        sock.close()
        raise


def _connected(address: tuple[str, int] | socket.socket, timeout_ms: float) -> tuple[socket.socket, str]:
    if isinstance(address, socket.socket):
        return address, "the peer"
    name = f"{address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout=timeout_ms / 1000)
    except OSError as error:
        raise ConnectionLost(f"Cannot connect to {name} ({error}): see that it runs and can be reached.") from error
    # The greeting must not wait for more bytes to send along.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, name


def _until_known(
    exchange: HandshakeExchange, selector: selectors.BaseSelector, *, name: str, deadline_ms: float, clock: Clock
) -> bytes:
    while True:
        match exchange.advance():
            case Accepted(peer_introduction=peer_introduction):
                return peer_introduction
            case Refused(reason=reason):
                raise ProtocolViolation(f"The connection to {name} was refused: {reason.value}.")
            case Gone(reason=gone):
                raise ConnectionLost(f"The connection to {name} failed: {gone}; it may belong to another job.")
            case Underway():
                left_ms = deadline_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    raise ConnectionLost(f"No answer came from {name} in time: see that it runs and can be reached.")
                selector.modify(exchange.sock, exchange.interest)
                selector.select(left_ms / 1000)
            case unreachable:
                assert_never(unreachable)
