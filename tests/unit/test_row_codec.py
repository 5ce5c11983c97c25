"""Rows as bytes: read back as they were, and equal when the rows are."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
values = st.tuples(
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
)


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


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.list_(pa.int64()))])])
def test_arrays_have_no_form(kind: pa.DataType) -> None:
    assert not can_encode(kind)
    assert can_encode(pa.struct([("a", pa.string())]))
