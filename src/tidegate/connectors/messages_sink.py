"""Two-phase commit by messages: tasks give one message per epoch, the driver hands them to whoever commits.

The rows that reach this sink are the messages themselves, one binary column; they travel inside the committables.
Owns the process-wide table of those who commit, and knows nothing of what a message says.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Prepared
from tidegate.connectors.options import Options
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.decoding import from_msgpack

MESSAGE_SCHEMA = pa.schema([pa.field("message", pa.binary())])


class MessageTaker(Protocol):
    """On the driver, in log order."""

    def commit(self, messages: Sequence[bytes], batch_id: CheckpointId) -> None:
        """May come again with the same id and messages."""
        ...

    def abort(self, batch_id: CheckpointId) -> None:
        """Tasks ended with an epoch that was not prepared; `batch_id` is the one that it would have got at least."""
        ...


# The user's thread registers, the storing thread commits.
_lock = Lock()
_takers: dict[str, MessageTaker] = {}


def take_messages(location: str, taker: MessageTaker) -> None:
    """From now on `taker` commits what the query with this checkpoint location prepares, in this process."""
    with _lock:
        _takers[location] = taker


def take_no_more(location: str) -> None:
    with _lock:
        _takers.pop(location, None)


class _Committable(msgspec.Struct, frozen=True):
    """`id` is unlike any other writer's or epoch's: two equal messages are two messages."""

    id: str
    message: bytes


@dataclass(frozen=True, slots=True)
class MessagesSink:
    location: str

    def prepare_location(self) -> None:
        """Where the rows go is the business of those who write them."""

    def writer(self, *, task: TaskId, generation: Generation) -> "MessagesWriter":
        return MessagesWriter(f"g{generation}-{task}-{secrets.token_hex(4)}")

    def committer(self) -> "MessagesCommitter":
        return MessagesCommitter(self)


def from_node(node: nodes.Sink) -> MessagesSink:
    options = Options(node.options, owner="python sink", known=("checkpointLocation",))
    return MessagesSink(options.text("checkpointLocation", default=""))


class MessagesWriter:
    def __init__(self, token: str) -> None:
        self._token = token
        self._messages: list[bytes] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._messages += rows.column(0).to_pylist()

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        messages, self._messages = self._messages, []
        committables = [_Committable(f"{self._token}-{checkpoint}-{at}", each) for at, each in enumerate(messages)]
        return Prepared([msgspec.msgpack.encode(committable) for committable in committables], lambda: None)

    def close(self) -> None:
        self._messages = []


class MessagesCommitter:
    def __init__(self, sink: MessagesSink) -> None:
        self._sink = sink
        self._newest: CheckpointId | None = None

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        decoded = [from_msgpack(data, _Committable) for data in committables]
        if decoded:
            ordered = sorted(decoded, key=lambda committable: committable.id)
            self._taker().commit([committable.message for committable in ordered], permit.checkpoint)
        self._newest = permit.checkpoint

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        # What a process before this one had begun is unknown here, and so is the id that it would have got.
        # What is kept will be committed: it is the next one, and the one behind it had not begun.
        if self._newest is not None and not keep:
            self._taker().abort(CheckpointId(self._newest + 1))

    def _taker(self) -> MessageTaker:
        with _lock:
            found = _takers.get(self._sink.location)
        if found is None:
            raise ProtocolViolation(f"Nobody in this process commits for {self._sink.location!r}.")
        return found
