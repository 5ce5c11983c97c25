import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.model.ids import KeyGroupRange, key_groups_with_keys_of, range_of
from tidegate.plan.key_groups import hash_rows, key_group_of, owner_of, partition

# Arrow imports pandas at its first list, which must not happen while an example is being generated.
pa.array([0])

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=40)),
    (pa.large_string(), st.text(max_size=40)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes()),
    (pa.decimal128(20, 2), st.decimals(-(10**17), 10**17, places=2)),
    (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-9, 9), max_size=4)),
    (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.lists(st.text(max_size=9), max_size=3), max_size=3)),
    (
        pa.struct([("number", pa.int64()), ("text", pa.string())]),
        st.fixed_dictionaries({"number": st.none() | st.integers(-9, 9), "text": st.none() | st.text(max_size=9)}),
    ),
]


@st.composite
def batches(draw: st.DrawFn, min_size: int = 0) -> pa.RecordBatch:
    size = draw(st.integers(min_size, 30))
    columns = []
    for kind, values in draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3)):
        columns.append(pa.array(draw(st.lists(st.none() | values, min_size=size, max_size=size)), kind))
    return pa.RecordBatch.from_arrays(columns, [f"c{index}" for index in range(len(columns))])


def one_column(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], ["key"])


def hashes_of(values: list[Any], kind: pa.DataType) -> list[int]:
    hashes: list[int] = hash_rows(one_column(values, kind), 1).tolist()
    return hashes


ZERO, ONE, MINUS_ONE, NULL = 0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20, 0x6E756C6C5F6B6579
NAN = float("nan")
INFINITY = float("inf")
FLOATS = [0.0, -0.0, 1.5, -1.5, NAN, -NAN, INFINITY, -INFINITY]
FLOAT_HASHES = [
    ZERO, ZERO, 0xD6DAB18E1392608A, 0x5C4CE031A716B337, 0xC72971D82E15BB46, 0xC72971D82E15BB46, 0x249E5410C2F97D99,
    0x8CE2CA027CDA7FFE,
]  # fmt: skip
BYTES = [b"", b"\x00", b"\x00\xff\x80", bytes(8), bytes(range(17))]
BYTES_HASHES = [ZERO, 0xB382A305F4414F5E, 0x3D74BBBB4214E9C8, 0x600FB8D528D256A9, 0x104E6823DE219083]
LOCAL_TIMES = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 12),
    dt.datetime(2024, 2, 29, 12, 0, 0, 1),
]
TIME_HASHES = [MINUS_ONE, ZERO, 0xBE34D00A6C8BEC4A, 0x2EE1D280E968F69D]
QUARTERS = [Decimal("1.25"), Decimal("-1.25"), Decimal("-3.00")]
QUARTER_HASHES = [0xA053AF67BFBC21AE, 0xBACDEFC59732F397, 0x835B559A20618784]
LARGEST_DECIMAL = Decimal("9" * 38)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int8(), [-(2**7), -1, 0, 1, 2**7 - 1], [0x91DE0036E7E6BC39, MINUS_ONE, ZERO, ONE, 0x3FADB6BDE9285E98]),
        (pa.int16(), [-(2**15), -1, 0, 1, 2**15 - 1], [0x2E3B2EE7C80B725D, MINUS_ONE, ZERO, ONE, 0xB73AB1ECF2C9D038]),
        (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1], [0xEE1591EA220FB185, MINUS_ONE, ZERO, ONE, 0x61FA36A6261A4BE7]),
        (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1], [0x481EC0A212A9F3DB, MINUS_ONE, ZERO, ONE, 0x2A67D7552E039EA7]),
        (pa.uint8(), [0, 1, 2**8 - 1], [ZERO, ONE, 0x338C507146283FB4]),
        (pa.uint16(), [0, 1, 2**16 - 1], [ZERO, ONE, 0xCF0F635E85B85D76]),
        (pa.uint32(), [0, 1, 2**32 - 1], [ZERO, ONE, 0x73B13BA2AFF181C0]),
        (pa.uint64(), [0, 1, 2**64 - 1], [ZERO, ONE, MINUS_ONE]),
        (
            pa.string(),
            ["", "a", "exactly8", "nine bytes", "é" * 20],
            [ZERO, 0x9CC9964958266158, 0x529A8CF7DAA5B37F, 0xD95AA15B6266B25E, 0xF2FA89ECD6BBDE68],
        ),
        (pa.binary(), BYTES, BYTES_HASHES),
        (pa.large_binary(), BYTES, BYTES_HASHES),
        (pa.binary(3), BYTES[2:3], BYTES_HASHES[2:3]),
        (pa.float64(), FLOATS, FLOAT_HASHES),
        (pa.float32(), FLOATS, FLOAT_HASHES),
        (pa.bool_(), [True, False, None], [ONE, ZERO, NULL]),
        (pa.decimal128(10, 2), QUARTERS, QUARTER_HASHES),
        (pa.decimal128(38, 2), QUARTERS, QUARTER_HASHES),
        (pa.decimal128(10, 3), QUARTERS[:2], [0xB91C993D1B50A533, 0x326D01C2AF257000]),
        (pa.decimal128(38, 10), QUARTERS[:2], [0x328833FB3A3E46DB, 0xC62C07F005AE9520]),
        (
            pa.decimal128(38, 0),
            [Decimal(0), Decimal(-1), LARGEST_DECIMAL, LARGEST_DECIMAL.copy_negate()],
            [0x8630C2BA6DAAB072, 0x1A073F7CA97CCC8E, 0x395832B85C756B51, 0xD1CFE20D93AFA5D6],
        ),
        (
            pa.date32(),
            [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
            [0x4186BAB396079324, MINUS_ONE, ZERO, 0xDB8C04CA25F6E90D, 0xA8042B9454B32861],
        ),
        (pa.timestamp("us"), LOCAL_TIMES, TIME_HASHES),
        (pa.timestamp("us", "UTC"), LOCAL_TIMES, TIME_HASHES),
        (pa.timestamp("us", "Europe/Berlin"), [at.replace(tzinfo=dt.UTC) for at in LOCAL_TIMES], TIME_HASHES),
        (pa.duration("us"), [dt.timedelta(days=1), dt.timedelta(seconds=-1)], [0xCD4A65DFC50840F7, 0xA095D63C0EBACCD2]),
        (pa.null(), [None, None], [NULL, NULL]),
        (
            pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))]),
            [{"start": 0, "end": 1}, {"start": None, "end": 1}, {"start": 1, "end": 0}, None],
            [0x947D5282F3046E38, 0x4E74E5F1E05F6A10, 0x70A53034177833F9, NULL],
        ),
        (
            pa.list_(pa.int64()),
            [[1, 2], [2, 1], [], [None], None, [1]],
            [0x55B2B18E4A920218, 0x603A289EA7D687D4, ZERO, 0x5C1DA7C57713C359, NULL, 0xF8C5B62C83F707E8],
        ),
        (pa.list_(pa.list_(pa.string())), [[["a"], []], [[], ["a"]]], [0xE539DB62004F72C2, 0x98A02EF6C44E385A]),
    ],
    ids=str,
)
def test_hashes_never_change(kind: pa.DataType, values: list[Any], expected: list[int]) -> None:
    assert hashes_of(values, kind) == expected


