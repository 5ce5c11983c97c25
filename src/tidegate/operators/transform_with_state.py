"""A user's `StatefulProcessor`: called once per key and slice with the key's rows in their order, and per due timer.

Must never hold rows or output from one slice to the next.
"""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

import pyarrow as pa

from tidegate.operators.contract import NO_FLOORS, Emit, LateRows, TakesInitialState, TaskContext, UserProcessor
from tidegate.operators.initial_state import SECTION as INITIAL_SECTION
from tidegate.operators.initial_state import applied_mark, initial_rows, was_applied
from tidegate.operators.keyed_batches import BatchesByKey, ByKey, take_batches, take_tuples
from tidegate.operators.keyed_user_code import KeyedUserCode, WithUserCode
from tidegate.operators.lateness import Lateness
from tidegate.operators.user_rows import RowsByKey, prepare_conversions
from tidegate.plan.nodes import InitialState, RowStyle
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.state.contract import RestoredSection, Section

_HANDLE_ROWS = "StatefulProcessor.handleInputRows"
_HANDLE_TIMER = "StatefulProcessor.handleExpiredTimer"
_HANDLE_INITIAL = "StatefulProcessor.handleInitialState"


class TransformWithStateOperator(WithUserCode):
    def __init__(self, spec: TransformWithStateSpec) -> None:
        self._spec = spec
        self._by_key = _by_key(spec, spec.input_schema, spec.key_count)
        self._lateness: Lateness | None = None
        self._floors = NO_FLOORS
        self._late_rows = LateRows()
        self._opened_processor: UserProcessor | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        prepare_conversions()
        self._floors, self._late_rows = context.floors, context.late_rows
        if self._spec.event_column is not None:
            self._lateness = Lateness(
                self._spec.input_schema,
                self._spec.event_column,
                key_count=self._spec.key_count,
                max_parallelism=context.max_parallelism,
            )
        self._opened_code = KeyedUserCode(
            context,
            [section for section in restored if section.name != INITIAL_SECTION],
            time_mode=self._spec.time_mode,
            schema=self._spec.schema,
            name="transformWithState",
            calls="handleInputRows and handleExpiredTimer",
            take_output=take_tuples if self._spec.style is RowStyle.ROWS else take_batches,
        )
        processor = context.user_code.processor(
            self._spec.processor,
            value_names=self._spec.input_schema.names[self._spec.key_count :],
            output_names=self._spec.schema.names,
        )
        self._code.call(partial(processor.init, self._code.handle), called="StatefulProcessor.init")
        self._opened_processor = processor
        if self._spec.initial is not None and not was_applied(restored):
            self._apply(self._spec.initial, context)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._lateness is not None:
            late = self._lateness.of(rows, watermark_ms=self._code.watermark_ms, floors=self._floors)
            rows = self._late_rows.dropped(rows, late)
        self._code.handle_by_key(rows, self._by_key, self._processor.handle_rows, called=_HANDLE_ROWS, emit=emit)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        handle = self._processor.handle_timer
        return self._code.fire(max_timers, self._by_key, handle, called=_HANDLE_TIMER, emit=emit)

    def snapshot(self) -> list[Section]:
        sections = self._code.snapshot()
        return sections if self._spec.initial is None else [*sections, applied_mark()]

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

    def _apply(self, initial: InitialState, context: TaskContext) -> None:
        processor = self._processor
        assert isinstance(processor, TakesInitialState), "the spark layer opens such processors only"
        by_key = _by_key(self._spec, initial.schema, initial.key_count)
        processor.name_initial(tuple(initial.schema.names[initial.key_count :]))
        rows = initial_rows(initial, by_key, context)
        self._code.handle_initial(rows, processor.handle_initial, called=_HANDLE_INITIAL)

    @property
    def _processor(self) -> UserProcessor:
        assert self._opened_processor is not None, "open comes before every other call"
        return self._opened_processor


def _by_key(spec: TransformWithStateSpec, schema: pa.Schema, key_count: int) -> ByKey:
    match spec.style:
        case RowStyle.ROWS:
            return RowsByKey(schema, key_count, time_zone=spec.time_zone)
        case RowStyle.BATCHES:
            return BatchesByKey(schema, key_count)
        case _:
            assert_never(spec.style)
