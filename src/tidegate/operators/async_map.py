"""Rows through a user's function that waits for something outside: a database, a service. Many rows wait at once.

The calls are made beside the loop. Rows that were taken in and not given on are state: a snapshot stores the rows, and
their calls are made again after a restore. Must never let a barrier wait for a call, nor event time pass a row.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError, UserCodeFailure
from tidegate.model.units import format_ms
from tidegate.operators.columnar import slots_array
from tidegate.operators.contract import (
    Answered,
    Emit,
    HoldsNothingBack,
    Outcome,
    Raised,
    TaskContext,
    WaitingCalls,
    WaitingFunction,
    WithoutTimers,
)
from tidegate.operators.held_rows import decoded_batches, encode_batches
from tidegate.operators.user_code import PASSING_THROUGH, user_code_failure
from tidegate.operators.user_rows import Row, RowsByKey, batch_from_tuples, prepare_conversions
from tidegate.plan.nodes import AnswerOrder
from tidegate.plan.physical import AsyncMapSpec
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Redistribution, RestoredSection, Section

SECTION = "rows in flight"


@dataclass(slots=True)
class _Taken:
    """A batch as it came in; its rows are numbered from `first`, and `left` of them are held."""

    first: int
    rows: pa.RecordBatch
    left: int


@dataclass(slots=True)
class _Held:
    taken: _Taken
    outcome: Outcome | None = None


class AsyncMapOperator(WithoutTimers, HoldsNothingBack):
    """`GivesLater`."""

    def __init__(self, spec: AsyncMapSpec) -> None:
        self._spec = spec
        self._called = f"The tg.async_map function {spec.function_name!r}"
        self._rows = RowsByKey(spec.input_schema, 0, time_zone=spec.time_zone)
        self._next_number = 0
        # By number, so in the order of coming in.
        self._held: dict[int, _Held] = {}
        self._taken: dict[int, _Taken] = {}
        self._unstarted: deque[tuple[int, Row]] = deque()
        self._under_way = 0
        self._deadlines_ms: dict[int, float] = {}
        # Only where rows may overtake one another.
        self._answered: deque[int] = deque()
        # Watermarks with the number of the first row behind each.
        self._watermarks: deque[tuple[int, int]] = deque()
        self._passed_ms = MIN_WATERMARK_MS

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        prepare_conversions()
        self._clock: Clock = context.clock
        self._function: WaitingFunction = context.user_code.waiting_function(
            self._spec.function, input_names=self._spec.input_schema.names, output_names=self._spec.schema.names
        )
        name = f"async-map-{context.task.vertex}-{context.task.subtask}"
        self._calls: WaitingCalls = context.open_calls(self._function.style, self._spec.capacity, name)
        for batch in decoded_batches(restored):
            self._take(batch)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        if rows.num_rows:
            self._take(rows)
            self._start_some()

    # -- rows that are held

    def room(self) -> int:
        return max(0, self._spec.capacity - len(self._held))

    def holds_rows(self) -> bool:
        return bool(self._held)

    def give(self, max_rows: int, emit: Emit) -> int:
        self._take_outcomes()
        numbers = self._ready(max_rows)
        output: list[Row] = []
        for number in numbers:
            outcome = self._forget(number).outcome
            assert isinstance(outcome, Answered), "what raised has failed the job"
            output += self._rows_of(outcome.value)
        self._start_some()
        if output:
            emit(batch_from_tuples(output, self._spec.schema, called=self._called))
        return len(numbers)

    def on_time(self, now_ms: float) -> None:
        self._take_outcomes()
        self._start_some()
        first = next(iter(self._deadlines_ms.items()), None)
        if first is not None and first[1] <= now_ms:
            assert self._spec.timeout_ms is not None, "without it there are no deadlines"
            raise UserCodeFailure(
                f"{self._called} has not answered within {format_ms(self._spec.timeout_ms)} for the row "
                f"{self._row(first[0])}: give tg.async_map a longer timeout, or let the function give up sooner."
            )

    def next_deadline_ms(self) -> float | None:
        return next(iter(self._deadlines_ms.values()), None)

    # -- event time

    def on_watermark(self, event_time_ms: int) -> None:
        if event_time_ms <= (self._watermarks[-1][1] if self._watermarks else self._passed_ms):
            return
        if self._watermarks and self._watermarks[-1][0] == self._next_number:
            self._watermarks.pop()
        self._watermarks.append((self._next_number, event_time_ms))

    def watermark_behind(self, event_time_ms: int) -> int:
        first_held = next(iter(self._held), self._next_number)
        while self._watermarks and self._watermarks[0][0] <= first_held:
            self._passed_ms = self._watermarks.popleft()[1]
        return self._passed_ms

    # -- snapshots

    def snapshot(self) -> list[Section]:
        held = [self._held_of(taken) for taken in self._taken.values()]
        # Batches never change, so that they can be encoded later.
        return [Section(SECTION, None, partial(encode_batches, held), Redistribution.SPLIT)]

    def state_bytes(self) -> int:
        return sum(taken.rows.nbytes for taken in self._taken.values())

    def close(self) -> None:
        self._calls.close()

    # -- inside

    def _take(self, rows: pa.RecordBatch) -> None:
        # Copied: a slice would keep the whole batch that it is a part of for as long as its slowest row.
        own = rows.take(slots_array(np.arange(rows.num_rows)))
        taken = _Taken(self._next_number, own, rows.num_rows)
        self._taken[taken.first] = taken
        self._next_number += rows.num_rows
        for number, values in enumerate(self._rows.values(own), start=taken.first):
            self._held[number] = _Held(taken)
            self._unstarted.append((number, values))

    def _forget(self, number: int) -> _Held:
        held = self._held.pop(number)
        held.taken.left -= 1
        if held.taken.left == 0:
            del self._taken[held.taken.first]
        return held

    def _start_some(self) -> None:
        while self._unstarted and self._under_way < self._spec.capacity:
            number, values = self._unstarted.popleft()
            if self._spec.timeout_ms is not None:
                self._deadlines_ms[number] = self._clock.monotonic_ms() + self._spec.timeout_ms
            self._under_way += 1
            self._calls.start(number, partial(self._function.call, values))

    def _take_outcomes(self) -> None:
        for number, outcome in self._calls.take_done():
            self._under_way -= 1
            self._deadlines_ms.pop(number, None)
            match outcome:
                case Answered():
                    self._held[number].outcome = outcome
                    if self._spec.order is AnswerOrder.AS_ANSWERED:
                        self._answered.append(number)
                case Raised(error):
                    raise user_code_failure(error, called=f"{self._called}, for the row {self._row(number)},")
                case _:
                    assert_never(outcome)

    def _ready(self, max_rows: int) -> list[int]:
        """Whose results may be given on now, in that order."""
        match self._spec.order:
            case AnswerOrder.AS_ANSWERED:
                return [self._answered.popleft() for _ in range(min(max_rows, len(self._answered)))]
            case AnswerOrder.AS_TAKEN:
                found = []
                for number, held in islice(self._held.items(), max_rows):
                    if held.outcome is None:
                        break
                    found.append(number)
                return found
            case _:
                assert_never(self._spec.order)

    def _rows_of(self, answer: Any) -> list[Row]:
        try:
            return self._function.take(answer)
        except (TidegateError, *PASSING_THROUGH):
            raise
        except BaseException as error:
            raise user_code_failure(error, called=self._called) from error

    def _held_of(self, taken: _Taken) -> pa.RecordBatch:
        if taken.left == taken.rows.num_rows:
            return taken.rows
        kept = [at for at in range(taken.rows.num_rows) if taken.first + at in self._held]
        return taken.rows.take(slots_array(np.array(kept)))

    def _row(self, number: int) -> str:
        """A row for a message."""
        taken = self._held[number].taken
        values = self._rows.values(taken.rows.slice(number - taken.first, 1))[0]
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._rows.value_names, values, strict=True))
        return f"({shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''})"


# Of a row in a message: enough to recognise it by.
_SHOWN = 200
