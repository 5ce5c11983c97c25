"""What only the JVM knows about text functions: escapes, lists of patterns, its locale and how it prints floats.

Refuses functions whose result would depend on a Java that Tidegate's kernels do not follow.
"""

from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Literal
from tidegate.plan.parsing.java_doubles import Digits
from tidegate.spark.catalyst_trees import ExpressionTree, short_name

LIKE_LISTS = frozenset({"LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny"})
_CASE_FUNCTIONS = frozenset({"Upper", "Lower", "InitCap"})
_ROUNDINGS = frozenset({"Round", "BRound"})
_ICU_SETTING = "spark.sql.icu.caseMappings.enabled"
# Languages with rules of their own for upper and lower case.
_OWN_CASE_RULES = frozenset({"az", "el", "hy", "lt", "nl", "tr"})
# Before it Java printed some floats with more digits than they need.
_SHORTEST_DIGITS_SINCE = 19


def invoked_name(tree: ExpressionTree) -> str | None:
    """Spark calls some functions by class and method: `Base64.encode`."""
    if tree.name != "StaticInvoke":
        return None
    return f"{short_name(str(tree.fields['staticObject'])).rstrip('$')}.{tree.fields['functionName']}"


def jvm_settings(tree: ExpressionTree) -> tuple[tuple[str, str], ...]:
    if tree.name == "Like":
        return (("escapeChar", str(tree.jvm.escapeChar())),)
    return ()


def like_patterns(tree: ExpressionTree) -> tuple[Literal, ...]:
    found = tree.jvm.patterns()
    patterns = (found.apply(index) for index in range(found.size()))
    return tuple(Literal(None if pattern is None else str(pattern), pa.string()) for pattern in patterns)


def require_known_case(tree: ExpressionTree) -> None:
    if tree.name not in _CASE_FUNCTIONS:
        return
    language = str(_jvm().java.util.Locale.getDefault().getLanguage())
    uses_icu = str(_jvm().org.apache.spark.sql.internal.SQLConf.get().getConfString(_ICU_SETTING, "true")) == "true"
    if language in _OWN_CASE_RULES or not uses_icu:
        raise UnsupportedPlan(
            f"{tree.name} follows Java's locale {language!r}, or {_ICU_SETTING} is false, needed for `{tree.sql()}`: "
            f"start the JVM with -Duser.language=en and leave {_ICU_SETTING} at true."
        )


def require_known_digits(tree: ExpressionTree, source: pa.DataType, target: pa.DataType) -> None:
    """A float becomes a text or a decimal, or is rounded, by the digits that Java prints for it."""
    prints = tree.name in _ROUNDINGS or any(
        leaf == pa.string() or pa.types.is_decimal(leaf) for leaf in _leaves(target)
    )
    if not prints or not any(map(pa.types.is_floating, _leaves(source))):
        return
    if not java_prints_shortest_digits():
        raise UnsupportedPlan(
            f"Java {_java_version()} prints some floats with too many digits, needed for `{tree.sql()}`: "
            f"run Spark on Java {_SHORTEST_DIGITS_SINCE} or newer, or compute it in mapInArrow."
        )


def java_prints_shortest_digits() -> bool:
    version = _java_version()
    return not version.startswith("1.") and int(version) >= _SHORTEST_DIGITS_SINCE


def java_digits() -> Digits:
    return Digits.SHORTEST if java_prints_shortest_digits() else Digits.EARLIER


def _java_version() -> str:
    return str(_jvm().java.lang.System.getProperty("java.specification.version"))


def _leaves(type_: pa.DataType) -> list[pa.DataType]:
    """The types within arrays, maps and structs, or the type itself."""
    if not pa.types.is_nested(type_):
        return [type_]
    return [leaf for index in range(type_.num_fields) for leaf in _leaves(type_.field(index).type)]


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None, "a plan comes from a session"
    return context._jvm
