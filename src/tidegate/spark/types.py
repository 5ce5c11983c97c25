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


def to_arrow_type(spark_type: object, *, of: str) -> pa.DataType:
    """The Arrow type of a type in Spark's JSON form; `of` names the column or expression for the refusal."""
    if isinstance(spark_type, str):
        if spark_type in _SIMPLE:
            return _SIMPLE[spark_type]
        decimal = _DECIMAL.fullmatch(spark_type)
        if decimal is not None:
            return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    raise UnsupportedPlan(
        f"{of} has Spark's type {_type_name(spark_type)}, which Tidegate does not carry: "
        f"use numbers, booleans, strings, binaries, dates, timestamps or decimals."
    )


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
    # A struct's JSON keeps a string's collation beside the type, so that older readers see a plain string.
    collations = field.get("metadata", {}).get("__COLLATIONS", {})
    return f"string collate {collations[field['name']]}" if field["name"] in collations else field["type"]


def _type_name(spark_type: object) -> str:
    if isinstance(spark_type, Mapping):
        return str(spark_type.get("type", spark_type))
    return str(spark_type)
