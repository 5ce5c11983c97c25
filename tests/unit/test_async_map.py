"""Functions that wait: what is held, in which order it leaves, what a snapshot stores, what event time waits for."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.async_map import AsyncMapOperator
from tidegate.operators.contract import Answered, CallStyle, Outcome, Raised, TaskContext, WaitingFunction
from tidegate.plan.expressions import Column
from tidegate.plan.lower import describe, fingerprint, lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    AnswerOrder,
    AsyncMap,
    OutputMode,
    Scan,
    Sink,
)
from tidegate.plan.physical import AsyncMapSpec
from tidegate.protocol.rescale import split_items
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.threads import NamedUserCode

ALL = KeyGroupRange(0, 128)
SCHEMA = pa.schema([("v", pa.int64())])


class Calls:
    """Calls that are answered when the test says so."""

    def __init__(self) -> None:
        self.under_way: dict[int, Callable[[], Any]] = {}
        self.done: list[tuple[int, Outcome]] = []
        self.is_closed = False

    def start(self, number: int, call: Callable[[], Any]) -> None:
        self.under_way[number] = call

    def take_done(self) -> list[tuple[int, Outcome]]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.is_closed = True

    def answer(self, *numbers: int) -> None:
        for number in numbers:
            call = self.under_way.pop(number)
            try:
                self.done.append((number, Answered(call())))
            except Exception as error:
                self.done.append((number, Raised(error)))


def times_ten(row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(row[0] * 10,)]


class Made:
    def __init__(
        self,
        *,
        capacity: int = 3,
        order: AnswerOrder = AnswerOrder.AS_TAKEN,
        timeout_ms: float | None = None,
        function: Callable[[tuple[Any, ...]], Any] = times_ten,
        restored: "list[RestoredSection] | None" = None,
    ) -> None:
        self.calls, self.clock, self.given = Calls(), ManualClock(), []
        self.given: list[int]
        code = NamedUserCode(waiting={"f": WaitingFunction(CallStyle.BLOCKING, function, lambda answer: answer)})
        context = TaskContext(
            task=TaskId(VertexId(0), 0),
            parallelism=1,
            max_parallelism=128,
            key_groups=ALL,
            clock=self.clock,
            user_code=code,
            open_state=lambda: HeapBackend(ALL),
            open_calls=lambda style, most_calls, name: self.calls,
        )
        spec = AsyncMapSpec(b"f", "f", SCHEMA, SCHEMA, capacity, order, timeout_ms)
        self.operator = AsyncMapOperator(spec)
        self.operator.open(context, restored or [])

    def take(self, *values: int) -> None:
        self.operator.process(pa.record_batch([pa.array(values, pa.int64())], SCHEMA), self.emit)

    def give(self, max_rows: int = 100) -> list[int]:
        self.given.clear()
        self.operator.give(max_rows, self.emit)
        return list(self.given)

    def emit(self, rows: pa.RecordBatch) -> None:
        self.given += rows.column(0).to_pylist()

    def stored(self) -> list[RestoredSection]:
        sections = self.operator.snapshot()
        assert [section.redistribution for section in sections] == [Redistribution.SPLIT]
        return [RestoredSection(section.name, None, memoryview(section.encode())) for section in sections]


def test_rows_leave_in_the_order_they_came_however_they_are_answered() -> None:
    made = Made()
    made.take(1, 2, 3)
    made.calls.answer(2, 1)
    assert made.give() == []
    made.calls.answer(0)
    assert made.give() == [10, 20, 30]
    assert not made.operator.holds_rows()


def test_rows_leave_as_they_are_answered_where_order_does_not_matter() -> None:
    made = Made(order=AnswerOrder.AS_ANSWERED)
    made.take(1, 2, 3)
    made.calls.answer(2, 1)
    assert made.give() == [30, 20]


def test_it_wants_no_more_rows_than_it_may_hold_those_answered_among_them() -> None:
    made = Made(capacity=3)
    made.take(1, 2)
    made.calls.answer(1)
    assert made.give() == []
    assert made.operator.room() == 1
    made.take(3)
    assert made.operator.room() == 0


def test_rows_beyond_its_capacity_wait_for_a_call_that_ends() -> None:
    made = Made(capacity=2)
    made.take(1, 2, 3, 4)
    assert sorted(made.calls.under_way) == [0, 1]
    made.calls.answer(1)
    made.operator.on_time(0.0)
    assert sorted(made.calls.under_way) == [0, 2]


def test_it_gives_a_slice_and_no_more() -> None:
    made = Made()
    made.take(1, 2, 3)
    made.calls.answer(0, 1, 2)
    assert made.give(2) == [10, 20]
    assert made.give(2) == [30]


def test_a_row_may_become_none_or_several() -> None:
    made = Made(function=lambda row: [(row[0],)] * row[0])
    made.take(0, 2, 1)
    made.calls.answer(0, 1, 2)
    assert made.give() == [2, 2, 1]


def test_a_snapshot_stores_the_rows_that_were_not_given_on_and_their_calls_are_made_again() -> None:
    made = Made()
    made.take(1, 2, 3)
    made.calls.answer(0, 1)
    assert made.give(1) == [10]
    again = Made(restored=made.stored())
    assert again.operator.holds_rows()
    again.operator.on_time(0.0)
    again.calls.answer(0, 1)
    assert again.give() == [20, 30]


def test_a_snapshot_is_of_its_moment_whatever_is_given_before_it_is_encoded() -> None:
    made = Made(order=AnswerOrder.AS_ANSWERED)
    made.take(1, 2, 3)
    made.calls.answer(1)
    made.give()
    (section,) = made.operator.snapshot()
    made.calls.answer(0, 2)
    made.give()
    again = Made(restored=[RestoredSection(section.name, None, memoryview(section.encode()))])
    again.operator.on_time(0.0)
    again.calls.answer(0, 1)
    assert again.give() == [10, 30]


def test_at_another_parallelism_every_stored_row_is_taken_over_once() -> None:
    import msgspec

    old = [Made(), Made()]
    old[0].take(1, 2)
    old[0].take(3)
    old[1].take(4, 5)
    items = [msgspec.msgpack.decode(section.data, type=list[bytes]) for made in old for section in made.stored()]
    found = []
    for own in split_items(items, 3):
        new = Made(restored=[RestoredSection("rows in flight", None, memoryview(msgspec.msgpack.encode(own)))])
        new.operator.on_time(0.0)
        new.calls.answer(*list(new.calls.under_way))
        found += new.give()
    assert sorted(found) == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("order", AnswerOrder)
def test_event_time_waits_for_the_rows_in_front_of_it(order: AnswerOrder) -> None:
    made = Made(order=order)
    made.take(1)
    made.operator.on_watermark(100)
    made.take(2)
    made.operator.on_watermark(200)
    assert made.operator.watermark_behind(200) == MIN_WATERMARK_MS
    made.calls.answer(0)
    made.give()
    assert made.operator.watermark_behind(200) == 100
    made.calls.answer(1)
    made.give()
    assert made.operator.watermark_behind(200) == 200


def test_event_time_passes_where_nothing_is_held() -> None:
    made = Made()
    made.operator.on_watermark(MAX_WATERMARK_MS)
    assert made.operator.watermark_behind(MAX_WATERMARK_MS) == MAX_WATERMARK_MS


def test_what_a_call_raises_fails_the_job_with_its_row_whatever_waits_in_front() -> None:
    def fails(row: tuple[Any, ...]) -> Any:
        raise ValueError("no such user")

    made = Made(function=fails)
    made.take(1, 7)
    made.calls.answer(1)
    with pytest.raises(UserCodeFailure, match=r"function 'f', for the row \(v=7\), raised ValueError: no such user"):
        made.operator.on_time(0.0)


def test_a_call_that_takes_too_long_fails_the_job() -> None:
    made = Made(timeout_ms=500)
    made.take(1)
    assert made.operator.next_deadline_ms() == 500
    made.operator.on_time(499)
    with pytest.raises(UserCodeFailure, match=r"has not answered within 500 ms for the row \(v=1\)"):
        made.operator.on_time(500)


def test_a_call_that_was_answered_in_time_is_no_timeout_although_the_loop_hears_of_it_late() -> None:
    made = Made(timeout_ms=500)
    made.take(1)
    made.calls.answer(0)
    made.operator.on_time(9_000)
    assert made.give() == [10]
    assert made.operator.next_deadline_ms() is None


def test_closing_ends_the_calls() -> None:
    made = Made()
    made.operator.close()
    assert made.calls.is_closed


def waiting(child: Any, order: AnswerOrder = AnswerOrder.AS_TAKEN) -> AsyncMap:
    return AsyncMap(child, b"f", "look_up", child.schema, 7, order, 500.0)


SCAN = Scan("rate", {}, SCHEMA)


def test_it_is_chained_and_named_in_the_plan() -> None:
    plan = lower(waiting(SCAN), Sink("noop", {}, SCHEMA), parallelism=2, max_parallelism=128)
    assert len(plan.vertices) == 1
    assert "AsyncMap(look_up) up to 7 at once, in order, 500 ms each" in describe(plan)
    assert "v0 op0 AsyncMap in=[v: int64]" in fingerprint(plan)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_behind_an_aggregation_it_is_refused_where_newer_rows_replace_older_ones(mode: OutputMode) -> None:
    v = Column(0, "v", pa.int64())
    count = AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), ansi=True)
    grouped = Aggregate(SCAN, (v,), (count,), (v,), SCHEMA)
    with pytest.raises(UnsupportedPlan, match="tg.async_map behind an aggregation"):
        lower(waiting(grouped), Sink("noop", {}, SCHEMA, mode), parallelism=2, max_parallelism=128)
