"""What Catalyst's expressions of time need beside their arguments: rules of zones, constant intervals, a parser.

Only reads and refuses; what the expressions compute is `plan.kernels`' part.
"""

from typing import Any

import pyarrow as pa
from py4j.java_gateway import get_field
from pyspark.sql import SparkSession

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Cast, Expression, Literal
from tidegate.plan.zones import ZoneRules
from tidegate.spark.catalyst_trees import ExpressionTree
from tidegate.spark.zones import zone_rules

# They are a cast to local time and one back, each in a zone that an argument names.
ZONE_CONVERSIONS = frozenset({"ToUTCTimestamp", "FromUTCTimestamp", "ConvertTimezone"})
_TAKE_INTERVALS = frozenset({"TimestampAddInterval", "DateAddInterval"})
_FORMATS = frozenset({"DateFormatClass", "FromUnixTime", "UnixTimestamp", "ToUnixTimestamp", "GetTimestamp"})
_TIMESTAMP, _TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
_PARSER_POLICY = "spark.sql.legacy.timeParserPolicy"


def rules_of_call(tree: ExpressionTree) -> ZoneRules | None:
    name = tree.fields.get("timeZoneId")
    return None if name is None else zone_rules(name)


def rules_of_cast(source: pa.DataType, target: pa.DataType, zone: str | None) -> ZoneRules | None:
    """Casts that touch no time need no rules, although Catalyst names a zone for some."""
    touches_time = pa.types.is_temporal(source) or pa.types.is_temporal(target)
    return zone_rules(zone) if touches_time and zone is not None else None


def zone_conversion(tree: ExpressionTree, times: Expression) -> Expression:
    """`to_utc_timestamp`, `from_utc_timestamp` and `convert_timezone`, as the two casts they are."""
    match tree.name:
        case "ToUTCTimestamp":
            return _cast(_cast(times, _TIMESTAMP_NTZ, "UTC"), _TIMESTAMP, _named_zone(tree, 1))
        case "FromUTCTimestamp":
            return _cast(_cast(times, _TIMESTAMP_NTZ, _named_zone(tree, 1)), _TIMESTAMP, "UTC")
        case _:
            return _cast(_cast(times, _TIMESTAMP, _named_zone(tree, 0)), _TIMESTAMP_NTZ, _named_zone(tree, 1))


def times_of_conversion(tree: ExpressionTree) -> ExpressionTree:
    return tree.children[2] if tree.name == "ConvertTimezone" else tree.children[0]


def constant_interval(tree: ExpressionTree, parent: ExpressionTree) -> Literal | None:
    """An interval of months, days and time, which no column is, where a function of times takes it as a constant."""
    if parent.name not in _TAKE_INTERVALS or tree.name != "Literal" or tree.fields["dataType"] != "interval":
        return None
    value = tree.jvm.value()
    return Literal(None if value is None else _packed(value), pa.month_day_nano_interval())


def interval_values(tree: ExpressionTree) -> list[int] | None:
    """Of a time plus an interval that CASE or IF chooses: which arguments are the intervals, if all are constant."""
    if tree.name not in _TAKE_INTERVALS or tree.children[1].name not in ("CaseWhen", "If"):
        return None
    chooser = tree.children[1]
    count = len(chooser.children)
    if chooser.name == "If":
        values = [1, 2]
    else:  # conditions and values in turn, then what is left
        values = [*range(1, count, 2), *([count - 1] if count % 2 else [])]
    are_constant = all(constant_interval(chooser.children[at], tree) is not None for at in values)
    return values if are_constant else None


def check_formats(tree: ExpressionTree) -> None:
    """Only Spark's present formatter is java.time's; its older ones print and parse otherwise."""
    if tree.name not in _FORMATS:
        return
    policy = SparkSession.active().conf.get(_PARSER_POLICY)
    if policy != "CORRECTED":
        raise UnsupportedPlan(
            f"`{tree.sql()}` would be formatted by {_PARSER_POLICY}={policy}, which Tidegate does not do: "
            f"set it to CORRECTED."
        )


def _cast(child: Expression, target: pa.DataType, zone: str) -> Cast:
    return Cast(child, target, True, zone, rules=zone_rules(zone))


def _named_zone(tree: ExpressionTree, index: int) -> str:
    zone = tree.children[index]
    if zone.name != "Literal" or zone.fields.get("value") is None:
        raise UnsupportedPlan(
            f"`{tree.sql()}` names its time zone by a column, which Tidegate does not do: name it by a constant."
        )
    return str(zone.fields["value"])


def _packed(interval: Any) -> tuple[int, int, int]:
    """Months, days and nanoseconds of Spark's CalendarInterval, whose fields are public."""
    months, days, micros = (get_field(interval, name) for name in ("months", "days", "microseconds"))
    return months, days, micros * 1_000
