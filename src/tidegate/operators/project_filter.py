"""Projection and filter, each by one compiled kernel. They keep nothing and emit no empty batch."""

from collections.abc import Sequence
from typing import assert_never

import pyarrow as pa

from tidegate.operators.contract import Emit, TaskContext, WithoutTimers
from tidegate.plan.kernels import compile_filter, compile_projection
from tidegate.plan.physical import FilterSpec, ProjectSpec
from tidegate.state.contract import RestoredSection, Section


class KernelOperator(WithoutTimers):
    """One batch in, at most one out."""

    def __init__(self, spec: ProjectSpec | FilterSpec) -> None:
        match spec:
            case ProjectSpec():
                self._kernel = compile_projection(spec.columns, spec.schema)
            case FilterSpec():
                self._kernel = compile_filter(spec.condition)
            case _:
                assert_never(spec)

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        pass

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows:
            result = self._kernel(rows)
            if result.num_rows:
                emit(result)

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        pass

    def on_idle(self, emit: Emit) -> None:
        pass

    def snapshot(self) -> list[Section]:
        return []

    def state_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass
