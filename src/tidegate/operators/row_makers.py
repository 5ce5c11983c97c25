"""Operators that make several rows from one: `explode` and its relatives, grouping sets. They keep nothing."""

from collections.abc import Sequence
from typing import assert_never

import pyarrow as pa

from tidegate.operators.contract import Emit, TaskContext, WithoutTimers
from tidegate.plan.kernels import compile_expand, compile_generate
from tidegate.plan.physical import ExpandSpec, GenerateSpec
from tidegate.state.contract import RestoredSection, Section


class RowMakerOperator(WithoutTimers):
    """One batch in, any number out, none of them empty."""

    def __init__(self, spec: GenerateSpec | ExpandSpec) -> None:
        match spec:
            case GenerateSpec():
                self._make = compile_generate(
                    spec.collection, spec.exploded_as, spec.of_empty, kept=spec.kept, schema=spec.schema
                )
            case ExpandSpec():
                self._make = compile_expand(spec.projections, spec.schema)
            case _:
                assert_never(spec)

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        pass

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        for made in self._make(rows):
            emit(made)

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
