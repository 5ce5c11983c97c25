"""From the trigger of an unaligned checkpoint to its acknowledgement a slot works in short steps."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tidegate.model.ids import CheckpointId, EdgeId, Generation, SlotIndex, VertexId
from tidegate.network.messages import AbortCheckpoint, Acknowledge, FromSlot, TriggerCheckpoint
from tidegate.plan.nodes import Scan, Sink
from tidegate.plan.physical import Edge, HashPartitioning, JobPlan, Vertex
from tidegate.storage.store import LocalFiles, open_store
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.calls import SlotCalls
from tidegate.testing.simulation.world import SimBackground
from tidegate.testing.threads import NamedUserCode
from tidegate.worker.links import LocalLink
from tidegate.worker.restoring import NOTHING_TO_RESTORE
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slices import Hurry, SliceSizer
from tidegate.worker.slot_tasks import SlotTasks

GENERATION = Generation(1)
ONE, TWO = CheckpointId(1), CheckpointId(2)
SCHEMA = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])


def test_a_part_of_a_slice_is_at_least_a_row() -> None:
    sizer = SliceSizer(10.0)
    assert (sizer.rows, sizer.hurried_rows) == (16, 2)
    sizer.observe(rows=16, elapsed_ms=160.0)
    assert (sizer.rows, sizer.hurried_rows) == (1, 1)


def test_nobody_is_in_a_hurry_for_long() -> None:
    hurry = Hurry(0.0)
    hurry.begin(ONE, 1000.0)
    assert hurry.is_on(1049.0)
    assert not hurry.is_on(1050.0)


def test_the_end_of_an_older_checkpoint_changes_nothing() -> None:
    hurry = Hurry(0.0)
    hurry.begin(ONE, 0.0)
    hurry.begin(TWO, 10.0)
    hurry.end(ONE)
    assert hurry.is_on(20.0)
    hurry.end(TWO)
    assert not hurry.is_on(20.0)


def test_the_next_trigger_is_expected_after_the_interval_and_not_waited_for() -> None:
    hurry = Hurry(2000.0)
    hurry.begin(ONE, 100.0)
    hurry.end(ONE)
    assert [at_ms for at_ms in (101.0, 2080.0, 2085.0, 2100.0, 2104.0, 2105.0, 4100.0) if hurry.is_on(at_ms)] == [
        2085.0,
        2100.0,
        2104.0,
    ]


def test_short_intervals_are_not_spent_on_expecting_their_end() -> None:
    hurry = Hurry(100.0)
    hurry.begin(ONE, 0.0)
    hurry.end(ONE)
    assert not hurry.is_on(95.0)


class Slot:
    """One slot with a source and a sink."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.background = SimBackground()
        self.heard: list[FromSlot] = []
        self._link = LocalLink(lambda channel, arrived: self.tasks.on_element(channel, arrived))
        plan = JobPlan(
            vertices=(
                Vertex(VertexId(0), "source", Scan("rate", {"rowsPerSecond": "10"}, SCHEMA), (), None),
                Vertex(VertexId(1), "sink", None, (), Sink("noop", {}, SCHEMA)),
            ),
            edges=(Edge(EdgeId(0), VertexId(0), VertexId(1), HashPartitioning(1), SCHEMA),),
            parallelism=1,
            max_parallelism=4,
        )
        self.tasks = SlotTasks(
            settings=SlotSettings(
                plan=plan, checkpoint_location=str(folder), window_bytes=1 << 20, state_backend="heap"
            ),
            slot=SlotIndex(0),
            generation=GENERATION,
            restore=NOTHING_TO_RESTORE,
            links={SlotIndex(0): self._link},
            store=LocalFiles(folder),
            open_location=open_store,
            background=self.background,
            clock=self.clock,
            user_code=NamedUserCode(),
            open_calls=SlotCalls(Random(0)).open,
            send=self.heard.append,
        )

    def trigger(self, checkpoint: CheckpointId, *, switch_after_ms: float | None) -> None:
        self.tasks.on_trigger(TriggerCheckpoint(GENERATION, checkpoint, switch_after_ms, None, False))

    def pass_messages(self) -> None:
        while self._link.messages:
            self.tasks.on_peer_message(self._link.messages.popleft())
        self.tasks.collect_held()

    def acknowledge(self) -> None:
        self.pass_messages()
        for _ in range(20):
            self.tasks.encode_some(self.clock.monotonic_ms() + 1000.0)
            self.background.work_once()
            self.background.note_once()
        assert [message.checkpoint for message in self.heard if isinstance(message, Acknowledge)] == [ONE]

    def hurries(self) -> set[bool]:
        now_ms = self.clock.monotonic_ms()
        return {task.hurry.is_on(now_ms) for task in self.tasks.tasks}


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    made = Slot(tmp_path)
    yield made
    made.tasks.close()


@pytest.mark.parametrize("switch_after_ms", [None, 1000.0])
def test_an_aligned_checkpoint_hurries_nobody(slot: Slot, switch_after_ms: float | None) -> None:
    slot.trigger(ONE, switch_after_ms=switch_after_ms)
    assert slot.hurries() == {False}


def test_an_unaligned_checkpoint_hurries_every_task_until_the_slot_has_acknowledged_it(slot: Slot) -> None:
    assert slot.hurries() == {False}
    slot.trigger(ONE, switch_after_ms=0.0)
    assert slot.hurries() == {True}
    slot.acknowledge()
    assert slot.hurries() == {False}


def test_an_aborted_checkpoint_hurries_nobody_any_more(slot: Slot) -> None:
    slot.trigger(ONE, switch_after_ms=0.0)
    slot.tasks.on_abort(AbortCheckpoint(GENERATION, ONE))
    assert slot.hurries() == {False}
