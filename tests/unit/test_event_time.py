"""Event time in a chain of operators: fired slice by slice, told downstream when nothing is due any more."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.operators.contract import Emit, TaskContext
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import RestoredSection, Section
from tidegate.worker.event_time import ChainTime

INTERVAL_MS = 50.0


@dataclass
class Timers:
    """An operator with timers in event time and by the clock; it may hold event time back by some time."""

    log: list[str]
    name: str = "t"
    due: list[int] = field(default_factory=list)
    delay_ms: int = 0
    wall_timer_ms: int | None = None
    seen_ms: int = MIN_WATERMARK_MS
    own_ms: int | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None: ...
    def process(self, rows: pa.RecordBatch, emit: Emit) -> None: ...
    def before_barrier(self, emit: Emit) -> None: ...
    def end_of_input(self, emit: Emit) -> None: ...
    def on_idle(self, emit: Emit) -> None: ...
    def close(self) -> None: ...

    def snapshot(self) -> list[Section]:
        return []

    def state_bytes(self) -> int:
        return 0

    def on_watermark(self, event_time_ms: int) -> None:
        self.seen_ms = event_time_ms

    def fire(self, max_timers: int, emit: Emit) -> bool:
        due = [at for at in sorted(self.due) if at <= self.seen_ms]
        for at in due[:max_timers]:
            self.due.remove(at)
            self.log.append(f"{self.name}{at}")
        self.wall_timer_ms = None
        return len(due) > max_timers

    def watermark_behind(self, event_time_ms: int) -> int:
        if self.own_ms is not None:
            return self.own_ms
        if event_time_ms in (MIN_WATERMARK_MS, MAX_WATERMARK_MS):
            return event_time_ms
        return event_time_ms - self.delay_ms

    def next_timer_ms(self) -> int | None:
        return self.wall_timer_ms


def nowhere(rows: pa.RecordBatch) -> None: ...


def chain(*operators: Timers, input_ms: int = MIN_WATERMARK_MS, told_ms: int = MIN_WATERMARK_MS) -> ChainTime:
    emits = [nowhere] * len(operators)
    return ChainTime(operators, emits, input_ms=input_ms, told_ms=told_ms, interval_ms=INTERVAL_MS)


def started(*operators: Timers) -> ChainTime:
    """A new task that has looked once and found nothing due."""
    time = chain(*operators)
    assert time.advance(10, 0.0) is None
    return time


def is_due(time: ChainTime, now_ms: float = 0.0, wall_ms: int = 0) -> bool:
    return time.is_due(wall_ms=wall_ms, now_ms=now_ms)


def test_timers_fire_in_slices_and_downstream_is_told_when_none_is_left() -> None:
    log: list[str] = []
    time = started(Timers(log, due=[1, 2, 3, 4, 5]))
    assert not is_due(time)
    time.on_input(4)
    assert is_due(time)
    assert time.advance(2, 0.0) is None
    assert (log, time.has_more, is_due(time)) == (["t1", "t2"], True, True)
    assert time.advance(2, 0.0) == 4
    assert (log, time.has_more, is_due(time)) == (["t1", "t2", "t3", "t4"], False, False)
    assert time.told_ms == 4


def test_an_operator_hears_of_event_time_once_the_one_before_it_has_fired() -> None:
    log: list[str] = []
    first, second = Timers(log, "a", due=[1, 2, 3], delay_ms=10), Timers(log, "b", due=[5, 95])
    time = started(first, second)
    time.on_input(100)
    assert time.advance(2, 0.0) is None
    assert second.seen_ms == MIN_WATERMARK_MS
    assert time.advance(2, 0.0) == 90
    assert log == ["a1", "a2", "a3", "b5"], "the second one sees event time behind the first"
    assert second.seen_ms == 90


def test_event_time_is_not_told_more_often_than_the_interval() -> None:
    time = started(Timers([]))
    time.on_input(10)
    assert time.advance(10, 100.0) == 10
    time.on_input(20)
    assert time.advance(10, 110.0) is None
    assert not is_due(time, now_ms=149.0)
    assert time.next_telling_ms() == 150.0
    time.on_input(30)
    assert is_due(time, now_ms=120.0), "timers do not wait for the telling"
    assert time.advance(10, 120.0) is None
    assert is_due(time, now_ms=150.0)
    assert time.advance(10, 150.0) == 30
    assert time.next_telling_ms() is None


def test_before_the_end_everything_is_told_at_once() -> None:
    time = started(Timers([]))
    time.hurry()
    time.on_input(10)
    assert time.advance(10, 100.0) == 10
    time.on_input(20)
    assert time.advance(10, 101.0) == 20


def test_the_end_of_event_time_is_told_at_once_and_after_the_last_timer() -> None:
    log: list[str] = []
    time = started(Timers(log, due=[7, 1 << 60]))
    time.on_input(10)
    assert time.advance(10, 100.0) == 10
    time.on_input(MAX_WATERMARK_MS)
    assert time.advance(10, 101.0) == MAX_WATERMARK_MS
    assert log == ["t7", f"t{1 << 60}"]


def test_event_time_never_goes_back() -> None:
    time = started(Timers([]))
    time.on_input(10)
    time.advance(10, 0.0)
    time.on_input(5)
    assert (time.input_ms, is_due(time, now_ms=1000.0)) == (10, False)


def test_a_watermark_that_stays_behind_what_was_told_is_not_told() -> None:
    time = chain(Timers([]), input_ms=MIN_WATERMARK_MS, told_ms=100)
    assert time.advance(10, 0.0) is None
    time.on_input(90)
    assert time.advance(10, 0.0) is None
    assert time.next_telling_ms() is None
    time.on_input(110)
    assert time.advance(10, 0.0) == 110


def test_operators_that_move_event_time_themselves_are_heard_after_rows() -> None:
    operator = Timers([])
    time = started(operator)
    operator.own_ms = 40
    assert not is_due(time)
    time.on_rows()
    assert is_due(time)
    assert time.advance(10, 0.0) == 40


def test_a_restored_task_fires_what_is_due_before_any_rows() -> None:
    log: list[str] = []
    time = chain(Timers(log, due=[5]), input_ms=10, told_ms=10)
    assert is_due(time)
    assert time.advance(10, 0.0) is None
    assert (log, is_due(time)) == (["t5"], False)


def test_a_new_or_rescaled_task_looks_once_because_floors_may_have_made_timers_due() -> None:
    time = chain(Timers([]))
    assert is_due(time)
    time.advance(10, 0.0)
    assert not is_due(time)


def test_a_timer_by_the_clock_is_due_when_its_time_has_come() -> None:
    operator = Timers([], wall_timer_ms=None)
    time = started(operator)
    operator.wall_timer_ms = 500
    assert time.next_timer_ms() == 500
    assert not is_due(time, wall_ms=499)
    assert is_due(time, wall_ms=500)
    time.advance(10, 0.0)
    assert time.next_timer_ms() is None


def test_a_chain_without_operators_passes_event_time_on() -> None:
    time = started()
    time.on_input(10)
    assert time.advance(10, 0.0) == 10
