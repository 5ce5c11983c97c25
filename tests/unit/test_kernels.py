"""Kernels without Spark: shapes, laziness, zero copies, refusals. That they agree with Spark is tests/spark's part."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.kernels import (
    check_supported,
    compile_expression,
    compile_filter,
    compile_projection,
    supported_functions,
)

INT64, BOOL = pa.int64(), pa.bool_()
A, B = Column(0, "a", INT64), Column(1, "b", INT64)
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def rows(a: list[int | None], b: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(a, INT64), pa.array(b, INT64)], names=["a", "b"])


def call(function: str, *arguments: Expression, type: pa.DataType = INT64, ansi: bool = True) -> Call:
    return Call(function, arguments, type, ansi)


def values(expression: Expression, batch: pa.RecordBatch) -> list[object]:
    result = compile_expression(expression)(batch)
    assert result.type == expression.type
    assert len(result) == batch.num_rows
    return list(result.to_pylist())


def long(value: int | None) -> Literal:
    return Literal(value, INT64)


def test_a_literal_becomes_a_column_as_long_as_the_batch() -> None:
    assert values(long(7), rows([1, 2, 3], [1, 2, 3])) == [7, 7, 7]
    assert values(long(None), rows([1, 2], [1, 2])) == [None, None]
    assert values(call("Add", long(1), long(2)), rows([5, 6], [1, 2])) == [3, 3]


def test_an_empty_batch_gives_an_empty_column() -> None:
    for function in ("Add", "Remainder", "Pmod", "IntegralDivide"):
        assert values(call(function, A, B), rows([], [])) == []
    assert values(Cast(Cast(A, pa.float64(), True, "UTC"), pa.int32(), True, "UTC"), rows([], [])) == []


def test_ansi_overflow_raises_and_legacy_wraps_around() -> None:
    batch = rows([LONG_MAX], [1])
    with pytest.raises(UserCodeFailure, match=r"\[ARITHMETIC_OVERFLOW\] long overflow in Add"):
        compile_expression(call("Add", A, B))(batch)
    assert values(call("Add", A, B, ansi=False), batch) == [LONG_MIN]


def test_a_zero_divisor_raises_in_ansi_and_gives_null_in_legacy() -> None:
    batch = rows([4, 7], [0, 2])
    with pytest.raises(UserCodeFailure, match=r"\[REMAINDER_BY_ZERO\]"):
        compile_expression(call("Remainder", A, B))(batch)
    assert values(call("Remainder", A, B, ansi=False), batch) == [None, 1]
    assert values(call("IntegralDivide", A, B), rows([None, 7], [0, 2])) == [None, 3]


def test_the_lowest_long_divided_by_minus_one() -> None:
    batch = rows([LONG_MIN, 8], [-1, -1])
    assert values(call("IntegralDivide", A, B, ansi=False), batch) == [LONG_MIN, -8]
    assert values(call("Remainder", A, B), batch) == [0, 0]
    with pytest.raises(UserCodeFailure, match="ARITHMETIC_OVERFLOW"):
        compile_expression(call("IntegralDivide", A, B))(batch)


def test_a_sliced_batch_is_read_from_its_offset() -> None:
    number = Column(0, "x", pa.float64())
    batch = pa.RecordBatch.from_arrays([pa.array([0.5, 1.5, 2.5, None, 4.5])], names=["x"]).slice(2, 3)
    assert values(Cast(number, pa.int32(), True, "UTC"), batch) == [2, None, 4]
    ratio = call("Remainder", number, Literal(2.0, pa.float64()), type=pa.float64())
    assert values(ratio, batch) == [0.5, None, 0.5]


def test_a_branch_that_is_not_taken_does_not_raise() -> None:
    batch = rows([6, 5, None], [3, 0, 0])
    nonzero = call("GreaterThan", B, long(0), type=BOOL)
    guarded = call("If", nonzero, call("IntegralDivide", A, B), long(-1))
    assert values(guarded, batch) == [2, -1, -1]
    quotient = call("GreaterThan", call("IntegralDivide", A, B), long(1), type=BOOL)
    assert values(call("And", nonzero, quotient, type=BOOL), batch) == [True, False, False]
    assert values(call("Or", call("Not", nonzero, type=BOOL), quotient, type=BOOL), batch) == [True, True, True]


def test_an_operand_is_skipped_where_the_one_before_it_is_null() -> None:
    overflow = call("Add", B, long(1))
    assert values(call("Add", A, overflow), rows([None, 1], [LONG_MAX, 1])) == [None, 3]
    with pytest.raises(UserCodeFailure):
        compile_expression(call("Add", A, overflow))(rows([0, 1], [LONG_MAX, 1]))


def test_coalesce_looks_only_where_all_before_is_null() -> None:
    fallback = call("IntegralDivide", long(10), B)
    assert values(call("Coalesce", A, fallback), rows([1, None], [0, 5])) == [1, 2]


def test_a_filter_drops_nulls_and_falses() -> None:
    keep = compile_filter(call("GreaterThan", A, long(1), type=BOOL))
    assert keep(rows([1, 2, None, 3], [1, 2, 3, 4])).to_pydict() == {"a": [2, 3], "b": [2, 4]}


def test_a_filter_that_keeps_all_rows_gives_the_same_batch() -> None:
    batch = rows([2, 3], [1, 1])
    assert compile_filter(call("GreaterThan", A, long(1), type=BOOL))(batch) is batch


def test_a_filter_does_not_evaluate_a_condition_for_rows_already_dropped() -> None:
    known = call("GreaterThan", A, long(0), type=BOOL)
    divides = call("EqualTo", call("Remainder", long(6), B), long(0), type=BOOL)
    keep = compile_filter(call("And", known, divides, type=BOOL))
    # The first condition is null for the row whose divisor is zero: And would go on, a filter does not.
    assert keep(rows([None, 1], [0, 3])).num_rows == 1


def test_a_null_check_stands_before_the_use_of_its_column() -> None:
    divides = call("EqualTo", call("Remainder", long(6), B), call("Add", A, long(1)), type=BOOL)
    keep = compile_filter(call("And", divides, call("IsNotNull", A, type=BOOL), type=BOOL))
    assert keep(rows([None, -1], [0, 3])).num_rows == 1


def test_a_projection_has_exactly_its_schema() -> None:
    schema = pa.schema([("x", INT64), ("x", pa.string()), ("one", INT64)])
    project = compile_projection([B, Cast(A, pa.string(), True, "UTC"), long(1)], schema)
    result = project(rows([1, None], [3, 4]))
    assert result.schema == schema
    assert [column.to_pylist() for column in result.columns] == [[3, 4], ["1", None], [1, 1]]


@pytest.mark.parametrize(
    "expression",
    [
        call("Exp", Column(0, "d", pa.float64()), type=pa.float64()),
        call("Abs", Column(0, "d", pa.decimal128(38, 2)), type=pa.decimal128(38, 2)),
        call("EqualTo", A, Column(1, "i", pa.int32()), type=BOOL),
        call("Greatest", A, Column(1, "e", pa.float64()), type=pa.float64()),
        Cast(Column(0, "s", pa.string()), pa.timestamp("us"), True, "UTC"),
        Cast(Column(0, "t", pa.timestamp("us", "UTC")), pa.date32(), True, "Europe/Vienna"),
        call("IsNull", A, type=pa.int8()),
    ],
)
def test_what_is_not_surely_equal_is_refused(expression: Expression) -> None:
    with pytest.raises(UnsupportedPlan):
        check_supported(expression)


def test_supported_functions_can_be_asked_for() -> None:
    assert {"Add", "And", "CaseWhen", "EqualNullSafe", "In", "Pmod"} <= supported_functions()
    assert "Exp" not in supported_functions()


def test_running_kernels_does_not_import_pandas_and_duckdb_only_when_needed() -> None:
    program = """
