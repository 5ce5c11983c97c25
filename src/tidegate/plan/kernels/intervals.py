"""Times and intervals: adding, subtracting, and the length between two times.

A day-time interval is a duration in microseconds; of a year-month interval only the months count. Days and months are
added on the local calendar of a zone, shorter lengths on the line of instants. An interval of both is only a constant.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tidegate.plan.expressions import Call
from tidegate.plan.kernels import calendar
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.dates import checked_days, require
from tidegate.plan.kernels.instants import (
    MICROS_PER_DAY,
    MICROS_PER_S,
    TIMES,
    joined,
    local_parts,
    overflow,
    parted,
    toward_zero,
)
from tidegate.plan.kernels.lifting import Lifted, Numbers, decimal_column, lift
from tidegate.plan.kernels.values import Kernel, unsupported
from tidegate.plan.kernels.zones import S_PER_DAY, Zone, zone_of

DURATION = pa.duration("us")
CALENDAR_INTERVAL = pa.month_day_nano_interval()
_INT = np.iinfo(np.int32)
_LONG = np.iinfo(np.int64)
# Months, days and microseconds of one step; the unit's name is Spark's.
_UNITS: Mapping[str, tuple[int, int, int]] = {
    "MICROSECOND": (0, 0, 1),
    "MILLISECOND": (0, 0, 1_000),
    "SECOND": (0, 0, MICROS_PER_S),
    "MINUTE": (0, 0, 60 * MICROS_PER_S),
    "HOUR": (0, 0, 3600 * MICROS_PER_S),
    "DAY": (0, 1, 0),
    "DAYOFYEAR": (0, 1, 0),
    "WEEK": (0, 7, 0),
    "MONTH": (1, 0, 0),
    "QUARTER": (3, 0, 0),
    "YEAR": (12, 0, 0),
}


def build_interval_added(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """TimestampAddInterval: the whole days of a duration are days of the calendar."""
    start, interval = arguments
    if start.type not in TIMES or call.type != start.type:
        raise unsupported(call.function, start.type, interval.type)
    zone = zone_of(call, start.type)
    if interval.type == CALENDAR_INTERVAL and interval.constant is not None and interval.constant.is_valid:
        months, days, micros = calendar_interval(interval.constant)
        return lift(call, (start,), lambda times: _moved(call, zone, times, months, days, micros), raises=True)
    if interval.type != DURATION:
        raise unsupported(call.function, start.type, interval.type)

    def run(times: Numbers, lengths: Numbers) -> Lifted:
        days = toward_zero(lengths.astype(np.int64), MICROS_PER_DAY)
        return _moved(call, zone, times, 0, days, lengths - days * MICROS_PER_DAY)

    return lift(call, arguments, run, raises=True)


def build_months_added(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """TimestampAddYMInterval."""
    start, interval = arguments
    if start.type not in TIMES or call.type != start.type or interval.type != CALENDAR_INTERVAL:
        raise unsupported(call.function, start.type, interval.type)
    zone = zone_of(call, start.type)
    return lift(call, arguments, lambda times, each: _moved(call, zone, times, _months_of(each), 0, 0), raises=True)


def build_months_added_to_date(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DateAddYMInterval."""
    require(call, arguments, pa.date32(), CALENDAR_INTERVAL)

    def run(days: Numbers, intervals: pa.Array) -> Lifted:
        return checked_days(call, calendar.plus_months(days.astype(np.int64), _months_of(intervals)))

    return lift(call, arguments, run, raises=True)


