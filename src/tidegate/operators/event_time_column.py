"""The event-time column that a stateful function gives: rows pass through, unless one lies before the watermark.

Such a row would be late for whatever follows, so Spark fails the query and so does this. Must never drop one quietly.
"""

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.operators.contract import Emit, Stateless
from tidegate.plan.key_groups import fixed_values_of, validity_of
from tidegate.plan.physical import EventTimeColumnSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS

_TICKS_PER_MS = {"ms": 1, "us": 1000}


class EventTimeColumnOperator(Stateless):
    def __init__(self, spec: EventTimeColumnSpec) -> None:
        field = spec.schema.field(spec.column)
        if not pa.types.is_timestamp(field.type) or field.type.unit not in _TICKS_PER_MS:
            raise UnsupportedPlan(f"The event-time column {field.name!r} is of type {field.type}: give a timestamp.")
        self._name = field.name
        self._column = spec.column
        self._ticks_per_ms = _TICKS_PER_MS[field.type.unit]
        self._watermark_ms = MIN_WATERMARK_MS

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        column = rows.column(self._column)
        ticks, valid = fixed_values_of(column), validity_of(column)
        if valid is not None:
            ticks = ticks[valid]
        # The last watermark ends event time: what comes with it may have any.
        if len(ticks) and MIN_WATERMARK_MS < self._watermark_ms < MAX_WATERMARK_MS:
            first = int(np.min(ticks))
            if first < self._watermark_ms * self._ticks_per_ms:
                raise UserCodeFailure(
                    f"A row has {self._name!r} at {first // self._ticks_per_ms} ms, before the watermark of "
                    f"{self._watermark_ms} ms: a row that is given must not be older than the watermark."
                )
        emit(rows)

    def on_watermark(self, event_time_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, event_time_ms)
