"""Rows as bytes: read back as they were, and equal when the rows are."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import Damaged
from tidegate.operators.row_codec import RowCodec, can_encode

WINDOW = pa.struct([pa.field("start", pa.timestamp("us")), pa.field("end", pa.timestamp("us"))])
KINDS = [
    pa.int64(),
    pa.bool_(),
    pa.string(),
    pa.float64(),
    pa.binary(),
    pa.decimal128(20, 2),
    pa.large_string(),
    pa.binary(3),
    WINDOW,
    pa.null(),
    pa.date32(),
]
VALUES = [
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
    st.none() | st.text(max_size=5),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.binary(max_size=5),
    st.none() | st.sampled_from([Decimal("-1.25"), Decimal("123456789012345678.00")]),
    st.none() | st.text(max_size=20),
    st.none() | st.binary(min_size=3, max_size=3),
    st.none() | st.fixed_dictionaries({"start": st.integers(0, 9), "end": st.none() | st.integers(0, 9)}),
    st.none(),
    st.none() | st.dates(),
]
values = st.tuples(*VALUES)


def columns_of(rows: list[Any], kinds: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


@given(rows=st.lists(values, max_size=8), chosen=st.sets(st.integers(0, len(KINDS) - 1)), skip=st.integers(0, 2))
def test_rows_are_read_back_as_they_were_and_equal_ones_have_equal_bytes(
    rows: list[Any], chosen: set[int], skip: int
) -> None:
    kinds = [KINDS[at] for at in sorted(chosen)]
    columns = columns_of([[row[at] for at in sorted(chosen)] for row in rows], kinds)
    columns = [column.slice(min(skip, len(rows))) for column in columns]
    count = max(0, len(rows) - skip)
    codec = RowCodec(kinds)
    encoded = codec.encode(columns, count)
    assert len(encoded) == count
    if count:
        assert [column.to_pylist() for column in codec.decode(encoded)] == [column.to_pylist() for column in columns]
    given_rows = [repr([column[at].as_py() for column in columns]) for at in range(count)]
    for at in range(count):
        for other in range(count):
            assert (encoded[at] == encoded[other]) == (given_rows[at] == given_rows[other])


def test_bytes_under_a_null_do_not_tell() -> None:
    plain = pa.array([1, 2], pa.int64())
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x00"), plain.buffers()[1]])
    codec = RowCodec([pa.int64()])
    assert len(set(codec.encode([hidden], 2))) == 1


def test_floats_are_kept_bit_by_bit() -> None:
    codec = RowCodec([pa.float64()])
    (column,) = codec.decode(codec.encode([pa.array([-0.0, 0.0])], 2))
    assert list(map(repr, column.to_pylist())) == ["-0.0", "0.0"]


def structs_of(kinds: list[pa.DataType]) -> pa.DataType:
    return pa.struct([pa.field(f"f{at}", kind) for at, kind in enumerate(kinds)])


nested_kinds = st.recursive(
    st.sampled_from(KINDS),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, max_size=3).map(structs_of),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int64()]), inner),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in KINDS:
        return VALUES[KINDS.index(kind)]
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    if pa.types.is_map(kind):
        entries = st.tuples(values_of(kind.key_type).filter(lambda key: key is not None), values_of(kind.item_type))
        return st.none() | st.lists(entries, max_size=3)
    return st.none() | st.lists(values_of(kind.value_type), max_size=4)


@given(kinds=st.lists(nested_kinds, min_size=1, max_size=3), data=st.data())
def test_lists_and_maps_are_read_back_however_they_are_nested(kinds: list[pa.DataType], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*map(values_of, kinds)), max_size=6))
    skip = data.draw(st.integers(0, len(rows)))
    # Those that are there twice have equal bytes.
    columns = [column.slice(skip) for column in columns_of([*rows, *rows], kinds)]
    count = 2 * len(rows) - skip
    assert all(map(can_encode, kinds))
    codec = RowCodec(kinds)
    encoded = codec.encode(columns, count)
    decoded = codec.decode(encoded)
    for column, kind, given_column in zip(decoded, kinds, columns, strict=True):
        column.validate(full=True)
        assert column.type == kind
        assert column.to_pylist() == given_column.to_pylist()
    given_rows = [repr([column[at].as_py() for column in columns]) for at in range(count)]
    for at in range(count):
        for other in range(count):
            assert (encoded[at] == encoded[other]) == (given_rows[at] == given_rows[other])


def test_what_lies_under_a_null_list_or_a_null_in_a_list_does_not_tell() -> None:
    element = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    there = pa.array([{"a": 1, "b": ["x"]}, {"a": 2, "b": ["y", "z"]}], element)
    fields = [there.field(0), there.field(1)]
    gone = pa.Array.from_buffers(element, 2, [pa.py_buffer(b"\x00")], children=fields)
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    kind = pa.list_(element)
    codec = RowCodec([kind])
    null_elements = pa.Array.from_buffers(kind, 2, [None, offsets], children=[gone])
    assert set(codec.encode([null_elements], 2)) == set(codec.encode([pa.array([[None]], kind)], 1))
    null_lists = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x00"), offsets], children=[there])
    assert set(codec.encode([null_lists], 2)) == set(codec.encode([pa.array([None], kind)], 1))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.string())])
def test_a_row_that_is_cut_short_is_damaged(kind: pa.DataType) -> None:
    values = {pa.int64(): [1, 2], pa.string(): ["ab", "cd"]}.get(kind, [["ab", "c"], ["d"]])
    codec = RowCodec([kind])
    first, second = codec.encode([pa.array(values, kind)], 2)
    for rows in ([first[:-1], second], [first, second[:-1]], [first[:1], second]):
        with pytest.raises(Damaged):
            codec.decode(rows)


PLAIN = [(pa.int64(), 7), (pa.string(), "ab"), (pa.struct([("a", pa.bool_())]), {"a": True})]
LISTED = [*PLAIN, (pa.list_(pa.struct([("b", pa.string())])), [{"b": "c"}, None, {"b": "de"}])]


@pytest.mark.parametrize(
    ("columns", "stored"),
    [
        (PLAIN, "0101010107000000000000000200000001016162"),
        (
            LISTED,
            "01010101010700000000000000020000000101030000006162010101010000000100000000000001010102000000636465",
        ),
    ],
)
def test_the_bytes_of_a_row_never_change(columns: list[tuple[pa.DataType, Any]], stored: str) -> None:
    """Checkpoints hold them."""
    kinds, row = [kind for kind, _ in columns], [value for _, value in columns]
    assert [each.hex() for each in RowCodec(kinds).encode(columns_of([row], kinds), 1)] == [stored]
    assert [column.to_pylist() for column in RowCodec(kinds).decode([bytes.fromhex(stored)])] == [[v] for v in row]


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.int64(), 2), pa.string_view()])
def test_some_types_have_no_form(kind: pa.DataType) -> None:
    assert not can_encode(kind)
    assert not can_encode(pa.list_(pa.struct([("a", kind)])))
    assert can_encode(pa.list_(pa.struct([("a", pa.string())])))
