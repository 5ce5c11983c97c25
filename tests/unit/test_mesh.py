"""Slots of one generation connect to one another, whoever else knocks, and nobody else gets in."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections import abc
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tidegate.model.clock import Clock
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, Sequence, SlotIndex
from tidegate.network import mesh as mesh_module
from tidegate.network.address import Listener, Route, SlotAddress, begin_connect, connect
from tidegate.network.frames import DataHeader, FrameKind
from tidegate.network.handshake_server import HANDSHAKE_DEADLINE_MS, dial
from tidegate.network.mesh import DialIntroduction, Lane, Mesh, PeerLinks
from tidegate.testing.manual_clock import ManualClock

SECRET = b"s" * 32
JOB = "job-1"
DEADLINE_S = 60.0
Links = Mapping[SlotIndex, PeerLinks]


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


class Site:
    """Listeners of some slots, and meshes built over them."""

    def __init__(self, slots: int, cleanup: contextlib.ExitStack) -> None:
        self.cleanup = cleanup
        self.listeners = [Listener(bind_host="127.0.0.1") for _ in range(slots)]
        self.addresses = {SlotIndex(slot): listener.addresses for slot, listener in enumerate(self.listeners)}
        for listener in self.listeners:
            cleanup.callback(listener.close)

    def mesh(
        self,
        slot: int,
        *,
        generation: int = 1,
        secret: bytes = SECRET,
        job_id: str = JOB,
        addresses: Mapping[SlotIndex, SlotAddress] | None = None,
        clock: Clock | None = None,
    ) -> Mesh:
        mesh = Mesh(
            SlotIndex(slot),
            addresses or self.addresses,
            self.listeners[slot],
            secret,
            job_id,
            Generation(generation),
            clock=clock,
        )
        self.cleanup.callback(mesh.close)
        return mesh

    def take(self, mesh: Mesh) -> Links:
        links = mesh.take()
        for peer in links.values():
            self.cleanup.callback(peer.control.close)
            self.cleanup.callback(peer.data.close)
        return links


def build(*meshes: Mesh, within_s: float = DEADLINE_S) -> None:
    """Steps all in one thread, so that each moves only as far as the others let it."""
    give_up_s = time.monotonic() + within_s
    while not all(step_each(meshes)):
        assert time.monotonic() < give_up_s, "; ".join(mesh.waiting_for() for mesh in meshes)


def step_each(meshes: abc.Sequence[Mesh]) -> list[bool]:
    return [mesh.step(5) for mesh in meshes]


def stays_incomplete(*meshes: Mesh, for_s: float = 0.3) -> None:
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        assert not any(step_each(meshes))


def check_that_all_hear_each_other(everyone: Mapping[int, Links]) -> None:
    header = DataHeader(FrameKind.BATCH, channel=0, sequence=Sequence(0), epoch=CheckpointId(0))
    for own, links in everyone.items():
        for peer, link in links.items():
            link.control.send(f"control {own} to {peer}".encode())
            link.data.send(header, f"data {own} to {peer}".encode())
            assert link.data.flush()
    for own, links in everyone.items():
        for peer, link in links.items():
            assert eventually(link.control.receive) == [f"control {peer} to {own}".encode()]
            (frame,) = eventually(lambda link=link: link.data.receive(1000))
            assert frame.payload.to_pybytes() == f"data {peer} to {own}".encode()


def eventually(receive):
    give_up_s = time.monotonic() + DEADLINE_S
    while not (received := receive()):
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    return received


def test_three_slots_in_threads_find_each_other(cleanup: contextlib.ExitStack):
    site = Site(3, cleanup)

    def run(slot: int) -> Links:
        mesh = site.mesh(slot)
        build(mesh)
        return site.take(mesh)

    with ThreadPoolExecutor(3) as pool:
        everyone = dict(enumerate(pool.map(run, range(3))))
    assert [sorted(links) for links in everyone.values()] == [[1, 2], [0, 2], [0, 1]]
    check_that_all_hear_each_other(everyone)


def test_slots_of_different_hosts_meet_by_tcp(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    abroad = {slot: msgspec.structs.replace(address, host_id="far") for slot, address in site.addresses.items()}
    meshes = [site.mesh(slot, addresses=abroad) for slot in range(2)]
    build(*meshes)
    everyone = {slot: site.take(mesh) for slot, mesh in enumerate(meshes)}
    assert family_of(everyone[1][SlotIndex(0)]) == socket.AF_INET
    check_that_all_hear_each_other(everyone)


def family_of(links: PeerLinks) -> int:
    with socket.socket(fileno=socket.dup(links.data.fileno())) as sock:
        return sock.family


def test_one_slot_is_complete_at_once(cleanup: contextlib.ExitStack):
    site = Site(1, cleanup)
    mesh = site.mesh(0)
    assert mesh.step(10_000)
    assert mesh.take() == {}


def test_a_mesh_is_taken_once_and_only_when_complete(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    meshes = [site.mesh(slot) for slot in range(2)]
    with pytest.raises(ProtocolViolation):
        meshes[0].take()
    build(*meshes)
    site.take(meshes[0])
    with pytest.raises(ProtocolViolation):
        meshes[0].take()


def test_strangers_that_are_silent_or_send_garbage_do_not_stall_the_mesh(cleanup: contextlib.ExitStack):
    site = Site(3, cleanup)
    strangers = [connect(site.addresses[SlotIndex(slot)], "far") for slot in (0, 1) for _ in range(100)]
    strangers += [connect(site.addresses[SlotIndex(0)], site.addresses[SlotIndex(0)].host_id) for _ in range(100)]
    for position, stranger in enumerate(strangers):
        cleanup.callback(stranger.close)
        if position % 3 == 1:
            stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        if position % 3 == 2:
            stranger.send(b"TGHS\x01")
    # The time that a silent stranger is allowed never ends.
    meshes = [site.mesh(slot, clock=ManualClock()) for slot in range(3)]
    build(*meshes)
    check_that_all_hear_each_other({slot: site.take(mesh) for slot, mesh in enumerate(meshes)})


def test_a_silent_stranger_is_shown_the_door_at_its_deadline_while_the_mesh_still_waits(cleanup: contextlib.ExitStack):
    site, clock = Site(2, cleanup), ManualClock()
    mesh = site.mesh(0, clock=clock)
    address = site.addresses[SlotIndex(0)]
    strangers = [connect(address, "far"), connect(address, address.host_id)]
    for stranger in strangers:
        cleanup.callback(stranger.close)
        stranger.setblocking(False)
    stays_incomplete(mesh, for_s=0.05)
    clock.advance(HANDSHAKE_DEADLINE_MS - 1)
    stays_incomplete(mesh, for_s=0.05)
    assert not any(is_closed(stranger) for stranger in strangers)
    clock.advance(1)
    stays_incomplete(mesh, for_s=0.05)
    assert all(is_closed(stranger) for stranger in strangers)


def test_a_stranger_listening_at_a_peers_address_is_never_taken_for_the_peer(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    impostor = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))

    def echo() -> None:
        # Sends every word back, until the dialer had enough of it.
        with contextlib.suppress(OSError):
            while True:
                sock, _ = impostor.accept()
                with sock:
                    while data := sock.recv(4096):
                        sock.sendall(data)

    echoing = threading.Thread(target=echo, daemon=True)
    echoing.start()
    address = msgspec.structs.replace(
        site.addresses[SlotIndex(0)], host_id="far", tcp_port=impostor.getsockname()[1], unix_name=None
    )
    mesh = site.mesh(1, addresses={SlotIndex(0): address})
    stays_incomplete(mesh)
    assert "sent our own words back" in mesh.waiting_for()
    impostor.shutdown(socket.SHUT_RDWR)
    echoing.join(5)


def test_a_wrong_secret_never_gets_in(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    ours, theirs = site.mesh(0), site.mesh(1, secret=b"x" * 32)
    stays_incomplete(ours, theirs)
    assert "slot 0 (control)" in theirs.waiting_for()
    assert "slot 1 (data): has not connected" in ours.waiting_for()
    theirs.close()
    right = site.mesh(1)
    build(ours, right)


def test_another_job_never_gets_in(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    ours, theirs = site.mesh(0), site.mesh(1, job_id="job-2")
    stays_incomplete(ours, theirs)
    assert "belongs to job job-1" in theirs.waiting_for()


def test_an_old_generation_never_gets_in(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    new, old = site.mesh(0, generation=5), site.mesh(1, generation=4)
    stays_incomplete(new, old)
    assert "is in generation 5, not in 4" in old.waiting_for()


def test_a_newer_generation_that_knocks_at_an_older_one_gets_in_when_that_one_has_moved_on(
    cleanup: contextlib.ExitStack,
):
    site = Site(2, cleanup)
    old, new = site.mesh(0, generation=4), site.mesh(1, generation=5)
    stays_incomplete(old, new)
    assert "is in generation 4, not in 5" in new.waiting_for()
    old.close()
    moved_on = site.mesh(0, generation=5)
    build(moved_on, new)
    check_that_all_hear_each_other({0: site.take(moved_on), 1: site.take(new)})


@pytest.mark.skipif(sys.platform != "linux", reason="abstract unix sockets exist on Linux only")
def test_a_peer_that_is_not_ready_is_dialled_again_by_the_best_way(
    cleanup: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
):
    ways: list[Route] = []

    def recorded(route: Route) -> socket.socket:
        ways.append(route)
        return begin_connect(route)

    monkeypatch.setattr(mesh_module, "begin_connect", recorded)
    site = Site(2, cleanup)
    stays_incomplete(site.mesh(0, generation=4), site.mesh(1, generation=5))
    assert len(ways) > len(Lane)
    assert {way.family for way in ways} == {socket.AF_UNIX}


def test_a_newer_generation_waits_in_the_backlog_of_a_slot_that_still_runs_the_old_one(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    old = [site.mesh(slot, generation=4) for slot in range(2)]
    build(*old)
    running = {slot: site.take(mesh) for slot, mesh in enumerate(old)}
    new = site.mesh(1, generation=5)
    stays_incomplete(new)
    assert "has not answered yet" in new.waiting_for()
    check_that_all_hear_each_other(running)
    old[0].close()
    build(site.mesh(0, generation=5), new)


def test_a_mesh_that_closes_between_hello_and_proof_is_dialled_again(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    old, new = site.mesh(0, generation=4), site.mesh(1, generation=5)
    new.step(0)
    old.step(5)
    old.close()
    build(site.mesh(0, generation=5), new)


def test_a_slot_may_dial_before_the_other_side_listens(cleanup: contextlib.ExitStack):
    site = Site(2, cleanup)
    early = site.mesh(1)
    port = site.addresses[SlotIndex(0)].tcp_port
    site.listeners[0].close()
    stays_incomplete(early)
    assert "refused" in early.waiting_for()
    site.listeners[0] = Listener(bind_host="127.0.0.1", ports=str(port))
    cleanup.callback(site.listeners[0].close)
    build(site.mesh(0), early)


def test_a_silent_peer_is_dialled_again_after_its_deadline(
    cleanup: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mesh_module, "HANDSHAKE_DEADLINE_MS", 50)
    site = Site(2, cleanup)
    patient = site.mesh(1)
    stays_incomplete(patient)
    assert "did not answer in time" in patient.waiting_for()
    # The backlog now begins with connections that were given up.
    build(site.mesh(0), patient)


RIGHT = DialIntroduction(job_id=JOB, generation=1, slot=2, target=1, lane=Lane.DATA)


@pytest.mark.parametrize(
    "changes",
    [{"slot": 0}, {"slot": 1}, {"slot": 7}, {"target": 0}, {"generation": 2}, {"generation": 0}, {"job_id": "job-2"}],
    ids=str,
)
def test_an_authentic_connection_that_does_not_belong_here_is_closed(
    cleanup: contextlib.ExitStack, changes: dict[str, object]
):
    site = Site(3, cleanup)
    mesh = site.mesh(1)
    assert not is_closed(knock(site, mesh, msgspec.msgpack.encode(RIGHT)))
    assert is_closed(knock(site, mesh, msgspec.msgpack.encode(msgspec.structs.replace(RIGHT, **changes))))
    assert is_closed(knock(site, mesh, b"no introduction of a slot"))


def test_who_dials_again_replaces_its_former_connection(cleanup: contextlib.ExitStack):
    site = Site(3, cleanup)
    mesh = site.mesh(1)
    former = knock(site, mesh, msgspec.msgpack.encode(RIGHT))
    newer = knock(site, mesh, msgspec.msgpack.encode(RIGHT))
    assert is_closed(former)
    assert not is_closed(newer)


def knock(site: Site, mesh: Mesh, introduction: bytes) -> socket.socket:
    address = site.addresses[SlotIndex(1)]
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(
            dial, (address.tcp_host, address.tcp_port), secret=SECRET, introduction=introduction, timeout_ms=5000
        )
        while not dialled.done():
            mesh.step(5)
        sock, _ = dialled.result()
    site.cleanup.callback(sock.close)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="counts sockets in /proc")
def test_closing_an_unfinished_mesh_leaves_no_socket_open(cleanup: contextlib.ExitStack):
    site = Site(3, cleanup)
    before = open_sockets()
    meshes = [site.mesh(slot) for slot in (0, 1)]
    for _ in range(5):
        for mesh in meshes:
            mesh.step(1)
    assert open_sockets() > before
    for mesh in meshes:
        mesh.close()
    assert open_sockets() == before


def open_sockets() -> int:
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    return count
