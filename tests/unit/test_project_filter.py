from typing import Any

import pyarrow as pa

from tidegate.operators.build import build_operator
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.physical import FilterSpec, OperatorSpec, ProjectSpec

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64())])
A, B = Column(0, "a", pa.int64()), Column(1, "b", pa.int64())


def run(spec: OperatorSpec, a: list[Any], b: list[Any]) -> list[pa.RecordBatch]:
    operator = build_operator(spec)
    out: list[pa.RecordBatch] = []
    rows = pa.RecordBatch.from_arrays([pa.array(a, pa.int64()), pa.array(b, pa.int64())], schema=SCHEMA)
    operator.process(rows, out.append)
    operator.before_barrier(out.append)
    assert operator.snapshot() == []
    return out


def test_a_projection_computes_its_columns_in_the_declared_schema() -> None:
    schema = pa.schema([("b", pa.int64()), ("total", pa.int64())])
    (result,) = run(ProjectSpec((B, Call("Add", (A, B), pa.int64(), True)), schema), [1, None], [10, 20])
    assert result.schema == schema
    assert result.to_pylist() == [{"b": 10, "total": 11}, {"b": 20, "total": None}]


def test_a_filter_keeps_rows_whose_condition_is_true_and_not_null() -> None:
    condition = Call("GreaterThan", (A, Literal(1, pa.int64())), pa.bool_(), True)
    (result,) = run(FilterSpec(condition, SCHEMA), [1, 2, None, 3], [0, 1, 2, 3])
    assert result.to_pylist() == [{"a": 2, "b": 1}, {"a": 3, "b": 3}]


def test_nothing_is_emitted_when_no_row_is_left() -> None:
    condition = Call("GreaterThan", (A, Literal(1, pa.int64())), pa.bool_(), True)
    assert run(FilterSpec(condition, SCHEMA), [0, 1], [0, 0]) == []
    assert run(ProjectSpec((A, B), SCHEMA), [], []) == []
