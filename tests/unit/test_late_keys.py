"""Keys that are numbers written as text are made once for each group, and are the same as made for each row."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators import partial_aggregate
from tidegate.operators.build import build_operator
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.late_keys import with_late_keys
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.plan.partials import combined
from tidegate.plan.physical import OperatorSpec, PartialAggregateSpec, ProjectSpec

F = AggregateFunction
TEXT = pa.string()
KINDS = {
    "byte": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "close longs": (pa.int64(), st.integers(-3, 3)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
}


def text_of(number: Expression) -> Cast:
    return Cast(number, TEXT, ansi=True, zone="UTC")


def concat(*parts: Expression | str | None) -> Call:
    made = tuple(Literal(part, TEXT) if part is None or isinstance(part, str) else part for part in parts)
    return Call("Concat", made, TEXT, ansi=True)


def counting(*keys: Expression, values: Sequence[Expression] = ()) -> list[OperatorSpec]:
    """Rows and the least of `values`, by these keys."""
    schema = pa.schema([(f"c{at}", each.type) for at, each in enumerate((*keys, *values))])
    least = [
        AggregateCall(F.MIN, (Column(len(keys) + at, f"c{len(keys) + at}", each.type),), each.type, ansi=True)
        for at, each in enumerate(values)
    ]
    calls = [AggregateCall(F.COUNT_ROWS, (), pa.int64(), ansi=True), *least]
    parts = combined(calls, schema, key_count=len(keys), counts_rows=False)
    assert parts is not None
    return [ProjectSpec((*keys, *values), schema), parts.spec]


def run(operators: Sequence[OperatorSpec], rows: pa.RecordBatch) -> pa.RecordBatch:
    batches = [rows]
    for operator in map(build_operator, operators):
        made: list[pa.RecordBatch] = []
        for batch in batches:
            operator.process(batch, made.append)
        batches = made
    (batch,) = batches
    batch.validate(full=True)
    return batch


def reordered(operators: Sequence[OperatorSpec], *order: int) -> list[OperatorSpec]:
    """The same, with a projection in between that gives the first one's columns in this order, keys in front."""
    project, combining = operators
    assert isinstance(project, ProjectSpec)
    back = [order.index(at) for at in range(len(project.columns))]
    schema = pa.schema([project.schema.field(at) for at in order])
    columns = tuple(Column(at, schema.field(at).name, schema.field(at).type) for at in back)
    return [
        ProjectSpec(tuple(project.columns[at] for at in order), schema),
        ProjectSpec(columns, project.schema),
        combining,
    ]


def late(operators: Sequence[OperatorSpec]) -> tuple[ProjectSpec, PartialAggregateSpec]:
    project, combining = with_late_keys(operators)
    assert isinstance(project, ProjectSpec) and isinstance(combining, PartialAggregateSpec)
    return project, combining


def sorted_rows(batch: pa.RecordBatch) -> list[str]:
    return sorted(map(repr, batch.to_pylist()))


@pytest.mark.parametrize("fewest", [1, 1_000_000], ids=["combined", "one by one"])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_texts_are_those_of_the_rows(kind: str, fewest: int, data: st.DataObject) -> None:
    type_, values = KINDS[kind]
    given_: list[Any] = data.draw(st.lists(st.one_of(st.none(), values), min_size=1))
    rows = pa.record_batch([pa.array(given_ * 3, type_)], names=["n"])
    key = concat(data.draw(st.text()), "é", text_of(Column(0, "n", type_)), data.draw(st.text()))
    operators = counting(key)
    assert late(operators)[1].keys is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partial_aggregate, "_FEW_ROWS", fewest)
        found, expected = run(late(operators), rows), run(operators, rows)
    assert found.schema == expected.schema
    assert sorted_rows(found) == sorted_rows(expected)


def test_rows_are_told_apart_by_the_number() -> None:
    number = Column(0, "n", pa.int64())
    project, combining = late(counting(concat("key-", text_of(number))))
    assert project.columns == (number,)
    assert combining.input_schema.types == [pa.int64()]
    assert combining.schema.types[0] == TEXT


