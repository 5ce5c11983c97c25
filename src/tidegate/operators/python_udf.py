"""Columns computed by the user's Python functions: rows pass through, with the results as further columns.

A function over iterators is called once per epoch and may answer later than it was asked: rows that have gone in wait
for their results, at the longest until the barrier. Must never give a row another row's result.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.model.errors import TidegateError, UserCodeFailure
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.held_rows import FedInSlices
from tidegate.operators.map_in_arrow import EpochCall, fit_to_schema
from tidegate.operators.user_code import PASSING_THROUGH, user_code_failure
from tidegate.plan.kernels import compile_projection
from tidegate.plan.physical import EvalPythonSpec
from tidegate.state.contract import RestoredSection


class PythonUdfOperator(FedInSlices):
    """For functions of one batch, or of one row: each slice is a call of its own."""

    def __init__(self, spec: EvalPythonSpec) -> None:
        super().__init__(spec.giving)
        self._columns = UdfColumns(spec)
        self._called = f"The Python function {spec.function_name!r}"

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        super().open(context, restored)
        self._columns.open(context)

    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        try:
            (results,) = self._columns.function(iter([self._columns.arguments(rows)]))
        except (TidegateError, *PASSING_THROUGH):
            raise
        except BaseException as error:
            raise user_code_failure(error, called=self._called) from error
        emit(self._columns.joined(rows, results))


class PythonIteratorUdfOperator(FedInSlices):
    """For functions from an iterator to an iterator."""

    def __init__(self, spec: EvalPythonSpec) -> None:
        super().__init__(spec.giving)
        self._columns = UdfColumns(spec)
        self._name = spec.function_name
        self._call: EpochCall | None = None
        self._waiting: deque[pa.RecordBatch] = deque()

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        super().open(context, restored)
        self._columns.open(context)

    def before_barrier(self, emit: Emit) -> None:
        self._finish_epoch(emit)

    def end_of_input(self, emit: Emit) -> None:
        self._finish_epoch(emit)

    def watermark_behind(self, event_time_ms: int) -> int:
        """Event time must not overtake rows that wait for their results."""
        return self._passed_ms if self._waiting else super().watermark_behind(event_time_ms)

    def is_amid_call(self) -> bool:
        return bool(self._waiting)

    def close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abandon()

    def _feed(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._call is None:
            self._call = EpochCall(self._columns.function, name=self._name, method="The Python")
        self._waiting.append(rows)
        self._join(self._call.feed(self._columns.arguments(rows)), emit)

    def _finish_epoch(self, emit: Emit) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        self._join(call.finish(), emit)
        if self._waiting:
            raise UserCodeFailure(
                f"The Python function {self._name!r} gave fewer rows than it was given: give one for each."
            )

    def _join(self, results: Sequence[pa.RecordBatch], emit: Emit) -> None:
        for result in results:
            start = 0
            while start < result.num_rows:
                if not self._waiting:
                    raise UserCodeFailure(
                        f"The Python function {self._name!r} gave more rows than it was given: give one for each."
                    )
                rows = self._waiting.popleft()
                count = min(rows.num_rows, result.num_rows - start)
                emit(self._columns.joined(rows.slice(0, count), result.slice(start, count)))
                if count < rows.num_rows:
                    self._waiting.appendleft(rows.slice(count))
                start += count


class UdfColumns:
    """Arguments of the functions from rows, and rows with their results."""

    def __init__(self, spec: EvalPythonSpec) -> None:
        self._spec = spec
        names = [f"_{position}" for position in range(len(spec.arguments))]
        fields = [pa.field(name, argument.type) for name, argument in zip(names, spec.arguments, strict=True)]
        self._project = compile_projection(spec.arguments, pa.schema(fields)) if spec.arguments else _no_arguments
        self._results = pa.schema(list(spec.schema)[-spec.result_count :])
        self._function: Callable[[Iterator[pa.RecordBatch]], Any] | None = None

    def open(self, context: TaskContext) -> None:
        self._function = context.user_code.udfs(self._spec.functions)

    @property
    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Any]:
        assert self._function is not None, "open comes before every other call"
        return self._function

    def arguments(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._project(rows)

    def joined(self, rows: pa.RecordBatch, results: pa.RecordBatch) -> pa.RecordBatch:
        fitted = fit_to_schema(results, self._results, called=f"The Python function {self._spec.function_name!r}")
        return pa.RecordBatch.from_arrays([*rows.columns, *fitted.columns], schema=self._spec.schema)


def _no_arguments(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without columns still knows how many rows it stands for."""
    empty = pa.StructArray.from_buffers(pa.struct([]), rows.num_rows, [None])
    return pa.RecordBatch.from_struct_array(empty)
