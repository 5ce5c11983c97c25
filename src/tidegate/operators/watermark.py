"""Where event time begins: rows pass through, the watermark follows the largest event time among them.

Its own rows alone move it: the watermark at its input is replaced, except for the last one, which ends event time.

After a restore it starts from the subtask that was furthest behind, and ends the run, when no row can be late any more,
with what any of them had seen: as if the run had never been interrupted.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.model.errors import Damaged, UnsupportedPlan
from tidegate.operators.contract import Emit, TaskContext, WithoutTimers
from tidegate.plan.key_groups import fixed_values_of, validity_of
from tidegate.plan.physical import WatermarkSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section

_SECTION = "watermark"
_TICKS_PER_MS = {"ms": 1, "us": 1000}
_encode = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(tuple[int, int])


class WatermarkOperator(WithoutTimers):
    def __init__(self, spec: WatermarkSpec) -> None:
        field = spec.schema.field(spec.column)
        if not pa.types.is_timestamp(field.type) or field.type.unit not in _TICKS_PER_MS:
            raise UnsupportedPlan(
                f"The watermark column {field.name!r} is of type {field.type}: "
                "it must be a timestamp in microseconds or milliseconds."
            )
        self._column = spec.column
        self._delay_ms = spec.delay_ms
        self._ticks_per_ms = _TICKS_PER_MS[field.type.unit]
        self._max_event_ms = MIN_WATERMARK_MS
        self._furthest_ms = MIN_WATERMARK_MS  # of all subtasks, as far as this one was told

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        stored = [_decode(section) for section in restored]
        # The lowest of several: whatever rows this subtask gets now, none is late because of the others'.
        self._max_event_ms = min((own_ms for own_ms, _ in stored), default=MIN_WATERMARK_MS)
        self._furthest_ms = max((furthest_ms for _, furthest_ms in stored), default=MIN_WATERMARK_MS)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        column = rows.column(self._column)
        ticks, valid = fixed_values_of(column), validity_of(column)
        if valid is not None:
            ticks = ticks[valid]
        if len(ticks):
            self._max_event_ms = max(self._max_event_ms, int(np.max(ticks)) // self._ticks_per_ms)
        emit(rows)

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        self._max_event_ms = max(self._max_event_ms, self._furthest_ms)

    def on_idle(self, emit: Emit) -> None:
        pass

    def watermark_behind(self, event_time_ms: int) -> int:
        if event_time_ms == MAX_WATERMARK_MS:
            return MAX_WATERMARK_MS
        # No row may look like the end of event time.
        return max(MIN_WATERMARK_MS, min(self._max_event_ms - self._delay_ms, MAX_WATERMARK_MS - 1))

    def snapshot(self) -> list[Section]:
        data = self._encoded()
        return [Section(_SECTION, None, lambda: data, Redistribution.UNION)]

    def state_bytes(self) -> int:
        return len(self._encoded())

    def close(self) -> None:
        pass

    def _encoded(self) -> bytes:
        return _encode((self._max_event_ms, max(self._max_event_ms, self._furthest_ms)))


def _decode(section: RestoredSection) -> tuple[int, int]:
    try:
        return _DECODER.decode(section.data)
    except msgspec.DecodeError as error:
        raise Damaged(
            f"The stored event time of a watermark cannot be read ({error}): restore from an older checkpoint."
        ) from error
