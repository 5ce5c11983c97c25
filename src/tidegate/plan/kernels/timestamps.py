"""Spark's functions of timestamps: fields in a zone, truncation, parts, and numbers since 1970.

A timestamp is an instant, read in the zone of the expression; one without zone is read as it is written.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call
from tidegate.plan.kernels import calendar
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.dates import date_truncation, days_of_parts, require, sentence, text_constant
from tidegate.plan.kernels.instants import (
    MICROS_PER_S,
    TIMES,
    TIMESTAMP,
    joined,
    local_parts,
    overflow,
    parted,
)
from tidegate.plan.kernels.lifting import Flags, Lifted, Numbers, decimal_column, lift, unscaled_longs
from tidegate.plan.kernels.values import Kernel, unsupported
from tidegate.plan.kernels.zones import S_PER_DAY, Zone, zone_of

_LONG = np.iinfo(np.int64)
_S_PER_MONTH_OF_31_DAYS = 31 * S_PER_DAY


def build_field(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Hour, Minute, Second, SecondWithFraction."""
    (child,) = _times(call, arguments)
    zone, field = zone_of(call, child.type), _FIELDS[call.function]

    def run(micros: Numbers) -> Lifted:
        _, second, rest = local_parts(zone, micros)
        return field(second, rest)

    return lift(call, arguments, run)


