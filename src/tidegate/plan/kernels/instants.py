"""Microseconds since 1970 taken apart into seconds and a rest, and put together again without wrapping around."""

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.plan.expressions import Call, Cast
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.lifting import Flags, Numbers
from tidegate.plan.kernels.zones import S_PER_DAY, Zone

MICROS_PER_S = 1_000_000
MICROS_PER_DAY = S_PER_DAY * MICROS_PER_S
TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
TIMES = (TIMESTAMP, TIMESTAMP_NTZ)
_LONG = np.iinfo(np.int64)
_LAST = divmod(int(_LONG.max), MICROS_PER_S)
_FIRST = divmod(int(_LONG.min), MICROS_PER_S)


def parted(micros: Numbers) -> tuple[Longs, Longs]:
    """Whole seconds, rounded down, and the microseconds above them."""
    longs = micros.astype(np.int64, copy=False)
    seconds = np.floor_divide(longs, MICROS_PER_S)
    with np.errstate(over="ignore"):
        return seconds, longs - seconds * MICROS_PER_S


def joined(expression: Call | Cast, seconds: Longs, micros: Longs | int) -> Longs:
    """Raises what Java's exact multiplication raises, if the time does not fit a long."""
    if not fits(seconds, micros).all():
        raise overflow(expression)
    with np.errstate(over="ignore"):
        return seconds * MICROS_PER_S + micros


def fits(seconds: Longs, micros: Longs | int) -> Flags:
    after: Flags = (seconds > _LAST[0]) | ((seconds == _LAST[0]) & (np.asarray(micros) > _LAST[1]))
    before: Flags = (seconds < _FIRST[0]) | ((seconds == _FIRST[0]) & (np.asarray(micros) < _FIRST[1]))
    return ~(after | before)


def overflow(expression: Call | Cast) -> UserCodeFailure:
    name = expression.function if isinstance(expression, Call) else "Cast"
    return UserCodeFailure(f"[DATETIME_OVERFLOW] A time is too far away in {name}: filter or guard such rows.")


def local_parts(zone: Zone, micros: Numbers) -> tuple[Longs, Longs, Longs]:
    """The local day, the second of that day, and the microsecond of that second."""
    seconds, rest = parted(micros)
    local_s = zone.to_local(seconds)
    days = np.floor_divide(local_s, S_PER_DAY)
    return days, local_s - days * S_PER_DAY, rest


def toward_zero(numbers: Longs, divisor: int | Longs) -> Longs:
    """Java's integer division."""
    quotient: Longs = np.floor_divide(numbers, divisor)
    rounded_down = (quotient < 0) & (quotient * divisor != numbers)
    truncated: Longs = quotient + rounded_down
    return truncated
