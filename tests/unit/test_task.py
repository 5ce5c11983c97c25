"""One task between its gate or source and its output: what it passes on, remembers and waits for."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tidegate.connectors.contract import EndOfData, EndOfSource, NothingNow, Polled, Prepared, Rows, SinkWriter
from tidegate.model.elements import Batch, EndOfInput, NumberedElement, Watermark
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence, TaskId, VertexId
from tidegate.network.messages import BarrierSeen, BarrierSent, ChannelFinished, CutSent, LongStep, PeerMessage
from tidegate.operators.contract import Emit, Operator, Stateless, TaskContext, WithoutTimers
from tidegate.plan.physical import ForwardPartitioning
from tidegate.protocol.admission import ActiveBackpressure, SourceAdmission
from tidegate.protocol.barriers import Cut
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import UNKNOWN_SPEED
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS, ChannelWatermark
from tidegate.state.contract import RestoredSection, Section
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.gate import Arrived, ClosedCapture, Gate, RecoveredChannel, RecoveredWatermarks
from tidegate.worker.output import GATHER_MS, EdgeOutput, OutputChannel, Sealed, TaskOutput
from tidegate.worker.source_head import SourceHead
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task import SLICE_TARGET_MS, Task
from tidegate.worker.task_reports import TaskListener, TaskSnapshot

CHANNELS = [ChannelId(EdgeId(0), sender, 0) for sender in range(2)]
SECOND = ChannelId(EdgeId(1), 0, 0)
OUT = ChannelId(EdgeId(2), 0, 0)
NEW = RecoveredChannel((), Sequence(0))
ONE, TWO = CheckpointId(1), CheckpointId(2)
UNALIGNED_MS = 0.0
NONE_SENT = Sequence(0)


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["v"])


@dataclass
class Recorder:
    """A link that notes elements and messages in the order they leave."""

    sent: list[object] = field(default_factory=list)
    next: Sequence = NONE_SENT  # above all elements that were sent

    def can_accept(self) -> bool:
        return True

    def send_element(self, channel: int, sealed: Sealed, epoch: CheckpointId) -> None:
        element, self.next = sealed.element, Sequence(sealed.sequence + 1)
        self.sent.append(element.rows.column(0).to_pylist() if isinstance(element, Batch) else element)

    def send_message(self, message: PeerMessage) -> None:
        self.sent.append(message)


@dataclass
class Script:
    """A reader that gives what it was told to, and the last answer for ever."""

    answers: deque[Polled]
    polls: int = 0
    amid_after: frozenset[int] = frozenset()  # the polls behind which more of the same batch follow

    def restore(self, state: bytes) -> None: ...
    def add_splits(self, splits: Items[bytes]) -> None: ...
    def no_more_splits(self) -> None: ...
    def close(self) -> None: ...

    def poll(self, max_rows: int) -> Polled:
        self.polls += 1
        return self.answers.popleft() if len(self.answers) > 1 else self.answers[0]

    def is_amid_batch(self) -> bool:
        return self.polls in self.amid_after

    def snapshot(self) -> bytes:
        return b"%d" % self.polls


class TwoInputs(WithoutTimers):
    """Marks rows of its second input by a minus."""

    def open(self, context: TaskContext, restored: Items[RestoredSection]) -> None: ...
    def before_barrier(self, emit: Emit) -> None: ...
    def end_of_input(self, emit: Emit) -> None: ...
    def on_idle(self, emit: Emit) -> None: ...
    def close(self) -> None: ...

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        emit(rows)

    def process_right(self, right: pa.RecordBatch, emit: Emit) -> None:
        emit(rows(*(-value for value in right.column(0).to_pylist())))

    def snapshot(self) -> list[Section]:
        return []

    def state_bytes(self) -> int:
        return 0


class Takes(TwoInputs):
    """Each call takes so long."""

    clock: ManualClock

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self.clock.advance(self._ms)
        emit(rows)


class Made:
    """A task with what it told, and the slot's part in moving it."""

    def __init__(
        self,
        *,
        gate: Gate | None = None,
        answers: Items[Polled] = (),
        operators: Items[Operator] = (),
        inputs: "dict[EdgeId, int] | None" = None,
        has_output: bool = True,
        sink: SinkWriter | None = None,
        window_bytes: int = 1 << 20,
        restored: StoredTask | None = None,
        idle_after_ms: float | None = None,
        watermark_interval_ms: float = 0.0,
        mode: ActiveBackpressure = ActiveBackpressure.OFF,
        is_restored: bool = False,
    ) -> None:
        self.clock = ManualClock()
        self.taken: list[TaskSnapshot] = []
        self.closed: list[ClosedCapture] = []
        self.finished: list[TaskId] = []
        self.link = Recorder()
        self.source = Script(deque(answers)) if answers else None
        self.admission = SourceAdmission(mode, interval_ms=10.0, max_concurrent=1, now_ms=0.0)
        source = self.source and SourceHead(self.source, self.admission, idle_after_ms, is_restored=is_restored)
        channel = OutputChannel(OUT, 0, self.link, window_bytes=window_bytes, next_sequence=Sequence(0))
        self.out = channel
        edge = EdgeOutput([channel], ForwardPartitioning(), max_parallelism=16)
        self.task = Task(
            id=TaskId(VertexId(1), 0),
            source=source,
            gate=gate,
            inputs=inputs or {},
            operators=operators,
            output=TaskOutput([edge]) if has_output else None,
            sink=sink,
            clock=self.clock,
            listener=TaskListener(
                on_snapshot=self.taken.append,
                on_closed=lambda task, capture: self.closed.append(capture),
                on_finished=self.finished.append,
            ),
            restored=restored or StoredTask(),
            watermark_interval_ms=watermark_interval_ms,
        )

    def run(self, turns: int = 20) -> list[object]:
        """As many turns as the slot would take; gives what left."""
        for _ in range(turns):
            self.task.step()
            self.task.on_time(self.clock.monotonic_ms(), storage=UNKNOWN_SPEED)
            while self.out.send_one():
                pass
        return self.sent()

    def consume(self) -> None:
        """Downstream has processed all that was sent."""
        self.out.on_granted(self.link.next, self.out.window_bytes, self.clock.monotonic_ms())

    def sent(self) -> list[object]:
        sent, self.link.sent = self.link.sent, []
        return sent

    def arrive(self, channel: ChannelId, sequence: int, element: NumberedElement, epoch: int = 0) -> None:
        assert self.task.gate is not None
        arrived = Arrived(Sequence(sequence), CheckpointId(epoch), element, 8)
        self.task.perform(self.task.gate.on_arrival(channel, arrived, self.clock.monotonic_ms()))

    def barrier(
        self,
        channel: ChannelId,
        checkpoint: CheckpointId,
        *,
        before: int = 0,
        age_ms: float = 0.0,
        switch_after_ms: float | None = UNALIGNED_MS,
    ) -> None:
        """As the slot does it: note the barrier, feed the gate, do what it asks; the cut follows at once."""
        gate, now_ms, at = self.task.gate, self.clock.monotonic_ms(), Sequence(before)
        assert gate is not None
        self.task.note_barrier(checkpoint, now_ms, channel)
        self.task.perform(
            gate.on_barrier(
                channel, checkpoint, before=at, age_ms=age_ms, switch_after_ms=switch_after_ms, now_ms=now_ms
            )
        )
        self.task.perform(gate.on_cut(channel, checkpoint, Cut(at, at), now_ms))

    def trigger(self, checkpoint: CheckpointId, *, suspends: bool = False) -> None:
        self.task.trigger(checkpoint, switch_after_ms=None, suspends=suspends)


