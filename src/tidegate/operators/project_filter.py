"""Projection and filter, each by one compiled kernel. They keep nothing and emit no empty batch."""

from typing import assert_never

import pyarrow as pa

from tidegate.operators.contract import Emit, Stateless
from tidegate.plan.kernels import compile_filter, compile_projection
from tidegate.plan.physical import FilterSpec, ProjectSpec


class KernelOperator(Stateless):
    """One batch in, at most one out."""

    def __init__(self, spec: ProjectSpec | FilterSpec) -> None:
        match spec:
            case ProjectSpec():
                self._kernel = compile_projection(spec.columns, spec.schema)
            case FilterSpec():
                self._kernel = compile_filter(spec.condition)
            case _:
                assert_never(spec)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows:
            result = self._kernel(rows)
            if result.num_rows:
                emit(result)
