"""The rules of a time zone as values, as Java has them: Python's own tables may be of another year than Spark's.

`spark.zones` reads them from the JVM when a query is planned; the kernels compute with nothing else.
"""

from dataclasses import dataclass
from enum import Enum


class ChangeClock(Enum):
    """The clock by which a yearly change is written down."""

    UTC = "UTC"
    STANDARD = "STANDARD"
    WALL = "WALL"


@dataclass(frozen=True, slots=True)
class YearlyChange:
    """A change of offset that recurs every year, as `java.time.zone.ZoneOffsetTransitionRule`.

    `day_of_month` counts from the month's end if negative; `weekday` (Monday is 0) moves it on to the next such day,
    or back to the last one if it counts from the end.
    """

    month: int
    day_of_month: int
    weekday: int | None
    second_of_day: int
    clock: ChangeClock
    standard_offset_s: int
    offset_before_s: int
    offset_after_s: int


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """`changes`: each instant (seconds of UTC) with the offset from then on; `yearly` goes on after the last of them.

    `last_year`: the year of the last of the changes, as it is written locally.
    """

    name: str
    first_offset_s: int
    changes: tuple[tuple[int, int], ...] = ()
    yearly: tuple[YearlyChange, ...] = ()
    last_year: int = 1970


UTC = ZoneRules("UTC", 0)
