"""What Catalyst's expressions on JSON keep in the JVM alone: their options, and settings of the session.

Refuses options and settings that would give another answer than the kernels'.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.spark.catalyst_text import java_prints_shortest_digits
from tidegate.spark.catalyst_trees import ExpressionTree

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
_CORRUPT = "spark.sql.columnNameOfCorruptRecord"


def json_settings(tree: ExpressionTree) -> tuple[tuple[str, str], ...]:
    if tree.name not in _READING:
        return ()
    digits = Digits.SHORTEST if java_prints_shortest_digits() else Digits.EARLIER
    if tree.name != "JsonToStructs":
        return (("digits", digits.value),)
    check_json_settings(tree)
    options = {"columnNameOfCorruptRecord": str(SparkSession.active().conf.get(_CORRUPT))}
    options |= _read_options(tree)
    return (*options.items(), ("digits", digits.value))


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
