"""A user's `StatefulProcessor`: called once per key and slice with the key's rows in their order, and per due timer.

Must never hold rows or output from one slice to the next.
"""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from tidegate.operators.contract import Emit, TaskContext, UserProcessor
from tidegate.operators.keyed_user_code import KeyedUserCode
from tidegate.operators.user_rows import RowsByKey, prepare_conversions
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.state.contract import RestoredSection, Section

_HANDLE_ROWS = "StatefulProcessor.handleInputRows"
_HANDLE_TIMER = "StatefulProcessor.handleExpiredTimer"


class TransformWithStateOperator:
    def __init__(self, spec: TransformWithStateSpec) -> None:
        self._spec = spec
        self._by_key = RowsByKey(spec.input_schema, spec.key_count)
        self._opened_code: KeyedUserCode | None = None
        self._opened_processor: UserProcessor | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        prepare_conversions()
        self._opened_code = KeyedUserCode(
            context,
            restored,
            time_mode=self._spec.time_mode,
            schema=self._spec.schema,
            name="transformWithState",
            calls="handleInputRows and handleExpiredTimer",
        )
        processor = context.user_code.processor(
            self._spec.processor, value_names=self._by_key.value_names, output_names=self._spec.schema.names
        )
        self._code.call(partial(processor.init, self._code.handle), called="StatefulProcessor.init")
        self._opened_processor = processor

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self._code.handle_by_key(rows, self._by_key, self._processor.handle_rows, called=_HANDLE_ROWS, emit=emit)

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        pass

    def on_idle(self, emit: Emit) -> None:
        self._code.on_idle()

    def on_watermark(self, event_time_ms: int) -> None:
        self._code.on_watermark(event_time_ms)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        handle = self._processor.handle_timer
        return self._code.fire(max_timers, self._by_key, handle, called=_HANDLE_TIMER, emit=emit)

    def watermark_behind(self, event_time_ms: int) -> int:
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return self._code.next_timer_ms()

    def snapshot(self) -> list[Section]:
        return self._code.snapshot()

    def state_bytes(self) -> int:
        return self._code.state_bytes()

    def close(self) -> None:
        code, self._opened_code = self._opened_code, None
        processor, self._opened_processor = self._opened_processor, None
        if code is None:
            return
        try:
            if processor is not None:
                code.call(processor.close, called="StatefulProcessor.close")
        finally:
            code.close()

    @property
    def _code(self) -> KeyedUserCode:
        assert self._opened_code is not None, "open comes before every other call"
        return self._opened_code

    @property
    def _processor(self) -> UserProcessor:
        assert self._opened_processor is not None, "open comes before every other call"
        return self._opened_processor
