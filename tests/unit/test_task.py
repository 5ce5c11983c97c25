"""What a task remembers between checkpoints."""

from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence, TaskId, VertexId
from tidegate.protocol.barriers import Cut
from tidegate.testing.simulation.world import SimClock
from tidegate.worker.gate import ClosedCapture, Gate, RecoveredChannel
from tidegate.worker.task import Task, TaskSnapshot

CHANNELS = [ChannelId(EdgeId(0), sender, 0) for sender in range(2)]
NEW = RecoveredChannel((), Sequence(0))


def make(clock: SimClock, taken: list[TaskSnapshot], closed: list[ClosedCapture]) -> Task:
    return Task(
        id=TaskId(VertexId(1), 0),
        source=None,
        gate=Gate([(channel, NEW) for channel in CHANNELS], window_bytes=1, switch_after_ms=0.0),
        operators=[],
        output=None,
        sink=None,
        clock=clock,
        switch_after_ms=0.0,
        on_snapshot=taken.append,
        on_closed=lambda task, capture: closed.append(capture),
    )


def pass_barrier(task: Task, clock: SimClock, channel: ChannelId, checkpoint: CheckpointId, *, age_ms: float) -> None:
    """As the slot does it: note the barrier, feed the gate, do what it asks."""
    gate, before = task.gate, Sequence(0)
    assert gate is not None
    task.note_barrier(checkpoint, clock.now_ms)
    task.perform(gate.on_barrier(channel, checkpoint, before=before, age_ms=age_ms, now_ms=clock.now_ms))
    task.perform(gate.on_cut(channel, checkpoint, Cut(before, before), clock.now_ms))


def test_barriers_that_come_after_the_snapshot_are_not_remembered_for_ever() -> None:
    clock, taken, closed = SimClock(), [], []  # type: ignore[var-annotated]
    task = make(clock, taken, closed)
    for number in range(1, 50):
        for channel in CHANNELS:
            clock.now_ms += 1.0
            pass_barrier(task, clock, channel, CheckpointId(number), age_ms=10.0)
    assert [snapshot.checkpoint for snapshot in taken] == list(range(1, 50))
    assert len(closed) == 49
    assert len(task._first_barrier_ms) <= 1


def test_the_start_delay_is_the_age_at_the_first_barrier_and_the_rest_is_alignment() -> None:
    clock, taken, closed = SimClock(), [], []  # type: ignore[var-annotated]
    task = make(clock, taken, closed)
    clock.now_ms = 100.0
    task.note_barrier(CheckpointId(1), 100.0)
    clock.now_ms = 130.0
    pass_barrier(task, clock, CHANNELS[0], CheckpointId(1), age_ms=40.0)
    assert (taken[0].start_delay_ms, taken[0].alignment_ms) == (10.0, 30.0)
