"""A task whose operators hold rows: what it takes, what waits for them, and what its snapshots say of long steps."""

import pyarrow as pa

from tests.unit.test_task import CHANNELS, ONE, Made, gate_of, rows
from tidegate.connectors.contract import EndOfData, NothingNow, Rows
from tidegate.model.elements import Batch, EndOfInput, Idle, Watermark
from tidegate.operators.contract import Emit, Stateless
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS, ChannelWatermark
from tidegate.worker.gate import RecoveredWatermarks
from tidegate.worker.output import GATHER_MS


class HoldsRows(Stateless):
    """Takes two rows at the most, and gives what the test releases."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.released = 0

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self.held += rows.column(0).to_pylist()

    def room(self) -> int:
        return max(0, 2 - len(self.held))

    def give(self, max_rows: int, emit: Emit) -> int:
        count = min(max_rows, self.released, len(self.held))
        if count:
            emit(rows(*self.held[:count]))
            del self.held[:count]
            self.released -= count
        return count

    def holds_rows(self) -> bool:
        return bool(self.held)

    def on_time(self, now_ms: float) -> None: ...

    def next_deadline_ms(self) -> float | None:
        return None

    def watermark_behind(self, event_time_ms: int) -> int:
        return MIN_WATERMARK_MS if self.held else event_time_ms


class LastWord(Stateless):
    """Says at the end of its input how many rows it has seen."""

    def __init__(self) -> None:
        self._seen = 0

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self._seen += rows.num_rows

    def end_of_input(self, emit: Emit) -> None:
        emit(rows(self._seen))


def test_without_room_in_an_operator_no_row_is_taken_and_nothing_is_due() -> None:
    operator = HoldsRows()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[operator])
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2, 3)))
    made.run()
    assert operator.held == [1, 2]
    assert not made.task.step()
    assert made.task.next_deadline_ms() is None
    assert not made.task.is_waiting()
    operator.released = 2
    made.run()
    assert operator.held == [3]
    assert not made.task.is_waiting(), "although its gate is empty"


class FiresBehindItsRows(HoldsRows):
    """As a join: what is due waits until the rows that it holds are given."""

    def room(self) -> int:
        return 10

    def fire(self, max_timers: int, emit: Emit) -> bool:
        return self.holds_rows()


def test_while_due_timers_wait_for_rows_that_a_later_operator_has_no_room_for_the_task_waits_too() -> None:
    joining, waiting = FiresBehindItsRows(), HoldsRows()
    joining.held, joining.released = [1, 2, 3], 3
    waiting.held = [8, 9]
    made = Made(gate=gate_of(CHANNELS[0]), operators=[joining, waiting])
    slice_rows = made.task._timer_sizer.rows
    made.arrive(CHANNELS[0], 0, Watermark(100))
    made.run()
    assert not made.task.step()
    assert made.task.next_deadline_ms() is None, "else the slot would look again and again"
    assert made.task._timer_sizer.rows == slice_rows, "timers that cannot fire say nothing of how fast they are"
    waiting.released = 5
    assert made.run() == [[8, 9, 1, 2, 3], Watermark(100)]


class FiresRows(Stateless):
    """Has so many rows to fire, one in a slice."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        emit(rows)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        if self.left:
            emit(rows(self.left.pop(0)))
        return bool(self.left)

    def next_timer_ms(self) -> int | None:
        return 0 if self.left else None


def test_what_is_due_is_fired_only_as_far_as_those_behind_have_room() -> None:
    firing, waiting = FiresRows(10), HoldsRows()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[firing, waiting])
    made.run()
    assert waiting.held == [0, 1], "and not all that is due"
    assert not made.task.step()
    assert made.task.next_deadline_ms() is None, "what is due cannot be fired now"
    made.barrier(CHANNELS[0], ONE)
    assert len(made.taken) == 1, "a barrier does not wait for it"
    waiting.released = 10
    made.run(40)
    made.clock.advance(GATHER_MS)
    sent = [each for each in made.run() if isinstance(each, list)]
    assert sent == [list(range(10))]


class PassesOnWhatItHeard(HoldsRows):
    """As an async_map: what it lets pass is what it was told, not what is known by now."""

    def __init__(self) -> None:
        super().__init__()
        self.heard_ms = MIN_WATERMARK_MS

    def on_watermark(self, event_time_ms: int) -> None:
        self.heard_ms = event_time_ms

    def watermark_behind(self, event_time_ms: int) -> int:
        return MIN_WATERMARK_MS if self.held else self.heard_ms


def test_event_time_that_one_operator_held_back_reaches_the_next_without_new_input() -> None:
    first, second = HoldsRows(), PassesOnWhatItHeard()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[first, second])
    made.arrive(CHANNELS[0], 0, Batch(rows(1)))
    made.arrive(CHANNELS[0], 1, Watermark(100))
    made.arrive(CHANNELS[0], 2, Idle())
    assert made.run() == []
    first.released = second.released = 1
    assert made.run() == [[1], Watermark(100)]
    made.consume()
    assert made.run() == [Idle()]


