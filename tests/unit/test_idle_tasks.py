"""When a task says that it is idle, and when it counts again: event time must not pass rows that are on their way."""

import pyarrow as pa

from tests.unit.test_task import CHANNELS, ONE, Made, gate_of, rows
from tidegate.connectors.contract import EndOfSource, NothingNow, Rows
from tidegate.model.elements import EndOfInput, Idle, Watermark
from tidegate.network.messages import BarrierSent
from tidegate.operators.contract import Emit, Stateless
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, ChannelWatermark
from tidegate.worker.gate import RecoveredWatermarks
from tidegate.worker.output import GATHER_MS
from tidegate.worker.stored_task import StoredTask, stored_task


def test_idleness_before_the_barrier_is_told_before_the_barrier() -> None:
    """The snapshot says that downstream knows; if it did not, a restored job's event time would stand still."""
    made = Made(gate=gate_of(CHANNELS[0]))
    made.arrive(CHANNELS[0], 0, Idle())
    made.barrier(CHANNELS[0], ONE, before=1, switch_after_ms=None)
    sent = made.run()
    assert made.taken[0].progress.channel_watermarks() == {CHANNELS[0]: ChannelWatermark(MIN_WATERMARK_MS, True)}
    barrier = next(message for message in sent if isinstance(message, BarrierSent))
    assert barrier.before == 1
    assert Idle() in sent


def test_a_restored_task_tells_channels_how_far_event_time_had_come() -> None:
    made = Made(gate=gate_of(CHANNELS[0]), restored=StoredTask(output_watermark_ms=90))
    assert made.run() == [Watermark(90)]


def test_a_restored_task_whose_channels_are_idle_is_idle_downstream_too() -> None:
    """Its watermark makes its channels count again, and its own channels have no reason to say again that they idle."""
    idle = {CHANNELS[0]: ChannelWatermark(90, is_idle=True)}
    progress = stored_task(input_watermark_ms=90, output_watermark_ms=90, channels=idle, floors=[])
    made = Made(gate=gate_of(CHANNELS[0], watermarks=RecoveredWatermarks(idle, 90)), restored=progress)
    assert made.run() == [Watermark(90)]
    made.consume()
    assert made.run() == [Idle()]


def test_a_source_without_rows_for_long_says_once_that_it_is_idle_and_is_active_with_its_next_rows() -> None:
    nothing = NothingNow(10.0)
    made = Made(answers=[nothing, nothing, nothing, nothing, Rows(rows(1)), nothing, nothing, nothing, nothing])
    assert made.task.source is not None
    made.task.source.idle_after_ms = 15.0
    found = []
    for _ in range(5):
        found += made.run(2)
        made.clock.advance(10.0)
    active = Watermark(MIN_WATERMARK_MS)
    assert found == [Idle(), active], "it counts again before its rows are there"
    made.consume()
    made.clock.advance(GATHER_MS)
    found = []
    for _ in range(5):
        found += made.run(2)
        made.consume()
        made.clock.advance(10.0)
    assert found == [[1], Idle()], "and idle anew when nothing follows them"


def test_a_source_is_not_idle_while_its_rows_are_on_their_way() -> None:
    """Else the mark that it has rows again would queue behind them, and event time go on without those meanwhile."""
    made = Made(answers=[Rows(rows(1)), NothingNow(10.0)], idle_after_ms=15.0)
    made.run(2)
    for _ in range(5):
        made.clock.advance(10.0 + GATHER_MS)
        assert Idle() not in made.run(2)
    made.consume()
    assert made.run(2) == [Idle()]


class GivesAtTheBarrier(Stateless):
    """As a function that collects: what it was given comes out when its epoch ends."""

    def __init__(self) -> None:
        self.collected: list[pa.RecordBatch] = []

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self.collected.append(rows)

    def before_barrier(self, emit: Emit) -> None:
        for batch in self.collected:
            emit(batch)
        self.collected = []

    def is_amid_call(self) -> bool:
        return bool(self.collected)


def test_a_task_is_not_idle_while_its_function_may_have_rows_for_the_barrier() -> None:
    """Event time downstream would pass them, and they would be late."""
    made = Made(answers=[Rows(rows(1)), NothingNow(10.0)], operators=[GivesAtTheBarrier()], idle_after_ms=15.0)
    found = []
    for _ in range(5):
        found += made.run(2)
        made.clock.advance(10.0)
    assert Idle() not in found
    made.trigger(ONE)
    found = made.run(4)
    made.consume()
    for _ in range(3):
        made.clock.advance(10.0)
        found += made.run(2)
        made.consume()
    assert [1] in found and found[-1] == Idle()


def test_a_source_that_was_idle_has_rows_at_once_and_moves_event_time_when_others_had_time_to_wake() -> None:
    nothing = NothingNow(10.0)
    made = Made(answers=[*[nothing] * 4, Rows(rows(1), 300), EndOfSource()], idle_after_ms=15.0)
    assert made.task.source is not None
    made.task.source.settling_ms = 1000.0
    for _ in range(4):
        made.run(2)
        made.clock.advance(10.0)
    made.consume()
    assert made.run(2) == [Watermark(MIN_WATERMARK_MS)], "it counts again"
    made.clock.advance(GATHER_MS)
    assert made.run(2) == [[1]]
    made.clock.advance(900.0)
    assert made.run() == [] and not made.task.is_waiting(), "nor does it end before"
    deadline_ms = made.task.next_deadline_ms()
    assert deadline_ms is not None
    made.clock.advance(deadline_ms - made.clock.monotonic_ms())
    assert made.run() == [Watermark(300), EndOfInput()]


def test_a_restored_source_counts_until_it_is_idle_anew() -> None:
    """It may have been idle in the checkpoint, and its first splits be on their way to it now."""
    made = Made(answers=[NothingNow(10.0)], is_restored=True)
    assert made.run(1) == [Watermark(MIN_WATERMARK_MS)]


class RowByTheClock(Stateless):
    """Gives a row when the test says that its time has come."""

    is_due = False

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        emit(rows)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        if self.is_due:
            self.is_due = False
            emit(rows(7))
        return False

    def next_timer_ms(self) -> int | None:
        return 0 if self.is_due else None


def test_a_task_that_is_idle_says_so_again_behind_what_its_timers_gave() -> None:
    """Its rows make it count downstream, and its own gate has been idle all along."""
    operator = RowByTheClock()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[operator])
    made.arrive(CHANNELS[0], 0, Idle())
    assert made.run() == [Idle()]
    made.consume()
    operator.is_due = True
    made.run()
    made.clock.advance(GATHER_MS)
    assert made.run() == [[7]]
    made.consume()
    assert made.run() == [Idle()]
    made.consume()
    assert made.run() == [], "once"
