import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.clock import SystemClock
from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import KeepsCallOpen, TaskContext, in_call
from tidegate.operators.map_in_arrow import MapInArrowOperator
from tidegate.plan.physical import MapInArrowSpec

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


class Code:
    def __init__(self, function: Any) -> None:
        self._function = function

    def map_function(self, command: bytes) -> Any:
        assert command == b"command"
        return self._function


def rows(*numbers: int) -> pa.RecordBatch:
    columns = [pa.array(list(numbers), pa.int64()), pa.array([str(number) for number in numbers], pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def opened(function: Any, schema: pa.Schema = SCHEMA) -> MapInArrowOperator:
    operator = build_operator(MapInArrowSpec(b"command", "my_function", schema))
    assert isinstance(operator, MapInArrowOperator)
    context = TaskContext(TaskId(VertexId(0), 0), 1, 128, KeyGroupRange(0, 128), SystemClock(), Code(function), None)  # type: ignore[arg-type]
    operator.open(context, [])
    return operator


class Collected(list[list[int]]):
    def __call__(self, batch: pa.RecordBatch) -> None:
        self.append(batch.column("n").to_pylist())


def test_a_function_may_hold_rows_from_its_first_until_the_barrier() -> None:
    operator, out = opened(lambda batches: iter(list(batches))), Collected()
    assert isinstance(operator, KeepsCallOpen) and not operator.is_amid_call()
    operator.process(rows(1), out)
    assert operator.is_amid_call() and in_call([operator])
    operator.before_barrier(out)
    assert (out, operator.is_amid_call()) == ([[1]], False)


def test_the_function_is_called_once_per_epoch_and_suspends_between_slices() -> None:
    events: list[str] = []

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events.append("begin")
        yield from batches
        events.append("end")

    operator, out = opened(function), Collected()
    operator.process(rows(1), out)
    operator.process(rows(2), out)
    assert (events, out) == (["begin"], [[1], [2]])
    operator.before_barrier(out)
    assert events == ["begin", "end"]
    operator.process(rows(3), out)
    operator.end_of_input(out)
    assert events == ["begin", "end", "begin", "end"]
    assert out == [[1], [2], [3]]


def test_what_a_function_holds_back_is_flushed_at_the_barrier() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = sum(sum(batch.column("n").to_pylist()) for batch in batches)
        yield rows(total)

    operator, out = opened(function), Collected()
    operator.process(rows(1, 2), out)
    operator.process(rows(3), out)
    assert out == []
    operator.before_barrier(out)
    assert out == [[6]]


def test_a_function_may_return_a_list() -> None:
    operator, out = opened(lambda batches: list(batches)), Collected()
    operator.process(rows(1), out)
    operator.process(rows(2), out)
    operator.before_barrier(out)
    assert out == [[1], [2]]


def test_an_epoch_without_rows_does_not_call_the_function() -> None:
    calls: list[int] = []
    operator, out = opened(lambda batches: calls.append(1) or []), Collected()
    operator.before_barrier(out)
    operator.process(rows(), out)
    operator.before_barrier(out)
    assert (calls, out) == ([], [])


def test_what_a_function_does_not_consume_is_dropped_until_the_next_epoch() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    operator, out = opened(function), Collected()
    for number in (1, 2, 3):
        operator.process(rows(number), out)
    operator.before_barrier(out)
    operator.process(rows(4), out)
    assert out == [[1], [4]]


def test_an_iterator_that_has_ended_stays_ended() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = [batch.num_rows for batch in batches]
        yield rows(len(seen), next(batches, rows(7)).column("n").to_pylist()[0])

    operator, out = opened(function), Collected()
    operator.process(rows(1), out)
    operator.before_barrier(out)
    assert out == [[1, 7]]


def test_several_results_per_slice_are_emitted_in_order_and_empty_ones_are_not() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            yield batch.slice(0, 0)
            yield pa.RecordBatch.from_arrays([], [])
            yield batch.slice(1)

    operator, out = opened(function), Collected()
    operator.process(rows(1, 2, 3), out)
    assert out == [[1], [2, 3]]


def test_an_error_in_the_function_comes_with_its_name_and_its_traceback() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            deliberately_wrong = {}["missing"]
            yield batch
            yield deliberately_wrong

    operator = opened(function)
    with pytest.raises(UserCodeFailure) as failure:
        operator.process(rows(1), Collected())
    assert "my_function" in str(failure.value)
    assert "KeyError: 'missing'" in str(failure.value)
    assert 'deliberately_wrong = {}["missing"]' in str(failure.value)


def test_an_error_while_flushing_is_told_likewise() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("at the end")

    operator = opened(function)
    operator.process(rows(1), Collected())
    with pytest.raises(UserCodeFailure, match="at the end"):
        operator.before_barrier(Collected())


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, which nobody can import."""


@pytest.mark.parametrize("error", [SystemExit("enough"), asyncio.CancelledError("enough"), Panic("enough")], ids=repr)
def test_an_error_that_would_end_the_slot_is_told_with_the_name_of_the_function(error: BaseException) -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise error

    with pytest.raises(UserCodeFailure, match=f"'my_function' raised {type(error).__name__}: enough"):
        opened(function).process(rows(1), Collected())


def test_an_interrupt_is_not_blamed_on_the_function() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise KeyboardInterrupt
        yield next(batches)

    with pytest.raises(KeyboardInterrupt):
        opened(function).process(rows(1), Collected())


def test_an_error_of_the_receiver_is_not_blamed_on_the_function() -> None:
    def emit(batch: pa.RecordBatch) -> None:
        raise RuntimeError("downstream")

    with pytest.raises(RuntimeError, match="downstream"):
        opened(lambda batches: batches).process(rows(1), emit)


def test_closing_a_suspended_function_runs_its_cleanup() -> None:
    events: list[str] = []

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception:
            events.append("must not be seen as an error")
            raise
        finally:
            events.append("cleaned up")

    operator, out = opened(function), Collected()
    operator.process(rows(1), out)
    operator.close()
    assert events == ["cleaned up"]
    assert out == [[1]]
    operator.close()


def test_columns_count_by_position_even_if_their_names_say_otherwise() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["s", "n"])

    with pytest.raises(UserCodeFailure, match="gave column 'n' as string"):
        opened(function).process(rows(1), lambda _: None)


def test_columns_of_other_names_are_taken_by_position() -> None:
    results: list[pa.RecordBatch] = []
    opened(lambda batches: (batch.rename_columns(["x", "y"]) for batch in batches)).process(rows(1), results.append)
    assert results == [rows(1)]
    assert results[0].schema == SCHEMA


def test_layouts_that_spark_reads_alike_are_accepted() -> None:
    schema = pa.schema([("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    given = pa.RecordBatch.from_arrays(
        [pa.array(["a"], pa.large_string()), pa.array([0], pa.timestamp("us", "Europe/Berlin"))], ["s", "t"]
    )
    results: list[pa.RecordBatch] = []
    opened(lambda batches: (given for _ in batches), schema).process(rows(1), results.append)
    assert results[0].schema == schema


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array(["y"])], ["n", "s"]), "column 'n' as string.*int64"),
        (pa.RecordBatch.from_arrays([pa.array([1])], ["n"]), r"1 columns \(n\).*2 \(n, s\)"),
        ("text", "type str"),
    ],
)
def test_a_result_that_does_not_fit_the_schema_is_named(result: Any, sentence: str) -> None:
    with pytest.raises(UserCodeFailure, match=f"my_function.*{sentence}"):
        opened(lambda batches: (result for _ in batches)).process(rows(1), Collected())


def test_a_function_that_returns_nothing_is_told_what_to_return() -> None:
    with pytest.raises(UserCodeFailure, match=r"my_function.*NoneType.*iterator"):
        opened(lambda batches: None).process(rows(1), Collected())
