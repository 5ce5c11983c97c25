"""Whatever comes, an aggregation with its groups on disk gives what one with all of them in memory gives."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tiny_steps import InTurn, opened_backends, run_steps, take_ahead, take_tiny_steps
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId, range_of
from tidegate.operators import aggregate, compaction, evicted_rows, log_book, logged_rows
from tidegate.operators.aggregate import AggregateOperator
from tidegate.operators.contract import TaskContext
from tidegate.operators.keys_seen import KeysSeen
from tidegate.plan.expressions import Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import (
    AggregateCall,
    AggregateFunction,
    EventTime,
    EventTimeKey,
    GroupRows,
    OutputMode,
    SketchTables,
)
from tidegate.plan.physical import AggregateSpec
from tidegate.protocol.rescale import key_group_floors
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.contract import RestoredSection, Section
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

KEY_GROUPS = 8
WINDOW = pa.struct([pa.field("start", pa.timestamp("us")), pa.field("end", pa.timestamp("us"))])
SECOND_US = 1_000_000
Row: TypeAlias = tuple[Any, ...]

AnyKey: TypeAlias = tuple[int | None, str | None]
# As Spark's are made, not as they are.
SKETCH = SketchTables(4, tuple(map(float, range(8))), (0.0,) * 8, 10.0)


def spec_of(
    *, mode: OutputMode, with_window: bool = False, group_rows: GroupRows = GroupRows.NEWEST_LAST, lists: bool = False
) -> AggregateSpec:
    """By number and name, or by window, number and name; calls of fixed and of variable width."""
    keys = [("window", WINDOW)] * with_window + [("n", pa.int64()), ("name", pa.string())]
    values = [("v", pa.int64()), ("text", pa.string()), ("x", pa.float64())]
    v, text, x = (Column(len(keys) + at, name, kind) for at, (name, kind) in enumerate(values))
    calls = [
        AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), True),
        AggregateCall(AggregateFunction.SUM, (v,), pa.int64(), True),
        AggregateCall(AggregateFunction.MAX, (text,), pa.string(), True),
        AggregateCall(AggregateFunction.MIN, (x,), pa.float64(), True),
    ]
    if lists:
        seen = Column(0, "text", pa.string())
        calls += [
            AggregateCall(AggregateFunction.COLLECT_LIST, (v,), pa.list_(pa.int64()), True),
            AggregateCall(AggregateFunction.COLLECT_LIST_WITH_NULLS, (text,), pa.list_(pa.string()), True),
            AggregateCall(AggregateFunction.COLLECT_SET, (text,), pa.list_(pa.string()), True),
            AggregateCall(AggregateFunction.COUNT, (seen,), pa.int64(), True, distinct=(text, x)),
            AggregateCall(AggregateFunction.SUM, (Column(0, "v", pa.int64()),), pa.int64(), True, distinct=(v,)),
            AggregateCall(AggregateFunction.APPROX_COUNT_DISTINCT, (v,), pa.int64(), True, sketch=SKETCH),
        ]
    kinds = [*(kind for _, kind in keys), *(call.type for call in calls)]
    names = [f"c{at}" for at in range(len(keys))]
    names += [f"{_prefix_of(call)}{len(keys) + at}" for at, call in enumerate(calls)]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    results = tuple(Column(at, name, kind) for at, (name, kind) in enumerate(zip(names, kinds, strict=True)))
    event_time = EventTime(0, EventTimeKey.WINDOW) if with_window else None
    spec = AggregateSpec(len(keys), tuple(calls), results, pa.schema([*keys, *values]), schema, mode)
    return replace(spec, event_time=event_time, group_rows=group_rows)


def _prefix_of(call: AggregateCall) -> str:
    """Sets are named as such, for they have no order."""
    return "set" if call.function is AggregateFunction.COLLECT_SET else "c"


@dataclass
class Subtask:
    """The same operator twice: in memory, and on disk with room for next to nothing."""

    spec: AggregateSpec
    key_groups: KeyGroupRange
    backends: RocksBackends | InTurn
    restored: tuple[list[RestoredSection], list[RestoredSection]] = ([], [])
    floors: KeyGroupFloors = field(default_factory=lambda: KeyGroupFloors(()))
    out: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self.operators = (AggregateOperator(self.spec), AggregateOperator(self.spec))
        self.clock = ManualClock()
        none: Any = None
        for operator, sections, is_on_disk in zip(self.operators, self.restored, (False, True), strict=True):
            context = TaskContext(
                TaskId(VertexId(1), 0), 1, KEY_GROUPS, self.key_groups, self.clock, none, none, floors=self.floors
            )
            if is_on_disk:
                context = replace(context, open_rows=lambda: self.backends.open_rows(self.key_groups))
            operator.open(context, sections)

    def process(self, rows: pa.RecordBatch) -> None:
        groups = key_group_of(hash_rows(rows, self.spec.key_count), KEY_GROUPS)
        own = np.flatnonzero((groups >= self.key_groups.first) & (groups < self.key_groups.last))
        for operator, out in zip(self.operators, self.out, strict=True):
            operator.process(rows.take(pa.array(own)), out.append)

    def on_watermark(self, at_ms: int, *, fires: int) -> None:
        """`fires`: so often; less than what is due may come out."""
        for operator, out in zip(self.operators, self.out, strict=True):
            operator.on_watermark(at_ms)
            for _ in range(fires):
                if not operator.fire(1, out.append):
                    break

    def settle(self) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Everything that is due, and what a barrier brings out."""
        for operator, out in zip(self.operators, self.out, strict=True):
            for _ in range(1000):
                if not operator.fire(1, out.append):
                    break
            else:
                raise AssertionError("it never ends")
            operator.before_barrier(out.append)
        return self.out

    def snapshot(self) -> tuple[list[Section], list[Section]]:
        return self.operators[0].snapshot(), self.operators[1].snapshot()


@dataclass(frozen=True)
class Taken:
    """A snapshot of all subtasks: in memory and on disk, of those key groups, at that event time."""

    sections: list[tuple[list[Section], list[Section]]]
    key_groups: list[KeyGroupRange]
    watermark_ms: int


class Job:
    def __init__(self, spec: AggregateSpec, backends: RocksBackends | InTurn) -> None:
        self.spec = spec
        self.backends = backends
        self.watermark_ms = 0
        self.subtasks = [Subtask(spec, KeyGroupRange(0, KEY_GROUPS), backends)]

    def process(self, rows: pa.RecordBatch) -> None:
        for subtask in self.subtasks:
            subtask.process(rows)

    def on_watermark(self, at_ms: int, *, fires: int) -> None:
        self.watermark_ms = max(self.watermark_ms, at_ms)
        for subtask in self.subtasks:
            subtask.on_watermark(self.watermark_ms, fires=fires)

    def check(self) -> None:
        """Both have given the same: in update mode the newest of each group."""
        for subtask in self.subtasks:
            in_memory, on_disk = (_rows_of(out) for out in subtask.settle())
            assert subtask.operators[1].is_consistent()
            if self.spec.mode is OutputMode.UPDATE:
                assert _newest(on_disk, self.spec.key_count) == _newest(in_memory, self.spec.key_count)
            else:
                assert Counter(map(repr, on_disk)) == Counter(map(repr, in_memory))
            for out in subtask.out:
                out.clear()

    def snapshot(self) -> Taken:
        self.check()
        sections = [subtask.snapshot() for subtask in self.subtasks]
        return Taken(sections, [subtask.key_groups for subtask in self.subtasks], self.watermark_ms)

    def restore(self, taken: Taken, parallelism: int, *, from_heap: bool) -> None:
        stored = [(restored_from(in_memory), restored_from(on_disk)) for in_memory, on_disk in taken.sections]
        old, self.watermark_ms = taken.key_groups, taken.watermark_ms
        reached = [(key_groups, self.watermark_ms) for key_groups in old]
        self.subtasks = []
        for at in range(parallelism):
            own = range_of(at, parallelism=parallelism, max_parallelism=KEY_GROUPS)
            meeting = [each for each, theirs in zip(stored, old, strict=True) if _meet(own, theirs)]
            in_memory = [section for each in meeting for section in each[0]]
            on_disk = in_memory if from_heap else [section for each in meeting for section in each[1]]
            floors = KeyGroupFloors(key_group_floors(reached, own))
            self.subtasks.append(Subtask(self.spec, own, self.backends, (in_memory, on_disk), floors))


