"""A slot's part of a checkpoint: gathered, encoded, uploaded, acknowledged; and read back as it was."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from tidegate.connectors.contract import Prepared
from tidegate.model.elements import Batch, EndOfInput, NumberedElement
from tidegate.model.errors import Damaged, DidNotHappen
from tidegate.model.ids import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    KeyGroupRange,
    Sequence,
    SlotIndex,
    TaskId,
    VertexId,
)
from tidegate.network.messages import Acknowledge, ChannelCapture, CheckpointDone, Decline, SnapshotsTaken
from tidegate.plan.lower import fingerprint
from tidegate.plan.nodes import Scan, Sink
from tidegate.plan.physical import DeduplicateSpec, Edge, HashPartitioning, JobPlan, Vertex
from tidegate.protocol.barriers import Cut
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.kinds import CheckpointKind, CheckpointStorage
from tidegate.state.contract import Section
from tidegate.storage.manifests import ChannelRange, Manifest, SlotFile, encode_manifest
from tidegate.storage.store import Data, LocalFiles, Store, pieces_of
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground
from tidegate.worker.gate import CapturedElement, ReceivedCapture
from tidegate.worker.output import HeldCapture, Sealed
from tidegate.worker.restoring import restore_slot
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task_reports import TaskSnapshot

SCHEMA = pa.schema([("v", pa.int64())])
SOURCE, SINK = TaskId(VertexId(0), 0), TaskId(VertexId(1), 0)
CHANNEL = ChannelId(EdgeId(0), 0, 0)
GENERATION = Generation(3)
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
PLAN = JobPlan(
    vertices=(
        Vertex(VertexId(0), "source", Scan("rate", {}, SCHEMA), (), None),
        Vertex(VertexId(1), "sink", None, (DeduplicateSpec(1, None, None, SCHEMA),), Sink("noop", {}, SCHEMA)),
    ),
    edges=(Edge(EdgeId(0), VertexId(0), VertexId(1), HashPartitioning(1), SCHEMA),),
    parallelism=1,
    max_parallelism=4,
)


class Slot:
    """The snapshots of one slot with a source and a sink; `said` is what the coordinator would hear of them at last."""

    def __init__(
        self,
        store: Store,
        *,
        tasks: Items[TaskId] = (SOURCE, SINK),
        savepoints: Store | None = None,
        clock: ManualClock | None = None,
        in_manifest_below_bytes: int = 0,
        storage: CheckpointStorage = CheckpointStorage.FILES,
    ) -> None:
        self.said: list[Acknowledge | Decline] = []
        self.taken: list[CheckpointId] = []
        self.background = SimBackground()
        self.clock = clock or ManualClock()
        self.opened: list[str] = []
        self._savepoints = savepoints
        self.snapshots = SlotSnapshots(
            slot=SlotIndex(0),
            generation=GENERATION,
            tasks=tasks,
            store=store,
            open_location=self._open,
            background=self.background,
            clock=self.clock,
            inline_below_bytes=20 << 10,
            send=self._hear,
            in_manifest_below_bytes=in_manifest_below_bytes,
            storage=storage,
        )

    def _open(self, location: str) -> Store:
        assert self._savepoints is not None
        self.opened.append(location)
        return self._savepoints

    def _hear(self, message: Acknowledge | Decline | SnapshotsTaken) -> None:
        if isinstance(message, SnapshotsTaken):
            self.taken.append(message.checkpoint)
        else:
            self.said.append(message)

    def trigger(self, checkpoint: CheckpointId, savepoint: str | None = None) -> None:
        self.snapshots.on_trigger(checkpoint, savepoint=savepoint)

    def done(self, checkpoint: CheckpointId) -> None:
        self.snapshots.on_done(CheckpointDone(GENERATION, checkpoint))

    def snapshot(
        self,
        task: TaskId,
        checkpoint: CheckpointId,
        prepared: Prepared | None = None,
        *,
        kind: CheckpointKind = CheckpointKind.UNALIGNED,
        has_ended: bool = False,
        encoder: Callable[[], bytes] = lambda: b"state",
    ) -> None:
        """As after the coordinator's word, if that has come."""
        is_source = task == SOURCE
        section = Section("keyed/count", KeyGroupRange(0, 4), encoder)
        self.snapshots.on_snapshot(
            TaskSnapshot(
                task=task,
                checkpoint=checkpoint,
                kind=kind,
                start_delay_ms=1.0,
                alignment_ms=2.0,
                sync_ms=3.0,
                sections=[] if is_source else [(0, section)],
                source_state=b"position" if is_source else None,
                progress=StoredTask(input_watermark_ms=7),
                prepared=prepared,
                state_bytes=5,
                has_ended=has_ended,
            )
        )

    def close(
        self,
        checkpoint: CheckpointId,
        received: "Items[ReceivedCapture]" = (),
        held: "Items[HeldCapture]" = (),
    ) -> None:
        for task in (SOURCE, SINK):
            self.snapshots.on_received(task, checkpoint, tuple(received) if task == SINK else ())
            self.snapshots.on_held(task, checkpoint, list(held) if task == SOURCE else [])

    def take(self, checkpoint: CheckpointId, prepared: Prepared | None = None) -> None:
        """A whole checkpoint up to its upload."""
        self.trigger(checkpoint)
        self.snapshot(SOURCE, checkpoint)
        self.snapshot(SINK, checkpoint, prepared)
        self.close(checkpoint)
        self.snapshots.encode_some(float("inf"))

    def upload(self) -> None:
        while self.background.work_once() or self.background.note_once():
            pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return LocalFiles(tmp_path)