def gate_of(*channels: ChannelId, watermarks: RecoveredWatermarks | None = None) -> Gate:
    if watermarks is None:
        return Gate([(channel, NEW) for channel in channels], window_bytes=1)
    return Gate([(channel, NEW) for channel in channels], window_bytes=1, watermarks=watermarks)


def test_a_task_whose_changes_are_not_stored_takes_no_input_and_lets_barriers_pass() -> None:
    made = Made(gate=gate_of(CHANNELS[0]))
    has_room = [False]
    made.task.state_has_room = lambda: has_room[0]
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2)))
    made.run()
    made.clock.advance(100.0)
    assert made.run() == []
    made.barrier(CHANNELS[0], ONE, before=1)
    assert [snapshot.checkpoint for snapshot in made.taken] == [ONE]
    assert made.task.backpressured_ms() == 100.0
    made.sent()
    has_room[0] = True
    made.run()
    made.clock.advance(GATHER_MS)
    assert [1, 2] in made.run()


class Beside:
    """A sink that works on beside the loop."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.room = True

    def write(self, rows: pa.RecordBatch) -> None:
        self.written += rows.column(0).to_pylist()

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        return Prepared([], lambda: None)

    def close(self) -> None: ...

    def has_room(self) -> bool:
        return self.room

    def call_when_done(self, call: Callable[[], None]) -> None: ...


def test_a_task_whose_sink_has_no_room_takes_no_input_lets_barriers_pass_and_is_busy() -> None:
    sink = Beside()
    made = Made(gate=gate_of(CHANNELS[0]), has_output=False, sink=sink)
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2)))
    sink.room = False
    made.run()
    made.clock.advance(100.0)
    made.run()
    assert sink.written == []
    assert made.task.next_deadline_ms() is None, "the sink wakes the slot"
    made.barrier(CHANNELS[0], ONE, before=1)
    assert [snapshot.checkpoint for snapshot in made.taken] == [ONE]
    assert made.task.backpressured_ms() == 0.0
    assert made.task.counters.busy_ms == 100.0
    sink.room = True
    made.run()
    assert sink.written == [1, 2]


# -- what it remembers of barriers


def test_barriers_that_come_after_the_snapshot_are_not_remembered_for_ever() -> None:
    made = Made(gate=gate_of(*CHANNELS), has_output=False)
    for number in range(1, 150):
        for channel in CHANNELS:
            made.clock.advance(1.0)
            made.barrier(channel, CheckpointId(number), age_ms=10.0)
    assert [snapshot.checkpoint for snapshot in made.taken] == list(range(1, 150))
    assert len(made.closed) == 149
    assert len(made.task.watch._seen) <= 64
    made.task.on_done(CheckpointId(149))
    assert not made.task.watch._seen


def test_a_task_tells_how_far_it_is_with_a_checkpoint_and_what_it_did_meanwhile() -> None:
    slow = Takes(100.0)
    made = Made(gate=gate_of(*CHANNELS), operators=[slow])
    slow.clock = made.clock
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2)))
    made.barrier(CHANNELS[0], ONE, before=1, switch_after_ms=None)
    waiting = made.task.standing(ONE)
    assert waiting.first == waiting.last == BarrierSeen(CHANNELS[0], 0.0)
    assert (waiting.missing, waiting.queued_bytes, waiting.left_bytes) == ([CHANNELS[1]], 8, 8)
    assert (waiting.snapshot_at_ms, waiting.kind) == (None, None)
    made.run()
    made.barrier(CHANNELS[1], ONE, switch_after_ms=None)
    taken = made.task.standing(ONE)
    assert taken.last == BarrierSeen(CHANNELS[1], 100.0)
    assert (taken.missing, taken.left_bytes, taken.snapshot_at_ms, taken.kind) == ([], 0, 100.0, "aligned")
    assert (taken.busy_ms, taken.epoch_rows, taken.processed_bytes) == (100.0, 2, rows(1, 2).nbytes)
    assert list(made.task.watch.long_steps) == [LongStep(made.task.id, 100.0, 100.0, 2)]
    made.task.on_abort(ONE)
    assert made.task.standing(ONE).first is None


def test_an_epoch_is_what_came_in_since_the_snapshot_before() -> None:
    made = Made(gate=gate_of(CHANNELS[0]))
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2, 3)))
    made.run()
    made.barrier(CHANNELS[0], ONE, before=1)
    made.arrive(CHANNELS[0], 1, Batch(rows(4)))
    made.run()
    made.barrier(CHANNELS[0], TWO, before=2)
    assert (made.task.standing(ONE).epoch_rows, made.task.standing(TWO).epoch_rows) == (3, 1)


def test_the_start_delay_is_the_age_at_the_first_barrier_and_the_rest_is_alignment() -> None:
    made = Made(gate=gate_of(*CHANNELS), has_output=False)
    made.clock.advance(100.0)
    made.task.note_barrier(ONE, 100.0)
    made.clock.advance(30.0)
    made.barrier(CHANNELS[0], ONE, age_ms=40.0)
    assert (made.taken[0].start_delay_ms, made.taken[0].alignment_ms) == (10.0, 30.0)


# -- rows


def test_rows_go_from_the_gate_to_the_output_and_count() -> None:
    made = Made(gate=gate_of(*CHANNELS))
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2)))
    made.run()
    made.clock.advance(GATHER_MS)
    assert made.run() == [[1, 2]]
    assert (made.task.counters.rows_in, made.task.counters.rows_out) == (2, 2)


def test_the_second_input_is_told_by_the_edge() -> None:
    made = Made(
        gate=gate_of(CHANNELS[0], SECOND),
        operators=[TwoInputs()],
        inputs={CHANNELS[0].edge: 0, SECOND.edge: 1},
    )
    made.arrive(CHANNELS[0], 0, Batch(rows(1)))
    made.arrive(SECOND, 0, Batch(rows(2)))
    made.run()
    made.clock.advance(GATHER_MS)
    assert made.run() == [[1, -2]]


def test_without_room_nothing_is_processed_and_the_time_counts_as_backpressure() -> None:
    made = Made(gate=gate_of(*CHANNELS), window_bytes=1)
    made.arrive(CHANNELS[0], 0, Batch(rows(1)))
    made.arrive(CHANNELS[0], 1, Batch(rows(2)))
    assert made.run() == [[1]]
    made.clock.advance(100.0)
    assert made.run() == []
    made.out.on_granted(Sequence(1), 1, 0.0)
    assert made.run() == [[2]]
    assert made.task.counters.backpressured_ms == 100.0


# -- event time


def test_event_time_passes_and_is_in_the_snapshot_that_its_consumption_sets_off() -> None:
    made = Made(gate=gate_of(CHANNELS[0]))
    made.arrive(CHANNELS[0], 0, Watermark(100))
    made.barrier(CHANNELS[0], ONE, before=1, switch_after_ms=None)
    sent = made.run()
    (snapshot,) = made.taken
    assert snapshot.kind is CheckpointKind.ALIGNED
    assert snapshot.progress.input_watermark_ms == 100
    assert snapshot.progress.channel_watermarks() == {CHANNELS[0]: ChannelWatermark(100, is_idle=False)}
    assert snapshot.progress.output_watermark_ms == MIN_WATERMARK_MS, "told behind the barrier"
    assert [type(element) for element in sent] == [BarrierSent, CutSent, Watermark]


def test_event_time_waits_for_the_end_of_a_batch() -> None:
    made = Made(answers=[Rows(rows(1), 100), Rows(rows(2), 300), Rows(rows(3), 200), EndOfSource()])
    assert made.source is not None
    made.source.amid_after = frozenset({1, 2})
    assert made.run(2) == []
    assert made.run() == [[1, 2, 3], Watermark(300), EndOfInput()]


class Counts(Stateless):
    """Notes how many rows each slice had, of which sixteen take as long as a step should."""

    clock: ManualClock

    def __init__(self) -> None:
        self.slices: list[int] = []

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self.slices.append(rows.num_rows)
        self.clock.advance(rows.num_rows * SLICE_TARGET_MS / 16)


def test_steps_are_shorter_while_somebody_waits_for_their_end() -> None:
    operator = Counts()
    made = Made(gate=gate_of(*CHANNELS), operators=[operator])
    operator.clock = made.clock

    def slice_of(sequence: int) -> int:
        before = len(operator.slices)
        made.arrive(CHANNELS[0], sequence, Batch(rows(*range(100))))
        made.run(2)
        return operator.slices[before]

    assert slice_of(0) == 16
    made.task.hurry.begin(ONE, made.clock.monotonic_ms())
    assert slice_of(1) == 2
    made.task.hurry.end(ONE)
    assert slice_of(2) == 16


class OnlyTheFirst(Stateless):
    """Passes one slice and drops all others, as a filter may for hours."""

    def __init__(self) -> None:
        self._has_passed = False

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if not self._has_passed:
            self._has_passed = True
            emit(rows)


def test_a_filter_that_drops_everything_for_long_does_not_stop_the_task() -> None:
    """What a row makes of output is guessed ever smaller, down to what no window can be divided by."""
    made = Made(answers=[Rows(rows(1))], operators=[OnlyTheFirst()])
    made.run(1200)
    assert made.task.counters.rows_in > 1100


# -- the end


@pytest.mark.parametrize("end", [EndOfSource(), EndOfData()])
def test_only_the_end_of_all_data_is_the_end_of_event_time(end: EndOfSource | EndOfData) -> None:
    made = Made(answers=[Rows(rows(1)), end])
    last = [Watermark(MAX_WATERMARK_MS)] if isinstance(end, EndOfData) else []
    assert made.run() == [[1], *last, EndOfInput()]
    assert made.task.has_ended


def test_a_source_that_was_restored_after_its_end_ends_again() -> None:
    ended = StoredTask(input_watermark_ms=MAX_WATERMARK_MS, output_watermark_ms=MAX_WATERMARK_MS)
    made = Made(answers=[EndOfData()], restored=ended)
    assert made.run() == [Watermark(MAX_WATERMARK_MS), EndOfInput()]
    assert made.task.has_ended


def test_a_task_ends_with_its_last_channel() -> None:
    made = Made(gate=gate_of(*CHANNELS))
    made.arrive(CHANNELS[0], 0, EndOfInput())
    assert made.run() == []
    made.arrive(CHANNELS[1], 0, Batch(rows(1)))
    made.arrive(CHANNELS[1], 1, EndOfInput())
    assert made.run() == [[1], EndOfInput()]


def test_the_last_event_time_is_told_before_the_end_although_its_turn_has_not_come() -> None:
    made = Made(gate=gate_of(CHANNELS[0]), watermark_interval_ms=1000.0)
    made.arrive(CHANNELS[0], 0, Watermark(100))
    assert made.run() == [Watermark(100)]
    made.arrive(CHANNELS[0], 1, Watermark(200))
    assert made.run() == [], "its turn comes in a second"
    made.arrive(CHANNELS[0], 2, EndOfInput())
    assert made.run() == [Watermark(200), EndOfInput()]


def test_an_ended_task_finishes_once_its_outputs_are_consumed_and_a_later_checkpoint_is_complete() -> None:
    made = Made(answers=[Rows(rows(1)), EndOfSource()])
    made.run()
    made.trigger(ONE)
    made.task.on_done(ONE)
    assert made.finished == []
    made.out.on_granted(Sequence(2), 1 << 20, 0.0)
    sent = made.run()
    assert sent[-1] == ChannelFinished(0)
    assert made.finished == [made.task.id]
    assert made.taken[0].has_ended
    made.run()
    made.trigger(TWO)
    assert (made.finished, len(made.taken)) == ([made.task.id], 1)


def test_a_checkpoint_from_before_the_end_finishes_nobody() -> None:
    made = Made(answers=[NothingNow(1.0), EndOfSource()])
    made.run(2)
    made.trigger(ONE)
    made.clock.advance(5.0)
    made.run()
    made.out.on_granted(Sequence(1), 1 << 20, 0.0)
    made.task.on_done(ONE)
    made.run()
    assert made.task.has_ended
    assert made.finished == []


def test_a_task_whose_senders_have_finished_takes_its_snapshot_at_the_trigger() -> None:
    made = Made(gate=gate_of(CHANNELS[0]))
    made.arrive(CHANNELS[0], 0, EndOfInput())
    made.run()
    assert made.task.gate is not None
    made.task.perform(made.task.gate.on_finished(CHANNELS[0], 0.0))
    made.trigger(ONE)
    assert [snapshot.checkpoint for snapshot in made.taken] == [ONE]
    assert made.closed == [ClosedCapture(ONE, ())]


def test_barriers_that_reach_a_finished_task_are_not_remembered() -> None:
    made = Made(gate=gate_of(CHANNELS[0]), has_output=False)
    made.arrive(CHANNELS[0], 0, EndOfInput())
    made.run()
    made.barrier(CHANNELS[0], ONE, before=1)
    made.task.on_done(ONE)
    made.run()
    assert made.finished == [made.task.id]
    for number in range(2, 10):
        made.barrier(CHANNELS[0], CheckpointId(number), before=1)
    assert len(made.taken) == 1
    assert not made.task.watch._seen


# -- suspending and waiting


def test_a_source_that_a_checkpoint_suspends_pulls_nothing_behind_it_unless_it_is_aborted() -> None:
    made = Made(answers=[Rows(rows(1))])
    made.run(3)
    made.trigger(ONE, suspends=True)
    polls = made.source.polls if made.source else 0
    made.run(3)
    assert made.source is not None
    assert made.source.polls == polls
    made.task.on_abort(ONE)
    made.run(3)
    assert made.source.polls > polls


def test_a_source_that_may_not_pull_does_not_keep_the_slot_awake() -> None:
    made = Made(answers=[NothingNow(5.0)])
    made.run(2)
    assert made.task.next_deadline_ms() == 5.0
    made.trigger(ONE, suspends=True)
    made.clock.advance(100.0)
    made.run()
    assert made.task.next_deadline_ms() is None


def test_a_task_without_room_does_not_keep_the_slot_awake() -> None:
    made = Made(gate=gate_of(CHANNELS[0]), window_bytes=1, watermark_interval_ms=50.0)
    made.arrive(CHANNELS[0], 0, Watermark(10))
    made.run()
    made.out.on_granted(Sequence(1), 1, 0.0)
    made.arrive(CHANNELS[0], 1, Watermark(20))
    made.arrive(CHANNELS[0], 2, Batch(rows(1)))
    made.run()
    assert not made.out.has_room()
    made.clock.advance(100.0)
    made.run()
    assert made.task.next_deadline_ms() is None


def test_a_source_waits_while_checkpoints_are_behind_and_goes_on_once_one_is_settled() -> None:
    made = Made(answers=[NothingNow(1.0)] * 50, mode=ActiveBackpressure.STRICT)
    made.trigger(ONE)
    made.clock.advance(20.0)
    assert made.source is not None
    made.run(3)
    paused_at = made.source.polls
    made.clock.advance(20.0)
    made.run(3)
    assert made.source.polls == paused_at
    assert made.task.next_deadline_ms() is None, "a message wakes it"
    assert made.task.paused_ms() == 20.0
    made.task.on_done(ONE)
    made.run(3)
    assert made.source.polls > paused_at
