"""Spark's column types as Arrow types. Types that Tidegate does not carry are refused here, and only here."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan

_SIMPLE: Mapping[str, pa.DataType] = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DAY_TIME_INTERVAL = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_YEAR_MONTH_INTERVAL = re.compile(r"interval (year|month)( to month)?")
# As PySpark names them, so that columns given to and taken from Python functions look as they do in Spark.
_ELEMENT = "element"


def to_arrow_type(spark_type: object, *, of: str) -> pa.DataType:
    """The Arrow type of a type in Spark's JSON form; `of` names the column or expression for the refusal."""
    if isinstance(spark_type, str):
        if spark_type in _SIMPLE:
            return _SIMPLE[spark_type]
        decimal = _DECIMAL.fullmatch(spark_type)
        if decimal is not None:
            return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
        if _DAY_TIME_INTERVAL.fullmatch(spark_type):
            return pa.duration("us")
        if _YEAR_MONTH_INTERVAL.fullmatch(spark_type):
            return pa.month_day_nano_interval()
    elif isinstance(spark_type, Mapping):
        nested = _nested_type(spark_type, of=of)
        if nested is not None:
            return nested
    raise UnsupportedPlan(
        f"{of} has Spark's type {_type_name(spark_type)}, which Tidegate does not carry: use numbers, booleans, "
        f"strings, binaries, dates, timestamps, decimals, intervals, or arrays, maps and structs of them."
    )


def _nested_type(spark_type: Mapping[str, Any], *, of: str) -> pa.DataType | None:
    """Whether parts may be null is Spark's to check: here all may, so that equal types are equal."""
    match spark_type.get("type"):
        case "array":
            return pa.list_(pa.field(_ELEMENT, to_arrow_type(spark_type["elementType"], of=of)))
        case "map":
            key = to_arrow_type(spark_type["keyType"], of=of)
            return pa.map_(key, to_arrow_type(spark_type["valueType"], of=of))
        case "struct":
            return pa.struct(
                [
                    pa.field(field["name"], to_arrow_type(_with_collation(field), of=of))
                    for field in spark_type["fields"]
                ]
            )
        case _:
            return None


def to_arrow_schema(struct: Mapping[str, Any]) -> pa.Schema:
    """The schema of a struct in Spark's JSON form (`{"type": "struct", "fields": [...]}`)."""
    if struct.get("type") != "struct":
        raise UnsupportedPlan(f"A schema must be a struct, but it is Spark's type {_type_name(dict(struct))}.")
    return pa.schema(
        [
            pa.field(field["name"], to_arrow_type(_with_collation(field), of=f"Column {field['name']!r}"))
            for field in struct["fields"]
        ]
    )


def _with_collation(field: Mapping[str, Any]) -> object:
    # A struct's JSON keeps collations beside the type (also of elements, by path), so that older readers see strings.
    collations = field.get("metadata", {}).get("__COLLATIONS", {})
    return f"string collate {next(iter(collations.values()))}" if collations else field["type"]


def _type_name(spark_type: object) -> str:
    if isinstance(spark_type, Mapping):
        return str(spark_type.get("type", spark_type))
    return str(spark_type)