def build_interval_added_to_date(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DateAddInterval: a constant of months and days."""
    date, interval = arguments
    require(call, arguments, pa.date32(), CALENDAR_INTERVAL)
    if interval.constant is None or not interval.constant.is_valid or calendar_interval(interval.constant)[2] != 0:
        raise unsupported(f"{call.function} of anything but a constant number of months and days", date.type)
    months, days, _ = calendar_interval(interval.constant)

    def run(dates: Numbers) -> Lifted:
        return checked_days(call, calendar.plus_months(dates.astype(np.int64), np.array(months)) + days)

    return lift(call, (date,), run, raises=True)


def build_units_added(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """TimestampAdd: a number of units, which the function names."""
    count, start = arguments
    months, days, micros = _unit(call)
    if start.type not in TIMES or call.type != start.type or count.type != pa.int64():
        raise unsupported(call.function, count.type, start.type)
    zone = zone_of(call, start.type)

    def run(counts: Numbers, times: Numbers) -> Lifted:
        longs = counts.astype(np.int64)
        largest = _LONG.max // micros if micros else _INT.max // (months or days)
        if len(longs) and (longs.max() > largest or longs.min() < -largest - 1):
            raise overflow(call)
        return _moved(call, zone, times, longs * months, longs * days, longs * micros)

    return lift(call, arguments, run, raises=True)


def build_units_between(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """TimestampDiff: the whole units between two local times, toward zero."""
    start, end = arguments
    months, days, micros = _unit(call)
    if start.type not in TIMES or end.type not in TIMES:
        raise unsupported(call.function, start.type, end.type)
    zone = zone_of(call, start.type, end.type)

    def run(first: Numbers, second: Numbers) -> Lifted:
        day_1, second_1, micros_1 = local_parts(zone, first)
        day_2, second_2, micros_2 = local_parts(zone, second)
        time_1, time_2 = (second_1 * MICROS_PER_S + micros_1), (second_2 * MICROS_PER_S + micros_2)
        if months:
            return toward_zero(_months_between(day_1, time_1, day_2, time_2), months)
        if days:
            return toward_zero(_days_between(day_1, time_1, day_2, time_2), days)
        return toward_zero(_micros_between(call, day_1, time_1, day_2, time_2), micros)

    return lift(call, arguments, run, raises=True)


def build_timestamps_subtracted(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """SubtractTimestamps: the length between the two local times."""
    end, start = arguments
    if end.type not in TIMES or start.type not in TIMES or call.type != DURATION:
        raise unsupported(call.function, end.type, start.type)
    zone = zone_of(call, end.type, start.type)

    def run(second: Numbers, first: Numbers) -> Lifted:
        day_1, second_1, micros_1 = local_parts(zone, first)
        day_2, second_2, micros_2 = local_parts(zone, second)
        time_1, time_2 = (second_1 * MICROS_PER_S + micros_1), (second_2 * MICROS_PER_S + micros_2)
        return _micros_between(call, day_1, time_1, day_2, time_2)

    return lift(call, arguments, run, raises=True)


def build_dates_subtracted(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """SubtractDates."""
    require(call, arguments, pa.date32(), pa.date32())
    if call.type != DURATION:
        raise unsupported(call.function, *(argument.type for argument in arguments))

    def run(end: Numbers, start: Numbers) -> Lifted:
        days = end.astype(np.int64) - start
        if len(days) and (days.max() > _INT.max or days.min() < _INT.min):
            raise overflow(call)
        return joined(call, days * S_PER_DAY, 0)

    return lift(call, arguments, run, raises=True)


def build_field(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """ExtractANSIIntervalDays, Hours, Minutes, Seconds: the sign goes to every field."""
    require(call, arguments, DURATION)
    if call.function == "ExtractANSIIntervalSeconds":
        return lift(call, arguments, lambda lengths: decimal_column(np.fmod(lengths, 60 * MICROS_PER_S), call.type))
    per_unit, per_larger = _FIELDS[call.function]

    def run(lengths: Numbers) -> Lifted:
        units = toward_zero(lengths, per_unit)
        return units if per_larger is None else np.fmod(units, per_larger)

    return lift(call, arguments, run)


def calendar_interval(scalar: pa.Scalar) -> tuple[int, int, int]:
    """Months, days and microseconds."""
    months, days, nanos = scalar.as_py()
    return months, days, nanos // 1_000


def _months_of(intervals: pa.Array) -> Longs:
    """The months of intervals, each of which is stored as months, days and nanoseconds."""
    if len(intervals) == 0:
        return np.empty(0, np.int64)
    words = np.frombuffer(intervals.buffers()[1], np.int32)
    return words[4 * intervals.offset : 4 * (intervals.offset + len(intervals)) : 4].astype(np.int64)


def _unit(call: Call) -> tuple[int, int, int]:
    unit = call.setting("unit")
    if unit is None or unit.upper() not in _UNITS:
        raise unsupported(f"{call.function} with the unit {unit}", call.type)
    return _UNITS[unit.upper()]


def _moved(
    call: Call, zone: Zone, times: Numbers, months: Longs | int, days: Longs | int, micros: Longs | int
) -> Longs:
    """As `ZonedDateTime.plusMonths(..).plusDays(..).plus(.., MICROS)`, each of them resolved in the zone."""
    seconds, rest = parted(times)
    for step in (
        lambda local_days: calendar.plus_months(local_days, np.asarray(months, np.int64)),
        lambda local_days: local_days + days,
    ):
        offset_s = zone.offset_at(seconds)
        local_s = seconds + offset_s
        local_days = np.floor_divide(local_s, S_PER_DAY)
        moved_s = step(local_days) * S_PER_DAY + (local_s - local_days * S_PER_DAY)
        # The offset it had decides in an overlap, so that an unmoved time keeps its instant.
        seconds = zone.to_instant_near(moved_s, offset_s)
    whole = np.floor_divide(np.asarray(micros, np.int64), MICROS_PER_S)
    rest = rest + (micros - whole * MICROS_PER_S)
    carried = np.floor_divide(rest, MICROS_PER_S)
    return joined(call, seconds + whole + carried, rest - carried * MICROS_PER_S)


def _days_between(day_1: Longs, time_1: Longs, day_2: Longs, time_2: Longs) -> Longs:
    days = day_2 - day_1
    return days - ((days > 0) & (time_2 < time_1)) + ((days < 0) & (time_2 > time_1))


def _months_between(day_1: Longs, time_1: Longs, day_2: Longs, time_2: Longs) -> Longs:
    # As LocalDateTime.until: the last day counts only if its time has come, then LocalDate.until.
    last = day_2 - ((day_2 > day_1) & (time_2 < time_1)) + ((day_2 < day_1) & (time_2 > time_1))
    month_1, of_month_1 = calendar.split(day_1)
    month_2, of_month_2 = calendar.split(last)
    return toward_zero(month_2 * 32 + of_month_2 - (month_1 * 32 + of_month_1), 32)


def _micros_between(call: Call, day_1: Longs, time_1: Longs, day_2: Longs, time_2: Longs) -> Longs:
    seconds, rest = parted(time_2 - time_1)
    return joined(call, (day_2 - day_1) * S_PER_DAY + seconds, rest)


_FIELDS: Mapping[str, tuple[int, int | None]] = {
    "ExtractANSIIntervalDays": (MICROS_PER_DAY, None),
    "ExtractANSIIntervalHours": (3600 * MICROS_PER_S, 24),
    "ExtractANSIIntervalMinutes": (60 * MICROS_PER_S, 60),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "TimestampAddInterval": build_interval_added,
    "TimestampAddYMInterval": build_months_added,
    "DateAddYMInterval": build_months_added_to_date,
    "DateAddInterval": build_interval_added_to_date,
    "TimestampAdd": build_units_added,
    "TimestampDiff": build_units_between,
    "SubtractTimestamps": build_timestamps_subtracted,
    "SubtractDates": build_dates_subtracted,
    **dict.fromkeys((*_FIELDS, "ExtractANSIIntervalSeconds"), build_field),
}
