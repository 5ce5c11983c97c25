"""The two ways to a receiver: over a connection to another slot, or straight into this one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.model.ids import CheckpointId
from tidegate.network.frames import DataHeader
from tidegate.network.mesh import PeerLinks
from tidegate.network.messages import PeerMessage, encode
from tidegate.worker.captured import to_frame
from tidegate.worker.gate import Arrived
from tidegate.worker.output import Sealed


@dataclass(frozen=True, slots=True)
class RemoteLink:
    peer: PeerLinks

    def can_accept(self) -> bool:
        return self.peer.data.can_accept()

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        kind, payload = to_frame(sealed.element)
        self.peer.data.send(DataHeader(kind, channel, sealed.sequence, epoch), payload)

    def send_message(self, message: PeerMessage) -> None:
        self.peer.control.send(encode(message))


@dataclass(slots=True)
class LocalLink:
    """Elements go by reference. Messages wait for the loop: a barrier is not handled inside another task's step."""

    deliver: Callable[[int, Arrived], None]
    messages: deque[PeerMessage] = field(default_factory=deque)

    def can_accept(self) -> bool:
        return True

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        self.deliver(channel, Arrived(sealed.sequence, epoch, sealed.element, sealed.size_bytes))

    def send_message(self, message: PeerMessage) -> None:
        self.messages.append(message)