def _meet(one: KeyGroupRange, other: KeyGroupRange) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


def _rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return [
        tuple(repr(sorted(value)) if name.startswith("set") else repr(value) for name, value in row.items())
        for batch in batches
        for row in batch.to_pylist()
    ]


def _newest(rows: Sequence[Row], key_count: int) -> dict[Row, Row]:
    return {row[:key_count]: row for row in rows}


def rows_from(spec: AggregateSpec, drawn: Sequence[tuple[int, AnyKey, Any, Any, Any]]) -> pa.RecordBatch:
    keys: list[Any] = []
    if spec.event_time is not None:
        keys.append([{"start": at * SECOND_US, "end": (at + 1) * SECOND_US} for at, *_ in drawn])
    keys += [[key[0] for _, key, *_ in drawn], [key[1] for _, key, *_ in drawn]]
    columns = [*keys, *([row[at] for row in drawn] for at in (2, 3, 4))]
    arrays = [pa.array(column, each.type) for column, each in zip(columns, spec.input_schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.input_schema)


a_row = st.tuples(
    st.integers(0, 12),
    st.tuples(st.none() | st.integers(-2, 20), st.sampled_from([None, "", "a", "ä\x00b", "long " * 9])),
    st.none() | st.integers(-5, 5),
    st.sampled_from([None, "", "x", "yy" * 20]),
    st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(a_row, min_size=1, max_size=25)),
        st.tuples(st.just("rows"), st.lists(a_row, min_size=1, max_size=25)),
        st.tuples(st.just("watermark"), st.tuples(st.integers(0, 14_000), st.integers(0, 3))),
        st.tuples(st.just("snapshot"), st.integers(0, 4)),
        st.tuples(st.just("steps"), st.integers(1, 4)),
        st.tuples(st.just("ahead"), st.integers(1, 6)),
        st.tuples(st.just("ahead"), st.integers(1, 6)),
        st.tuples(st.just("restore"), st.tuples(st.sampled_from([1, 1, 2, 3]), st.booleans(), st.booleans())),
        st.tuples(st.just("check"), st.none()),
    ),
    min_size=4,
    max_size=25,
)


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(aggregate, "_FEW_GROUPS", 2)


SPECS = {
    "update": spec_of(mode=OutputMode.UPDATE),
    "once per epoch": spec_of(mode=OutputMode.UPDATE, group_rows=GroupRows.ONCE_PER_EPOCH),
    "complete": spec_of(mode=OutputMode.COMPLETE),
    "append": spec_of(mode=OutputMode.APPEND, with_window=True),
    "update of windows": spec_of(mode=OutputMode.UPDATE, with_window=True),
    "lists": spec_of(mode=OutputMode.APPEND, with_window=True, lists=True),
    "lists in update": spec_of(mode=OutputMode.UPDATE, lists=True),
}


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=25, deadline=None)
@given(drawn=steps, memory_bytes=st.sampled_from([1, 3000, 1 << 30, None]))
def test_groups_on_disk_give_what_groups_in_memory_give(name: str, drawn: list[Any], memory_bytes: int | None) -> None:
    with opened_backends(rows_memory_bytes=memory_bytes) as backends:
        job = Job(SPECS[name], backends)
        taken: Taken | None = None
        for kind, what in drawn:
            match kind:
                case "rows":
                    job.process(rows_from(job.spec, what))
                case "watermark":
                    job.on_watermark(what[0], fires=what[1])
                case "check":
                    job.check()
                case "snapshot":
                    # Nobody may store it to its end: the rows in it are for the next one to write.
                    taken = job.snapshot()
                    run_steps(sections_on_disk(taken), what)
                case "steps":
                    run_steps(sections_on_disk(taken), what)
                case "ahead":
                    for subtask in job.subtasks:
                        take_ahead(subtask.operators[1], what)
                case "restore":
                    parallelism, from_heap, is_late = what
                    # What came after a snapshot is not in it, whenever it is stored.
                    taken = taken if is_late and taken is not None else job.snapshot()
                    job.restore(taken, parallelism, from_heap=from_heap)
        job.check()
        job.on_watermark(1 << 40, fires=0)
        job.check()
        del job, taken