import sys
import pyarrow as pa
from tidegate.plan.expressions import Call, Cast, Column, Literal
from tidegate.plan.kernels import compile_expression, compile_filter
a, text, yes = Column(0, "a", pa.float64()), Column(1, "s", pa.string()), pa.bool_()
rows = pa.RecordBatch.from_arrays([pa.nulls(2, a.type), pa.nulls(2, text.type)], names=["a", "s"])
one = Literal(1.0, a.type)
compile_expression(Cast(Call("Remainder", (a, a), a.type, True), pa.int64(), True, "UTC"))(rows)
compile_expression(Cast(text, pa.int32(), True, "UTC"))(rows)
compile_expression(Call("In", (text, Literal("x", text.type), Literal(None, text.type)), yes, False))(rows)
compile_expression(Call("Divide", (a, one), a.type, False))(rows)
compile_expression(Call("Coalesce", (a, one), a.type, False))(rows)
upper = Call("Upper", (text,), text.type, False)
letters = (upper, Literal("a+", text.type), Literal("b", text.type), Literal(1, pa.int32()))
compile_expression(Call("RegExpReplace", letters, text.type, False))(rows)
compile_expression(Cast(Cast(text, pa.decimal128(9, 2), False, "UTC"), text.type, True, "UTC"))(rows)
assert "duckdb" not in sys.modules
compile_expression(Call("Contains", (text, upper), yes, False))(rows)
assert "duckdb" in sys.modules
compile_filter(Call("And", (Call("EqualTo", (a, a), yes, True), Call("IsNaN", (a,), yes, True)), yes, True))(rows)
assert "pandas" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)
