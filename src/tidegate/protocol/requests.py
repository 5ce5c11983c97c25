"""What may be asked of the checkpoints, and the queue in which it waits. Savepoints come first.

Knows nothing of what may start when: `protocol/checkpoints.py` decides that.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

# Whoever asks so often waits for none of them; what cannot be kept is refused, not forgotten.
MAX_WAITING_REQUESTS = 100


class SavepointAlignment(Enum):
    """How the barriers of a savepoint pass, whatever the checkpoints of the job do."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"


class Afterwards(Enum):
    """What the job does once the barriers of a savepoint have left the sources."""

    GO_ON = "go_on"
    SUSPEND = "suspend"  # stop with savepoint: the sources stop behind the barrier


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """One more as soon as a place is free, whatever the interval and the pause say; another one if it fails."""


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """`token` tells the asker which of the requests is answered."""

    token: int
    location: str
    alignment: SavepointAlignment
    afterwards: Afterwards


Request: TypeAlias = CheckpointRequest | SavepointRequest


@dataclass(frozen=True, slots=True)
class Waiting:
    request: Request
    asked_at_ms: float


class RequestQueue:
    """At most `MAX_WAITING_REQUESTS`; each kind first come, first served."""

    def __init__(self) -> None:
        self._savepoints: deque[Waiting] = deque()
        self._checkpoints: deque[Waiting] = deque()

    @property
    def is_full(self) -> bool:
        return len(self._savepoints) + len(self._checkpoints) >= MAX_WAITING_REQUESTS

    def add(self, request: Request, *, asked_at_ms: float) -> None:
        assert not self.is_full, "a full queue refuses"
        self._of(request).append(Waiting(request, asked_at_ms))

    def next_savepoint(self) -> Waiting | None:
        return self._savepoints[0] if self._savepoints else None

    def next_checkpoint(self) -> Waiting | None:
        return self._checkpoints[0] if self._checkpoints else None

    def take(self, waiting: Waiting) -> None:
        """The next of its kind, because it starts."""
        taken = self._of(waiting.request).popleft()
        assert taken is waiting, "only the next of its kind may start"

    def take_all(self) -> list[Request]:
        """Savepoints first; the queue is empty then."""
        requests = [waiting.request for waiting in (*self._savepoints, *self._checkpoints)]
        self._savepoints.clear()
        self._checkpoints.clear()
        return requests

    def _of(self, request: Request) -> deque[Waiting]:
        match request:
            case SavepointRequest():
                return self._savepoints
            case CheckpointRequest():
                return self._checkpoints
            case unreachable:
                assert_never(unreachable)