@pytest.mark.parametrize("kind", [kind for kind, _ in TYPES], ids=str)
def test_the_hash_of_a_null_is_the_same_in_every_type_and_never_changes(kind: pa.DataType) -> None:
    assert hashes_of([None, None], kind) == [NULL, NULL]


def test_the_hash_of_a_composite_key_never_changes() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array(["x", "y"])], ["a", "b"])
    assert hash_rows(rows, 2).tolist() == [0x5D95BC81B67C22D7, 0x12E34F9239523B6A]


@pytest.mark.parametrize(
    ("key_count", "expected"),
    [
        (0, [0, 0, 0]),
        (1, [ONE, MINUS_ONE, NULL]),
        (2, [0x5D95BC81B67C22D7, 0xF8B3B8E31DF866C4, 0xA0A8E90D8C343E11]),
        (3, [0xA8B715E1803C91A8, 0x59B918D234CE6977, 0xC0FA7DAF84A7CA61]),
        (7, [0xFA7D1A1AA7225E01, 0xE305B7614348C20F, 0xC84802A0E42CB94D]),
    ],
)
def test_the_hash_of_a_key_of_many_types_never_changes(key_count: int, expected: list[int]) -> None:
    columns = [
        pa.array([1, -1, None], pa.int32()),
        pa.array(["x", "", None]),
        pa.array([Decimal("1.25"), None, Decimal("-1.25")], pa.decimal128(10, 2)),
        pa.array([0.0, -0.0, NAN]),
        pa.array([dt.date(2024, 2, 29)] * 3),
        pa.array([dt.datetime(2024, 2, 29, 12)] * 3, pa.timestamp("us", "UTC")),
        pa.array([True, False, None]),
    ]
    assert hash_rows(pa.RecordBatch.from_arrays(columns, list("abcdefg")), key_count).tolist() == expected


