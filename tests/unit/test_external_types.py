"""Values of user code by their declared types: what Spark 4.3's state server was seen to make of them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidegate.model.errors import UserCodeFailure
from tidegate.spark.typed_states import Fields
from tidegate.state.codec import decode, encode_value

PAIR = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
MOMENT = dt.datetime(2020, 1, 1, 1, 2, 3, 456789)


def kept(kind: DataType, value: Any) -> Any:
    """Through the bytes of state and back."""
    fields = Fields(StructType([StructField("x", kind)]), state="s")
    return fields.given(decode(encode_value(fields.stored((value,)), state="s")))[0]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (BooleanType(), True, True),
        (BooleanType(), 1, None),
        (ByteType(), 300, 44),
        (ByteType(), True, None),
        (ByteType(), np.int64(4), 4),
        (IntegerType(), 1 << 31, -(1 << 31)),
        (IntegerType(), 1 << 40, 0),
        (IntegerType(), 1 << 70, None),
        (IntegerType(), 1.0, None),
        (IntegerType(), "1", None),
        (LongType(), 1 << 63, None),
        (LongType(), -5, -5),
        (FloatType(), 1.1, 1.100000023841858),
        (FloatType(), 1e300, float("inf")),
        (FloatType(), 1, None),
        (DoubleType(), 1, None),
        (DoubleType(), 1.1, 1.1),
        (DecimalType(5, 2), Decimal("1.005"), Decimal("1.01")),
        (DecimalType(5, 2), Decimal("1.5"), Decimal("1.50")),
        (DecimalType(5, 2), 1, None),
        (StringType(), 5, "5"),
        (StringType(), True, "true"),
        (StringType(), None, None),
        (BinaryType(), bytearray(b"y"), b"y"),
        (BinaryType(), "str", b"str"),
        (BinaryType(), 5, None),
        (TimestampType(), MOMENT, MOMENT),
        (TimestampNTZType(), MOMENT, MOMENT),
        (DateType(), dt.date(2020, 1, 1), dt.date(2020, 1, 1)),
        (DateType(), MOMENT, dt.date(2020, 1, 1)),
        (ArrayType(IntegerType()), (1, None, "x"), [1, None, None]),
        (MapType(StringType(), IntegerType()), {"a": 1}, {"a": 1}),
        (PAIR, (1, "x"), Row(a=1, b="x")),
        (PAIR, {"a": 1, "b": "q"}, Row(a=1, b="q")),
        (PAIR, Row(b="x", a=1), Row(a=None, b="1")),
        (ArrayType(PAIR), [(1, "x")], [Row(a=1, b="x")]),
    ],
    ids=repr,
)
def test_a_value_is_kept_as_spark_keeps_it(kind: DataType, value: Any, expected: Any) -> None:
    found = kept(kind, value)
    assert (found, type(found)) == (expected, type(expected))


def test_an_instant_comes_back_in_the_zone_of_the_process() -> None:
    aware = dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=3)))
    assert kept(TimestampType(), aware) == aware.astimezone().replace(tzinfo=None)


@pytest.mark.parametrize("value", [1.5, b"ab", [1, 2], dt.date(2020, 1, 1), Decimal(1)])
def test_what_java_would_write_its_own_way_is_refused_as_a_string(value: Any) -> None:
    with pytest.raises(TypeError, match=r"is a string and was given .* str\(\)"):
        kept(StringType(), value)


@pytest.mark.parametrize("value", [Decimal(12345), Decimal("999.996"), Decimal("NaN")])
def test_a_decimal_that_does_not_fit_is_refused(value: Decimal) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        kept(DecimalType(5, 2), value)


@pytest.mark.parametrize("value", [(1, 2), 5, None, ()])
def test_a_state_takes_one_value_for_each_field(value: Any) -> None:
    fields = Fields(StructType([StructField("x", LongType())]), state="s")
    with pytest.raises(UserCodeFailure, match="State 's' has the fields"):
        fields.stored(value)
