"""What a task asks of an operator. All calls come from the slot's one thread."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.model.ids import KeyGroupRange, TaskId
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.contract import RestoredSection, Section, StateBackend
from tidegate.state.row_store import RowStore, RunStore

Emit: TypeAlias = Callable[[pa.RecordBatch], None]

NO_FLOORS = KeyGroupFloors(())


class ValueStateHandle(Protocol):
    """PySpark's `ValueState`, as a `StatefulProcessor` sees it."""

    def exists(self) -> bool: ...
    def get(self) -> tuple[Any, ...] | None: ...
    def update(self, new_value: tuple[Any, ...]) -> None: ...
    def clear(self) -> None: ...


class ListStateHandle(Protocol):
    def exists(self) -> bool: ...
    def get(self) -> Iterator[tuple[Any, ...]]: ...
    def put(self, new_values: Sequence[tuple[Any, ...]]) -> None: ...
    def append_value(self, new_value: tuple[Any, ...]) -> None: ...
    def append_list(self, new_values: Sequence[tuple[Any, ...]]) -> None: ...
    def clear(self) -> None: ...


class MapStateHandle(Protocol):
    def exists(self) -> bool: ...
    def get_value(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...
    def contains_key(self, key: tuple[Any, ...]) -> bool: ...
    def update_value(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...
    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]: ...
    def remove_key(self, key: tuple[Any, ...]) -> None: ...
    def clear(self) -> None: ...


class ProcessorHandle(Protocol):
    """What a processor is opened with; states and timers belong to the key that is being handled."""

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ValueStateHandle: ...
    def list_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ListStateHandle: ...
    def map_state(
        self, name: str, key_fields: tuple[str, ...], value_fields: tuple[str, ...], *, ttl_ms: int | None = None
    ) -> MapStateHandle: ...
    def delete_if_exists(self, name: str) -> None:
        """All that any key holds under a name that is not opened any more; only in `init`."""
        ...

    def register_timer(self, at_ms: int) -> None: ...
    def delete_timer(self, at_ms: int) -> None: ...
    def timers(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Times:
    """`watermark_ms`: how far event time has come for the key that is being handled."""

    processing_time_ms: int
    watermark_ms: int


class UserProcessor(Protocol):
    """A user's `StatefulProcessor`, opened by the spark layer.

    Rows go in as an iterator of plain tuples and come out as tuples, or as batches both ways, as the spec's style says.
    """

    def init(self, handle: ProcessorHandle) -> None:
        """Runs the user's `init`; each `getValueState` arrives as a call of `handle.value_state`."""
        ...

    def handle_rows(self, key: tuple[Any, ...], rows: Any, times: Times) -> Iterable[Any]: ...
    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[Any]: ...
    def close(self) -> None: ...


@runtime_checkable
class TakesInitialState(Protocol):
    """A `UserProcessor` whose keys may start with rows."""

    def name_initial(self, names: tuple[str, ...]) -> None:
        """What the columns of these rows are called; before the first of them."""
        ...

    def handle_initial(self, key: tuple[Any, ...], rows: Any, times: Times) -> None: ...


class BroadcastState(Protocol):
    """The same in every subtask; `put` and `delete` raise unless rows of the broadcast side are being handled."""

    def get(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...
    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]: ...
    def put(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...
    def delete(self, key: tuple[Any, ...]) -> None: ...


class ConnectHandle(ProcessorHandle, Protocol):
    def broadcast_state(self, name: str) -> BroadcastState: ...


class ConnectProcessor(Protocol):
    """Two inputs, one state. With a broadcast right side, `handle_right` has no key and may emit nothing."""

    def init(self, handle: ConnectHandle) -> None: ...
    def handle_left(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]: ...
    def handle_right(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]: ...
    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]: ...
    def close(self) -> None: ...


class CallStyle(Enum):
    """How calls of user code wait beside the loop."""

    BLOCKING = "blocking"  # each in a thread
    AWAITED = "awaited"  # coroutines, all in one thread


@dataclass(frozen=True, slots=True)
class Answered:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    error: BaseException


Outcome: TypeAlias = Answered | Raised


class WaitingCalls(Protocol):
    """Calls that are made beside the loop; the loop is woken when one has an outcome, and asks for it then."""

    def start(self, number: int, call: Callable[[], Any]) -> None: ...
    def take_done(self) -> list[tuple[int, Outcome]]:
        """What has ended since the last look, by number."""
        ...

    def close(self) -> None:
        """Ends the threads; a call that does not return is left behind, and its outcome is dropped."""
        ...


# Style, the most calls at once, and what the threads are called after.
OpenCalls: TypeAlias = Callable[[CallStyle, int, str], WaitingCalls]


@dataclass(frozen=True, slots=True)
class WaitingFunction:
    """A user's function from a row to rows. `call` runs beside the loop; `take` reads its answer on the loop."""

    style: CallStyle
    call: Callable[[tuple[Any, ...]], Any]
    take: Callable[[Any], list[tuple[Any, ...]]]


class UserCode(Protocol):
    """Opens PySpark's pickled commands. Implemented by the spark layer, so that operators need no PySpark."""

    def map_function(self, command: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]: ...
    def processor(
        self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]
    ) -> UserProcessor: ...
    def connect_processor(self, command: bytes) -> ConnectProcessor: ...
    def udfs(self, calls: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """From batches of arguments to batches of results, row by row."""
        ...

    def waiting_function(
        self, command: bytes, *, input_names: Sequence[str], output_names: Sequence[str]
    ) -> WaitingFunction: ...


@dataclass(slots=True)
class LateRows:
    """How many rows a task has left out because event time had passed them, since it was started."""

    count: int = 0

    def dropped(self, rows: pa.RecordBatch, late: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """The rows that are not late; counts the others."""
        number = int(np.count_nonzero(late))
        if number == 0:
            return rows
        self.count += number
        kept = np.flatnonzero(~late)
        return rows.take(pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)]))