def test_an_aborted_checkpoint_that_waits_for_its_upload_is_not_uploaded(store: Store) -> None:
    """Behind uploads that nobody waits for, the next checkpoint would expire, and the next after that."""
    slot = Slot(store)
    made_durable: list[int] = []
    slot.take(ONE, Prepared([b"one"], lambda: made_durable.append(1)))
    slot.snapshots.on_abort(ONE)
    slot.take(TWO, Prepared([b"two"], lambda: made_durable.append(2)))
    slot.upload()
    assert [path for path in store.list() if path.startswith("checkpoints/1-")] == []
    assert made_durable == [1, 2], "what the first one prepared rides with the second"
    assert [said.checkpoint for said in slot.said] == [TWO] and committables(slot.said[0]) == [b"one", b"two"]


def committables(said: Acknowledge | Decline) -> list[bytes]:
    assert isinstance(said, Acknowledge)
    return [committable for part in said.parts for committable in part.committables]


def prepared(name: bytes, log: list[bytes] | None = None) -> Prepared:
    return Prepared([name], lambda: None if log is None else log.append(name))


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA))


def received(
    elements: "list[tuple[int, NumberedElement]]", *, row: int = 0, held_from: int, before: int
) -> ReceivedCapture:
    first = Sequence(elements[0][0])
    position = ReceiverRange(
        channel=CHANNEL, first=first, row=row, held_from=Sequence(held_from), before=Sequence(before)
    )
    return ReceivedCapture(position, tuple(CapturedElement(Sequence(s), element) for s, element in elements))


def held(elements: "list[tuple[int, NumberedElement]]") -> HeldCapture:
    cut = Cut(Sequence(elements[0][0]), Sequence(elements[-1][0] + 1))
    return HeldCapture(CHANNEL, cut, tuple(Sealed(Sequence(s), element, 0) for s, element in elements))


def write_manifest(store: Store, ack: Acknowledge) -> str:
    """What the coordinator makes of a single slot's acknowledgement."""
    manifest = Manifest(
        checkpoint=ack.checkpoint,
        generation=ack.generation,
        kind="unaligned",
        is_savepoint=False,
        triggered_at_ms=0,
        duration_ms=1.0,
        plan_fingerprint=fingerprint(PLAN),
        parallelism=1,
        max_parallelism=4,
        vertex_parallelism=[1, 1],
        slots=[SlotFile(SlotIndex(0), ack.path, ack.length, ack.crc32, ack.shared, ack.content)],
        channels=[ChannelRange(c.channel, c.first or Sequence(0), c.row, c.held_from, c.before) for c in ack.received],
    )
    store.put("manifest.json", encode_manifest(manifest))
    return "manifest.json"


