"""Whether a table of Spark's catalog takes what a query gives: names and types count, in their order."""

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from tidegate.api.tables import has_same_columns


def columns(kind: DataType, *, name: str = "w", nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable)])


def nested(*, nullable: bool, kind: DataType | None = None) -> DataType:
    """An array of maps of structs."""
    field = StructField("at", kind or LongType(), nullable, metadata={} if nullable else {"spark.watermarkDelayMs": 5})
    return ArrayType(MapType(StringType(), StructType([field]), nullable), nullable)


@pytest.mark.parametrize(
    ("as_table", "as_query"),
    [
        (ArrayType(StringType(), True), ArrayType(StringType(), False)),
        (MapType(StringType(), LongType(), True), MapType(StringType(), LongType(), False)),
        (nested(nullable=True), nested(nullable=False)),
    ],
)
def test_what_may_be_null_at_any_depth_makes_no_other_column(as_table: DataType, as_query: DataType) -> None:
    """Spark lets everything in a table of files be null: a query must find its own table again."""
    assert has_same_columns(columns(as_table), columns(as_query, nullable=False))


@pytest.mark.parametrize(
    ("as_table", "as_query"),
    [
        (columns(StringType()), columns(StringType(), name="v")),
        (columns(LongType()), columns(IntegerType())),
        (columns(nested(nullable=True)), columns(nested(nullable=True, kind=IntegerType()))),
        (columns(ArrayType(StringType())), columns(MapType(StringType(), StringType()))),
        (columns(StringType()), columns(StringType()).add("v", LongType())),
        (
            columns(StructType().add("a", LongType()).add("b", LongType())),
            columns(StructType().add("b", LongType()).add("a", LongType())),
        ),
    ],
)
def test_another_name_type_or_order_makes_another_column(as_table: StructType, as_query: StructType) -> None:
    assert not has_same_columns(as_table, as_query)