def sections_on_disk(taken: Taken | None) -> list[Section]:
    return [] if taken is None else [section for _, on_disk in taken.sections for section in on_disk]


def numbered(spec: AggregateSpec, numbers: Sequence[int]) -> pa.RecordBatch:
    return rows_from(spec, [(0, (number, None), 1, None, None) for number in numbers])


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[RocksBackends]:
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
    yield opened
    opened.close()


def on_disk(backends: RocksBackends, restored: list[RestoredSection] | None = None, name: str = "update") -> Subtask:
    return Subtask(SPECS[name], KeyGroupRange(0, KEY_GROUPS), backends, ([], restored or []))


def stored_bytes(sections: Sequence[RestoredSection], known: set[str]) -> int:
    """Of the files that are new; those are known then."""
    files = {name: fetch for section in sections for name, fetch in section.files.items() if name not in known}
    known.update(files)
    return sum(len(fetch.args[0]) for fetch in files.values())  # type: ignore[attr-defined]


def test_a_snapshot_stores_what_changed_since_the_last_one(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    subtask, known = on_disk(backends), set[str]()
    subtask.process(numbered(subtask.spec, range(20_000)))
    whole = stored_bytes(restored_from(subtask.snapshot()[1]), known)
    subtask.process(numbered(subtask.spec, range(0, 20_000, 100)))
    changed = restored_from(subtask.snapshot()[1])
    assert 0 < stored_bytes(changed, known) < whole / 50
    assert stored_bytes(restored_from(subtask.snapshot()[1]), known) == 0, "nothing changed"
    again = on_disk(backends, changed)
    again.process(numbered(subtask.spec, [100, 101]))
    shown = {row[0]: row[2] for row in _rows_of(again.settle()[1])}
    assert shown == {"100": "3", "101": "2"}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_group_that_changes_behind_the_barrier_is_stored_as_it_was_at_it(backends: RocksBackends, steps: int) -> None:
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(50)))
    for _ in range(2):
        restored_from(subtask.snapshot()[1])
        subtask.process(numbered(subtask.spec, range(40)))
    (_, taken) = subtask.snapshot()
    run_steps(taken, steps)
    subtask.process(numbered(subtask.spec, [1, 1, 39, 60]))
    (_, later) = subtask.snapshot()
    restored_first, restored_later = restored_from(taken), restored_from(later)
    at_barrier = dict.fromkeys(range(40), 4) | dict.fromkeys(range(40, 50), 2)
    assert shown_counts(on_disk(backends, restored_first), range(50)) == at_barrier
    assert shown_counts(on_disk(backends, restored_later), [*range(50), 60]) == at_barrier | {1: 6, 39: 5, 60: 2}


def shown_counts(subtask: Subtask, numbers: Sequence[int]) -> dict[int, int]:
    """Of rows by group, with one more for each."""
    subtask.process(numbered(subtask.spec, numbers))
    return {int(row[0]): int(row[2]) for row in _rows_of(subtask.settle()[1])}