def restored(store: Store, slot: Slot) -> list[tuple[int, object]]:
    """The rows that the receiving gate finds in flight."""
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    restore = restore_slot(store, write_manifest(store, ack), PLAN, SlotIndex(0))
    elements = restore.recovered[CHANNEL].elements
    return [
        (a.sequence, a.element.rows.column(0).to_pylist() if isinstance(a.element, Batch) else a.element)
        for a in elements
    ]


# -- acknowledging


def test_a_slot_acknowledges_once_all_its_tasks_are_in_the_store(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    assert slot.snapshots.waiting_for_outputs() == [(ONE, SOURCE), (ONE, SINK)]
    slot.snapshots.on_held(SOURCE, ONE, [])
    slot.snapshots.on_held(SINK, ONE, [])
    slot.snapshots.on_received(SOURCE, ONE, ())
    assert not slot.snapshots.has_work()
    slot.snapshots.on_received(SINK, ONE, ())
    assert slot.snapshots.has_work()
    slot.snapshots.encode_some(float("inf"))
    assert slot.said == []
    slot.upload()
    assert slot.taken == [ONE]
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    assert (ack.generation, ack.checkpoint, ack.path) == (GENERATION, ONE, "checkpoints/1-g3/0.state")
    assert store.size(ack.path) == ack.length
    assert [part.task for part in ack.parts] == [SOURCE, SINK]


def test_encoding_stops_when_its_time_is_up_and_goes_on_later(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE)
    slot.snapshots.encode_some(0.0)
    assert slot.snapshots.has_work()
    for _ in range(3):
        slot.snapshots.encode_some(0.0)
    slot.upload()
    assert len(slot.said) == 1


def test_captures_are_acknowledged_by_their_ranges(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE, [received([(4, rows(1))], row=2, held_from=5, before=6)], [held([(5, rows(2))])])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    assert ack.received == [ChannelCapture(CHANNEL, Sequence(5), Sequence(6), first=Sequence(4), row=2)]
    assert ack.held == [ChannelCapture(CHANNEL, Sequence(5), Sequence(6))]


def test_a_slot_that_cannot_store_its_part_declines(tmp_path: Path) -> None:
    class Full(LocalFiles):
        def put(self, path: str, data: Data) -> None:
            raise DidNotHappen("the disk is full")

    slot = Slot(Full(tmp_path))
    slot.take(ONE)
    slot.upload()
    assert slot.said == [Decline(GENERATION, ONE, "DidNotHappen: the disk is full", is_upload=True)]


def test_a_slot_whose_state_cannot_be_written_declines_and_goes_on_with_the_next_one(store: Store) -> None:
    def fail() -> bytes:
        raise DidNotHappen("the local disk is full")

    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE, encoder=fail)
    slot.close(ONE)
    slot.snapshots.encode_some(float("inf"))
    assert slot.said == [Decline(GENERATION, ONE, "DidNotHappen: the local disk is full", is_upload=False)]
    assert not slot.snapshots.has_work()
    slot.take(TWO)
    slot.upload()
    assert isinstance(slot.said[-1], Acknowledge)


def test_an_aborted_checkpoint_is_neither_encoded_nor_acknowledged(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshots.on_abort(ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE)
    assert slot.snapshots.waiting_for_outputs() == []
    assert not slot.snapshots.has_work()


def test_one_that_is_aborted_while_it_is_uploaded_is_not_acknowledged(store: Store) -> None:
    slot = Slot(store)
    slot.take(ONE)
    assert slot.background.work_once()
    slot.snapshots.on_abort(ONE)
    slot.upload()
    assert slot.said == []


def test_nothing_is_stored_before_the_coordinators_own_word(store: Store) -> None:
    """It says whether this is a savepoint, and comes behind the news of what may be referred to."""
    slot = Slot(store)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE)
    assert slot.taken == [ONE]
    assert not slot.snapshots.has_work()
    slot.trigger(ONE)
    assert slot.snapshots.has_work()
    assert slot.taken == [ONE]


