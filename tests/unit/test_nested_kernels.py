"""Kernels on arrays, maps, structs and lambdas: what does not depend on Spark's plan, and what Spark cannot show."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan import kernels
from tidegate.plan.expressions import Call, Column, Expression, Lambda, Literal
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.lists import list_array, lists_of
from tidegate.plan.kernels.ordering import ranks
from tidegate.plan.nodes import EmptyCollections, ExplodedAs

# Arrow imports pandas at its first list, which must not happen while an example is being generated.
pa.array([0])

LONGS = pa.list_(pa.int64())
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
A = Column(0, "a", LONGS)
K = Column(1, "k", pa.int64())


def rows(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=[str(at) for at in range(len(columns))])


def call(function: str, type_: pa.DataType, *arguments: Expression, ansi: bool = False, **settings: str) -> Call:
    return Call(function, arguments, type_, ansi, tuple(settings.items()))


def values(expression: Expression, batch: pa.RecordBatch) -> list[Any]:
    kernels.check_supported(expression)
    result = kernels.compile_expression(expression)(batch)
    result.validate(full=True)
    assert result.type == expression.type
    found: list[Any] = result.to_pylist()
    return found


def hidden_under_null() -> pa.Array:
    """[[1], null, [4]], with 2 and 3 left under the null."""
    valid, offsets = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    return pa.Array.from_buffers(LONGS, 3, [valid, offsets], children=[pa.array([1, 2, 3, 4])])


def plus_k() -> Lambda:
    """x -> x + k"""
    body = call("Add", pa.int64(), Column(0, "x", pa.int64()), Column(1, "captured", pa.int64()), ansi=True)
    return Lambda((pa.int64(),), (K,), body, pa.int64())


def test_what_lies_under_a_null_array_is_never_seen() -> None:
    batch = rows(hidden_under_null(), pa.array([1, 1, 2**63 - 1]))
    assert values(call("Size", pa.int32(), A, legacySizeOfNull="false"), batch) == [1, None, 1]
    assert values(call("Flatten", LONGS, call("CreateArray", pa.list_(LONGS), A)), batch) == [[1], None, [4]]
    assert values(call("ArrayMax", pa.int64(), A), batch) == [1, None, 4]
    with pytest.raises(UserCodeFailure, match="ARITHMETIC_OVERFLOW"):
        values(call("ArrayTransform", LONGS, A, plus_k()), batch)
    assert values(call("ArrayTransform", LONGS, A, plus_k()), batch.slice(0, 2)) == [[2], None]


def test_slices_and_spread_out_elements_give_the_same_as_copies() -> None:
    whole = rows(pa.array([[9, 9], [1, 2], None, [], [3, None, 5], [7]], LONGS), pa.array([0, 10, 20, 30, 40, 50]))
    part = whole.slice(1, 4)
    copied = rows(*(pa.array(column.to_pylist(), column.type) for column in part.columns))
    for expression in (
        A,
        call("ArrayTransform", LONGS, A, plus_k()),
        call("Reverse", LONGS, A),
        call("ArrayDistinct", LONGS, A),
        call("ArrayUnion", LONGS, A, Literal((5, None), LONGS)),
        call("Concat", LONGS, A, A),
        call("If", LONGS, call("GreaterThan", pa.bool_(), K, Literal(15, pa.int64())), A, Literal((0,), LONGS)),
    ):
        assert values(expression, part) == values(expression, copied)


def test_a_lambda_inside_of_a_lambda_sees_the_variables_of_both_and_the_row() -> None:
    nested = pa.list_(LONGS)
    # (x, j) -> transform(x, y -> y + k)
    inner = Lambda(
        (pa.int64(),),
        (Column(2, "captured", pa.int64()),),
        call("Add", pa.int64(), Column(0, "y", pa.int64()), Column(1, "captured", pa.int64())),
        pa.int64(),
    )
    outer = Lambda((LONGS, pa.int32()), (K,), call("ArrayTransform", LONGS, Column(0, "x", LONGS), inner), LONGS)
    batch = rows(pa.array([[[1], [2, 3]], None, [[], None]], nested), pa.array([10, 20, 30]))
    transform = call("ArrayTransform", nested, Column(0, "n", nested), outer)
    assert values(transform, batch) == [[[11], [12, 13]], None, [[], None]]


def test_an_index_outside_of_an_array_is_an_error_in_ansi_mode_and_null_otherwise() -> None:
    batch = rows(pa.array([[1], [2, 3]], LONGS), pa.array([0, 1]))
    second = Literal(1, pa.int32())
    assert values(call("GetArrayItem", pa.int64(), A, second), batch) == [None, 3]
    with pytest.raises(UserCodeFailure, match=r"INVALID_ARRAY_INDEX.*index 1 .* has 1 elements"):
        values(call("GetArrayItem", pa.int64(), A, second, ansi=True), batch)


def test_rows_that_a_conditional_skips_do_not_raise() -> None:
    batch = rows(pa.array([[], [2, 3]], LONGS), pa.array([0, 1]))
    item = call("GetArrayItem", pa.int64(), A, Literal(0, pa.int32()), ansi=True)
    has_one = call("GreaterThan", pa.bool_(), K, Literal(0, pa.int64()))
    made = call("CreateArray", LONGS, item)
    guarded = call("If", LONGS, has_one, made, Literal((0,), LONGS))
    assert values(guarded, batch) == [[0], [2]]


def test_a_null_key_and_a_key_that_comes_twice_are_errors() -> None:
    kind = pa.map_(pa.int64(), pa.int64())
    make = call("CreateMap", kind, K, Literal(1, pa.int64()), Literal(5, pa.int64()), K)
    batch = rows(pa.array([None, None], LONGS), pa.array([1, 2]))
    assert values(make, batch) == [[(1, 1), (5, 1)], [(2, 1), (5, 2)]]
    with pytest.raises(UserCodeFailure, match="DUPLICATED_MAP_KEY"):
        values(make, rows(pa.array([None], LONGS), pa.array([5])))
    with pytest.raises(UserCodeFailure, match="NULL_MAP_KEY"):
        values(make, rows(pa.array([None], LONGS), pa.array([None], pa.int64())))


def test_a_sequence_that_cannot_be_held_is_an_error_before_it_is_made() -> None:
    make = call("Sequence", LONGS, K, Literal(2**62, pa.int64()))
    with pytest.raises(UserCodeFailure, match="COLLECTION_SIZE_LIMIT_EXCEEDED"):
        values(make, rows(pa.array([None], LONGS), pa.array([-(2**62)])))


def test_maps_are_not_compared() -> None:
    kind = pa.map_(pa.int64(), pa.int64())
    maps = Column(0, "m", kind)
    with pytest.raises(UnsupportedPlan, match="EqualTo"):
        kernels.check_supported(call("EqualTo", pa.bool_(), maps, maps))


def test_lists_come_apart_and_together_again() -> None:
    column = pa.array([[1], None, [], [2, 3]], LONGS)
    lists = lists_of(column)
    assert list_array(LONGS, lists.lengths, lists.elements(), lists.valid).equals(column)


@pytest.mark.parametrize(
    ("value", "type_", "shown"),
    [
        ((1, None), LONGS, [1, None]),
        ((), LONGS, []),
        ((None, "é"), POINT, {"x": None, "y": "é"}),
        ((("a", (1,)), ("b", None)), pa.map_(pa.string(), LONGS), [("a", [1]), ("b", None)]),
        (None, POINT, None),
    ],
)
def test_nested_constants(value: Any, type_: pa.DataType, shown: Any) -> None:
    scalar = constant(value, type_)
    assert scalar.type == type_ and scalar.as_py() == shown


ORDERED: list[tuple[pa.DataType, st.SearchStrategy[Any], Any]] = [
    (LONGS, st.lists(st.none() | st.integers(-2, 2), max_size=3), lambda v: [_first_null(e) for e in v]),
    (
        POINT,
        st.fixed_dictionaries({"x": st.none() | st.integers(-1, 1), "y": st.none() | st.sampled_from(["", "a", "é"])}),
        lambda v: [_first_null(v["x"]), _first_null(v["y"])],
    ),
    (pa.decimal128(38, 0), st.integers(-(10**30), 10**30), lambda v: v),
]


def _first_null(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value if not isinstance(value, str) else value.encode(),)


@pytest.mark.parametrize("at", range(len(ORDERED)))
@given(data=st.data())
def test_ranks_are_the_order_of_the_values(at: int, data: st.DataObject) -> None:
    kind, strategy, key = ORDERED[at]
    drawn = data.draw(st.lists(st.none() | strategy, max_size=8))
    found = ranks(pa.array(drawn, kind)).tolist()
    keys = [_first_null(None) if value is None else (key(value),) for value in drawn]
    for first, left in zip(keys, found, strict=True):
        for second, right in zip(keys, found, strict=True):
            assert (left < right) == (first < second)
            assert (left == right) == (first == second)


def exploded(column: pa.Array, exploded_as: ExplodedAs, of_empty: EmptyCollections, schema: pa.Schema) -> list[Any]:
    collection = Column(0, "c", column.type)
    make = kernels.compile_generate(collection, exploded_as, of_empty, kept=(1,), schema=schema)
    made = list(make(rows(column, pa.array(range(len(column))))))
    assert all(0 < batch.num_rows <= 16_384 for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


def test_a_long_array_is_given_in_pieces() -> None:
    column = pa.array([list(range(40_000)), None, [7]], LONGS)
    schema = pa.schema([("k", pa.int64()), ("e", pa.int64())])
    found = exploded(column, ExplodedAs.VALUE, EmptyCollections.ONE_ROW, schema)
    assert found == [{"k": 0, "e": e} for e in range(40_000)] + [{"k": 1, "e": None}, {"k": 2, "e": 7}]
    assert len(exploded(column, ExplodedAs.VALUE, EmptyCollections.NO_ROW, schema)) == 40_001


def test_nothing_is_given_for_rows_without_elements() -> None:
    schema = pa.schema([("k", pa.int64()), ("e", pa.int64())])
    assert exploded(pa.array([[], None], LONGS), ExplodedAs.VALUE, EmptyCollections.NO_ROW, schema) == []
    assert exploded(pa.array([], LONGS), ExplodedAs.VALUE, EmptyCollections.ONE_ROW, schema) == []


def test_all_projections_of_a_row_stand_together() -> None:
    schema = pa.schema([("k", pa.int64()), ("which", pa.int32())])
    projections = [
        [Column(0, "k", pa.int64()), Literal(0, pa.int32())],
        [Literal(None, pa.int64()), Literal(1, pa.int32())],
    ]
    made = list(kernels.compile_expand(projections, schema)(rows(pa.array([5, 6]))))
    assert [tuple(row.values()) for batch in made for row in batch.to_pylist()] == [
        (5, 0),
        (None, 1),
        (6, 0),
        (None, 1),
    ]
