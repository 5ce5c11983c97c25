"""What a task asks of an operator. All calls come from the slot's one thread."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidegate.model.clock import Clock
from tidegate.model.ids import KeyGroupRange, TaskId
from tidegate.state.contract import RestoredSection, Section, StateBackend

Emit: TypeAlias = Callable[[pa.RecordBatch], None]


class ValueStateHandle(Protocol):
    """PySpark's `ValueState`, as a `StatefulProcessor` sees it."""

    def exists(self) -> bool: ...
    def get(self) -> tuple[Any, ...] | None: ...
    def update(self, new_value: tuple[Any, ...]) -> None: ...
    def clear(self) -> None: ...


class UserProcessor(Protocol):
    """A user's `StatefulProcessor`, opened by the spark layer; rows go in and come out as plain tuples."""

    def init(self, open_value_state: Callable[[str, tuple[str, ...]], ValueStateHandle]) -> None:
        """Runs the user's `init`; each `getValueState` arrives as a call with the state's name and field names."""
        ...

    def handle_rows(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]: ...
    def close(self) -> None: ...


class UserCode(Protocol):
    """Opens PySpark's pickled commands. Implemented by the spark layer, so that operators need no PySpark."""

    def map_function(self, command: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]: ...
    def processor(
        self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]
    ) -> UserProcessor: ...


@dataclass(frozen=True, slots=True)
class TaskContext:
    task: TaskId
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    clock: Clock
    user_code: UserCode
    open_state: Callable[[], StateBackend]


class Operator(Protocol):
    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None: ...

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        """One slice. Nothing may be kept outside of state, except until `before_barrier`."""
        ...

    def before_barrier(self, emit: Emit) -> None:
        """Emit what is held back; the snapshot follows at once."""
        ...

    def end_of_input(self, emit: Emit) -> None:
        """No more rows in this run."""
        ...

    def on_idle(self, emit: Emit) -> None:
        """The task has no input just now: a chance to emit what is held back for gathering."""
        ...

    def snapshot(self) -> list[Section]: ...
    def state_bytes(self) -> int: ...
    def close(self) -> None: ...