def test_other_keys_and_values_stay_as_they_are() -> None:
    name, number = Column(0, "name", TEXT), Column(1, "n", pa.int64())
    operators = counting(name, text_of(number), values=[number])
    project, combining = late(operators)
    assert project.columns == (name, number, number)
    rows = pa.record_batch([pa.array(["a", "", None, "ü" * 99] * 64), pa.array([1, 2] * 128)], names=["name", "n"])
    assert sorted_rows(run([project, combining], rows)) == sorted_rows(run(operators, rows))
    assert run([project, combining], rows).num_rows == 4


def test_the_text_may_be_made_some_projections_before() -> None:
    name, number = Column(0, "name", TEXT), Column(1, "n", pa.int64())
    operators = reordered(counting(concat("a", text_of(number)), name, values=[number]), 2, 1, 0)
    first, second, combining = made = with_late_keys(operators)
    assert isinstance(first, ProjectSpec) and isinstance(second, ProjectSpec)
    assert isinstance(combining, PartialAggregateSpec)
    assert first.columns == (number, name, number)
    assert second.schema.types == combining.input_schema.types == [pa.int64(), TEXT, pa.int64()]
    rows = pa.record_batch([pa.array(["a", "b"] * 128), pa.array([1, 2, None, 2] * 64)], names=["name", "n"])
    assert sorted_rows(run(made, rows)) == sorted_rows(run(operators, rows))


@pytest.mark.parametrize(
    "other",
    [Column(0, "c0", TEXT), Call("Concat", (Literal("x", TEXT), Column(0, "c0", TEXT)), TEXT, ansi=True)],
    ids=["as it is", "in an expression"],
)
def test_a_text_that_another_column_takes_too_is_made_before(other: Expression) -> None:
    project = counting(text_of(Column(0, "n", pa.int64())))[0]
    schema = pa.schema([("c0", TEXT), ("c1", TEXT)])
    twice = ProjectSpec((Column(0, "c0", TEXT), other), schema)
    parts = combined([AggregateCall(F.COUNT_ROWS, (), pa.int64(), ansi=True)], schema, key_count=2, counts_rows=False)
    assert parts is not None
    assert with_late_keys([project, twice, parts.spec]) == (project, twice, parts.spec)


def test_a_key_that_is_not_the_first_is_found_behind_reordered_columns() -> None:
    name, number, other = Column(0, "name", TEXT), Column(1, "n", pa.int64()), Column(2, "m", pa.int64())
    operators = reordered(counting(name, concat("a", text_of(number)), text_of(other), values=[number]), 2, 3, 1, 0)
    first, _, combining = made = with_late_keys(operators)
    assert isinstance(first, ProjectSpec) and isinstance(combining, PartialAggregateSpec)
    assert first.columns == (other, number, number, name)
    assert combining.input_schema.types == [TEXT, pa.int64(), pa.int64(), pa.int64()]
    columns = [pa.array(["a", "b"] * 128), pa.array([1, 2, None, 2] * 64), pa.array([7, 8, 9, 9] * 64)]
    rows = pa.record_batch(columns, names=["name", "n", "m"])
    assert sorted_rows(run(made, rows)) == sorted_rows(run(operators, rows))


@pytest.mark.parametrize(
    "key",
    [
        concat("a", None, text_of(Column(0, "n", pa.int64()))),
        concat(text_of(Column(0, "n", pa.int64())), text_of(Column(1, "m", pa.int64()))),
        concat("a", Column(0, "s", TEXT)),
        text_of(Column(0, "f", pa.float64())),
        Call("Length", (text_of(Column(0, "n", pa.int64())),), pa.int32(), ansi=True),
    ],
    ids=["null", "two numbers", "text", "double", "length"],
)
def test_a_key_that_is_not_one_number_written_as_text_is_made_before(key: Expression) -> None:
    operators = counting(key)
    assert with_late_keys(operators) == tuple(operators)


def test_a_key_that_is_also_a_value_is_made_before() -> None:
    key = text_of(Column(0, "n", pa.int64()))
    project, combining = counting(key)
    assert isinstance(combining, PartialAggregateSpec)
    least = AggregateCall(F.MIN, (Column(0, "c0", TEXT),), TEXT, ansi=True)
    parts = combined([least], combining.input_schema, key_count=1, counts_rows=False)
    assert parts is not None
    assert with_late_keys([project, parts.spec]) == (project, parts.spec)
