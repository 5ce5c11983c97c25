import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.state.codec import decode, encode_key, encode_value

ZONE = dt.timezone(dt.timedelta(hours=-7))
FIELDS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.datetimes(timezones=st.just(ZONE) | st.just(dt.UTC))
    | st.dates()
    | st.decimals(allow_nan=False)
)


@given(st.tuples(FIELDS, FIELDS))
def test_a_value_comes_back_equal_and_of_its_type(value: tuple[Any, ...]) -> None:
    found = decode(encode_value(value, state="s"))
    assert found == value
    assert [type(field) for field in found] == [type(field) for field in value]


@given(st.tuples(FIELDS))
def test_a_key_comes_back_equal(key: tuple[Any, ...]) -> None:
    assert decode(encode_key(key, state="s")) == key


def test_aware_and_naive_datetimes_stay_apart() -> None:
    naive = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
    assert decode(encode_value((naive,), state="s"))[0].tzinfo is None
    assert decode(encode_value((naive.replace(tzinfo=ZONE),), state="s"))[0].utcoffset() is not None
    assert encode_key((naive,), state="s") != encode_key((naive.replace(tzinfo=dt.UTC),), state="s")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, -0.0),
        (float("nan"), -float("nan")),
        (1, np.int8(1)),
        (np.int64(300), np.int16(300)),
        (1.5, np.float32(1.5)),
        (np.float64("nan"), float("nan")),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("0"), Decimal("-0.00")),
        (Decimal("1" * 38 + "0"), Decimal("1" * 38 + "0.00")),
        (dt.datetime(2024, 1, 1, 7, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=ZONE)),
    ],
)
def test_equal_keys_give_equal_bytes(left: Any, right: Any) -> None:
    assert encode_key((left,), state="s") == encode_key((right,), state="s")


def test_a_decimal_key_keeps_all_its_digits() -> None:
    key = Decimal("12345678901234567890123456789012345678")
    assert decode(encode_key((key,), state="s")) == (key,)


def test_keys_of_different_types_stay_apart() -> None:
    keys = [(1,), (True,), (1.0,), ("1",), (b"1",), (Decimal(1),), (None,), (dt.date(1970, 1, 2),), (), (1, None)]
    assert len({encode_key(key, state="s") for key in keys}) == len(keys)


@pytest.mark.parametrize("unsupported", [[{}], {"a": 1}, object(), (1,)])
def test_an_unsupported_type_is_named_with_its_state(unsupported: Any) -> None:
    with pytest.raises(UserCodeFailure, match=r"'totals'.*(dict|object|tuple).*field 1"):
        encode_value((1, unsupported), state="totals")


def test_bytes_that_are_not_ours_are_damage() -> None:
    for data in (b"", b"\xff\xff", b"\xc4", encode_value(("a",), state="s")[:-1]):
        with pytest.raises(Damaged):
            decode(data)
