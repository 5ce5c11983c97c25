"""The network of the simulation: between two slots a data lane and a control lane that know nothing of each other."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from tidegate.model.ids import CheckpointId
from tidegate.network.frames import DataFrame, DataHeader, DataParser, encode_data_header
from tidegate.network.messages import PeerMessage, encode
from tidegate.worker.captured import to_frame
from tidegate.worker.gate import Arrived
from tidegate.worker.output import Sealed


@dataclass(slots=True)
class LaneLink:
    """`Link` as two lanes, each first in, first out; what does not fit on the data lane stays with the sender."""

    capacity: int
    control: deque[bytes] = field(default_factory=deque)
    _data: deque[DataFrame | tuple[int, Arrived]] = field(default_factory=deque)

    def can_accept(self) -> bool:
        return len(self._data) < self.capacity

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        kind, payload = to_frame(sealed.element)
        self._data.append(DataFrame(DataHeader(kind, channel, sealed.sequence, epoch), pa.py_buffer(bytes(payload))))

    def send_message(self, message: PeerMessage) -> None:
        self.control.append(encode(message))

    def receive(self) -> "list[DataFrame | tuple[int, Arrived]] | None":
        """What comes out at the other end next; None if nothing is on its way."""
        return [self._data.popleft()] if self._data else None


class OwnLaneLink(LaneLink):
    """The same within one slot, where elements go by reference."""

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        self._data.append((channel, Arrived(sealed.sequence, epoch, sealed.element, sealed.size_bytes)))


class ByteLaneLink(LaneLink):
    """Elements as bytes that are written and read in pieces of any size, through the production parser."""

    def __init__(self, capacity: int, random: Random) -> None:
        super().__init__(capacity)
        self._random = random
        self._bytes = bytearray()
        self._parser = DataParser()

    def can_accept(self) -> bool:
        # An element that is partly written counts as sent: only a whole free line takes another.
        return len(self._bytes) < self.capacity * 64

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        kind, payload = to_frame(sealed.element)
        data = bytes(payload)
        self._bytes += encode_data_header(DataHeader(kind, channel, sealed.sequence, epoch), len(data)) + data

    def receive(self) -> "list[DataFrame | tuple[int, Arrived]] | None":
        if not self._bytes:
            return None
        count = self._random.randint(1, min(len(self._bytes), 400))
        piece = bytes(self._bytes[:count])
        del self._bytes[:count]
        return list(self._parser.feed(piece))
