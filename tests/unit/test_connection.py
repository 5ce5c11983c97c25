"""Connections carry whole frames over real sockets, however small the kernel's buffers, and name a lost peer."""

import contextlib
import select
import socket
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tidegate.model.errors import ProtocolViolation, SlotLost
from tidegate.model.ids import CheckpointId, Sequence
from tidegate.network import connection as connection_module
from tidegate.network.connection import SEND_AHEAD_BYTES, ConnectionLost, ControlConnection, DataConnection
from tidegate.network.frames import (
    DataFrame,
    DataHeader,
    FrameKind,
    decode_watermark,
    encode_control_header,
    encode_data_header,
    encode_watermark,
)

TINY_BYTES = 4096
# Below the loopback's segment size (64 KiB) TCP falls into pauses of 200 ms between probes of the closed window.
TINY_TCP_BYTES = 128 << 10
BUDGET_BYTES = 1 << 20
SocketPair = tuple[socket.socket, socket.socket]


def connected_by(family: socket.AddressFamily, target: object) -> SocketPair:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(target)
        listener.listen()
        one = socket.socket(family, socket.SOCK_STREAM)
        one.connect(listener.getsockname())
        other, _ = listener.accept()
        return one, other


PAIRS: dict[str, Callable[[], SocketPair]] = {
    "socketpair": socket.socketpair,
    "tcp": lambda: connected_by(socket.AF_INET, ("127.0.0.1", 0)),
}
if sys.platform == "linux":
    # An empty name lets the kernel choose an abstract one.
    PAIRS["unix"] = lambda: connected_by(socket.AF_UNIX, "")


@pytest.fixture(params=list(PAIRS))
def pair(request: pytest.FixtureRequest) -> Iterator[SocketPair]:
    one, other = PAIRS[request.param]()
    with one, other:
        yield one, other


def tiny_bytes(pair: SocketPair) -> int:
    return TINY_BYTES if pair[0].family == socket.AF_UNIX else TINY_TCP_BYTES


def data_pair(pair: SocketPair, socket_buffer_bytes: int | None = None) -> tuple[DataConnection, DataConnection]:
    return (
        DataConnection(pair[0], peer="slot 1", socket_buffer_bytes=socket_buffer_bytes),
        DataConnection(pair[1], peer="slot 0", socket_buffer_bytes=socket_buffer_bytes),
    )


def control_pair(pair: SocketPair) -> tuple[ControlConnection, ControlConnection]:
    return ControlConnection(pair[0], peer="slot 1"), ControlConnection(pair[1], peer="slot 0")


