"""An acceptor inside a selector loop, and who dials it; strangers come and go."""

import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tidegate.model.errors import ProtocolViolation
from tidegate.network.connection import ConnectionLost, ControlConnection
from tidegate.network.handshake_server import Accepted, Acceptor, dial
from tidegate.testing.manual_clock import ManualClock

SECRET = b"s" * 32


class Loop:
    """A listening socket, its acceptor, and the loop around them."""

    def __init__(self, max_unauthenticated: int = 8) -> None:
        self.clock = ManualClock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.selector = selectors.DefaultSelector()
        self.acceptor = Acceptor(
            self.listener,
            SECRET,
            b"the driver",
            max_unauthenticated=max_unauthenticated,
            deadline_ms=5000,
            clock=self.clock,
        )
        self.acceptor.register(self.selector)

    def turn(self, timeout_s: float = 0.2) -> list[Accepted]:
        accepted: list[Accepted] = []
        for key, _ in self.selector.select(timeout_s):
            assert key.data is self.acceptor
            accepted += self.acceptor.on_ready(key)
        return accepted

    def until_accepted(self) -> Accepted:
        for _ in range(100):
            if accepted := self.turn():
                return accepted[0]
        raise AssertionError("nobody was accepted")

    def close(self) -> None:
        self.acceptor.close()
        self.listener.close()
        self.selector.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def dial_aside(pool: ThreadPoolExecutor, loop: Loop, secret: bytes = SECRET) -> Future[tuple[socket.socket, bytes]]:
    return pool.submit(dial, loop.address, secret=secret, introduction=b"slot 4", timeout_ms=5000)


def closed_by_peer(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def closed_without_a_word(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        return sock.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_a_slot_and_the_driver_find_each_other(loop: Loop):
    with ThreadPoolExecutor(1) as pool:
        dialled = dial_aside(pool, loop)
        accepted = loop.until_accepted()
        sock, driver = dialled.result(5)
    assert accepted.peer_introduction == b"slot 4"
    assert driver == b"the driver"
    assert not sock.getblocking()
    assert loop.acceptor.unauthenticated == 0
    assert list(loop.selector.get_map()) == [loop.listener.fileno()]
    with sock, accepted.sock:
        ControlConnection(sock, peer="the driver").send(b"ready")
        at_driver = ControlConnection(accepted.sock, peer="slot 4")
        selectors_wait(at_driver)
        assert at_driver.receive() == [b"ready"]


def selectors_wait(connection: ControlConnection) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        assert selector.select(5)


def test_a_message_sent_right_behind_the_handshake_still_wakes_the_selector(loop: Loop):
    with ThreadPoolExecutor(1) as pool:
        dialled = dial_aside(pool, loop)
        accepted = loop.until_accepted()
        # Sent before the dialer has read the end of the handshake, perhaps in the same segment.
        ControlConnection(accepted.sock, peer="slot 4").send(b"deploy")
        sock, _ = dialled.result(5)
    with sock, accepted.sock:
        control = ControlConnection(sock, peer="the driver")
        selectors_wait(control)
        assert control.receive() == [b"deploy"]


def test_a_dialer_with_a_wrong_secret_is_dropped(loop: Loop):
    with ThreadPoolExecutor(1) as pool:
        dialled = dial_aside(pool, loop, secret=b"x" * 32)
        while not dialled.done():
            assert loop.turn(0.05) == []
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:\d+ failed.*another job"):
            dialled.result()
    assert loop.acceptor.unauthenticated == 0


def test_garbage_is_dropped_without_a_word(loop: Loop):
    with socket.create_connection(loop.address) as stranger:
        loop.turn()
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert loop.turn() == []
        assert loop.acceptor.unauthenticated == 0
        assert closed_without_a_word(stranger)


def test_a_silent_stranger_is_dropped_at_its_deadline_and_not_before(loop: Loop):
    with socket.create_connection(loop.address) as stranger:
        loop.turn()
        assert loop.acceptor.unauthenticated == 1
        loop.acceptor.drop_expired(4999)
        assert loop.acceptor.unauthenticated == 1
        loop.acceptor.drop_expired(5000)
        assert loop.acceptor.unauthenticated == 0
        assert closed_without_a_word(stranger)


def test_a_stranger_that_drips_bytes_does_not_move_its_deadline(loop: Loop):
    with socket.create_connection(loop.address) as stranger:
        loop.turn()
        for byte in (b"T", b"G", b"H"):
            loop.clock.advance(1600)
            stranger.sendall(byte)
            loop.turn()
        assert loop.acceptor.unauthenticated == 1
        loop.acceptor.drop_expired(5000)
        assert loop.acceptor.unauthenticated == 0


def test_more_silent_strangers_than_allowed_push_out_the_oldest_and_a_peer_still_gets_in(loop: Loop):
    strangers = [socket.create_connection(loop.address) for _ in range(20)]
    while loop.turn(0.05) or loop.selector.select(0):
        pass
    assert loop.acceptor.unauthenticated == 8
    assert closed_by_peer(strangers[0])
    with ThreadPoolExecutor(1) as pool:
        dialled = dial_aside(pool, loop)
        accepted = loop.until_accepted()
        dialled.result(5)[0].close()
    assert accepted.peer_introduction == b"slot 4"
    accepted.sock.close()
    for stranger in strangers:
        stranger.close()


def test_a_stranger_that_closes_is_forgotten(loop: Loop):
    socket.create_connection(loop.address).close()
    loop.turn()
    loop.turn(0.05)
    assert loop.acceptor.unauthenticated == 0


def test_closing_an_acceptor_drops_the_strangers_and_leaves_the_listener_to_its_owner(loop: Loop):
    with socket.create_connection(loop.address) as stranger:
        loop.turn()
        loop.acceptor.close()
        assert closed_by_peer(stranger)
    assert len(loop.selector.get_map()) == 0
    assert loop.listener.fileno() >= 0


def test_dialling_where_nobody_listens_says_so():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost, match=r"Cannot connect to 127\.0\.0\.1"):
            dial(reserved.getsockname(), secret=SECRET, introduction=b"", timeout_ms=500)


def test_dialling_somebody_silent_ends_at_the_deadline():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ConnectionLost, match="No answer came"),
    ):
        dial(silent.getsockname(), secret=SECRET, introduction=b"", timeout_ms=100)


def test_dialling_somebody_who_speaks_something_else_is_refused():
    one, other = socket.socketpair()
    speaker = threading.Thread(target=other.sendall, args=(b"SSH-2.0-OpenSSH\r\n",))
    speaker.start()
    with pytest.raises(ProtocolViolation, match="does not speak this protocol"):
        dial(one, secret=SECRET, introduction=b"", timeout_ms=2000)
    speaker.join()
    other.close()
    assert one.fileno() == -1
