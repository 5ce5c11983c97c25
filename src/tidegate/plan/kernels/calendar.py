"""The proleptic Gregorian calendar over columns of days and months since 1970, as java.time counts them.

Works on numpy's longs and knows nothing of Arrow, zones or Spark. Floors everywhere: days before 1970 are negative.
"""

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


def month_of_day(days: Longs) -> Longs:
    """Months since January 1970."""
    return days.view("M8[D]").astype("M8[M]").view(np.int64)


def days_of_month_start(months: Longs) -> Longs:
    """The days since the epoch of each month's first day."""
    return np.asarray(months, np.int64).view("M8[M]").astype("M8[D]").view(np.int64)


def months_of(years: int | Longs, month: int | Longs) -> Longs:
    return np.asarray((years - 1970) * 12 + (month - 1), np.int64)


def month_length(months: Longs) -> Longs:
    return days_of_month_start(months + 1) - days_of_month_start(months)


def split(days: Longs) -> tuple[Longs, Longs]:
    """The month since 1970 and the day of it, from 1."""
    months = month_of_day(days)
    return months, days - days_of_month_start(months) + 1


def year_of(days: Longs) -> Longs:
    return year_of_month(month_of_day(days))


def year_of_month(months: Longs) -> Longs:
    return np.floor_divide(months, 12) + 1970


def year_start(days: Longs) -> Longs:
    months = month_of_day(days)
    return days_of_month_start(months - months % 12)


def plus_months(days: Longs, count: Longs) -> Longs:
    """The same day of another month, or that month's last day, as `LocalDate.plusMonths`."""
    months, day = split(days)
    target = months + count
    return days_of_month_start(target) + np.minimum(day, month_length(target)) - 1


def weekday(days: Longs) -> Longs:
    """Monday is 0; day 0 of the epoch is a Thursday."""
    return (days + 3) % 7


def iso_thursday(days: Longs) -> Longs:
    """The Thursday of the week, which decides to which year an ISO week belongs."""
    return days - weekday(days) + 3
