"""What sources and sinks promise. The conformance suites in `tidegate.testing` check these sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.protocol.commit import CommitPermit


@dataclass(frozen=True, slots=True)
class Assignment:
    """A split (opaque bytes, made and read by the connector) for one reader."""

    subtask: int
    split: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """`watermark_ms`, from a source that knows event time itself: no later row of this reader is older."""

    rows: pa.RecordBatch
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NothingNow:
    """Nothing to read at present; look again after `retry_after_ms` or when splits arrive.

    `is_behind`: rows of what was assigned are still to come, so the source is not idle.
    """

    retry_after_ms: float
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class EndOfSource:
    """All splits are read and no more will be assigned in this run; a later run may find more."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The source is bounded and all of it is read: nothing follows in any run, so event time has come to its end."""


Polled: TypeAlias = Rows | NothingNow | EndOfSource | EndOfData


class Withheld(Enum):
    """Until when an enumerator keeps splits back that it might give, because of a limit."""

    NOTHING = "nothing"  # all that its last look found is given
    UNTIL_LATER = "until later"  # a later `discover` gives more of them
    UNTIL_COMMITTED = "until committed"  # not before a checkpoint is committed that covers what was given


class SplitEnumerator(Protocol):
    """On the driver: finds splits and gives each to one reader, once. Has no stored state of its own."""

    def restore(self, reader_states: Sequence[bytes]) -> None:
        """Everything assigned up to the restored checkpoint is in the readers' states; the rest is found again."""
        ...

    def discover(self) -> list[Assignment]:
        """Splits found since the last call. May block on storage: it is called off the coordinator's loop."""
        ...

    def withheld(self) -> Withheld:
        """By the last `discover`. Without a limit `NOTHING`, and once it `is_complete`."""
        ...

    def is_complete(self) -> bool:
        """No later `discover` will find anything."""
        ...


class SourceReader(Protocol):
    """In a task. No call may block the loop for longer than reading `max_rows` rows takes."""

    def restore(self, state: bytes) -> None: ...
    def add_splits(self, splits: Sequence[bytes]) -> None: ...
    def no_more_splits(self) -> None: ...
    def poll(self, max_rows: int) -> Polled: ...

    def snapshot(self) -> bytes:
        """Exact positions: a reader restored from it gives just the rows that come after."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WrapsReader(Protocol):
    """A reader that passes on what another one gives; what a reader can do beyond reading is asked of that one."""

    @property
    def wrapped(self) -> SourceReader: ...


@runtime_checkable
class TellsPosition(Protocol):
    """A reader whose enumerator acts on how far it is."""

    def position(self) -> bytes:
        """Taken with `snapshot`; the enumerator hears of it once that checkpoint is committed."""
        ...


@runtime_checkable
class FollowsCheckpoints(Protocol):
    """A reader that hears, between two polls, what becomes of the checkpoints that it takes part in.

    Not of each: one that a newer one made superfluous is only heard of as aborted, or not at all.
    """

    def on_checkpoint_triggered(self, checkpoint: CheckpointId) -> None:
        """Before `snapshot` is called for it."""
        ...

    def on_checkpoint_completed(self, checkpoint: CheckpointId) -> None: ...
    def on_checkpoint_aborted(self, checkpoint: CheckpointId) -> None: ...


@runtime_checkable
class ReadsBatches(Protocol):
    """A reader of batches whose rows have no order among themselves, as Spark's micro-batches: event time moves from
    one to the next, because within one a row would be late by those that happen to be read before it.
    """

    def is_amid_batch(self) -> bool:
        """Rows of a batch were given out and more of it are to come; false at least once between two of them."""
        ...


@runtime_checkable
class TellsLag(Protocol):
    """A reader that knows how long ago the next row it will give came to the source."""

    def lag_ms(self) -> float | None:
        """None while it waits for rows, or where that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class CommittedPositions:
    """`positions`: of all readers of one source. `oldest_retained`: of the checkpoints that may be restored."""

    checkpoint: CheckpointId
    positions: tuple[bytes, ...]
    oldest_retained: CheckpointId


@runtime_checkable
class FollowsCommits(Protocol):
    """An enumerator that hears of commits, in their order but not of each, between two calls of `discover`."""

    def on_committed(self, committed: CommittedPositions) -> None: ...


@runtime_checkable
class HoldsResources(Protocol):
    """An enumerator that must be closed when its generation ends; called where `discover` is."""

    def close(self) -> None: ...


class Source(Protocol):
    """A value that can be pickled; made by the registry from a `Scan`."""

    def enumerator(self, *, parallelism: int, available_now: bool) -> SplitEnumerator: ...
    def reader(self, *, subtask: int, parallelism: int) -> SourceReader: ...

    def redistribute(self, states: Sequence[bytes], *, parallelism: int) -> list[bytes]:
        """The readers' stored positions, for another number of readers: one state each, nothing lost or doubled.

        Pure and the same wherever it is called: driver and slots each work it out for themselves.
        """
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An epoch's writes, closed. `make_durable` runs off the loop, before the snapshot is acknowledged."""

    committables: Sequence[bytes]
    make_durable: Callable[[], None]


class SinkWriter(Protocol):
    """In a task. What it writes stays invisible until its committables are committed."""

    def write(self, rows: pa.RecordBatch) -> None:
        """In complete mode also a batch without rows, after all others of an epoch: so much is the task's result now.

        A task that writes nothing in an epoch leaves its result as it was.
        """
        ...

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        """Ends the epoch. Nothing written before it may reach a later committable."""
        ...

    def close(self) -> None:
        """Drops what was not prepared."""
        ...


@runtime_checkable
class WritesBeside(Protocol):
    """A `SinkWriter` that goes on beside the loop. It takes rows at any time, but without room it may have to wait."""

    def has_room(self) -> bool: ...

    def call_when_done(self, call: Callable[[], None]) -> None:
        """There may be room again. `call` comes from another thread."""
        ...


class SinkCommitter(Protocol):
    """On the driver, in log order. Every call may be repeated after a crash and must then change nothing."""

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None: ...

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        """Before `generation` writes: remove what older generations left behind, except `keep`."""
        ...


@runtime_checkable
class HoldsBack(Protocol):
    """A committer that may publish what it has committed later."""

    def publish_held(self) -> None:
        """The query has ended: publish everything that is committed. May be repeated."""
        ...


@runtime_checkable
class RollsBack(Protocol):
    """A committer that can take back what it committed for checkpoints behind `to`.

    `committables`: all that those checkpoints hold, some perhaps of `to` itself or before, which stay.
    """

    def why_not_back(self, committables: Sequence[bytes], *, to: CheckpointId) -> str | None:
        """One sentence if rows would stay that come out again; None if all can be taken back. Changes nothing."""
        ...

    def roll_back(self, committables: Sequence[bytes], *, to: CheckpointId) -> None:
        """May be repeated, and then changes nothing."""
        ...


class Sink(Protocol):
    """A value that can be pickled; made by the registry from a `plan.nodes.Sink`."""

    def prepare_location(self) -> None:
        """Checks, before the job starts, that it can be written to; raises `OptionError`."""
        ...

    def writer(self, *, task: TaskId, generation: Generation) -> SinkWriter: ...
    def committer(self) -> SinkCommitter: ...