def test_no_row_is_copied_at_the_barrier(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    subtask, copied = on_disk(backends), list[int]()
    operator = subtask.operators[1]
    freeze = operator.frozen
    monkeypatch.setattr(operator, "frozen", lambda slots: (copied.append(len(slots)), freeze(slots))[1])
    subtask.process(numbered(subtask.spec, range(300)))
    (_, taken) = subtask.snapshot()
    assert copied == []
    subtask.process(numbered(subtask.spec, [7, 7, 300]))
    assert copied == [1], "what is about to change"
    restored_from(taken)
    assert copied == [1, 299]


def test_rows_of_files_that_are_given_up_are_as_they_were_at_the_barrier(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(log_book, "_FEW_ROWS", 10)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 0)
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(100)))
    for _ in range(2):
        restored_from(subtask.snapshot()[1])
        subtask.process(numbered(subtask.spec, range(70)))
    (_, taken) = subtask.snapshot()
    run_steps(taken, 1)
    subtask.process(numbered(subtask.spec, [80, 81]))
    stored = restored_from(taken)
    expected = dict.fromkeys(range(70), 4) | dict.fromkeys(range(70, 100), 2)
    assert shown_counts(on_disk(backends, stored), range(100)) == expected
    (later,) = restored_from(subtask.snapshot()[1])
    assert shown_counts(on_disk(backends, [later]), range(100)) == expected | {80: 3, 81: 3}
    subtask.process(numbered(subtask.spec, [80]))
    (last,) = restored_from(subtask.snapshot()[1])
    assert min(later.files) not in last.files, "nothing in the oldest is needed any more"


def test_a_group_that_ends_behind_the_barrier_is_in_the_snapshot(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 1000)
    subtask = Subtask(SPECS["append"], KeyGroupRange(0, KEY_GROUPS), backends)
    subtask.process(rows_from(subtask.spec, [(0, (number, None), 1, None, None) for number in range(30)]))
    (_, taken) = subtask.snapshot()
    run_steps(taken, 1)
    subtask.on_watermark(1 << 40, fires=100)
    assert len(_rows_of(subtask.out[1])) == 30
    again = Subtask(subtask.spec, KeyGroupRange(0, KEY_GROUPS), backends, ([], restored_from(taken)))
    again.on_watermark(1 << 40, fires=100)
    assert len(_rows_of(again.out[1])) == 30


def test_a_group_that_ended_stays_so_when_the_file_that_says_it_is_written_anew(backends: RocksBackends) -> None:
    subtask = Subtask(SPECS["append"], KeyGroupRange(0, KEY_GROUPS), backends)
    windows = [(0, number) for number in range(2)] + [(5, number) for number in range(10)]
    subtask.process(rows_from(subtask.spec, [(at, (number, None), 1, None, None) for at, number in windows]))
    restored_from(subtask.snapshot()[1])
    subtask.on_watermark(1_000, fires=100)
    assert len(_rows_of(subtask.out[1])) == 2
    restored_from(subtask.snapshot()[1])
    subtask.process(rows_from(subtask.spec, [(5, (0, None), 1, None, None)]))
    (log,) = restored_from(subtask.snapshot()[1])
    again = Subtask(subtask.spec, KeyGroupRange(0, KEY_GROUPS), backends, ([], [log]))
    again.on_watermark(1 << 40, fires=100)
    assert len(log.files) == 3, "two of the first snapshot, and one of what came later"
    assert len(_rows_of(again.settle()[1])) == 10