@given(st.lists(st.none() | st.decimals(-(10**7), 10**7, places=2), max_size=10))
def test_a_decimal_hashes_the_same_in_every_precision(values: list[Any]) -> None:
    narrow = hashes_of(values, pa.decimal128(10, 2))
    assert narrow == hashes_of(values, pa.decimal128(20, 2)) == hashes_of(values, pa.decimal128(38, 2))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_every_nan_hashes_as_the_one_that_spark_knows(kind: pa.DataType) -> None:
    width = kind.bit_width // 8
    others = {8: [0x7FF8000000000001, 0xFFF8000000000000], 4: [0x7FC00001, 0xFFC00000]}[width]
    bits = np.array(others, dtype=f"u{width}")
    nans = pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])
    assert hash_rows(pa.RecordBatch.from_arrays([nans], ["k"]), 1).tolist() == hashes_of([NAN] * 2, pa.float64())


@given(batches(), st.data())
def test_the_hash_of_a_slice_is_the_slice_of_the_hashes(rows: pa.RecordBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, rows.num_rows))
    length = data.draw(st.integers(0, rows.num_rows - start))
    whole = hash_rows(rows, rows.num_columns)
    assert hash_rows(rows.slice(start, length), rows.num_columns).tolist() == whole[start : start + length].tolist()


@given(st.lists(st.none() | st.text(max_size=40), max_size=20), st.lists(st.none() | st.text(max_size=40), max_size=20))
def test_the_hashes_of_joined_batches_are_the_joined_hashes(left: list[Any], right: list[Any]) -> None:
    kind = pa.string()
    assert hashes_of(left + right, kind) == hashes_of(left, kind) + hashes_of(right, kind)


def test_an_integer_hashes_the_same_in_every_width() -> None:
    found = {tuple(hashes_of([-7, 0, 100], kind)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
    assert len(found) == 1


def test_what_lies_under_a_null_does_not_matter() -> None:
    values = np.array([1, 2], dtype=np.int64)
    validity = pa.py_buffer(bytes([0b00]))
    rows = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 2, [validity, pa.py_buffer(values)])], ["k"])
    first, second = hash_rows(rows, 1).tolist()
    assert first == second
    assert first != hashes_of([0], pa.int64())[0]


def test_a_null_is_not_an_empty_string() -> None:
    null, empty = hashes_of([None, ""], pa.string())
    assert null != empty


def test_a_dictionary_column_hashes_as_its_values() -> None:
    values = ["a", None, "b", "a"]
    encoded = pa.RecordBatch.from_arrays([pa.array(values).dictionary_encode()], ["k"])
    assert hash_rows(encoded, 1).tolist() == hashes_of(values, pa.string())


def test_strings_hash_as_their_bytes_in_every_layout() -> None:
    values = ["", "short", "a longer string than one word", None]
    expected = hashes_of(values, pa.string())
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        encoded = pa.RecordBatch.from_arrays([pa.array(values, pa.string()).cast(kind)], ["k"])
        assert hash_rows(encoded, 1).tolist() == expected


def test_padding_of_the_last_word_does_not_collide_with_zero_bytes() -> None:
    values = [b"a" + bytes(count) for count in range(20)]
    assert len(set(hashes_of(values, pa.binary()))) == 20


@pytest.mark.parametrize("length", range(42))
def test_a_value_hashes_the_same_alone_and_beside_longer_and_shorter_ones(length: int) -> None:
    """However many words the longest value of a batch has, and where in the buffer a value ends."""
    value = bytes(range(1, length + 1))
    alone = hashes_of([value], pa.binary())
    for company in ([b""], [b"x" * 8], [b"x" * 9], [b"x" * 32], [b"x" * 33], [b"", b"x" * 100]):
        assert hashes_of([*company, value], pa.binary())[-1:] == alone
        assert hashes_of([value, *company], pa.binary())[:1] == alone


def test_words_that_change_places_change_the_hash() -> None:
    first, second = hashes_of([b"AAAAAAAABBBBBBBB", b"BBBBBBBBAAAAAAAA"], pa.binary())
    assert first != second


def test_the_order_of_key_columns_matters() -> None:
    left = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "b"])
    right = pa.RecordBatch.from_arrays([pa.array([2]), pa.array([1])], ["a", "b"])
    assert hash_rows(left, 2).tolist() != hash_rows(right, 2).tolist()


def test_only_key_columns_count() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1, 1]), pa.array(["x", "y"])], ["k", "v"])
    first, second = hash_rows(rows, 1).tolist()
    assert first == second


