"""The operator of transformWithState around a processor, one slice at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import NO_FLOORS, ProcessorHandle, TaskContext, Times, UserProcessor
from tidegate.operators.transform_with_state import TransformWithStateOperator
from tidegate.plan.nodes import TimeMode
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.manual_clock import ManualClock

ALL = KeyGroupRange(0, 128)
INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("note", pa.string())])
OUTPUT = pa.schema([("user", pa.string()), ("count", pa.int64())])
Handle = Callable[[tuple[Any, ...], Iterator[tuple[Any, ...]]], Iterable[tuple[Any, ...]]]


class Processor:
    """Counts rows per key by default; `handle` replaces what it does with them."""

    def __init__(self, handle: Handle | None = None) -> None:
        self.handle = handle or self.count
        self.is_closed = False

    def init(self, handle: ProcessorHandle) -> None:
        self.state = handle.value_state("count", ("n",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        return self.handle(key, rows)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise AssertionError("no timer was registered")

    def count(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        before = self.state.get()
        count = (0 if before is None else before[0]) + sum(1 for _ in rows)
        self.state.update((count,))
        yield (key[0], count)

    def close(self) -> None:
        self.is_closed = True


class Code:
    def __init__(self, processor: UserProcessor) -> None:
        self._processor = processor
        self.names: tuple[list[str], list[str]] | None = None

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> UserProcessor:
        assert command == b"command"
        self.names = (list(value_names), list(output_names))
        return self._processor


def code_of(processor: UserProcessor) -> Any:
    """Typed as anything: an operator asks it for a processor and for nothing else."""
    return Code(processor)


class Harness:
    def __init__(
        self,
        processor: Any = None,
        *,
        input_schema: pa.Schema = INPUT,
        schema: pa.Schema = OUTPUT,
        key_count: int = 1,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = ALL,
        time_mode: TimeMode = TimeMode.NONE,
        floors: KeyGroupFloors = NO_FLOORS,
    ) -> None:
        self.clock = ManualClock(wall_start_ms=1_000)
        self.processor: Any = processor or Processor()
        self.input_schema = input_schema
        self.code = code_of(self.processor)
        self.out: list[pa.RecordBatch] = []
        self.backend = HeapBackend(key_groups)
        operator = build_operator(TransformWithStateSpec(key_count, b"command", input_schema, schema, time_mode))
        assert isinstance(operator, TransformWithStateOperator)
        self.operator = operator
        task = TaskId(VertexId(1), 0)
        self.operator.open(
            TaskContext(task, 1, 128, key_groups, self.clock, self.code, lambda: self.backend, floors), restored
        )

    def process(self, *columns: list[Any]) -> list[tuple[Any, ...]]:
        self.out.clear()
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.input_schema, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(arrays, schema=self.input_schema), self.out.append)
        return self.rows()

    def fire(self, max_timers: int = 1000) -> tuple[list[tuple[Any, ...]], bool]:
        """What the timers gave, and whether more are due."""
        self.out.clear()
        more_are_due = self.operator.fire(max_timers, self.out.append)
        return self.rows(), more_are_due

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for batch in self.out for row in batch.to_pylist()]
