"""A user's function from batches to batches, called once per epoch; its iterator suspends between slices.

The function runs in a greenlet of its own, on the slot's thread. It must never be left suspended across a snapshot.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from greenlet import GreenletExit, getcurrent, greenlet

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.held_rows import FedInSlices
from tidegate.operators.user_code import PASSING_THROUGH, user_code_failure
from tidegate.plan.physical import MapInArrowSpec
from tidegate.state.contract import RestoredSection

MapFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Any]


class MapInArrowOperator(FedInSlices):
    def __init__(self, spec: MapInArrowSpec) -> None:
        super().__init__(spec.giving)
        self._spec = spec
        self._call: EpochCall | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        super().open(context, restored)
        self._function = context.user_code.map_function(self._spec.function)

    def before_barrier(self, emit: Emit) -> None:
        self._finish_epoch(emit)

    def end_of_input(self, emit: Emit) -> None:
        self._finish_epoch(emit)

    def watermark_behind(self, event_time_ms: int) -> int:
        """The function may hold rows back until its epoch ends: event time must not overtake them."""
        return super().watermark_behind(event_time_ms) if self._call is None else self._passed_ms

    def is_amid_call(self) -> bool:
        return self._call is not None

    def close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abandon()

    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._call is None:
            self._call = EpochCall(self._function, name=self._spec.function_name, method=self._spec.method)
        self._emit_checked(self._call.feed(rows), emit)

    def _finish_epoch(self, emit: Emit) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._emit_checked(call.finish(), emit)

    def _emit_checked(self, results: Sequence[Any], emit: Emit) -> None:
        for result in results:
            batch = fit_to_schema(
                result, self._spec.schema, called=f"{self._spec.method} function {self._spec.function_name!r}"
            )
            if batch.num_rows:
                emit(batch)


class EpochCall:
    """One call of the user's function, over the slices of one epoch."""

    def __init__(self, function: MapFunction, *, name: str, method: str) -> None:
        self._function = function
        self._called = f"{method} function {name!r}"
        self._slice: pa.RecordBatch | None = None
        self._has_ended = False
        self._results: list[Any] = []
        self._greenlet = greenlet(self._run)

    def feed(self, rows: pa.RecordBatch) -> list[Any]:
        """What the function gives until it asks for more. A function that has returned gets no more of the epoch."""
        if self._greenlet.dead:
            return []
        self._slice = rows
        return self._resume()

    def finish(self) -> list[Any]:
        """Ends the iterator; what the function still gives."""
        self._has_ended = True
        return [] if self._greenlet.dead else self._resume()

    def abandon(self) -> None:
        """Ends the function where it stands; what it still gives is dropped."""
        if not self._greenlet.dead:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)
        self._results.clear()

    def _resume(self) -> list[Any]:
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        results, self._results = self._results, []
        return results

    def _run(self) -> None:
        try:
            for result in self._iterable(self._function(self._slices())):
                self._results.append(result)
        except (UserCodeFailure, *PASSING_THROUGH):
            raise
        except BaseException as error:
            raise user_code_failure(error, called=self._called) from error

    def _iterable(self, returned: Any) -> Any:
        if not hasattr(returned, "__iter__"):
            raise UserCodeFailure(
                f"{self._called} returned {type(returned).__name__}: "
                "it must return an iterator of pyarrow.RecordBatch, for example by yielding them."
            )
        return returned

    def _slices(self) -> Iterator[pa.RecordBatch]:
        while True:
            while self._slice is None:
                if self._has_ended:
                    return
                self._greenlet.parent.switch()
            rows, self._slice = self._slice, None
            yield rows


def fit_to_schema(result: Any, schema: pa.Schema, *, called: str) -> pa.RecordBatch:
    """The result under the declared names. Columns count by position, whatever they are called, as in Spark."""
    if not isinstance(result, pa.RecordBatch):
        raise UserCodeFailure(
            f"{called} gave a value of type {type(result).__name__}: it must give pyarrow.RecordBatch."
        )
    if result.num_columns == 0 and result.num_rows == 0:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    if result.num_columns != len(schema):
        raise UserCodeFailure(
            f"{called} gave {result.num_columns} columns "
            f"({', '.join(result.schema.names)}), its declared schema has {len(schema)} ({', '.join(schema.names)})."
        )
    columns = [_fit_column(result.column(i), field, called) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fit_column(column: pa.Array, field: pa.Field, called: str) -> pa.Array:
    if column.type == field.type:
        return column
    if _is_same_to_spark(found=column.type, expected=field.type):
        return column.cast(field.type)
    raise UserCodeFailure(
        f"{called} gave column {field.name!r} as {column.type}, "
        f"its declared schema has it as {field.type}: cast it in the function, or change the schema."
    )


def _is_same_to_spark(*, found: pa.DataType, expected: pa.DataType) -> bool:
    """Spark reads the large layouts as the usual ones, an instant whatever its zone, and parts by their position."""
    if found == expected:
        return True
    if pa.types.is_large_string(found) or pa.types.is_large_binary(found):
        return bool(expected == (pa.string() if pa.types.is_large_string(found) else pa.binary()))
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(expected):
        return found.unit == expected.unit and bool(found.tz) == bool(expected.tz)
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return _is_same_to_spark(found=found.value_type, expected=expected.value_type)
    if pa.types.is_map(found) and pa.types.is_map(expected):
        keys = _is_same_to_spark(found=found.key_type, expected=expected.key_type)
        return keys and _is_same_to_spark(found=found.item_type, expected=expected.item_type)
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        pairs = list(zip(found, expected, strict=False))
        are_named_alike = [field.name for field in found] == [field.name for field in expected]
        return are_named_alike and all(_is_same_to_spark(found=one.type, expected=other.type) for one, other in pairs)
    return False
