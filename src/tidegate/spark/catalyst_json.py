"""What Catalyst's expressions on JSON keep in the JVM alone: their options, and settings of the session.

Refuses options and settings that would give another answer than the kernels'.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Expression
from tidegate.spark.catalyst_text import java_digits
from tidegate.spark.catalyst_trees import ExpressionTree
from tidegate.spark.zones import zone_rules

_READING = frozenset({"JsonToStructs", "GetJsonObject", "JsonTuple"})
# By their names in lower case, as Spark compares them.
_READ_OPTIONS = {
    name.lower(): name
    for name in (
        "mode", "columnNameOfCorruptRecord", "timeZone", "allowSingleQuotes", "allowNonNumericNumbers",
        "allowUnquotedControlChars", "allowBackslashEscapingAnyCharacter",
    )
}  # fmt: skip
# About inferred schemas, so that they mean nothing here; or at what Spark takes without them.
_WITHOUT_MEANING = frozenset(
    {"primitivesasstring", "prefersdecimal", "samplingratio", "dropfieldifallnull", "multiline"}
)
_ONLY_DEFAULTS = {
    "allowcomments": "false", "allowunquotedfieldnames": "false", "allownumericleadingzeros": "false",
    "locale": "en-us",
}  # fmt: skip
# What the kernels follow: each setting with the value that they take for granted.
_SETTINGS = {
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}
_IGNORES_NULLS = "spark.sql.jsonGenerator.ignoreNullFields"
_CORRUPT = "spark.sql.columnNameOfCorruptRecord"


def json_settings(tree: ExpressionTree) -> tuple[tuple[str, str], ...]:
    if tree.name not in _READING:
        return ()
    digits = java_digits()
    if tree.name != "JsonToStructs":
        return (("digits", digits.value),)
    check_json_settings(tree)
    options = {"columnNameOfCorruptRecord": str(SparkSession.active().conf.get(_CORRUPT))}
    options |= _read_options(tree)
    return (*options.items(), ("digits", digits.value))


def is_to_json(tree: ExpressionTree) -> bool:
    """Spark calls it by an object that it keeps as a literal."""
    if tree.name != "Invoke" or tree.fields.get("functionName") != "evaluate":
        return False
    return str(tree.children[0].fields.get("value")).startswith("StructsToJsonEvaluator(")


def to_json_call(tree: ExpressionTree, value: Expression) -> Call:
    evaluator = tree.children[0].jvm.value()
    options = dict(options_of(evaluator.options()))
    ignores_nulls = options.pop("ignorenullfields", None) or SparkSession.active().conf.get(_IGNORES_NULLS)
    if options:
        raise UnsupportedPlan(
            f"Tidegate does not write JSON with the option {min(options)!r}, needed for `{tree.sql()}`: leave it out."
        )
    zone = str(evaluator.timeZoneId().get())
    settings = (
        ("digits", java_digits().value),
        ("ignoreNullFields", str(ignores_nulls).lower()),
        ("timeZoneId", zone),
    )
    return Call("StructsToJson", (value,), pa.string(), ansi=False, settings=settings, rules=zone_rules(zone))


def check_json_settings(tree: ExpressionTree) -> None:
    for name, wanted in _SETTINGS.items():
        value = SparkSession.active().conf.get(name, wanted)
        if str(value).lower() != wanted.lower():
            raise UnsupportedPlan(f"`{tree.sql()}` would be read with {name}={value}: set it to {wanted}.")


def options_of(options: Any) -> Mapping[str, str]:
    """A Scala map of the JVM, by names in lower case."""
    found: dict[str, str] = {}
    entries = options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1()).lower()] = str(entry._2())
    return found


def _read_options(tree: ExpressionTree) -> dict[str, str]:
    taken: dict[str, str] = {}
    for name, value in options_of(tree.jvm.options()).items():
        if name in _READ_OPTIONS:
            taken[_READ_OPTIONS[name]] = value.lower() if name.startswith("allow") else value
        elif name not in _WITHOUT_MEANING and _ONLY_DEFAULTS.get(name) != value.lower():
            raise UnsupportedPlan(
                f"Tidegate does not read JSON with the option {name!r}, needed for `{tree.sql()}`: leave it out"
                f"{', read the time as a string and convert it by to_timestamp' if 'format' in name else ''}."
            )
    if taken.get("mode", "PERMISSIVE").upper() not in ("PERMISSIVE", "FAILFAST"):
        raise UnsupportedPlan(f"`{tree.sql()}` has the mode {taken['mode']!r}: choose PERMISSIVE or FAILFAST.")
    return taken
