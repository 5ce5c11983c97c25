"""Operators that make several rows from one: `explode` and its relatives, grouping sets. They keep nothing."""

from typing import assert_never

import pyarrow as pa

from tidegate.operators.contract import Emit, Stateless
from tidegate.plan.kernels import compile_expand, compile_generate
from tidegate.plan.physical import ExpandSpec, GenerateSpec


class RowMakerOperator(Stateless):
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

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        for made in self._make(rows):
            emit(made)
