"""Which rows came too late for stateful user code: at or before the watermark of their key group, as in Spark.

A row without an event time is never late: Spark's condition is not true for it.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.key_groups import fixed_values_of, hash_rows, key_group_of, validity_of
from tidegate.protocol.watermarks import FIRST_EVENT_TIME_MS, MAX_WATERMARK_MS, KeyGroupFloors

_TICKS_PER_MS = {"ms": 1, "us": 1000}
# The largest that can be told in microseconds: the end of event time lies beyond any row.
_MOST_MS = MAX_WATERMARK_MS // 1000


class Lateness:
    def __init__(self, schema: pa.Schema, column: int, *, key_count: int, max_parallelism: int) -> None:
        field = schema.field(column)
        if not pa.types.is_timestamp(field.type) or field.type.unit not in _TICKS_PER_MS:
            raise UnsupportedPlan(
                f"The watermark is on column {field.name!r} of type {field.type}: it must be a timestamp."
            )
        self._column = column
        self._ticks_per_ms = _TICKS_PER_MS[field.type.unit]
        self._key_count = key_count
        self._max_parallelism = max_parallelism

    def of(self, rows: pa.RecordBatch, *, watermark_ms: int, floors: KeyGroupFloors) -> npt.NDArray[np.bool_]:
        if rows.num_rows == 0:
            return np.zeros(0, dtype=np.bool_)
        column = rows.column(self._column)
        limit_ms: npt.NDArray[np.int64] | int = _limit_ms(watermark_ms)
        if floors.pending(watermark_ms):
            limit_ms = self._limits_ms(rows, watermark_ms, floors)
        is_late: npt.NDArray[np.bool_] = fixed_values_of(column) <= limit_ms * self._ticks_per_ms
        valid = validity_of(column)
        if valid is not None:
            is_late &= valid
        return is_late

    def _limits_ms(self, rows: pa.RecordBatch, watermark_ms: int, floors: KeyGroupFloors) -> npt.NDArray[np.int64]:
        """Per row, while some key groups are ahead of the task after a restore."""
        groups = key_group_of(hash_rows(rows, self._key_count), self._max_parallelism)
        distinct, at = np.unique(groups, return_inverse=True)
        limits = [_limit_ms(floors.of(int(group), watermark_ms)) for group in distinct]
        return np.asarray(limits, dtype=np.int64)[at]


def _limit_ms(watermark_ms: int) -> int:
    return min(max(FIRST_EVENT_TIME_MS, watermark_ms), _MOST_MS)
