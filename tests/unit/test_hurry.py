"""From the trigger of an unaligned checkpoint to its acknowledgement a slot works in short steps; long ones wait."""

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
from tidegate.worker.hurry import Hurry
from tidegate.worker.links import LocalLink
from tidegate.worker.restoring import NOTHING_TO_RESTORE
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slices import SliceSizer
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
    hurry.on_periodic_trigger(100.0)
    assert [at_ms for at_ms in (101.0, 2080.0, 2085.0, 2100.0, 2104.0, 2105.0, 4100.0) if hurry.is_on(at_ms)] == [
        2085.0,
        2100.0,
        2104.0,
    ]


def test_short_intervals_are_not_spent_on_expecting_their_end() -> None:
    hurry = Hurry(100.0)
    hurry.on_periodic_trigger(0.0)
    assert not hurry.is_on(95.0)
    assert hurry.waits_until_ms(95.0, step_ms=10.0) is None


def test_a_step_that_would_end_behind_the_expected_trigger_waits_for_it() -> None:
    hurry = Hurry(2000.0)
    hurry.on_periodic_trigger(0.0)
    assert hurry.waits_until_ms(1994.0, step_ms=6.0) is None
    assert hurry.waits_until_ms(1995.0, step_ms=6.0) == 2005.0
    assert hurry.waits_until_ms(2004.0, step_ms=6.0) == 2005.0
    assert hurry.waits_until_ms(2005.0, step_ms=6.0) is None


def test_no_step_waits_for_longer_than_a_small_part_of_the_interval() -> None:
    hurry = Hurry(2000.0)
    hurry.on_periodic_trigger(0.0)
    assert hurry.waits_until_ms(1989.0, step_ms=100.0) is None
    assert hurry.waits_until_ms(1990.0, step_ms=100.0) == 2005.0


def test_short_steps_wait_for_nothing() -> None:
    hurry = Hurry(2000.0)
    hurry.on_periodic_trigger(0.0)
    hurry.begin(ONE, 2000.0)
    assert hurry.waits_until_ms(1999.5, step_ms=1.9) is None
    assert hurry.waits_until_ms(2000.5, step_ms=1.9) is None


def test_a_long_step_waits_until_the_checkpoint_is_acknowledged_and_no_longer_than_it_takes() -> None:
    hurry = Hurry(2000.0)
    hurry.begin(ONE, 100.0)
    assert hurry.waits_until_ms(100.0, step_ms=6.0) == 106.0
    assert hurry.waits_until_ms(106.0, step_ms=6.0) is None
    hurry.end(ONE)
    assert hurry.waits_until_ms(101.0, step_ms=6.0) is None


def test_triggers_that_are_heard_late_are_expected_a_little_later() -> None:
    hurry = Hurry(1000.0)
    hurry.on_periodic_trigger(1000.0)
    hurry.on_periodic_trigger(2008.0)
    assert not hurry.is_on(3006.0)
    assert hurry.is_on(3005.9)


def test_a_trigger_that_is_heard_early_is_expected_so_from_then_on() -> None:
    hurry = Hurry(1000.0)
    hurry.on_periodic_trigger(1000.0)
    hurry.on_periodic_trigger(1996.0)
    assert hurry.is_on(2981.0)
    assert not hurry.is_on(3001.0)


def test_a_schedule_that_has_moved_is_followed() -> None:
    hurry = Hurry(1000.0)
    hurry.on_periodic_trigger(1000.0)
    hurry.on_periodic_trigger(2500.0)
    assert not hurry.is_on(3000.0)
    assert hurry.is_on(3500.0)


class Slot:
    """One slot with a source and a sink."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.background = SimBackground()
        self.heard: list[FromSlot] = []
        self.link = LocalLink(lambda channel, arrived: self.tasks.on_element(channel, arrived))
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
                plan=plan,
                checkpoint_location=str(folder),
                window_bytes=1 << 20,
                state_backend="heap",
                checkpoint_interval_ms=2000.0,
            ),
            slot=SlotIndex(0),
            generation=GENERATION,
            restore=NOTHING_TO_RESTORE,
            links={SlotIndex(0): self.link},
            store=LocalFiles(folder),
            open_location=open_store,
            background=self.background,
            clock=self.clock,
            user_code=NamedUserCode(),
            open_calls=SlotCalls(Random(0)).open,
            wake=lambda: None,
            send=self.heard.append,
        )

    def trigger(self, checkpoint: CheckpointId, *, switch_after_ms: float | None, savepoint: str | None = None) -> None:
        self.tasks.on_trigger(TriggerCheckpoint(GENERATION, checkpoint, switch_after_ms, savepoint, False))

    def pass_messages(self) -> None:
        while self.link.messages:
            self.tasks.on_peer_message(self.link.messages.popleft())
        self.tasks.collect_held()

    def acknowledge(self) -> None:
        self.pass_messages()
        for _ in range(20):
            self.tasks.encode_some(self.clock.monotonic_ms() + 1000.0)
            self.background.work_once()
            self.background.note_once()
        assert [message.checkpoint for message in self.heard if isinstance(message, Acknowledge)] == [ONE]

    def take_long(self, step_ms: float) -> None:
        """From now on each row of the last task takes that long."""
        self.tasks.tasks[-1].sizer.observe(rows=1, elapsed_ms=step_ms)

    def waiting(self) -> list[bool]:
        return [self.tasks.lets_wait(task) for task in self.tasks.tasks]

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


def test_only_the_task_with_long_steps_waits_and_the_slot_wakes_when_that_is_over(slot: Slot) -> None:
    slot.take_long(8.0)
    assert slot.waiting() == [False, False]
    slot.trigger(ONE, switch_after_ms=0.0)
    assert slot.waiting() == [False, True]
    deadline_ms = slot.tasks.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= slot.clock.monotonic_ms() + 8.0
    slot.acknowledge()
    assert slot.waiting() == [False, False]


def test_the_trigger_of_a_savepoint_does_not_change_when_the_next_checkpoint_is_expected(
    slot: Slot, tmp_path: Path
) -> None:
    slot.take_long(8.0)
    slot.trigger(ONE, switch_after_ms=0.0, savepoint=str(tmp_path / "savepoint"))
    slot.clock.advance(1999.0)
    assert slot.waiting() == [False, False]
