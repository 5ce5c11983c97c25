"""Casts between dates, timestamps and timestamps without zone, in any zone. A time too far away raises, as in Java."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Cast
from tidegate.plan.kernels.calendar import Longs
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.instants import TIMES, TIMESTAMP, joined, local_parts, parted
from tidegate.plan.kernels.lifting import Numbers
from tidegate.plan.kernels.values import array_of, numpy_of
from tidegate.plan.kernels.zones import Zone, zone_of

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_DATE = pa.date32()


def between_times(cast: Cast, source: pa.DataType) -> tuple[Convert, bool] | None:
    """How Spark casts one type of time to another, and whether that may raise; None if one of them is none."""
    if source in TIMES and cast.type in TIMES:
        zone = zone_of(cast)
        if zone.is_utc():
            return lambda values: values.view(cast.type), False
        return _lifted(cast, zone, _to_local if source == TIMESTAMP else _to_instant), True
    if source in TIMES and cast.type == _DATE:
        return _lifted(cast, zone_of(cast, source), lambda _cast, zone, micros: local_parts(zone, micros)[0]), False
    if source == _DATE and cast.type in TIMES:
        return _lifted(cast, zone_of(cast, cast.type), _day_start), True
    return None


def _lifted(cast: Cast, zone: Zone, convert: Callable[[Cast, Zone, Numbers], Longs]) -> Convert:
    width = np.int32 if cast.type == _DATE else np.int64

    def run(values: pa.Array) -> pa.Array:
        # What a null's slot holds may be too far away.
        known = values if values.null_count == 0 else pc.fill_null(values, constant(0, values.type))
        return array_of(convert(cast, zone, numpy_of(known)).astype(width), cast.type, nulls_of=values)

    return run


def _to_local(cast: Cast, zone: Zone, micros: Numbers) -> Longs:
    seconds, rest = parted(micros)
    return joined(cast, zone.to_local(seconds), rest)


def _to_instant(cast: Cast, zone: Zone, micros: Numbers) -> Longs:
    seconds, rest = parted(micros)
    return joined(cast, zone.to_instant(seconds), rest)


def _day_start(cast: Cast, zone: Zone, days: Numbers) -> Longs:
    return joined(cast, zone.day_start(days.astype(np.int64)), 0)
