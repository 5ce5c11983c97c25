"""The coordinator of a job as large as asked for, made of production code.

Stands in for slots, sockets and the storing thread only: what slots say is encoded and decoded as on the wire, and
what blocks runs where the thread would run it. Never measures anything itself.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tidegate.connectors.noop import NoopSink
from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.history import History
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.savepoints import Savepoints
from tidegate.model.clock import SystemClock
from tidegate.model.errors import TidegateError
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.network.messages import (
    Acknowledge,
    ChannelCapture,
    StoredChannel,
    StoredElement,
    TaskPart,
    ToSlot,
    decode_from_slot,
    encode,
)
from tidegate.plan.nodes import Scan, Sink
from tidegate.plan.physical import Edge, HashPartitioning, JobPlan, Vertex
from tidegate.protocol.checkpoints import Checkpoints
from tidegate.storage import layout
from tidegate.storage.manifests import SharedFile
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.worker.settings import SlotSettings

SCHEMA = pa.schema([("v", pa.int64())])
ROWS = pa.record_batch([pa.array([1, 2, 3, 4], pa.int64())], schema=SCHEMA)
CHECKPOINT = CheckpointId(1)

# Per task and at every size the same, so that a job twice as large has twice as much to say.
CAPTURED_CHANNELS = 4
HELD_CHANNELS = 2  # of those, the ones of which the sender stores a part


@dataclass(frozen=True, slots=True)
class Shape:
    vertices: int
    slots: int

    @property
    def tasks(self) -> int:
        return self.vertices * self.slots


# -- what the slots say


def acknowledgements(shape: Shape, *, generation: Generation) -> list[bytes]:
    """One per slot, as on the wire: an unaligned checkpoint with captured channels, and committables of the sink."""
    folder = layout.CheckpointFolder(CHECKPOINT, generation)
    return [
        encode(
            Acknowledge(
                generation=generation,
                checkpoint=CHECKPOINT,
                path=layout.state_file(folder, slot),
                length=4096 + slot,
                crc32=slot,
                parts=[_part(shape, TaskId(VertexId(v), slot), generation) for v in range(shape.vertices)],
                received=[capture for edge in _edges(shape) for capture in _received(shape, edge, slot)],
                held=[capture for edge in _edges(shape) for capture in _held(shape, edge, slot)],
                shared=[SharedFile(layout.channel_file(folder, slot), 65_536, slot)],
                held_elements=[
                    StoredChannel(capture.channel, [StoredElement(capture.held_from, 0, 0, 64 * position, 64)])
                    for edge in _edges(shape)
                    for position, capture in enumerate(_held(shape, edge, slot))
                ],
            )
        )
        for slot in map(SlotIndex, range(shape.slots))
    ]


def _edges(shape: Shape) -> Iterator[EdgeId]:
    return map(EdgeId, range(shape.vertices - 1))


def _senders(shape: Shape, receiver: int) -> list[int]:
    """Neighbours of the receiver, so that every sender has as many captured channels as every receiver."""
    return [(receiver + step) % shape.slots for step in range(min(CAPTURED_CHANNELS, shape.slots))]


def _received(shape: Shape, edge: EdgeId, receiver: int) -> list[ChannelCapture]:
    return [
        ChannelCapture(
            ChannelId(edge, sender, receiver),
            held_from=Sequence(8 if position < HELD_CHANNELS else 9),
            before=Sequence(9),
            first=Sequence(5),
            row=17,
        )
        for position, sender in enumerate(_senders(shape, receiver))
    ]


def _held(shape: Shape, edge: EdgeId, sender: int) -> list[ChannelCapture]:
    receivers = [(sender - step) % shape.slots for step in range(min(HELD_CHANNELS, shape.slots))]
    return [ChannelCapture(ChannelId(edge, sender, r), Sequence(8), Sequence(9)) for r in receivers]


def _part(shape: Shape, task: TaskId, generation: Generation) -> TaskPart:
    committables: list[bytes] = []
    if task.vertex == shape.vertices - 1:
        writer = NoopSink().writer(task=task, generation=generation)
        writer.write(ROWS)
        committables = list(writer.prepare(CHECKPOINT).committables)
    return TaskPart(task, "unaligned", 1.25, 3.5, 0.75, 12.5, 4096, 1024, 512, committables)


# -- the coordinator


@dataclass(slots=True)
class Beside:
    """Stands in for the storing thread: in the order of submission, each step when the caller takes it."""

    _submitted: deque[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = field(default_factory=deque)

    def submit(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        self._submitted.append((work, then))

    def take(self) -> tuple[Callable[[], None], Callable[[BaseException | None], None]] | None:
        return self._submitted.popleft() if self._submitted else None

    def close(self) -> None:
        self._submitted.clear()


@dataclass(slots=True)
class Outcome:
    """Who hears what became of checkpoints; a failure ends the benchmark."""

    committed: list[CheckpointId] = field(default_factory=list)

    def on_checkpoint_committed(self, checkpoint: CheckpointId) -> None:
        self.committed.append(checkpoint)

    def on_checkpointing_failed(self, failure: TidegateError) -> None:
        raise failure

    def on_suspending_committed(self) -> None:
        raise AssertionError("nobody asked for a savepoint")

    def on_suspending_failed(self) -> None:
        raise AssertionError("nobody asked for a savepoint")


class CoordinatorAtSize:
    """The checkpoints of one generation over a local folder. `told_bytes`: what was sent to slots, encoded."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        plan, clock = _plan(shape), SystemClock()
        spec = _spec(plan, str(folder))
        self._folder = folder
        durable = DurableJob(
            open_store(str(folder)),
            NoopSink().committer(),
            plan,
            DurableSettings(fingerprint=spec.fingerprint, keep=spec.keep),
            open_location=open_store,
            wall_ms=clock.wall_ms,
        )
        self.generation = durable.start_generation(at_ms=clock.wall_ms()).generation
        self.beside = Beside()
        self.outcome = Outcome()
        self.told_bytes = 0
        self.checkpointing = Checkpointing(
            generation=self.generation,
            spec=spec,
            machine=Checkpoints(
                spec.checkpoints,
                slots=[SlotIndex(i) for i in range(shape.slots)],
                next_id=CHECKPOINT,
                now_ms=clock.monotonic_ms(),
            ),
            durable=durable,
            storing=self.beside,
            clock=clock,
            history=History(),
            savepoints=Savepoints(),
            tell=self._tell,
            listener=self.outcome,
        )

    def trigger(self) -> None:
        self.checkpointing.request()

    def hear(self, slot: int, said: bytes) -> None:
        message = decode_from_slot(said)
        assert isinstance(message, Acknowledge)
        self.checkpointing.on_acknowledge(SlotIndex(slot), message)

    def manifest_bytes(self) -> int:
        path = layout.manifest(layout.CheckpointFolder(CHECKPOINT, self.generation))
        return (self._folder / path).stat().st_size

    def _tell(self, slot: SlotIndex, message: ToSlot) -> None:
        self.told_bytes += len(encode(message))


def _plan(shape: Shape) -> JobPlan:
    last = shape.vertices - 1
    return JobPlan(
        vertices=tuple(
            Vertex(
                VertexId(v),
                f"v{v}",
                Scan("rate", {}, SCHEMA) if v == 0 else None,
                (),
                Sink("noop", {}, SCHEMA) if v == last else None,
            )
            for v in range(shape.vertices)
        ),
        edges=tuple(
            Edge(edge, VertexId(edge), VertexId(edge + 1), HashPartitioning(1), SCHEMA) for edge in _edges(shape)
        ),
        parallelism=shape.slots,
        max_parallelism=max(128, shape.slots),
    )


def _spec(plan: JobPlan, location: str) -> JobSpec:
    return local_job(
        "at-size",
        SlotSettings(plan=plan, checkpoint_location=location, window_bytes=1 << 20, state_backend="heap"),
        interval_ms=3_600_000.0,
        timeout_ms=600_000.0,
        switch_after_ms=0.0,
    )