def test_the_word_of_an_aborted_checkpoint_opens_nothing(store: Store) -> None:
    slot = Slot(store)
    slot.snapshots.on_abort(ONE)
    slot.take(ONE)
    slot.upload()
    assert (slot.taken, slot.said) == ([], [])


def test_a_slot_without_tasks_acknowledges_an_empty_part(store: Store) -> None:
    slot = Slot(store, tasks=())
    slot.trigger(ONE)
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    assert (slot.taken, ack.parts, ack.received, ack.held) == ([ONE], [], [], [])
    assert store.size(ack.path) == ack.length


def test_a_savepoint_goes_to_its_own_location_by_paths_of_its_own(tmp_path: Path) -> None:
    savepoints = LocalFiles(tmp_path / "savepoints")
    slot = Slot(LocalFiles(tmp_path / "job"), savepoints=savepoints)
    slot.trigger(ONE, savepoint="there")
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE)
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    assert (slot.opened, ack.path, savepoints.list()) == (["there"], "0.state", ["0.state"])


@dataclass(slots=True)
class SlowFile:
    """Something happens when the second piece of a file is asked for; counts the pieces that were taken after that."""

    meanwhile: Callable[[], None]
    pieces_after: int = 0

    def put(self, path: str, data: Data) -> None:
        for number, _ in enumerate(pieces_of(data)):
            if number == 0:
                self.meanwhile()
            else:
                self.pieces_after += 1


def test_an_upload_ends_in_its_midst_when_its_checkpoint_is_aborted_and_nobody_hears_of_it() -> None:
    store = SlowFile(lambda: slot.snapshots.on_abort(ONE))
    slot = Slot(cast(Store, store))
    slot.take(ONE)
    slot.upload()
    assert store.pieces_after == 0
    assert slot.said == []
    assert not slot.snapshots.has_work()
    assert slot.snapshots._assemblies == {}


# -- finished tasks


def test_the_last_snapshot_of_a_finished_task_stands_for_it_in_every_later_checkpoint(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE, has_ended=True)
    slot.snapshot(SINK, ONE)
    slot.close(ONE)
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    slot.done(ONE)
    slot.snapshots.on_finished(SOURCE)
    slot.trigger(TWO)
    assert slot.taken == [ONE]
    slot.snapshot(SINK, TWO, kind=CheckpointKind.ALIGNED)
    assert slot.taken == [ONE, TWO]
    slot.snapshots.on_held(SINK, TWO, [])
    slot.snapshots.on_received(SINK, TWO, ())
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    ack = slot.said[1]
    assert isinstance(ack, Acknowledge)
    parts = {part.task: part for part in ack.parts}
    assert parts.keys() == {SOURCE, SINK}
    assert (parts[SOURCE].kind, parts[SOURCE].alignment_ms) == ("aligned", 0.0), "it did nothing for this one"
    restore = restore_slot(store, write_manifest(store, ack), PLAN, SlotIndex(0))
    assert restore.tasks[SOURCE].source_state == b"position"


def test_a_task_that_finishes_completes_the_checkpoints_that_wait_for_it(store: Store) -> None:
    slot = Slot(store)
    slot.take(ONE)
    slot.snapshot(SOURCE, TWO, has_ended=True)
    slot.trigger(THREE)
    slot.snapshot(SINK, THREE)
    assert slot.taken == [ONE]
    slot.snapshots.on_finished(SOURCE)
    assert slot.taken == [ONE, THREE]


def test_no_part_of_a_slot_whose_tasks_have_all_finished_waits_for_anything(store: Store) -> None:
    slot = Slot(store)
    for task in (SOURCE, SINK):
        slot.snapshot(task, ONE, has_ended=True)
    slot.close(ONE)
    for task in (SOURCE, SINK):
        slot.snapshots.on_finished(task)
    slot.trigger(TWO)
    assert slot.taken == [ONE, TWO]
    assert slot.snapshots.has_work()


# -- what sinks prepared