def header(sequence: int, kind: FrameKind = FrameKind.BATCH) -> DataHeader:
    return DataHeader(kind, channel=3, sequence=Sequence(sequence), epoch=CheckpointId(sequence // 4))


def batch(sequence: int, rows: int) -> pa.RecordBatch:
    numbers = pa.array(range(sequence, sequence + rows), pa.int64())
    return pa.record_batch({"n": numbers, "s": pa.array([str(sequence)] * rows, pa.string())})


def wait_readable(connection: DataConnection | ControlConnection) -> None:
    assert select.select([connection], [], [], 5)[0], "nothing arrived within 5 s"


def received_until(connection: DataConnection, count: int) -> list[DataFrame]:
    frames: list[DataFrame] = []
    while len(frames) < count:
        wait_readable(connection)
        frames += connection.receive(BUDGET_BYTES)
    return frames


def stall(connection: DataConnection | ControlConnection, fill: Callable[[], None]) -> None:
    while connection.flush():
        fill()


def test_multi_megabyte_batches_pass_in_both_directions_through_tiny_socket_buffers(pair: SocketPair):
    ends = data_pair(pair, tiny_bytes(pair))
    batches = [batch(sequence, rows) for sequence, rows in enumerate([150_000, 1, 0, 200_000, 17])]
    outboxes = [list(enumerate(batches)), list(enumerate(batches))]
    inboxes: list[list[DataFrame]] = [[], []]
    partial_writes = 0
    while any(len(inbox) < len(batches) for inbox in inboxes):
        for end, outbox, inbox in zip(ends, outboxes, inboxes, strict=True):
            while outbox and end.can_accept():
                sequence, rows = outbox.pop(0)
                end.send(header(sequence), rows.serialize())
            partial_writes += not end.flush()
            inbox += end.receive(BUDGET_BYTES)
    assert partial_writes > 5
    for inbox in inboxes:
        assert [frame.header for frame in inbox] == [header(sequence) for sequence in range(len(batches))]
        assert all(frame.payload.address % 64 == 0 for frame in inbox)
        schema = batches[0].schema
        assert [pa.ipc.read_record_batch(frame.payload, schema) for frame in inbox] == batches


def test_small_frames_of_every_kind_leave_in_one_call_and_arrive_in_order(pair: SocketPair):
    sender, receiver = data_pair(pair)
    for sequence in range(20):
        sender.send(header(sequence), b"row " * sequence)
    sender.send(header(20, FrameKind.WATERMARK), encode_watermark(77))
    sender.send(header(21, FrameKind.END), b"")
    assert sender.wants_write
    assert sender.flush()
    assert not sender.wants_write
    frames = received_until(receiver, 22)
    assert [frame.header.sequence for frame in frames] == list(range(22))
    assert [frame.payload.to_pybytes() for frame in frames[:20]] == [b"row " * sequence for sequence in range(20)]
    assert decode_watermark(frames[20].payload) == 77
    assert frames[21].header.kind is FrameKind.END
    assert frames[21].payload.size == 0


def test_what_waits_to_be_sent_is_bounded(pair: SocketPair):
    sender, receiver = data_pair(pair, tiny_bytes(pair))
    assert sender.can_accept()
    sender.send(header(0), b"x" * 4 * SEND_AHEAD_BYTES)
    assert not sender.can_accept()
    assert not sender.flush()
    with pytest.raises(ProtocolViolation, match=r"slot 1.*can_accept"):
        sender.send(header(1), b"y")
    while not sender.can_accept():
        receiver.receive(BUDGET_BYTES)
        sender.flush()
    assert sender.waiting_bytes < SEND_AHEAD_BYTES
    sender.send(header(1), b"y")


def test_a_payload_on_its_way_out_is_the_callers_buffer_and_not_a_copy(pair: SocketPair):
    sender, _ = data_pair(pair, tiny_bytes(pair))
    payload = pa.allocate_buffer(8 << 20)
    before_bytes = pa.total_allocated_bytes()
    references = sys.getrefcount(payload)
    sender.send(header(0), payload)
    assert pa.total_allocated_bytes() == before_bytes
    assert sys.getrefcount(payload) > references


def test_receiving_stops_near_its_budget(pair: SocketPair):
    sender, receiver = data_pair(pair)
    for sequence in range(200):
        sender.send(header(sequence), b"x" * 1000)
    sender.flush()
    wait_readable(receiver)
    first = receiver.receive(1)
    assert 0 < len(first) < 50
    assert [frame.header.sequence for frame in first + received_until(receiver, 200 - len(first))] == list(range(200))


def test_receiving_nothing_is_not_an_error(pair: SocketPair):
    _, data = data_pair(pair)
    assert data.receive(BUDGET_BYTES) == []


def test_a_peer_that_closes_in_the_middle_of_a_frame_is_lost_after_the_frames_before_it(pair: SocketPair):
    one, other = pair
    receiver = DataConnection(other, peer="slot 7")
    whole = encode_data_header(header(0), 5) + b"whole"
    one.sendall(whole + encode_data_header(header(1), 100) + b"half")
    one.close()
    (frame,) = received_until(receiver, 1)
    assert frame.payload.to_pybytes() == b"whole"
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"data connection to slot 7.*in the middle of a frame"):
            receiver.receive(BUDGET_BYTES)


def test_a_peer_that_closes_between_frames_is_lost_too(pair: SocketPair):
    one, other = pair
    receiver = ControlConnection(other, peer="slot 7")
    one.sendall(encode_control_header(4) + b"last")
    one.close()
    wait_readable(receiver)
    assert receiver.receive() == [b"last"]
    with pytest.raises(SlotLost, match="control connection to slot 7 was closed by the other side: "):
        receiver.receive()


def test_flushing_to_a_gone_peer_names_it(pair: SocketPair):
    sender, receiver = data_pair(pair, tiny_bytes(pair))
    sender.send(header(0), b"x" * (8 << 20))
    assert not sender.flush()
    receiver.close()
    with pytest.raises(ConnectionLost, match="data connection to slot 1 is lost"):
        stall(sender, lambda: None)


def test_the_last_words_of_a_gone_peer_are_still_read_after_sending_to_it_failed():
    one, other = socket.socketpair()
    control = ControlConnection(one, peer="slot 1")
    other.sendall(encode_control_header(3) + b"why")
    other.close()
    control.send(b"lost")
    assert control.wants_write
    assert control.receive() == [b"why"]
    with pytest.raises(ConnectionLost, match="slot 1"):
        control.flush()
    control.close()


def test_a_closed_connection_is_lost_not_a_crash(pair: SocketPair):
    control, _ = control_pair(pair)
    control.close()
    with pytest.raises(ConnectionLost):
        control.receive()
    control.send(b"too late")
    with pytest.raises(ConnectionLost):
        control.flush()


def test_control_payloads_are_written_at_once_and_arrive_in_order(pair: SocketPair):
    sender, receiver = control_pair(pair)
    payloads = [b"", b"barrier", b"x" * 70_000, b"cut"]
    for payload in payloads:
        sender.send(payload)
    received: list[bytes] = []
    while len(received) < len(payloads):
        sender.flush()
        wait_readable(receiver)
        received += receiver.receive()
    assert received == payloads


def test_a_control_queue_that_nobody_reads_is_bounded(pair: SocketPair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "MAX_QUEUED_CONTROL_BYTES", 300_000)
    sender = ControlConnection(pair[0], peer="slot 1", socket_buffer_bytes=tiny_bytes(pair))
    with pytest.raises(ProtocolViolation, match=r"slot 1.*unread"):
        for _ in range(10_000):
            sender.send(b"x" * 1000)
    assert sender.wants_write


def test_one_talkative_peer_does_not_keep_the_reader_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "CONTROL_BUDGET_BYTES", 1000)
    monkeypatch.setattr(connection_module, "CONTROL_READ_BYTES", 500)
    sender, receiver = control_pair(socket.socketpair())
    with contextlib.closing(sender), contextlib.closing(receiver):
        for _ in range(50):
            sender.send(b"x" * 96)
        assert len(receiver.receive()) == 10
        assert len(receiver.receive()) == 10


def test_tcp_connections_do_not_wait_for_more_bytes():
    one, other = PAIRS["tcp"]()
    with one, other:
        ControlConnection(one, peer="slot 1")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert not one.getblocking()
