"""A row that becomes very many small frames, in front of slow code: it gets about a slice in a step, or at a barrier.

What comes out is what came out if all were handed over at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.test_task import CHANNELS, Made, gate_of
from tidegate.connectors.contract import Prepared
from tidegate.model.elements import Batch, EndOfInput
from tidegate.model.ids import CheckpointId, KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    EmptyCollections,
    EvalPython,
    ExplodedAs,
    Generate,
    JoinType,
    MapInArrow,
    Node,
    Scan,
    Sink,
    StaticJoin,
    StaticTable,
    StreamSide,
    UdfShape,
)
from tidegate.protocol.switching import UNKNOWN_SPEED
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.testing.threads import NamedUserCode
from tidegate.worker.slices import ProbingSizer
from tidegate.worker.task import SLICE_TARGET_MS

INT, LISTS = pa.int64(), pa.list_(pa.int64())
INPUT = pa.schema([("v", INT)])
OUTPUT = pa.schema([("v", INT), ("r", INT)])
SCAN = Scan("rate", {}, INPUT)
FRAMES, FRAME_ROWS = 1_000, 10
MANY = FRAMES * FRAME_ROWS
ALL = [(v, 2 * v) for v in range(MANY)]
# Some calls are made before it is known what they cost, and a step may do two things.
LONGEST_MS = 3 * SLICE_TARGET_MS
# The first slice of rows of 100 ms has two of them.
PROBED_MS = 200.0


def numbers(values: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, INT)], INPUT)


def udf(child: Node, shape: UdfShape = UdfShape.BATCH) -> Node:
    return EvalPython(child, b"twice", "twice", shape, (Column(0, "v", INT),), 1, OUTPUT)


FRAMED = MapInArrow(SCAN, b"frames", "frames", INPUT)
AT_THE_END = MapInArrow(SCAN, b"frames at the end", "frames at the end", INPUT)
CODE: dict[str, Callable[[Node], Node]] = {
    "udf": udf,
    "iterator udf": lambda child: udf(child, UdfShape.ITERATOR),
    "mapInArrow": lambda child: MapInArrow(child, b"whole", "whole", OUTPUT),
}


class Shown:
    """A sink that notes its rows in order, and takes `row_ms` for each."""

    def __init__(self, row_ms: float) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.clock = ManualClock()
        self._row_ms = row_ms

    def write(self, rows: pa.RecordBatch) -> None:
        self.clock.advance(self._row_ms * rows.num_rows)
        self.rows += zip(*(column.to_pylist() for column in rows.columns), strict=True)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        return Prepared((), lambda: None)

    def close(self) -> None: ...


class Running:
    """The task of such a plan; its function takes `row_ms` for each row, and `call_ms` for each call."""

    def __init__(
        self,
        node: Node,
        restored: "dict[int, list[RestoredSection]] | None" = None,
        *,
        row_ms: float = 1.0,
        call_ms: float = 0.0,
        write_ms: float = 0.0,
    ) -> None:
        self.row_ms, self.call_ms = row_ms, call_ms
        self.longest_ms = 0.0
        self.fed = self.calls = 0
        self.shown = Shown(write_ms)
        plan = lower(node, Sink("noop", {}, OUTPUT), parallelism=1, max_parallelism=128)
        self.operators: list[Any] = [build_operator(spec) for spec in plan.vertices[0].operators]
        self.made = Made(gate=gate_of(CHANNELS[0]), operators=self.operators, has_output=False, sink=self.shown)
        self.shown.clock = self.made.clock
        self.made.task.sizer = ProbingSizer(SLICE_TARGET_MS)
        self.made.task.giving_sizer = ProbingSizer(SLICE_TARGET_MS)
        functions = {
            "twice": self.twice,
            "whole": self.whole,
            "same": lambda batches: batches,
            "frames": self.frames,
            "frames at the end": self.frames_at_the_end,
            "frames and again": self.frames_and_again,
        }
        none: Any = None
        context = TaskContext(
            TaskId(VertexId(0), 0), 1, 128, KeyGroupRange(0, 128), self.made.clock, NamedUserCode(functions), none
        )
        for at, operator in enumerate(self.operators):
            operator.open(context, (restored or {}).get(at, []))
        self._arrived = 0
        # Event time comes first.
        self.step()

    def twice(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._work(batch.num_rows)
            yield pa.record_batch([pa.array([2 * v for v in batch.column(0).to_pylist()], INT)], ["r"])

    def whole(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._work(batch.num_rows)
            results = pa.array([2 * v for v in batch.column(0).to_pylist()], INT)
            yield pa.RecordBatch.from_arrays([batch.column(0), results], schema=OUTPUT)

    def frames(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of each row `v`, so many frames."""
        for batch in batches:
            for v in batch.column(0).to_pylist():
                for at in range(v):
                    yield numbers(range(at * FRAME_ROWS, (at + 1) * FRAME_ROWS))

    def frames_at_the_end(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.frames(iter(list(batches)))

    def frames_and_again(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.frames(iter([batch]))
        yield from self.frames(iter([numbers([1])]))

    def _work(self, row_count: int) -> None:
        self.fed += row_count
        self.calls += 1
        self.made.clock.advance(self.call_ms + self.row_ms * row_count)

    def arrive(self, element: Any) -> None:
        self.made.arrive(CHANNELS[0], self._arrived, element)
        self._arrived += 1

    def step(self) -> bool:
        """A turn of the loop."""
        started_ms = self.made.clock.monotonic_ms()
        moved = self.made.task.step()
        now_ms = self.made.clock.monotonic_ms()
        self.longest_ms = max(self.longest_ms, now_ms - started_ms)
        self.made.task.on_time(now_ms, storage=UNKNOWN_SPEED)
        return moved

    def run(self) -> None:
        while self.step() or self.step():
            pass

    def barrier(self, number: int = 1) -> "dict[int, list[RestoredSection]]":
        """What the snapshot holds, by operator."""
        self.made.barrier(CHANNELS[0], CheckpointId(number), before=self._arrived)
        restored: dict[int, list[RestoredSection]] = {}
        for at, section in self.made.taken[-1].sections:
            restored.setdefault(at, []).extend(restored_from([section]))
        return restored

    @property
    def sync_ms(self) -> float:
        return self.made.taken[-1].sync_ms

    def held(self) -> int:
        return sum(rows.num_rows for rows in self.operators[-1]._held)


# -- frames


@pytest.mark.parametrize("name", CODE)
def test_very_many_small_frames_go_into_a_slow_function_slice_by_slice(name: str) -> None:
    running = Running(CODE[name](FRAMED))
    running.arrive(Batch(numbers([FRAMES])))
    running.step()
    assert running.held() > MANY - 2 * SLICE_TARGET_MS
    running.run()
    running.barrier()
    assert running.shown.rows == ALL
    assert running.longest_ms <= LONGEST_MS


@pytest.mark.parametrize("name", CODE)
def test_small_frames_that_come_at_the_barrier_hold_it_for_about_a_slice(name: str) -> None:
    running = Running(CODE[name](AT_THE_END))
    running.arrive(Batch(numbers([1])))
    running.run()
    running.barrier(1)
    running.run()
    assert running.shown.rows == ALL[:FRAME_ROWS], "from here on it is known what a row costs"
    running.arrive(Batch(numbers([FRAMES])))
    running.run()
    restored = running.barrier(2)
    assert running.sync_ms <= LONGEST_MS
    before = running.shown.rows[FRAME_ROWS:]
    assert 0 < len(before) <= LONGEST_MS
    again = Running(CODE[name](AT_THE_END), restored)
    for each in (running, again):
        each.run()
        each.barrier(3)
        assert each.longest_ms <= LONGEST_MS
    assert running.shown.rows[FRAME_ROWS:] == before + again.shown.rows == ALL


def test_small_frames_that_come_at_the_end_of_the_input_go_in_slice_by_slice() -> None:
    running = Running(udf(AT_THE_END))
    running.arrive(Batch(numbers([FRAMES])))
    running.arrive(EndOfInput())
    running.run()
    assert running.made.task.has_ended
    assert running.shown.rows == ALL
    assert running.longest_ms <= LONGEST_MS


def test_a_step_and_a_barrier_in_the_same_turn_share_what_may_go_in_at_once() -> None:
    running = Running(udf(MapInArrow(SCAN, b"frames and again", "frames and again", INPUT)))
    running.arrive(Batch(numbers([1])))
    running.run()
    running.barrier(1)
    running.run()
    running.arrive(Batch(numbers([1])))
    started_ms = running.made.clock.monotonic_ms()
    running.made.task.step()
    assert running.held() == 0
    running.barrier(2)
    assert 0 < running.held() < FRAME_ROWS
    assert running.made.clock.monotonic_ms() - started_ms < 2 * SLICE_TARGET_MS
    running.run()
    assert running.shown.rows == ALL[:FRAME_ROWS] * 4


def test_small_frames_of_a_fast_function_all_go_in_at_once() -> None:
    running = Running(udf(FRAMED), row_ms=0.0001)
    running.arrive(Batch(numbers([1])))
    running.run()
    running.arrive(Batch(numbers([FRAMES])))
    while running.fed == FRAME_ROWS:
        running.step()
    assert running.fed == FRAME_ROWS + MANY
    assert running.held() == 0


def test_small_frames_that_are_held_share_calls_and_items_of_the_snapshot() -> None:
    running = Running(udf(FRAMED), row_ms=0.001, call_ms=0.1)
    running.arrive(Batch(numbers([FRAMES])))
    running.step()
    (section,) = running.barrier()[1]
    assert len(section.data) < 10 * MANY, "and not a schema for each ten rows"
    running.run()
    assert running.shown.rows == ALL
    assert running.calls < FRAMES // 2
    assert running.longest_ms <= LONGEST_MS


@pytest.mark.parametrize("row_ms", [1.0, 2.0, 4.0, 8.0, 15.0, 100.0])
def test_where_a_row_makes_one_the_slices_of_the_task_become_as_small_as_its_rows_are_dear(row_ms: float) -> None:
    running = Running(udf(MapInArrow(SCAN, b"same", "same", INPUT)), row_ms=row_ms)
    running.arrive(Batch(numbers(range(MANY))))
    for _ in range(100):
        running.step()
        assert running.held() <= 16
    running.longest_ms = 0.0
    for _ in range(100):
        running.step()
        assert running.held() <= 1
    assert running.longest_ms <= max(LONGEST_MS, row_ms)


# -- what else makes many of one


def test_a_few_exploded_rows_go_into_a_very_slow_function_one_by_one() -> None:
    lists = pa.schema([("id", INT), ("many", LISTS)])
    exploded = Generate(
        Scan("rate", {}, lists), Column(1, "many", LISTS), ExplodedAs.VALUE, EmptyCollections.NO_ROW, (), INPUT
    )
    running = Running(udf(exploded), row_ms=100.0)
    for at in range(4):
        many = list(range(16 * at, 16 * at + 16))
        running.arrive(Batch(pa.record_batch([pa.array([at], INT), pa.array([many], LISTS)], lists)))
        running.step()
        if at == 2:
            restored, before = running.barrier(), list(running.shown.rows)
        running.run()
        assert running.longest_ms <= (PROBED_MS if at == 0 else 100.0)
        running.longest_ms = 0.0
    assert running.shown.rows == ALL[:64]
    assert len(before) == 33
    again = Running(udf(exploded), restored, row_ms=100.0)
    again.run()
    assert before + again.shown.rows == ALL[:48]


def test_small_frames_that_meet_a_table_are_joined_slice_by_slice() -> None:
    theirs = pa.schema([("r", INT)])
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, theirs) as written:
        written.write_batch(pa.record_batch([pa.array(range(100), INT)], theirs))
    table = StaticTable((), theirs, bytes(target.getvalue()))
    joined = StaticJoin(FRAMED, StreamSide.LEFT, JoinType.INNER, (), table, None, OUTPUT)
    running = Running(joined, write_ms=0.01)
    running.arrive(Batch(numbers([100])))
    running.step()
    restored = running.barrier()
    before = list(running.shown.rows)
    running.run()
    assert running.longest_ms <= LONGEST_MS
    assert running.shown.rows == [(v, r) for v in range(100 * FRAME_ROWS) for r in range(100)]
    again = Running(joined, restored, write_ms=0.01)
    again.run()
    assert before + again.shown.rows == running.shown.rows