def build_truncation(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    unit, child = arguments
    _times(call, (child,))
    truncate = _truncation(call, text_constant(call, unit).upper(), zone_of(call, child.type))
    return lift(call, (child,), truncate, raises=True)


def build_months_between(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """Whole months if the days of the month agree, else with 31 days to a month."""
    first, second, rounded = arguments
    if (first.type, second.type) != (TIMESTAMP, TIMESTAMP) or rounded.constant is None:
        raise unsupported(call.function, *(argument.type for argument in arguments))
    zone, rounds = zone_of(call), rounded.constant.as_py() is True

    def run(later: Numbers, earlier: Numbers) -> Lifted:
        months_1, day_1, ends_1, second_1 = _months_and_days(zone, later)
        months_2, day_2, ends_2, second_2 = _months_and_days(zone, earlier)
        months = (months_1 - months_2).astype(np.float64)
        seconds = (day_1 - day_2) * S_PER_DAY + second_1 - second_2
        exact = months + seconds / float(_S_PER_MONTH_OF_31_DAYS)
        fraction = np.floor(exact * 1e8 + 0.5) / 1e8 if rounds else exact
        return np.where((day_1 == day_2) | (ends_1 & ends_2), months, fraction)

    return lift(call, (first, second), run)


def build_from_parts(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """MakeTimestamp without a zone of its own: a 60th second is the next minute's first, if it has no fraction."""
    require(call, arguments, *[pa.int32()] * 5, pa.decimal128(16, 6))
    if call.type not in TIMES:
        raise unsupported(call.function, call.type)
    zone = zone_of(call, call.type)

    def run(year: Numbers, month: Numbers, day: Numbers, hour: Numbers, minute: Numbers, second: pa.Array) -> Lifted:
        # Spark takes the unscaled seconds as an int.
        second_s, micros = parted(unscaled_longs(second).astype(np.int32))
        days, exists = days_of_parts(year, month, day)
        for part, limit in ((hour, 23), (minute, 59)):
            exists &= (part >= 0) & (part <= limit)
        is_leap = second_s == 60
        exists &= (second_s >= 0) & ((second_s <= 59) | (is_leap & (micros == 0)))
        if call.ansi and not exists.all():
            raise UserCodeFailure(sentence("DATETIME_FIELD_OUT_OF_BOUNDS", "a part of the timestamp is none", call))
        local_s = days * S_PER_DAY + hour.astype(np.int64) * 3600 + minute.astype(np.int64) * 60 + second_s
        return joined(call, np.where(exists, zone.to_instant(local_s), 0), micros), ~exists

    return lift(call, arguments, run, raises=True)


def build_from_number(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """SecondsToTimestamp, MillisToTimestamp, MicrosToTimestamp."""
    (child,) = arguments
    per_unit = _MICROS_PER_UNIT[call.function]
    if pa.types.is_integer(child.type):
        furthest = int(_LONG.max) // per_unit

        def run(numbers: Numbers) -> Lifted:
            longs = numbers.astype(np.int64)
            if len(longs) and (longs.max() > furthest or longs.min() < -furthest - (per_unit == 1)):
                raise overflow(call)
            return longs * per_unit

        return lift(call, arguments, run, raises=per_unit > 1 and child.type.bit_width == 64)
    if pa.types.is_floating(child.type) and call.function == "SecondsToTimestamp":
        return lift(call, arguments, _float_seconds)
    if _is_exact_seconds(child.type) and call.function == "SecondsToTimestamp":
        factor = 10 ** (6 - child.type.scale)
        return lift(call, arguments, lambda decimals: unscaled_longs(decimals) * factor)
    raise unsupported(call.function, child.type)


def build_to_number(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """UnixSeconds, UnixMillis, UnixMicros: rounded down."""
    require(call, arguments, TIMESTAMP)
    per_unit = _MICROS_PER_UNIT[call.function]
    return lift(call, arguments, lambda micros: np.floor_divide(micros, per_unit))


def build_precise_conversion(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """A timestamp as its microseconds and back: the bits stay."""
    (child,) = arguments
    known = (*TIMES, pa.int64())
    if child.type not in known or call.type not in known:
        raise unsupported(call.function, child.type)
    return lift(call, arguments, lambda micros: micros)


def _times(call: Call, arguments: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    if any(argument.type not in TIMES for argument in arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    return arguments


def _truncation(call: Call, unit: str, zone: Zone) -> Callable[[Numbers], Lifted]:
    if unit in _EXACT_UNITS:
        # Offsets are whole seconds, so that no zone moves these.
        return lambda micros: micros - micros % _EXACT_UNITS[unit]
    if unit in _CLOCK_UNITS_S:
        unit_s = _CLOCK_UNITS_S[unit]

        def run(micros: Numbers) -> Lifted:
            seconds, _ = parted(micros)
            offset_s = zone.offset_at(seconds)
            local_s = seconds + offset_s
            return joined(call, zone.to_instant_near(local_s - local_s % unit_s, offset_s), 0)

        return run
    truncate = date_truncation(unit)
    if truncate is None:
        raise unsupported(f"{call.function} to the unit {unit}", call.type)
    return lambda micros: joined(call, zone.day_start(truncate(local_parts(zone, micros)[0])), 0)


def _months_and_days(zone: Zone, micros: Numbers) -> tuple[Longs, Longs, Flags, Longs]:
    """The month, the day of it, whether that is its last, and the seconds since that day began."""
    days, _, rest = local_parts(zone, micros)
    months, day = calendar.split(days)
    seconds, _ = parted(micros)
    since_start_s = seconds - zone.day_start(days)
    # Java's division is toward zero; only a day that began after the instant makes this negative.
    since_start_s = np.where((since_start_s < 0) & (rest > 0), since_start_s + 1, since_start_s)
    return months, day, day == calendar.month_length(months), since_start_s


def _is_exact_seconds(type_: pa.DataType) -> bool:
    """A decimal that as microseconds is whole and fits a long."""
    return bool(pa.types.is_decimal(type_) and type_.scale <= 6 and type_.precision - type_.scale + 6 <= 18)


def _float_seconds(numbers: Numbers) -> Lifted:
    doubles = numbers.astype(np.float64)
    missing = ~np.isfinite(doubles)
    with np.errstate(over="ignore"):
        micros = np.where(missing, 0.0, doubles) * MICROS_PER_S
    above, below = micros >= float(_LONG.max), micros <= float(_LONG.min)
    whole = np.where(above | below, 0.0, micros).astype(np.int64)
    return np.where(above, _LONG.max, np.where(below, _LONG.min, whole)), missing


def _seconds_with_fraction(second: Longs, micros: Longs) -> pa.Array:
    return decimal_column(second % 60 * MICROS_PER_S + micros, pa.decimal128(8, 6))


_FIELDS: Mapping[str, Callable[[Longs, Longs], Lifted]] = {
    "Hour": lambda second, _micros: second // 3600,
    "Minute": lambda second, _micros: second // 60 % 60,
    "Second": lambda second, _micros: second % 60,
    "SecondWithFraction": _seconds_with_fraction,
}
_EXACT_UNITS = {"MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": MICROS_PER_S}
_CLOCK_UNITS_S = {"MINUTE": 60, "HOUR": 3600, "DAY": S_PER_DAY, "DD": S_PER_DAY}
_MICROS_PER_UNIT = {
    "SecondsToTimestamp": MICROS_PER_S,
    "MillisToTimestamp": 1_000,
    "MicrosToTimestamp": 1,
    "UnixSeconds": MICROS_PER_S,
    "UnixMillis": 1_000,
    "UnixMicros": 1,
}

BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    **dict.fromkeys(_FIELDS, build_field),
    "TruncTimestamp": build_truncation,
    "MonthsBetween": build_months_between,
    "MakeTimestamp": build_from_parts,
    **dict.fromkeys(("SecondsToTimestamp", "MillisToTimestamp", "MicrosToTimestamp"), build_from_number),
    **dict.fromkeys(("UnixSeconds", "UnixMillis", "UnixMicros"), build_to_number),
    "PreciseTimestampConversion": build_precise_conversion,
}