def test_the_next_look_at_a_source_is_not_waited_for_while_an_operator_has_no_room() -> None:
    first, second = HoldsRows(), HoldsRows()
    second.held = [8]
    made = Made(answers=[Rows(rows(1)), NothingNow(5.0)], operators=[first, second])
    made.run()
    assert made.task.next_deadline_ms() == 5.0
    first.released = 1
    made.run()
    assert second.held == [8, 1]
    made.clock.advance(1_000.0)
    made.run()
    assert made.task.next_deadline_ms() is None, "it would be in the past"


def test_a_source_is_not_asked_while_an_operator_has_no_room() -> None:
    operator = HoldsRows()
    made = Made(answers=[Rows(rows(1, 2)), NothingNow(5.0)], operators=[operator])
    made.run()
    assert made.source is not None
    assert made.source.polls == 1
    assert made.task.next_deadline_ms() is None


def test_a_barrier_passes_while_rows_are_held() -> None:
    operator = HoldsRows()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[operator])
    made.arrive(CHANNELS[0], 0, Batch(rows(1, 2, 3)))
    made.run()
    made.barrier(CHANNELS[0], ONE, before=1)
    assert [snapshot.checkpoint for snapshot in made.taken] == [ONE]


def test_the_end_waits_for_rows_that_are_held_and_so_do_the_operators_behind() -> None:
    operator = HoldsRows()
    made = Made(answers=[Rows(rows(1)), EndOfData()], operators=[operator, LastWord()])
    assert made.run() == []
    operator.released = 1
    assert made.run() == [[1], Watermark(MAX_WATERMARK_MS), EndOfInput()]


def test_idleness_waits_for_rows_that_are_held() -> None:
    """Else downstream would go on without them, and find them late."""
    operator = HoldsRows()
    made = Made(gate=gate_of(CHANNELS[0]), operators=[operator])
    made.arrive(CHANNELS[0], 0, Batch(rows(1)))
    made.arrive(CHANNELS[0], 1, Idle())
    assert made.run() == []
    operator.released = 1
    made.run()
    made.clock.advance(GATHER_MS)
    assert made.run() == [[1]]
    made.consume()
    assert made.run() == [Idle()]


def test_idleness_is_told_behind_a_watermark_whose_turn_has_not_come() -> None:
    """A watermark makes a channel count again, and an idle gate does not become idle once more."""
    made = Made(gate=gate_of(CHANNELS[0]), watermark_interval_ms=200.0)
    made.arrive(CHANNELS[0], 0, Watermark(100))
    assert made.run() == [Watermark(100)]
    made.arrive(CHANNELS[0], 1, Watermark(200))
    made.arrive(CHANNELS[0], 2, Idle())
    made.consume()
    assert made.run() == []
    made.clock.advance(200.0)
    assert made.run() == [Watermark(200)]
    made.consume()
    assert made.run() == [Idle()]


def test_a_restored_task_that_holds_rows_says_that_it_is_idle_when_they_are_given() -> None:
    operator = HoldsRows()
    operator.held = [1]
    idle = {CHANNELS[0]: ChannelWatermark(MIN_WATERMARK_MS, is_idle=True)}
    made = Made(gate=gate_of(CHANNELS[0], watermarks=RecoveredWatermarks(idle, MIN_WATERMARK_MS)), operators=[operator])
    assert made.run() == []
    operator.released = 1
    made.run()
    made.clock.advance(GATHER_MS)
    assert made.run() == [[1]]
    made.consume()
    assert made.run() == [Idle()]


def test_a_wait_for_changes_of_state_to_be_stored_is_told_apart_from_one_for_room_downstream() -> None:
    made = Made(gate=gate_of(CHANNELS[0]))
    made.arrive(CHANNELS[0], 0, Batch(rows(1)))
    made.task.state_has_room = lambda: False
    made.task.step()
    made.clock.advance(30.0)
    assert made.task._marks(made.clock.monotonic_ms()).unstored_ms == 30.0, "it lasts"
    made.task.state_has_room = lambda: True
    made.run()
    assert (made.task.counters.backpressured_ms, made.task.counters.unstored_ms) == (30.0, 30.0)


def test_a_wait_for_room_downstream_is_none_for_the_store() -> None:
    made = Made(gate=gate_of(CHANNELS[0]), window_bytes=8)
    for number in range(4):
        made.arrive(CHANNELS[0], number, Batch(rows(number)))
    made.run()
    made.clock.advance(30.0)
    made.consume()
    made.run()
    assert made.task.counters.backpressured_ms > 0 == made.task.counters.unstored_ms
