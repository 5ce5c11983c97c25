"""Reads the rules of a time zone from Spark's JVM, so that both agree on every instant.

Python's `tzdata` and Java's tables differ in their version and in what they keep from before 1970.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from pyspark import SparkContext
from pyspark.errors import DateTimeException

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.zones import ChangeClock, YearlyChange, ZoneRules

# As java.time.zone.ZoneOffsetTransition prints itself: one call to the JVM in place of hundreds.
_TRANSITION = re.compile(r"at (\d{4}-\d\d-\d\dT[\d:.]+)(Z|[+-][\d:]+) to (Z|[+-][\d:]+)\]")


def zone_rules(name: str) -> ZoneRules:
    """The rules of a zone by any name that Spark's settings accept, such as `Europe/Berlin` or `+05:30`."""
    jvm: Any = None if SparkContext._active_spark_context is None else SparkContext._active_spark_context._jvm
    assert jvm is not None, "an expression is read while its session lives"
    return _read(name, _Jvm(jvm))


class _Jvm:
    """All JVMs that one process starts come from one installation: they are equal as keys of the cache."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Jvm)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _read(name: str, jvm: _Jvm) -> ZoneRules:
    try:
        rules = jvm.view.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name).getRules()
    except DateTimeException:
        raise UnsupportedPlan(f"Java knows no time zone {name!r}: use a name such as Europe/Berlin.") from None
    transitions = _TRANSITION.findall(str(rules.getTransitions().toString()))
    if not transitions:
        return ZoneRules(name, _total_seconds(rules.getOffset(jvm.view.java.time.Instant.EPOCH)))
    if len(transitions) != rules.getTransitions().size():
        raise UnsupportedPlan(f"Java's rules of the time zone {name!r} cannot be read: use another zone.")
    return ZoneRules(
        name,
        first_offset_s=_offset_s(transitions[0][1]),
        changes=tuple((_instant_s(local, before), _offset_s(after)) for local, before, after in transitions),
        yearly=tuple(_yearly(rule) for rule in rules.getTransitionRules()),
        last_year=int(transitions[-1][0][:4]),
    )


def _yearly(rule: Any) -> YearlyChange:
    weekday = rule.getDayOfWeek()
    end_of_day_s = 86_400 if rule.isMidnightEndOfDay() else 0
    return YearlyChange(
        month=rule.getMonth().getValue(),
        day_of_month=rule.getDayOfMonthIndicator(),
        weekday=None if weekday is None else weekday.getValue() - 1,
        second_of_day=rule.getLocalTime().toSecondOfDay() + end_of_day_s,
        clock=ChangeClock(rule.getTimeDefinition().name()),
        standard_offset_s=_total_seconds(rule.getStandardOffset()),
        offset_before_s=_total_seconds(rule.getOffsetBefore()),
        offset_after_s=_total_seconds(rule.getOffsetAfter()),
    )


def _instant_s(local: str, offset: str) -> int:
    since_epoch = datetime.fromisoformat(local).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since_epoch // timedelta(seconds=1) - _offset_s(offset)


def _offset_s(text: str) -> int:
    if text == "Z":
        return 0
    hours, minutes, seconds = (*map(int, text[1:].split(":")), 0)[:3]
    total_s = hours * 3600 + minutes * 60 + seconds
    return -total_s if text[0] == "-" else total_s


def _total_seconds(offset: Any) -> int:
    return int(offset.getTotalSeconds())