def test_what_a_sink_prepared_is_durable_before_the_acknowledgement(store: Store) -> None:
    log: list[bytes] = []
    slot = Slot(store)
    slot.take(ONE, prepared(b"epoch 1", log))
    assert log == []
    slot.upload()
    assert log == [b"epoch 1"]
    assert committables(slot.said[0]) == [b"epoch 1"]


def test_rows_of_a_failed_checkpoint_are_committed_with_the_next(store: Store) -> None:
    log: list[bytes] = []
    slot = Slot(store)
    slot.take(ONE, prepared(b"epoch 1", log))
    slot.snapshots.on_abort(ONE)
    slot.take(TWO, prepared(b"epoch 2"))
    slot.upload()
    assert [committables(said) for said in slot.said] == [[b"epoch 1", b"epoch 2"]]
    assert b"epoch 1" in log


def test_rows_of_a_checkpoint_that_is_aborted_before_its_snapshot_are_not_lost(store: Store) -> None:
    slot = Slot(store)
    slot.snapshots.on_abort(ONE)
    slot.snapshot(SINK, ONE, prepared(b"epoch 1"))
    slot.take(TWO, prepared(b"epoch 2"))
    slot.upload()
    assert committables(slot.said[0]) == [b"epoch 1", b"epoch 2"]


def test_rows_of_a_checkpoint_whose_fate_is_unknown_go_with_the_next_as_well(store: Store) -> None:
    slot = Slot(store)
    slot.take(ONE, prepared(b"epoch 1"))
    slot.take(TWO, prepared(b"epoch 2"))
    slot.upload()
    assert [committables(said) for said in slot.said] == [[b"epoch 1"], [b"epoch 1", b"epoch 2"]]


def test_rows_of_a_completed_checkpoint_do_not_go_again(store: Store) -> None:
    slot = Slot(store)
    slot.take(ONE, prepared(b"epoch 1"))
    slot.upload()
    slot.done(ONE)
    slot.take(TWO, prepared(b"epoch 2"))
    slot.upload()
    assert committables(slot.said[1]) == [b"epoch 2"]


# -- reading back


def test_restore_gives_state_positions_and_captured_rows_the_receivers_part_first(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(
        ONE,
        [received([(4, rows(1)), (5, rows(2, 3))], held_from=6, before=8)],
        [held([(6, rows(4)), (7, rows(5))])],
    )
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    assert restored(store, slot) == [(4, [1]), (5, [2, 3]), (6, [4]), (7, [5])]
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge)
    restore = restore_slot(store, "manifest.json", PLAN, SlotIndex(0))
    assert restore.tasks[SOURCE].source_state == b"position"
    assert restore.tasks[SOURCE].progress == StoredTask(input_watermark_ms=7)
    assert [(s.name, bytes(s.data)) for s in restore.tasks[SINK].sections[0]] == [("keyed/count", b"state")]
    assert restore.next_sequences == {CHANNEL: 8}
    assert restore.recovered[CHANNEL].next_sequence == 8


def test_a_captured_slice_of_a_batch_stores_only_its_own_rows(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    half_done = CapturedElement(Sequence(0), rows(1, 2, 3), done_rows=2)
    position = ReceiverRange(channel=CHANNEL, first=Sequence(0), row=2, held_from=Sequence(1), before=Sequence(1))
    slot.close(ONE, [ReceivedCapture(position, (half_done,))])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    assert restored(store, slot) == [(0, [3])]


def test_an_end_mark_that_was_in_flight_leaves_no_hole_in_the_sequence(store: Store) -> None:
    """It ended the run that wrote it, not this one; yet the next capture must be without gaps."""
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE, [received([(4, rows(1)), (5, EndOfInput())], held_from=6, before=6)])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    assert restored(store, slot) == [(4, [1]), (5, [])]


def test_a_capture_with_a_missing_element_is_not_restored(store: Store) -> None:
    slot = Slot(store)
    slot.trigger(ONE)
    slot.snapshot(SOURCE, ONE)
    slot.snapshot(SINK, ONE)
    slot.close(ONE, [received([(4, rows(1)), (6, rows(3))], held_from=7, before=7)])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    with pytest.raises(Damaged, match="e0:0->0 should have the elements 4 to 7"):
        restored(store, slot)
