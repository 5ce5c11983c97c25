"""Local time and instants of a zone, over columns: gaps and overlaps are resolved as java.time does.

Works on seconds. The yearly changes are written out for 400 years, after which the calendar repeats itself, so that
any instant of a long has its offset.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call, Cast
from tidegate.plan.kernels.calendar import days_of_month_start, months_of
from tidegate.plan.zones import UTC, ChangeClock, YearlyChange, ZoneRules

Longs = npt.NDArray[np.int64]

S_PER_DAY = 86_400
# The Gregorian calendar has 146,097 days in 400 years, which are whole weeks.
_CYCLE_YEARS = 400
_CYCLE_S = 146_097 * S_PER_DAY
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00", "UTC+0", "Etc/UCT", "Zulu", "Etc/Zulu"})


class Zone:
    """Answers for one zone; offsets are seconds to add to UTC."""

    def __init__(self, rules: ZoneRules) -> None:
        changes = [*rules.changes, *_written_out(rules)]
        self._instants = np.array([instant for instant, _ in changes], np.int64)
        self._offsets = np.array([rules.first_offset_s, *(offset for _, offset in changes)], np.int64)
        before, after = self._offsets[:-1], self._offsets[1:]
        self._local_gap_start, self._local_overlap_start = self._instants + before, self._instants + after
        # A local time before this belongs to the offset before the change: in a gap Java moves it on by the gap's
        # length, in an overlap it takes the earlier of the two.
        self._local_ends = self._instants + np.maximum(before, after)
        self._repeats_from = _year_start_s(rules.last_year + 1) if rules.changes and rules.yearly else None

    def is_fixed(self) -> bool:
        return len(self._instants) == 0

    def is_utc(self) -> bool:
        return self.is_fixed() and int(self._offsets[0]) == 0

    def offset_at(self, instant_s: Longs) -> Longs:
        if self.is_fixed():
            return np.broadcast_to(self._offsets[0], instant_s.shape)
        folded, _ = self._folded(instant_s)
        offsets: Longs = self._offsets[np.searchsorted(self._instants, folded, side="right")]
        return offsets

    def to_local(self, instant_s: Longs) -> Longs:
        return instant_s + self.offset_at(instant_s)

    def to_instant(self, local_s: Longs) -> Longs:
        """As `LocalDateTime.atZone`."""
        if self.is_fixed():
            return local_s - int(self._offsets[0])
        folded, _ = self._folded(local_s)
        offsets: Longs = self._offsets[np.searchsorted(self._local_ends, folded, side="right")]
        return local_s - offsets

    def to_instant_near(self, local_s: Longs, offset_s: Longs) -> Longs:
        """As `ZonedDateTime.ofLocal` with a preferred offset, which decides within an overlap."""
        if self.is_fixed():
            return local_s - int(self._offsets[0])
        folded, _ = self._folded(local_s)
        place = np.searchsorted(self._local_ends, folded, side="right")
        change = np.minimum(place, len(self._instants) - 1)
        later = self._offsets[change + 1]
        overlaps = (place == change) & (folded >= self._local_overlap_start[change]) & (later < self._offsets[change])
        offsets: Longs = np.where(overlaps & (later == offset_s), later, self._offsets[place])
        return local_s - offsets

    def day_start(self, days: Longs) -> Longs:
        """As `LocalDate.atStartOfDay`: a day whose midnight is in a gap starts with the end of the gap."""
        local_s = days * S_PER_DAY
        if self.is_fixed():
            return local_s - int(self._offsets[0])
        folded, shift = self._folded(local_s)
        place = np.searchsorted(self._local_ends, folded, side="right")
        change = np.minimum(place, len(self._instants) - 1)
        in_gap = (place == change) & (folded >= self._local_gap_start[change])
        in_gap &= self._offsets[change + 1] > self._offsets[change]
        starts: Longs = np.where(in_gap, self._instants[change] + shift, local_s - self._offsets[place])
        return starts

    def _folded(self, seconds: Longs) -> tuple[Longs, Longs]:
        """The seconds moved back by whole cycles into the years that are written out, and by how much."""
        if self._repeats_from is None or len(seconds) == 0 or seconds.max() < self._repeats_from + _CYCLE_S:
            return seconds, np.zeros(1, np.int64)
        cycles = np.maximum(np.floor_divide(seconds - self._repeats_from, _CYCLE_S), 0)
        return seconds - cycles * _CYCLE_S, cycles * _CYCLE_S


def zone_of(expression: Call | Cast, *times: pa.DataType) -> Zone:
    """The zone an expression computes in: its own, or UTC if all its times are without a zone."""
    if times and all(type_ == pa.timestamp("us") for type_ in times):
        return zone(UTC)
    name = expression.zone if isinstance(expression, Cast) else expression.setting("timeZoneId")
    if expression.rules is not None:
        return zone(expression.rules)
    if name in _UTC_NAMES:
        return zone(UTC)
    raise UnsupportedPlan(f"The rules of the time zone {name} are not known here")


@lru_cache(maxsize=64)
def zone(rules: ZoneRules) -> Zone:
    return Zone(rules)


def _written_out(rules: ZoneRules) -> list[tuple[int, int]]:
    """The yearly changes after the last listed one, for a cycle and a year on either side."""
    if not rules.changes or not rules.yearly:
        return []
    years = np.arange(rules.last_year, rules.last_year + _CYCLE_YEARS + 2, dtype=np.int64)
    found = [
        (int(instant), change.offset_after_s) for change in rules.yearly for instant in _change_instants(change, years)
    ]
    return sorted(entry for entry in found if entry[0] > rules.changes[-1][0])


def _change_instants(change: YearlyChange, years: Longs) -> Longs:
    month = months_of(years, change.month)
    if change.day_of_month < 0:
        day = days_of_month_start(month + 1) + change.day_of_month
    else:
        day = days_of_month_start(month) + change.day_of_month - 1
    if change.weekday is not None:
        # Day 0 of the epoch is a Thursday.
        weekday = (day + 3) % 7
        back = (weekday - change.weekday) % 7
        day = day - back if change.day_of_month < 0 else day + (-back) % 7
    local_s = day * S_PER_DAY + change.second_of_day
    match change.clock:
        case ChangeClock.UTC:
            return local_s
        case ChangeClock.STANDARD:
            return local_s - change.standard_offset_s
        case ChangeClock.WALL:
            return local_s - change.offset_before_s


def _year_start_s(year: int) -> int:
    return int(days_of_month_start(months_of(year, 1))) * S_PER_DAY
