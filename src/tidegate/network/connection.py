"""Established connections between two slots, or a slot and the driver: non-blocking sockets that carry whole frames.

Owns what is accepted but not yet in the kernel, and what is received but not yet a frame. It must never block, never
copy a payload on its way out, and never look into one.
"""

import itertools
import socket
from collections import deque

import pyarrow as pa

from tidegate.model.errors import ProtocolViolation, SlotLost
from tidegate.network.frames import (
    MAX_CONTROL_BYTES,
    ControlParser,
    DataFrame,
    DataHeader,
    DataParser,
    encode_control_header,
    encode_data_header,
)

# Room for the longest frame behind another; a peer that leaves more unread does not listen any more.
MAX_QUEUED_CONTROL_BYTES = 2 * MAX_CONTROL_BYTES
# Keeps the kernel busy for a turn of the loop; what waits here counts as sent, so an overtaking barrier stays quick.
SEND_AHEAD_BYTES = 256 << 10
# One turn of the loop must not be spent on one talkative peer.
CONTROL_BUDGET_BYTES = 1 << 20
CONTROL_READ_BYTES = 64 << 10
# Well below IOV_MAX (1024); more pieces at once gain nothing.
_PIECES_PER_CALL = 64
# A vanished peer must become an error of ours, also where SIGPIPE was set to end the process.
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class ConnectionLost(SlotLost):
    """The peer, or the way to it, is gone."""


class NothingIsRead(ProtocolViolation):
    """The peer is there, but has not read for so long that no more may wait for it."""


class ControlConnection:
    """Carries small messages, in order, at once: barriers, cuts, window grants."""

    def __init__(self, sock: socket.socket, *, peer: str, socket_buffer_bytes: int | None = None) -> None:
        self._link = _Link(sock, name=f"control connection to {peer}", socket_buffer_bytes=socket_buffer_bytes)
        self._outgoing = _Outgoing()
        self._parser = ControlParser()

    def send(self, payload: bytes) -> None:
        """Accepts the payload; a lost peer shows at the next `flush` or `receive`, which stay due until then."""
        if self._outgoing.waiting_bytes + len(payload) > MAX_QUEUED_CONTROL_BYTES:
            raise NothingIsRead(
                f"The {self._link.name} has {self._outgoing.waiting_bytes} bytes unread by the other side: "
                "its process hangs; look at its log and restart the job."
            )
        self._outgoing.put(encode_control_header(len(payload)), memoryview(payload))
        try:
            self._link.write(self._outgoing)
        except ConnectionLost:
            # What the peer said last may still be unread, and says more than the loss; the payload stays queued.
            return

    def flush(self) -> bool:
        """Writes what the kernel takes; True if nothing waits any more."""
        return self._link.write(self._outgoing)

    def receive(self) -> list[bytes]:
        """Every payload that is complete by now; raises only when there is none left to give."""
        payloads: list[bytes] = []
        received_bytes = 0
        try:
            while received_bytes < CONTROL_BUDGET_BYTES:
                data = self._link.read(CONTROL_READ_BYTES, between_frames=self._parser.between_frames)
                if data is None:
                    break
                received_bytes += len(data)
                payloads += self._parser.feed(data)
        except ConnectionLost:
            if not payloads:
                raise
        return payloads

    @property
    def wants_write(self) -> bool:
        return self._outgoing.waiting_bytes > 0

    def fileno(self) -> int:
        return self._link.sock.fileno()

    def close(self) -> None:
        self._link.sock.close()


class DataConnection:
    """Carries numbered elements, in order; payloads leave from and arrive in Arrow buffers."""

    def __init__(self, sock: socket.socket, *, peer: str, socket_buffer_bytes: int | None = None) -> None:
        self._link = _Link(sock, name=f"data connection to {peer}", socket_buffer_bytes=socket_buffer_bytes)
        self._outgoing = _Outgoing()
        self._parser = DataParser()

    def can_accept(self) -> bool:
        return self._outgoing.waiting_bytes < SEND_AHEAD_BYTES

    def send(self, header: DataHeader, payload: pa.Buffer | bytes) -> None:
        """Accepts one frame, which counts as sent from now on; `flush` writes it."""
        if not self.can_accept():
            raise ProtocolViolation(
                f"The {self._link.name} was given a frame while {self._outgoing.waiting_bytes} bytes wait: "
                "ask can_accept() first; this is a bug in Tidegate."
            )
        view = memoryview(payload).cast("B")
        self._outgoing.put(encode_data_header(header, len(view)), view)

    def flush(self) -> bool:
        """Writes what the kernel takes; True if nothing waits any more."""
        return self._link.write(self._outgoing)

    def receive(self, budget_bytes: int) -> list[DataFrame]:
        """The frames completed by about that many bytes; raises only when there is none left to give."""
        frames: list[DataFrame] = []
        received_bytes = 0
        try:
            while received_bytes < budget_bytes:
                count = self._link.read_into(self._parser.targets(), between_frames=self._parser.between_frames)
                if count is None:
                    break
                received_bytes += count
                frames += self._parser.filled(count)
        except ConnectionLost:
            if not frames:
                raise
        return frames

    @property
    def wants_write(self) -> bool:
        return self._outgoing.waiting_bytes > 0

    @property
    def waiting_bytes(self) -> int:
        """Accepted and not yet in the kernel."""
        return self._outgoing.waiting_bytes

    def fileno(self) -> int:
        return self._link.sock.fileno()

    def close(self) -> None:
        self._link.sock.close()


class _Outgoing:
    """Pieces on their way out. Views keep their buffers alive until the kernel has them."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.waiting_bytes = 0

    def put(self, header: bytes, payload: memoryview) -> None:
        self._views.append(memoryview(header))
        # An empty piece would never be seen as written.
        if len(payload):
            self._views.append(payload)
        self.waiting_bytes += len(header) + len(payload)

    def next_pieces(self) -> list[memoryview]:
        return list(itertools.islice(self._views, _PIECES_PER_CALL))

    def written(self, count_bytes: int) -> None:
        self.waiting_bytes -= count_bytes
        while count_bytes:
            first = self._views.popleft()
            if count_bytes < len(first):
                self._views.appendleft(first[count_bytes:])
                return
            count_bytes -= len(first)


class _Link:
    """The socket with its name for people: "would block" becomes a value, and every failure a `ConnectionLost`."""

    def __init__(self, sock: socket.socket, *, name: str, socket_buffer_bytes: int | None) -> None:
        self.sock = sock
        self.name = name
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if socket_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, socket_buffer_bytes)

    def write(self, outgoing: _Outgoing) -> bool:
        try:
            while outgoing.waiting_bytes:
                outgoing.written(self.sock.sendmsg(outgoing.next_pieces(), [], _SEND_FLAGS))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        return True

    def read(self, count_bytes: int, *, between_frames: bool) -> bytes | None:
        try:
            data = self.sock.recv(count_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._ended(between_frames=between_frames)
        return data

    def read_into(self, targets: list[memoryview], *, between_frames: bool) -> int | None:
        try:
            count = self.sock.recv_into(targets[0]) if len(targets) == 1 else self.sock.recvmsg_into(targets)[0]
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            raise self._ended(between_frames=between_frames)
        return count

    def _lost(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"The {self.name} is lost ({error.strerror}): its process or host may be gone.")

    def _ended(self, *, between_frames: bool) -> ConnectionLost:
        where = "" if between_frames else " in the middle of a frame"
        return ConnectionLost(f"The {self.name} was closed by the other side{where}: its process may be gone.")