def test_distinct_keys_do_not_collide_and_spread_evenly() -> None:
    for kind in (pa.int64(), pa.string()):
        hashes = hash_rows(
            one_column([number if kind == pa.int64() else f"user-{number}" for number in range(50_000)], kind), 1
        )
        assert len(np.unique(hashes)) == 50_000
        counts = np.bincount(key_group_of(hashes, 128), minlength=128)
        assert counts.min() > 250
        assert counts.max() < 550


def test_a_map_is_refused_as_a_key() -> None:
    with pytest.raises(UnsupportedPlan, match="map"):
        hash_rows(one_column([[("a", 1)]], pa.map_(pa.string(), pa.int64())), 1)


def test_what_lies_under_a_null_array_or_struct_does_not_matter() -> None:
    hidden = pa.py_buffer(bytes([0b00]))
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32))
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [hidden, offsets], children=[pa.array([1, 2, 3])])
    structs = pa.Array.from_buffers(pa.struct([("x", pa.int64())]), 2, [hidden], children=[pa.array([1, 2])])
    for column in (lists, structs):
        assert hash_rows(pa.RecordBatch.from_arrays([column], ["k"]), 1).tolist() == [NULL, NULL]


@given(st.integers(1, 300), st.integers(1, 300))
def test_every_key_group_has_exactly_one_owner(parallelism: int, max_parallelism: int) -> None:
    owners = owner_of(np.arange(max_parallelism), parallelism=parallelism, max_parallelism=max_parallelism).tolist()
    found = [
        subtask
        for subtask in range(parallelism)
        for _ in range(*range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism))
    ]
    assert found == owners
    starts = [
        range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism) for subtask in range(parallelism)
    ]
    assert starts[0].first == 0
    assert all(before.last == after.first for before, after in pairwise(starts))
    assert starts[-1].last == max_parallelism


def test_an_impossible_number_of_key_groups_is_refused() -> None:
    for wrong in (0, (1 << 15) + 1):
        with pytest.raises(OptionError, match="maxParallelism"):
            key_group_of(np.zeros(1, dtype=np.uint64), wrong)
    assert key_group_of(np.array([2**64 - 1], dtype=np.uint64), 1 << 15).tolist() == [(1 << 15) - 1]


@given(batches(), st.integers(1, 7))
def test_partitions_hold_every_row_once_in_its_order_at_its_owner(rows: pa.RecordBatch, parallelism: int) -> None:
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    targets = owner_of(
        key_group_of(hash_rows(rows, rows.num_columns), 128), parallelism=parallelism, max_parallelism=128
    ).tolist()
    parts = partition(numbered, key_count=rows.num_columns, parallelism=parallelism, max_parallelism=128)
    found = [[] if part is None else part.column("row").to_pylist() for part in parts]
    assert found == [[row for row, owner in enumerate(targets) if owner == target] for target in range(parallelism)]


def test_one_subtask_gets_the_batch_itself() -> None:
    rows = one_column([1, 2, 3], pa.int64())
    assert partition(rows, key_count=1, parallelism=1, max_parallelism=128)[0] is rows


def test_rows_of_one_key_are_not_copied() -> None:
    rows = one_column([5, 5, 5], pa.int64())
    parts = partition(rows, key_count=1, parallelism=4, max_parallelism=128)
    assert [part for part in parts if part is not None] == [rows]
    assert any(part is rows for part in parts)


def test_an_empty_batch_goes_nowhere() -> None:
    assert partition(one_column([], pa.string()), key_count=1, parallelism=3, max_parallelism=128) == [None] * 3


numbers_of_groups = st.integers(1, 40) | st.sampled_from([127, 128, 129, 300, 1 << 15])


@given(st.data(), numbers_of_groups, numbers_of_groups)
def test_key_groups_of_another_number_are_found_by_the_hashes_they_share(
    data: st.DataObject, old: int, new: int
) -> None:
    """None is missing, and the outermost do have a key in common."""
    first = data.draw(st.integers(0, new - 1))
    own = KeyGroupRange(first, data.draw(st.integers(first + 1, new)))
    # The hashes at which a key group of either number begins, and those in front of them.
    borders = {-(-(group << 32) // number) for number in (old, new) for group in range(number + 1)}
    high_halves = sorted({at for border in borders for at in (border - 1, border) if 0 <= at < 1 << 32})
    hashes = np.array(high_halves, dtype=np.uint64) << np.uint64(32)
    shared = key_group_of(hashes, old)[np.isin(key_group_of(hashes, new), np.arange(*own))]
    assert key_groups_with_keys_of(own, new, among=old) == (shared.min(), shared.max() + 1)


def test_a_subtask_without_key_groups_shares_none() -> None:
    assert key_groups_with_keys_of(KeyGroupRange(3, 3), 7, among=128) == (0, 0)