def _no_calls(style: CallStyle, most_calls: int, name: str) -> WaitingCalls:
    raise AssertionError(f"{name} was built into a task that cannot wait for calls")


def _in_memory() -> None:
    return None


@dataclass(frozen=True, slots=True)
class TaskContext:
    """`floors`: how far event time had come for key groups that were restored from other subtasks.

    `open_rows`: where an operator keeps rows, empty; None if it keeps them in memory and snapshots them whole.
    `open_runs`: for one whose rows never change, as `open_rows`.
    """

    task: TaskId
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    clock: Clock
    user_code: UserCode
    open_state: Callable[[], StateBackend]
    floors: KeyGroupFloors = NO_FLOORS
    late_rows: LateRows = field(default_factory=LateRows)
    open_calls: OpenCalls = _no_calls
    open_rows: Callable[[], RowStore | None] = _in_memory
    open_runs: Callable[[], RunStore | None] = _in_memory


class Operator(Protocol):
    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None: ...

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        """One slice. Nothing may be kept outside of state, except until `before_barrier`."""
        ...

    def before_barrier(self, emit: Emit) -> None:
        """Emit what is held back; the snapshot follows at once, and has what a `GivesLater` still holds."""
        ...

    def end_of_input(self, emit: Emit) -> None:
        """No more rows in this run; what is due by now is fired afterwards."""
        ...

    def on_idle(self, emit: Emit) -> None:
        """The task has no input just now: a chance to emit what is held back for gathering."""
        ...

    def on_watermark(self, event_time_ms: int) -> None:
        """Event time has come this far at the operator's input; what is due because of it fires in `fire`."""
        ...

    def fire(self, max_timers: int, emit: Emit) -> bool:
        """Fire up to so many timers that are due, by event time or by the clock; true if more are due."""
        ...

    def watermark_behind(self, event_time_ms: int) -> int:
        """The watermark for whoever follows, given the one at this operator's input; asked when nothing is due."""
        ...

    def next_timer_ms(self) -> int | None:
        """When the next processing-time timer is due, in wall-clock time."""
        ...

    def snapshot(self) -> list[Section]: ...
    def state_bytes(self) -> int: ...
    def close(self) -> None: ...


class TwoInputOperator(Operator, Protocol):
    """`process` takes the rows of the first input."""

    def process_right(self, rows: pa.RecordBatch, emit: Emit) -> None: ...


@runtime_checkable
class GivesLater(Protocol):
    """An operator that takes rows in one step and gives what becomes of them in later ones.

    What it holds is in its snapshots, so that a barrier may fall in between. Its `watermark_behind` must not pass the
    rows that it holds; the input's end, and the word that there are no rows for now, wait for them likewise.
    """

    def room(self) -> int:
        """How many more rows it wants to be given; it takes more, but only from an operator in front of it."""
        ...

    def give(self, max_rows: int, emit: Emit) -> int:
        """One slice of what is ready; how many of the rows it held were given on, 0 if none is ready."""
        ...

    def holds_rows(self) -> bool: ...
    def on_time(self, now_ms: float) -> None:
        """Every turn of the loop, also while the output has no room."""
        ...

    def next_deadline_ms(self) -> float | None:
        """When `on_time` has to be called at the latest, if nothing else happens."""
        ...


@runtime_checkable
class KeepsCallOpen(Protocol):
    """An operator whose function is called once in an epoch: rows that it was given may come out at the barrier."""

    def is_amid_call(self) -> bool: ...


def in_call(operators: Sequence[Operator]) -> bool:
    """Whether one was given rows that come out at the barrier; they must not be late there."""
    return any(isinstance(operator, KeepsCallOpen) and operator.is_amid_call() for operator in operators)


@runtime_checkable
class ShowsAllGroups(Protocol):
    """An operator that in complete mode gives all it has at each barrier, until its input has ended.

    What follows it may drop all of that, and then the result is empty; silence means that the last result stays.
    """

    def take_has_shown_all(self) -> bool:
        """Whether it gave all its groups since it was last asked; never before it has one."""
        ...


class WithoutTimers:
    """For operators that leave event time as it is and have nothing to fire."""

    def on_watermark(self, event_time_ms: int) -> None:
        return

    def fire(self, max_timers: int, emit: Emit) -> bool:
        return False

    def watermark_behind(self, event_time_ms: int) -> int:
        return event_time_ms

    def next_timer_ms(self) -> int | None:
        return None


class HoldsNothingBack:
    """For operators that gather nothing for the end of an epoch, of the input, or for an idle moment."""

    def before_barrier(self, emit: Emit) -> None:
        return

    def end_of_input(self, emit: Emit) -> None:
        return

    def on_idle(self, emit: Emit) -> None:
        return


class WithoutDeadlines:
    """For a `GivesLater` whose rows wait only for their turn."""

    def on_time(self, now_ms: float) -> None:
        return

    def next_deadline_ms(self) -> float | None:
        return None


class Stateless(WithoutTimers, HoldsNothingBack):
    """For operators that keep nothing: rows that go in have come out before the next barrier."""

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        return

    def snapshot(self) -> list[Section]:
        return []

    def state_bytes(self) -> int:
        return 0

    def close(self) -> None:
        return
