"""Spark's functions of dates, which are days since 1970 in an int. Time of day and zones are not known here."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels import calendar
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.lifting import Flags, Lifted, Numbers, lift
from tidegate.plan.kernels.values import Kernel, unsupported

_DATE = pa.date32()
_INT_LIMITS = np.iinfo(np.int32)
_WEEKDAY_NAMES = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def build_field(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Year, Month, DayOfWeek and so on."""
    require(call, arguments, _DATE)
    field = _FIELDS[call.function]
    return lift(call, arguments, lambda days: field(days.astype(np.int64)))


def build_name(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DayName, MonthName: three letters of English."""
    require(call, arguments, _DATE)
    of_day = call.function == "DayName"
    names = [name[:3].capitalize() for name in (_WEEKDAY_NAMES if of_day else _MONTH_NAMES)]
    number = calendar.weekday if of_day else lambda days: calendar.month_of_day(days) % 12
    return lift(call, arguments, lambda days: taken(names, number(days.astype(np.int64))))


def build_days_added(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """DateAdd, DateSub: wraps around as Java's ints do."""
    start, count = arguments
    if start.type != _DATE or not pa.types.is_integer(count.type) or count.type.bit_width > 32:
        raise unsupported(call.function, start.type, count.type)
    sign = -1 if call.function == "DateSub" else 1
    return lift(call, arguments, lambda days, more: wrapped(days.astype(np.int64) + sign * more.astype(np.int64)))


def build_difference(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require(call, arguments, _DATE, _DATE)
    return lift(call, arguments, lambda end, start: wrapped(end.astype(np.int64) - start))


def build_months_added(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """AddMonths."""
    require(call, arguments, _DATE, pa.int32())

    def run(days: Numbers, months: Numbers) -> Lifted:
        return checked_days(call, calendar.plus_months(days.astype(np.int64), months.astype(np.int64)))

    return lift(call, arguments, run, raises=True)


def build_last_day(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require(call, arguments, _DATE)

    def run(days: Numbers) -> Lifted:
        return checked_days(call, calendar.days_of_month_start(calendar.month_of_day(days.astype(np.int64)) + 1) - 1)

    return lift(call, arguments, run, raises=True)


def build_next_day(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    start, named = arguments
    require(call, arguments, _DATE, pa.string())
    wanted = text_constant(call, named).upper()
    matching = [at for at, name in enumerate(_WEEKDAY_NAMES) if wanted in (name, name[:3], name[:2])]
    if not matching:
        raise unsupported(f"{call.function} to a day named {wanted}", start.type)

    def run(days: Numbers) -> Lifted:
        longs = days.astype(np.int64)
        return wrapped(longs + 1 + (matching[0] - calendar.weekday(longs + 1)) % 7)

    return lift(call, (start,), run)


def build_truncation(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    date, unit = arguments
    require(call, arguments, _DATE, pa.string())
    truncate = date_truncation(text_constant(call, unit))
    if truncate is None:
        raise unsupported(f"{call.function} to a unit other than week, month, quarter and year", date.type)
    return lift(call, (date,), lambda days: checked_days(call, truncate(days.astype(np.int64))), raises=True)


def build_from_parts(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """MakeDate: no such day is an error in ANSI mode, else null; one too far away is always an error."""
    require(call, arguments, pa.int32(), pa.int32(), pa.int32())

    def run(year: Numbers, month: Numbers, day: Numbers) -> Lifted:
        days, exists = days_of_parts(year, month, day)
        if call.ansi and not exists.all():
            raise UserCodeFailure(sentence("DATETIME_FIELD_OUT_OF_BOUNDS", "a year, month or day is none", call))
        return checked_days(call, np.where(exists, days, 0)), ~exists

    return lift(call, arguments, run, raises=True)


def build_reinterpreted(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """UnixDate, DateFromUnixDate: the same bits under another type."""
    (child,) = arguments
    if {child.type, call.type} != {_DATE, pa.int32()}:
        raise unsupported(call.function, child.type)
    return lift(call, arguments, lambda days: days)


def date_truncation(unit: str) -> Callable[[Longs], Longs] | None:
    """How to move days back to the start of a unit, by any of Spark's names for it."""
    match unit.upper():
        case "WEEK":
            return lambda days: days - calendar.weekday(days)
        case "MONTH" | "MON" | "MM":
            return lambda days: calendar.days_of_month_start(calendar.month_of_day(days))
        case "QUARTER":
            return _quarter_start
        case "YEAR" | "YYYY" | "YY":
            return calendar.year_start
        case _:
            return None


def days_of_parts(year: Numbers, month: Numbers, day: Numbers) -> tuple[Longs, Flags]:
    """The days since the epoch, and which of them exist."""
    years, months, of_month = (part.astype(np.int64) for part in (year, month, day))
    exists = (months >= 1) & (months <= 12) & (of_month >= 1) & (np.abs(years) <= 999_999_999)
    index = calendar.months_of(np.where(exists, years, 1970), np.where(exists, months, 1))
    days = calendar.days_of_month_start(index) + of_month - 1
    return days, exists & (of_month <= calendar.month_length(index))


def checked_days(call: Call, days: Longs) -> Longs:
    if len(days) and (days.min() < _INT_LIMITS.min or days.max() > _INT_LIMITS.max):
        raise UserCodeFailure(sentence("ARITHMETIC_OVERFLOW", "a date is too far away", call))
    return days


def wrapped(days: Longs) -> Numbers:
    return days.astype(np.int32)


def taken(names: list[str], at: Longs) -> pa.Array:
    """The name for each index, without a Python object for each row."""
    return string_column(names).take(pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)]))


def string_column(names: list[str]) -> pa.Array:
    encoded = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(names), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def text_constant(call: Call, argument: Kernel) -> str:
    if argument.constant is None or not argument.constant.is_valid or argument.type != pa.string():
        raise unsupported(f"{call.function} with a unit, format or zone that is not a constant", argument.type)
    return str(argument.constant.as_py())


def require(call: Call, arguments: tuple[Kernel, ...], *types: pa.DataType) -> None:
    if [argument.type for argument in arguments] != list(types):
        raise unsupported(call.function, *(argument.type for argument in arguments))


def sentence(error: str, what: str, call: Call) -> str:
    return f"[{error}] {what} in {call.function}: filter or guard such rows."


def _iso_week(days: Longs) -> Longs:
    thursday = calendar.iso_thursday(days)
    return (thursday - calendar.year_start(thursday)) // 7 + 1


def _quarter_start(days: Longs) -> Longs:
    months = calendar.month_of_day(days)
    return calendar.days_of_month_start(months - months % 3)


_FIELDS: Mapping[str, Callable[[Longs], Longs]] = {
    "Year": calendar.year_of,
    "Quarter": lambda days: calendar.month_of_day(days) % 12 // 3 + 1,
    "Month": lambda days: calendar.month_of_day(days) % 12 + 1,
    "DayOfMonth": lambda days: calendar.split(days)[1],
    "DayOfYear": lambda days: days - calendar.year_start(days) + 1,
    "DayOfWeek": lambda days: (days + 4) % 7 + 1,
    "WeekDay": calendar.weekday,
    "WeekOfYear": lambda days: (
        (calendar.iso_thursday(days) - calendar.year_start(calendar.iso_thursday(days))) // 7 + 1
    ),
    "YearOfWeek": lambda days: calendar.year_of(calendar.iso_thursday(days)),
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_FIELDS, build_field),
    **dict.fromkeys(("DayName", "MonthName"), build_name),
    **dict.fromkeys(("DateAdd", "DateSub"), build_days_added),
    "DateDiff": build_difference,
    "AddMonths": build_months_added,
    "LastDay": build_last_day,
    "NextDay": build_next_day,
    "TruncDate": build_truncation,
    "MakeDate": build_from_parts,
    **dict.fromkeys(("UnixDate", "DateFromUnixDate"), build_reinterpreted),
}
