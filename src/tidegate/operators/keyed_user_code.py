"""What operators that call user code by key share: keyed state, timers, the current key and the calls themselves.

What the user's generators give is taken at once, while states and timers still point at their key. Must never hold
rows or output from one slice to the next.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.model.errors import TidegateError
from tidegate.operators.contract import Emit, TaskContext, Times
from tidegate.operators.keyed_batches import ByKey, TakeOutput, take_tuples
from tidegate.operators.processor_handle import KeyedHandle, open_timers
from tidegate.operators.state_handles import CurrentKey
from tidegate.operators.user_code import PASSING_THROUGH, user_code_failure
from tidegate.operators.user_rows import Key, Row
from tidegate.plan.nodes import TimeMode
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.codec import decode, encode_key
from tidegate.state.contract import RestoredSection, Section

# What is given and taken are tuples or batches, as the operator's `ByKey` and `TakeOutput` say.
HandleRows: TypeAlias = Callable[[Key, Any, Times], Iterable[Any]]
HandleTimer: TypeAlias = Callable[[Key, int, Times], Iterable[Any]]
HandleInitial: TypeAlias = Callable[[Key, Any, Times], None]

# An idle task is asked again soon; a busy one pays for a few removals with each slice, so that expired entries do not
# pile up while it never rests.
_REMOVALS_WHEN_IDLE = 64
_REMOVALS_PER_SLICE = 8
# Timers may cost anything: a slice of them ends behind the one that makes it too long, however many were asked for.
_LONGEST_FIRING_MS = 10.0


class KeyedUserCode:
    """`name` and `calls`: the operator, and the user's methods that are called for a key, as messages name them."""

    def __init__(
        self,
        context: TaskContext,
        restored: Sequence[RestoredSection],
        *,
        time_mode: TimeMode,
        schema: pa.Schema,
        name: str,
        calls: str,
        take_output: TakeOutput = take_tuples,
    ) -> None:
        self._context = context
        self._time_mode = time_mode
        self._schema = schema
        self._take_output = take_output
        self._key_name = f"key of {name}"
        self._watermark_ms = MIN_WATERMARK_MS
        self._current = CurrentKey(calls)
        self._backend = context.open_state()
        try:
            self._backend.restore(restored)
            self._timers = open_timers(self._backend, context, time_mode)
        except BaseException:
            self._backend.close()
            raise
        self.handle = KeyedHandle(self._backend, context, self._current, self._timers)

    def handle_by_key(
        self, rows: pa.RecordBatch, by_key: ByKey, handle: HandleRows, *, called: str, emit: Emit
    ) -> None:
        now_ms = self._context.clock.wall_ms()
        output: list[Row] = []
        for key_group, key, key_rows in by_key.of(rows, max_parallelism=self._context.max_parallelism):
            self._current.key_group, self._current.key = key_group, encode_key(key, state=self._key_name)
            times = Times(now_ms, self._context.floors.of(key_group, self._watermark_ms))
            output += self._taken(partial(handle, key, key_rows, times), called, key)
        self.emit_rows(output, called=called, emit=emit)
        self._expire(_REMOVALS_PER_SLICE)

    def handle_without_key(self, rows: Sequence[Row], handle: HandleRows, *, called: str) -> list[Row]:
        times = Times(self._context.clock.wall_ms(), self._watermark_ms)
        return self._taken(partial(handle, (), iter(rows), times), called, None)

    def handle_initial(self, by_key: Iterable[tuple[int, Key, Any]], handle: HandleInitial, *, called: str) -> None:
        """Before the first row: may change state and timers, gives nothing."""
        now_ms = self._context.clock.wall_ms()
        for key_group, key, rows in by_key:
            self._current.key_group, self._current.key = key_group, encode_key(key, state=self._key_name)
            try:
                self.call(
                    partial(handle, key, rows, Times(now_ms, MIN_WATERMARK_MS)), called=f"{called} for key {key!r}"
                )
            finally:
                self._current.key = None

    @property
    def watermark_ms(self) -> int:
        return self._watermark_ms

    def fire(self, max_timers: int, by_key: ByKey, handle: HandleTimer, *, called: str, emit: Emit) -> bool:
        if self._timers is None:
            return False
        now_ms = self._context.clock.wall_ms()
        due_ms = self._watermark_ms if self._time_mode is TimeMode.EVENT_TIME else now_ms
        output: list[Row] = []
        started_ms = self._context.clock.monotonic_ms()
        for _ in range(max_timers):
            timer = self._timers.first_due(due_ms)
            if timer is None or self._context.clock.monotonic_ms() - started_ms > _LONGEST_FIRING_MS:
                break
            key = by_key.as_declared(decode(timer.key))
            self._current.key_group, self._current.key = timer.key_group, timer.key
            times = Times(now_ms, self._context.floors.of(timer.key_group, self._watermark_ms))
            output += self._taken(partial(handle, key, timer.at_ms, times), called, key)
            # Only now, as Spark does: the handler sees the timer it is called for among its key's timers.
            self._timers.delete(timer.key_group, timer.key, timer.at_ms)
        self.emit_rows(output, called=called, emit=emit)
        return self._timers.has_due(due_ms)

    def emit_rows(self, output: Sequence[Row], *, called: str, emit: Emit) -> None:
        if output:
            emit(self._take_output(output, self._schema, called=called))

    def call(self, function: Callable[[], Any], *, called: str) -> None:
        """Anything else of the user's, such as `init` and `close`."""
        try:
            function()
        except (TidegateError, *PASSING_THROUGH):
            raise
        except BaseException as error:
            raise user_code_failure(error, called=called) from error

    def on_idle(self) -> None:
        self._expire(_REMOVALS_WHEN_IDLE)

    def on_watermark(self, event_time_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, event_time_ms)

    def next_timer_ms(self) -> int | None:
        if self._timers is None or self._time_mode is not TimeMode.PROCESSING_TIME:
            return None
        return self._timers.next_ms()

    def snapshot(self) -> list[Section]:
        return self._backend.snapshot()

    def state_bytes(self) -> int:
        return self._backend.size_bytes()

    def close(self) -> None:
        self._backend.close()

    def _taken(self, call: Callable[[], Iterable[Row]], called: str, key: Key | None) -> list[Row]:
        """All that the call gives; the key is no longer current afterwards."""
        try:
            return list(call())
        except (TidegateError, *PASSING_THROUGH):
            raise
        except BaseException as error:
            raise user_code_failure(error, called=called if key is None else f"{called} for key {key!r}") from error
        finally:
            self._current.key = None

    def _expire(self, budget: int) -> None:
        for state in self.handle.ttl_states.values():
            state.expire_some(budget)


class WithUserCode:
    """For operators whose state and timers are those of one `KeyedUserCode`, which `open` makes and `close` takes."""

    _opened_code: KeyedUserCode | None = None

    def before_barrier(self, emit: Emit) -> None:
        return

    def end_of_input(self, emit: Emit) -> None:
        return

    def on_idle(self, emit: Emit) -> None:
        self._code.on_idle()

    def on_watermark(self, event_time_ms: int) -> None:
        self._code.on_watermark(event_time_ms)

    def watermark_behind(self, event_time_ms: int) -> int:
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return self._code.next_timer_ms()

    @property
    def _code(self) -> KeyedUserCode:
        assert self._opened_code is not None, "open comes before every other call"
        return self._opened_code
