"""Columns by Python functions: each row gets its own result, whenever the function gives it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import Operator, TaskContext, in_call
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import UdfShape
from tidegate.plan.physical import EvalPythonSpec, EventTimeColumnSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.state.heap import HeapBackend
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.threads import NamedUserCode

INPUT = pa.schema([("name", pa.string()), ("n", pa.int64())])
RESULT = pa.field("result", pa.int64())
ALL = KeyGroupRange(0, 128)

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def opened(
    function: Function, *, shape: UdfShape, arguments: tuple[Column, ...] = (Column(1, "n", pa.int64()),)
) -> Operator:
    spec = EvalPythonSpec(b"f", "f", shape, arguments, 1, pa.schema([*INPUT, RESULT]))
    operator = build_operator(spec)
    code = NamedUserCode(functions={"f": function})
    context = TaskContext(TaskId(VertexId(0), 0), 1, 128, ALL, ManualClock(), code, lambda: HeapBackend(ALL))
    operator.open(context, [])
    return operator


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([[f"row {n}" for n in numbers], list(numbers)], schema=INPUT)


class Out:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def __call__(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def taken(self) -> list[tuple[Any, ...]]:
        taken = [tuple(row.values()) for batch in self.batches for row in batch.to_pylist()]
        self.batches.clear()
        return taken


def plus_hundred(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), 100)], ["_0"])


def in_twos(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Holds batches back and gives two as one."""
    held: list[pa.RecordBatch] = []
    for batch in plus_hundred(batches):
        held.append(batch)
        if len(held) == 2:
            yield pa.concat_batches(held)
            held = []
    yield from held


def test_a_function_of_a_batch_is_called_for_each_slice() -> None:
    operator, out = opened(plus_hundred, shape=UdfShape.BATCH), Out()
    operator.process(rows(1, 2), out)
    operator.process(rows(), out)
    assert out.taken() == [("row 1", 1, 101), ("row 2", 2, 102)]


def test_a_function_without_arguments_knows_how_many_rows_there_are() -> None:
    def constant(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([7] * batch.num_rows)], ["_0"])

    operator, out = opened(constant, shape=UdfShape.BATCH, arguments=()), Out()
    operator.process(rows(1, 2), out)
    assert [row[2] for row in out.taken()] == [7, 7]


def test_rows_wait_for_a_function_over_an_iterator_until_the_barrier() -> None:
    operator, out = opened(in_twos, shape=UdfShape.ITERATOR), Out()
    operator.process(rows(1), out)
    assert out.taken() == []
    assert operator.watermark_behind(5) < 5, "event time must not overtake the row"
    assert in_call([operator]), "nor may its task say that it has none"
    operator.process(rows(2, 3), out)
    assert out.taken() == [("row 1", 1, 101), ("row 2", 2, 102), ("row 3", 3, 103)]
    assert operator.watermark_behind(6) == 6
    assert not in_call([operator])
    operator.process(rows(4), out)
    operator.before_barrier(out)
    assert out.taken() == [("row 4", 4, 104)]
    operator.process(rows(5), out)
    operator.end_of_input(out)
    assert out.taken() == [("row 5", 5, 105)]


@pytest.mark.parametrize(("given", "said"), [(0, "fewer rows"), (3, "more rows")])
def test_a_function_that_gives_too_few_or_too_many_rows_is_named(given: int, said: str) -> None:
    def wrong(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([1] * given, pa.int64())], ["_0"])

    operator, out = opened(wrong, shape=UdfShape.ITERATOR), Out()
    with pytest.raises(UserCodeFailure, match=f"'f' gave {said}"):
        operator.process(rows(1), out)
        operator.before_barrier(out)


@pytest.mark.parametrize("shape", UdfShape)
def test_an_error_is_told_with_the_name_of_the_function(shape: UdfShape) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ZeroDivisionError("no")
        yield rows()

    operator = opened(broken, shape=shape)
    with pytest.raises(UserCodeFailure, match="function 'f' raised ZeroDivisionError: no"):
        operator.process(rows(1), Out())
    operator.close()


@pytest.mark.parametrize("shape", UdfShape)
def test_a_function_that_would_end_the_slot_is_named(shape: UdfShape) -> None:
    def leaving(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            sys.exit("enough")
        yield rows()

    operator = opened(leaving, shape=shape)
    with pytest.raises(UserCodeFailure, match="function 'f' raised SystemExit: enough"):
        operator.process(rows(1), Out())
    operator.close()


@pytest.mark.parametrize("shape", UdfShape)
def test_an_interrupt_is_not_blamed_on_the_function(shape: UdfShape) -> None:
    def interrupted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise KeyboardInterrupt
        yield rows()

    with pytest.raises(KeyboardInterrupt):
        opened(interrupted, shape=shape).process(rows(1), Out())


def test_a_call_that_is_under_way_is_abandoned_when_the_task_closes() -> None:
    ended: list[str] = []

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from in_twos(batches)
        finally:
            ended.append("yes")

    operator = opened(watched, shape=UdfShape.ITERATOR)
    operator.process(rows(1), Out())
    operator.close()
    assert ended == ["yes"]


def test_a_row_before_the_watermark_is_the_users_mistake() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    operator = build_operator(EventTimeColumnSpec(0, schema))
    out = Out()

    def given(at_ms: int | None) -> None:
        ticks = None if at_ms is None else at_ms * 1000
        operator.process(pa.RecordBatch.from_arrays([pa.array([ticks], schema.field(0).type)], schema=schema), out)

    given(-5)
    operator.on_watermark(1_000)
    given(1_000)
    given(None)
    with pytest.raises(UserCodeFailure, match="'at' at 999 ms, before the watermark of 1000 ms"):
        given(999)
    operator.on_watermark(MAX_WATERMARK_MS)
    given(5)
    assert len(out.taken()) == 4
