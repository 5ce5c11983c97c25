"""A checkpoint of two vertices, written by slots and gathered as the coordinator does it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from tidegate.coordinator.history import Underway
from tidegate.model.elements import Batch, NumberedElement
from tidegate.model.ids import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    SlotIndex,
    TaskId,
    VertexId,
)
from tidegate.model.ids import Sequence as Number
from tidegate.network.messages import Acknowledge, Decline, SnapshotsTaken
from tidegate.operators.described import describe_plan
from tidegate.plan.lower import fingerprint
from tidegate.plan.physical import Edge, HashPartitioning, JobPlan, OperatorSpec, Vertex
from tidegate.protocol.barriers import Cut
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.kinds import CheckpointKind
from tidegate.state.contract import Section
from tidegate.storage.manifests import Manifest, encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground
from tidegate.worker.gate import CapturedElement, ReceivedCapture
from tidegate.worker.output import HeldCapture, Sealed
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task_reports import TaskSnapshot

SENDER, RECEIVER = VertexId(0), VertexId(1)
MAX_PARALLELISM = 128
ONE = CheckpointId(1)


def plan_of(*operators: OperatorSpec, schema: pa.Schema, parallelism: int = 1) -> JobPlan:
    vertices = (Vertex(SENDER, "sender", None, (), None), Vertex(RECEIVER, "receiver", None, operators, None))
    edge = Edge(EdgeId(0), SENDER, RECEIVER, HashPartitioning(1), schema)
    return JobPlan(vertices, (edge,), parallelism, MAX_PARALLELISM)


@dataclass(frozen=True, slots=True)
class Captured:
    """Elements in flight from number `first` on, `row` rows of the first are done; the last `held` are the sender's."""

    elements: tuple[NumberedElement, ...]
    first: int = 0
    row: int = 0
    held: int = 0

    @property
    def cut(self) -> Cut:
        before = self.first + len(self.elements)
        return Cut(Number(before - self.held), Number(before))

    def values(self) -> list[int]:
        """Of the rows that are not processed yet."""
        found: list[int] = []
        for at, element in enumerate(self.elements):
            if isinstance(element, Batch):
                found += element.rows.column(0).to_pylist()[self.row if at == 0 else 0 :]
        return found

    def received(self, channel: ChannelId) -> ReceivedCapture:
        cut = self.cut
        place = ReceiverRange(
            channel=channel, first=Number(self.first), row=self.row, held_from=cut.held_from, before=cut.before
        )
        own = self.elements[: len(self.elements) - self.held]
        return ReceivedCapture(
            place,
            tuple(
                CapturedElement(Number(self.first + at), element, done_rows=self.row if at == 0 else 0)
                for at, element in enumerate(own)
            ),
        )

    def sent(self, channel: ChannelId) -> HeldCapture:
        own = self.elements[len(self.elements) - self.held :]
        sealed = [Sealed(Number(self.cut.held_from + at), element, 0) for at, element in enumerate(own)]
        return HeldCapture(channel, self.cut, tuple(sealed))


def acknowledged(
    slot: SlotIndex,
    store: LocalFiles,
    plan: JobPlan,
    snapshot_of: Callable[[TaskId], TaskSnapshot],
    channels: Mapping[ChannelId, Captured],
    checkpoint: CheckpointId = ONE,
    *,
    inline_below_bytes: int = 0,
) -> Acknowledge:
    """What the slot says once everything of its tasks is stored."""
    said: list[Acknowledge | Decline | SnapshotsTaken] = []
    background = SimBackground()
    tasks = [TaskId(vertex.id, slot) for vertex in plan.vertices if slot < plan.parallelism_of(vertex.id)]
    snapshots = SlotSnapshots(
        slot=slot,
        generation=Generation(1),
        tasks=tasks,
        store=store,
        open_location=LocalFiles,  # type: ignore[arg-type]
        background=background,
        clock=ManualClock(),
        inline_below_bytes=inline_below_bytes,
        send=said.append,
    )
    snapshots.on_trigger(checkpoint, savepoint=None)
    for task in tasks:
        snapshots.on_snapshot(snapshot_of(task))
        own = channels.items()
        received = [c.received(id) for id, c in own if task.vertex == RECEIVER and id.receiver == slot]
        held = [c.sent(id) for id, c in own if c.held and task.vertex == SENDER and id.sender == slot]
        snapshots.on_received(task, checkpoint, tuple(received))
        snapshots.on_held(task, checkpoint, held)
    snapshots.encode_some(float("inf"))
    while background.work_once() or background.note_once():
        pass
    (found,) = [message for message in said if isinstance(message, Acknowledge)]
    return found


@dataclass(frozen=True, slots=True)
class StoredJob:
    """`sections`: by the receiver's subtask, what its first operator keeps; `second`: the same of its second one.

    `progress`: how far event time has come, of tasks that have any.
    """

    plan: JobPlan
    sections: Mapping[int, Sequence[Section]] = field(default_factory=dict)
    second: Mapping[int, Sequence[Section]] = field(default_factory=dict)
    channels: Mapping[ChannelId, Captured] = field(default_factory=dict)
    checkpoint: CheckpointId = ONE
    progress: Mapping[TaskId, StoredTask] = field(default_factory=dict)

    def write(self, store: LocalFiles, path: str = "manifest.json") -> Manifest:
        underway = Underway(self.checkpoint, 0.0, 1_000)
        for slot in range(self.plan.parallelism):
            underway.acknowledged[SlotIndex(slot)] = acknowledged(
                SlotIndex(slot), store, self.plan, self._snapshot, self.channels, self.checkpoint
            )
        assert underway.find_gap() is None
        manifest = underway.manifest(
            generation=Generation(1),
            now_ms=7.0,
            fingerprint=fingerprint(self.plan),
            plan=self.plan,
            state_backend="heap",
        )
        manifest = msgspec.structs.replace(manifest, plan=describe_plan(self.plan))
        store.put(path, encode_manifest(manifest))
        return manifest

    def _snapshot(self, task: TaskId) -> TaskSnapshot:
        operators = (self.sections, self.second) if task.vertex == RECEIVER else ()
        return TaskSnapshot(
            task=task,
            checkpoint=self.checkpoint,
            kind=CheckpointKind.UNALIGNED,
            start_delay_ms=1.0,
            alignment_ms=2.0,
            sync_ms=3.0,
            sections=[(at, section) for at, own in enumerate(operators) for section in own.get(task.subtask, ())],
            source_state=None,
            state_bytes=40 + task.subtask,
            progress=self.progress.get(task, StoredTask()),
            prepared=None,
        )
