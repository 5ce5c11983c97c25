"""Takes rows and forgets them; counts what was committed."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import Prepared
from tidegate.connectors.options import Options
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.plan import nodes
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.decoding import from_msgpack


class _Committable(msgspec.Struct, frozen=True):
    epoch: str
    rows: int


@dataclass(frozen=True, slots=True)
class NoopSink:
    def prepare_location(self) -> None:
        """There is none."""

    def writer(self, *, task: TaskId, generation: Generation) -> "NoopWriter":
        return NoopWriter(f"{task}-g{generation}")

    def committer(self) -> "NoopCommitter":
        return NoopCommitter()


def from_node(node: nodes.Sink) -> NoopSink:
    Options(node.options, owner="noop sink", known=())
    return NoopSink()


class NoopWriter:
    def __init__(self, name: str) -> None:
        self._name = name
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += rows.num_rows

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        committable = _Committable(f"{self._name}-{checkpoint}", self._rows)
        self._rows = 0
        return Prepared([msgspec.msgpack.encode(committable)] if committable.rows else [], lambda: None)

    def close(self) -> None:
        self._rows = 0


class NoopCommitter:
    """`rows` is what this committer saw committed; a new driver counts from 0."""

    def __init__(self) -> None:
        self.rows = 0
        self._newest_checkpoint = CheckpointId(0)
        self._newest_epochs: set[str] = set()

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        # Commits come in order, so an older checkpoint was counted already and only the newest needs remembering.
        if permit.checkpoint < self._newest_checkpoint:
            return
        if permit.checkpoint > self._newest_checkpoint:
            self._newest_checkpoint, self._newest_epochs = permit.checkpoint, set()
        for data in committables:
            committable = from_msgpack(data, _Committable)
            if committable.epoch not in self._newest_epochs:
                self._newest_epochs.add(committable.epoch)
                self.rows += committable.rows

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        """Nothing is left behind."""
