"""What expressions on arrays, maps and structs keep in the JVM alone: values, and settings of the session."""

from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.spark.catalyst_trees import ExpressionTree

_DEDUP_POLICY = "spark.sql.mapKeyDedupPolicy"
_MAP_BUILDERS = frozenset({"CreateMap", "MapConcat", "MapFromArrays", "MapFromEntries", "TransformKeys"})


def read_jvm_value(value: Any, spark_type: Any, type_: pa.DataType) -> Any:
    """Catalyst's internal value as `plan.kernels.constants` takes it: tuples, with times as integers."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        fields = spark_type.fields()
        return tuple(
            read_jvm_value(value.get(at, part), part, field.type) for at, part, field in _fields(fields, type_)
        )
    if pa.types.is_map(type_):
        keys = _elements(value.keyArray(), spark_type.keyType(), type_.key_type)
        return tuple(zip(keys, _elements(value.valueArray(), spark_type.valueType(), type_.item_type), strict=True))
    if pa.types.is_list(type_):
        return _elements(value, spark_type.elementType(), type_.value_type)
    if pa.types.is_decimal(type_):
        return Decimal(str(value.toString()))
    if pa.types.is_string(type_):
        return str(value.toString())
    return value


def nested_settings(tree: ExpressionTree) -> list[tuple[str, str]]:
    """What changes how Spark runs an expression, but stands only in the type of its argument."""
    if tree.name == "SortArray":
        contains_null = bool(tree.children[0].jvm.dataType().containsNull())
        return [("containsNull", str(contains_null).lower())]
    return []


def check_settings_of_session(tree: ExpressionTree) -> None:
    """Refuses expressions that a setting of the session gives another meaning than the kernels'."""
    if tree.name not in _MAP_BUILDERS:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    policy = "EXCEPTION" if session is None else session.conf.get(_DEDUP_POLICY, "EXCEPTION")
    if policy != "EXCEPTION":
        raise UnsupportedPlan(
            f"Tidegate has no kernel for {tree.name} with {_DEDUP_POLICY} {policy}, needed for `{tree.sql()}`: "
            f"set it to EXCEPTION, or build the map in mapInArrow."
        )


def _fields(fields: Any, type_: pa.DataType) -> list[tuple[int, Any, Any]]:
    return [(at, fields[at].dataType(), type_.field(at)) for at in range(type_.num_fields)]


def _elements(array: Any, spark_type: Any, type_: pa.DataType) -> tuple[Any, ...]:
    return tuple(
        None if array.isNullAt(at) else read_jvm_value(array.get(at, spark_type), spark_type, type_)
        for at in range(array.numElements())
    )
