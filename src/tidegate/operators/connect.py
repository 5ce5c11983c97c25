"""A user's processor over two inputs: both keyed and sharing state, or the second one broadcast to every subtask.

Rows of a broadcast side may change broadcast state only: they have no key, and what they gave would be given by every
subtask. Must never hold rows or output from one slice to the next.
"""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

import pyarrow as pa

from tidegate.model.errors import ProtocolViolation, UserCodeFailure
from tidegate.operators.broadcast_state import SECTION as BROADCAST_SECTION
from tidegate.operators.broadcast_state import BroadcastStates, NamedBroadcastState
from tidegate.operators.contract import (
    BroadcastState,
    ConnectProcessor,
    Emit,
    ListStateHandle,
    MapStateHandle,
    ProcessorHandle,
    TaskContext,
    ValueStateHandle,
)
from tidegate.operators.keyed_user_code import HandleRows, KeyedUserCode, WithUserCode
from tidegate.operators.user_rows import RowsByKey, prepare_conversions
from tidegate.plan.nodes import RightSide
from tidegate.plan.physical import ConnectSpec
from tidegate.state.contract import RestoredSection, Section


class ConnectedHandle:
    """`ConnectHandle`; `broadcast` is None where no side is broadcast."""

    def __init__(self, keyed: ProcessorHandle, broadcast: BroadcastStates | None) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ValueStateHandle:
        return self._keyed.value_state(name, fields, ttl_ms=ttl_ms)

    def list_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ListStateHandle:
        return self._keyed.list_state(name, fields, ttl_ms=ttl_ms)

    def map_state(
        self, name: str, key_fields: tuple[str, ...], value_fields: tuple[str, ...], *, ttl_ms: int | None = None
    ) -> MapStateHandle:
        return self._keyed.map_state(name, key_fields, value_fields, ttl_ms=ttl_ms)

    def delete_if_exists(self, name: str) -> None:
        self._keyed.delete_if_exists(name)

    def register_timer(self, at_ms: int) -> None:
        self._keyed.register_timer(at_ms)

    def delete_timer(self, at_ms: int) -> None:
        self._keyed.delete_timer(at_ms)

    def timers(self) -> list[int]:
        return self._keyed.timers()

    def broadcast_state(self, name: str) -> BroadcastState:
        if self._broadcast is None:
            raise UserCodeFailure(
                f"Broadcast state {name!r} is opened, but both inputs are keyed: use value_state, "
                "or connect a second input without a key."
            )
        return NamedBroadcastState(name, self._broadcast)


class ConnectOperator(WithUserCode):
    """`TwoInputOperator`."""

    def __init__(self, spec: ConnectSpec) -> None:
        self._spec = spec
        self._left = RowsByKey(spec.left_schema, spec.left_key_count, time_zone=spec.time_zone)
        self._right = RowsByKey(spec.right_schema, spec.right_key_count, time_zone=spec.time_zone)
        self._broadcast = BroadcastStates() if spec.right_side is RightSide.BROADCAST else None
        self._opened_processor: ConnectProcessor | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        prepare_conversions()
        self._restore_broadcast([section for section in restored if section.name == BROADCAST_SECTION])
        self._opened_code = KeyedUserCode(
            context,
            [section for section in restored if section.name != BROADCAST_SECTION],
            time_mode=self._spec.time_mode,
            schema=self._spec.schema,
            name="connect",
            calls=self._calls_with_a_key(),
        )
        processor = context.user_code.connect_processor(self._spec.processor)
        handle = ConnectedHandle(self._code.handle, self._broadcast)
        self._code.call(partial(processor.init, handle), called="init")
        self._opened_processor = processor

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        self._handle(rows, self._left, self._processor.handle_left, called="handle_left", emit=emit)

    def process_right(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if self._broadcast is None:
            self._handle(rows, self._right, self._processor.handle_right, called="handle_right", emit=emit)
        else:
            self._handle_broadcast(rows, self._broadcast)

    def fire(self, max_timers: int, emit: Emit) -> bool:
        handle = self._processor.handle_timer
        return self._code.fire(max_timers, self._left, handle, called="handle_timer", emit=emit)

    def snapshot(self) -> list[Section]:
        keyed = self._code.snapshot()
        return keyed if self._broadcast is None else [*keyed, self._broadcast.snapshot()]

    def state_bytes(self) -> int:
        broadcast_bytes = 0 if self._broadcast is None else self._broadcast.size_bytes()
        return self._code.state_bytes() + broadcast_bytes

    def close(self) -> None:
        code, self._opened_code = self._opened_code, None
        processor, self._opened_processor = self._opened_processor, None
        if code is None:
            return
        try:
            if processor is not None:
                code.call(processor.close, called="close")
        finally:
            code.close()

    def _handle(self, rows: pa.RecordBatch, side: RowsByKey, handle: HandleRows, *, called: str, emit: Emit) -> None:
        if side.key_types:
            self._code.handle_by_key(rows, side, handle, called=called, emit=emit)
        elif rows.num_rows:
            output = self._code.handle_without_key(side.values(rows), handle, called=called)
            self._code.emit_rows(output, called=called, emit=emit)

    def _handle_broadcast(self, rows: pa.RecordBatch, states: BroadcastStates) -> None:
        if rows.num_rows == 0:
            return
        with states.writable():
            handle = self._processor.handle_right
            output = self._code.handle_without_key(self._right.values(rows), handle, called="handle_right")
        if output:
            raise UserCodeFailure(
                f"handle_right gave {output[0]!r}, but rows of a broadcast side may change broadcast state only: "
                "give rows in handle_left or handle_timer."
            )

    def _restore_broadcast(self, sections: Sequence[RestoredSection]) -> None:
        if not sections:
            return
        if self._broadcast is None or len(sections) > 1:
            raise ProtocolViolation(
                f"An operator whose right side is {self._spec.right_side.value} was given {len(sections)} sections "
                "of broadcast state."
            )
        self._broadcast.restore(sections[0])

    def _calls_with_a_key(self) -> str:
        if not self._left.key_types:
            return "a connect by key"
        match self._spec.right_side:
            case RightSide.KEYED:
                return "handle_left, handle_right and handle_timer"
            case RightSide.BROADCAST:
                return "handle_left and handle_timer"
            case _:
                assert_never(self._spec.right_side)

    @property
    def _processor(self) -> ConnectProcessor:
        assert self._opened_processor is not None, "open comes before every other call"
        return self._opened_processor