def test_a_snapshot_while_groups_are_left_behind_is_not_undone_by_it(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", 16)
    windows = [(0, number) for number in range(20)] + [(5, number) for number in range(10)]
    counts = []
    for fires in range(1, 120, 3):
        subtask = Subtask(SPECS["append"], KeyGroupRange(0, KEY_GROUPS), backends)
        subtask.process(rows_from(subtask.spec, [(at, (number, None), 1, None, None) for at, number in windows]))
        subtask.on_watermark(1_000, fires=fires)
        counts.append(subtask.operators[1].index.count)
        (_, taken) = subtask.snapshot()
        for _ in range(60):
            subtask.operators[1].fire(1, subtask.out[1].append)
            run_steps(taken, 1)
        subtask.settle()
        assert subtask.operators[1].index.count == 10
        assert subtask.operators[1].is_consistent()
    assert (counts[0], counts[-1]) == (30, 10), "before, while and after they are left behind"


def test_what_is_owed_to_a_snapshot_is_not_lost_when_others_are_left_behind(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots get other numbers before its steps have taken any of them."""
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 1 << 10)  # many would take what is owed as well
    staying, leaving = range(40), range(60)
    windows = [(0, number) for number in leaving] + [(5, number) for number in staying]
    for fires in (1, 75, 90, 105):
        subtask = Subtask(SPECS["append"], KeyGroupRange(0, KEY_GROUPS), backends)
        subtask.process(rows_from(subtask.spec, [(at, (number, None), 1, None, None) for at, number in windows]))
        subtask.on_watermark(1_000, fires=fires)
        (_, taken) = subtask.snapshot()
        subtask.settle()
        assert subtask.operators[1].index.count == len(staying), "the others are left behind by now"
        again = Subtask(subtask.spec, subtask.key_groups, backends, ([], restored_from(taken)))
        again.on_watermark(1 << 40, fires=0)
        shown = [row for batch in again.settle()[1] for row in batch.to_pylist()]
        assert sorted(row["c1"] for row in shown if row["c0"]["start"].second == 5) == list(staying), fires


def test_what_is_owed_to_a_snapshot_is_taken_before_others_are_left_behind(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that stay get other numbers when it is complete and none of its steps was done."""
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 1 << 10)
    windows = [(0, number) for number in range(60)] + [(5, number) for number in range(40)]
    subtask = Subtask(SPECS["append"], KeyGroupRange(0, KEY_GROUPS), backends)
    subtask.process(rows_from(subtask.spec, [(at, (number, None), 1, None, None) for at, number in windows]))
    (_, taken) = subtask.snapshot()
    subtask.on_watermark(1_000, fires=0)
    subtask.settle()
    assert subtask.operators[1].index.count == 40, "the others are left behind by now"
    again = Subtask(subtask.spec, subtask.key_groups, backends, ([], restored_from(taken)))
    again.on_watermark(1 << 40, fires=0)
    assert len(_rows_of(again.settle()[1])) == 100


def test_the_log_stays_in_proportion_to_the_groups(
    backends: RocksBackends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(log_book, "_FEW_ROWS", 100)
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(5_000)))
    for start in range(200):
        subtask.process(numbered(subtask.spec, range(start * 10, start * 10 + 500)))
        sections = restored_from(subtask.snapshot()[1])
    (log,) = sections
    assert len(log.files) < 40
    assert stored_bytes(sections, set()) < 3 * 5_000 * 150
    assert len(list(tmp_path.glob("*/*-rows/*.rows"))) == len(log.files), "no file is left behind"


def test_groups_that_do_not_fit_are_not_in_memory(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    subtask = on_disk(replace_memory(backends, 64 << 10))
    for start in range(0, 40_000, 500):
        subtask.process(numbered(subtask.spec, range(start, start + 500)))
        subtask.settle()
    in_memory, mostly_on_disk = (operator.index.count for operator in subtask.operators)
    assert (in_memory, mostly_on_disk < 4_000) == (40_000, True)


def test_knowing_the_groups_that_left_takes_a_part_of_the_memory_however_many_they_are(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    opened: list[KeysSeen] = []
    monkeypatch.setattr(evicted_rows, "KeysSeen", lambda: (opened.append(KeysSeen()), opened[-1])[1])
    memory_bytes = 2 << 20
    subtask = on_disk(replace_memory(backends, memory_bytes))
    in_memory = []
    for start in range(0, 300_000, 500):
        subtask.process(numbered(subtask.spec, range(start, start + 500)))
        subtask.settle()
        in_memory.append(subtask.operators[1].index.count)
    [seen] = opened
    assert memory_bytes // 4 < seen.size_bytes() <= memory_bytes // 2
    assert max(in_memory[-50:]) < 0.8 * max(in_memory[:50]), "rows have less of it than before"


def replace_memory(backends: RocksBackends, rows_memory_bytes: int) -> RocksBackends:
    backends.rows_memory.total_bytes = rows_memory_bytes
    return backends


def test_what_was_on_disk_is_not_taken_for_state_in_memory(backends: RocksBackends) -> None:
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(10)))
    sections = restored_from(subtask.snapshot()[1])
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        Subtask(subtask.spec, KeyGroupRange(0, KEY_GROUPS), backends, (sections, []))
