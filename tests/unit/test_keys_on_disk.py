"""Whatever comes, a deduplication with its keys on disk passes the rows that one with all of them in memory passes."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tiny_steps import InTurn, opened_backends, run_steps, take_ahead, take_tiny_steps
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import compaction, deduplicate
from tidegate.operators.contract import TaskContext
from tidegate.operators.deduplicate import DeduplicateOperator
from tidegate.plan.nodes import ForgetAfterDelay, ForgetByKey
from tidegate.plan.physical import DeduplicateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

ALL = KeyGroupRange(0, 8)
SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us")), ("v", pa.int64())])
SECOND_US = 1_000_000
SPECS = {
    "for ever": DeduplicateSpec(1, None, None, SCHEMA),
    "by key and time": DeduplicateSpec(2, 1, ForgetByKey(1), SCHEMA),
    "for ten seconds": DeduplicateSpec(1, 1, ForgetAfterDelay(10_000), SCHEMA),
}

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("rows"),
            st.lists(st.tuples(st.sampled_from([None, *"abcdefghijkl"]), st.integers(0, 30)), min_size=1, max_size=20),
        ),
        st.tuples(st.just("watermark"), st.integers(0, 30_000)),
        st.tuples(st.just("snapshot"), st.integers(0, 4)),
        st.tuples(st.just("ahead"), st.integers(1, 6)),
        st.tuples(st.just("restore"), st.tuples(st.booleans(), st.booleans())),
    ),
    min_size=4,
    max_size=25,
)


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(deduplicate, "_FEW_KEYS", 2)


def rows_at(rows: list[tuple[str | None, int]]) -> pa.RecordBatch:
    """Of a key and a second each."""
    columns = [[k for k, _ in rows], [at * SECOND_US for _, at in rows], list(range(len(rows)))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Both:
    """The same operator twice: in memory, and on disk with room for next to nothing."""

    def __init__(self, spec: DeduplicateSpec, backends: RocksBackends | InTurn) -> None:
        self.spec = spec
        self.backends = backends
        self.operators = [self.opened([], is_on_disk=False), self.opened([], is_on_disk=True)]
        self.watermark_ms = 0
        self.taken: tuple[list[list[Section]], int] | None = None

    def opened(self, restored: list[RestoredSection], *, is_on_disk: bool) -> DeduplicateOperator:
        none: Any = None
        context = TaskContext(TaskId(VertexId(1), 0), 1, 8, ALL, ManualClock(), none, none)
        if is_on_disk:
            context = replace(context, open_rows=lambda: self.backends.open_rows(ALL))
        operator = DeduplicateOperator(self.spec)
        operator.open(context, restored)
        return operator

    def process(self, rows: list[tuple[str | None, int]]) -> None:
        passed: list[list[Any]] = []
        for operator in self.operators:
            out: list[pa.RecordBatch] = []
            operator.process(rows_at(rows), out.append)
            passed.append([row for each in out for row in each.to_pylist()])
        assert passed[1] == passed[0]

    def on_watermark(self, at_ms: int) -> None:
        self.watermark_ms = max(self.watermark_ms, at_ms)
        for operator in self.operators:
            operator.on_watermark(self.watermark_ms)
            for _ in range(1000):
                if not operator.fire(1, lambda rows: None):
                    break
            else:
                raise AssertionError("it never ends")

    def snapshot(self, *, steps: int) -> None:
        """`steps`: so many, in which it is stored."""
        self.taken = [operator.snapshot() for operator in self.operators], self.watermark_ms
        run_steps(self.taken[0][1], steps)

    def restore(self, *, from_heap: bool, is_late: bool) -> None:
        if self.taken is None or not is_late:
            self.snapshot(steps=0)
        assert self.taken is not None
        sections, self.watermark_ms = self.taken
        in_memory, on_disk = map(restored_from, sections)
        self.operators = [
            self.opened(in_memory, is_on_disk=False),
            self.opened(in_memory if from_heap else on_disk, is_on_disk=True),
        ]
        self.on_watermark(self.watermark_ms)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=25, deadline=None)
@given(drawn=steps, memory_bytes=st.sampled_from([1, 1500, 1 << 30, None]))
def test_keys_on_disk_pass_the_rows_that_keys_in_memory_pass(
    name: str, drawn: list[Any], memory_bytes: int | None
) -> None:
    with opened_backends(rows_memory_bytes=memory_bytes) as backends:
        both = Both(SPECS[name], backends)
        for kind, what in drawn:
            match kind:
                case "rows":
                    both.process(what)
                case "watermark":
                    both.on_watermark(what)
                case "restore":
                    both.restore(from_heap=what[0], is_late=what[1])
                case "snapshot":
                    both.snapshot(steps=what)
                case "ahead":
                    take_ahead(both.operators[1], what)
        del both


def test_a_snapshot_while_keys_are_left_behind_is_not_undone_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", 16)
    with opened_backends(rows_memory_bytes=1 << 30) as backends:
        counts = []
        for fires in range(1, 120, 3):
            both = Both(SPECS["by key and time"], backends)
            both.process(
                [(f"key {number}", 1) for number in range(20)] + [(f"key {number}", 9) for number in range(10)]
            )
            on_disk = both.operators[1]
            on_disk.on_watermark(5_000)
            for _ in range(fires):
                on_disk.fire(1, lambda rows: None)
            counts.append(on_disk.index.count)
            stored = files_of(on_disk)
            both.on_watermark(5_000)
            assert on_disk.index.count == 10
            assert files_of(on_disk) == stored, "nothing has changed since"
            del both, on_disk
        assert (counts[0], counts[-1]) == (30, 10), "before, while and after they are left behind"


@pytest.mark.parametrize("fires", [0, 1, 9, 12, 15])
def test_what_is_owed_to_a_snapshot_is_not_lost_when_other_keys_are_left_behind(fires: int) -> None:
    """Before it is begun or in its midst; none of the steps of the snapshot is done until it is over."""
    with opened_backends(rows_memory_bytes=1 << 30) as backends:
        both = Both(SPECS["by key and time"], backends)
        both.process([(f"key {number}", 1) for number in range(60)] + [(f"key {number}", 9) for number in range(40)])
        on_disk = both.operators[1]
        on_disk.on_watermark(5_000)
        for _ in range(fires):
            on_disk.fire(1, lambda rows: None)
        sections = on_disk.snapshot()
        both.on_watermark(5_000)
        assert on_disk.index.count == 40, "the others are left behind by now"
        again = both.opened(restored_from(sections), is_on_disk=True)
        passed: list[pa.RecordBatch] = []
        again.process(rows_at([(f"key {number}", 9) for number in range(42)]), passed.append)
        assert [row["k"] for rows in passed for row in rows.to_pylist()] == ["key 40", "key 41"]
        del both, on_disk, again, sections


def files_of(operator: DeduplicateOperator) -> set[str]:
    return {name for section in restored_from(operator.snapshot()) for name in section.files}


def test_keys_that_do_not_fit_are_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with opened_backends(rows_memory_bytes=64 << 10) as backends:
        both = Both(SPECS["for ever"], backends)
        for start in [*range(0, 20_000, 500), *range(0, 20_000, 500)]:
            both.process([(f"key {number}", 0) for number in range(start, start + 500)])
        in_memory, mostly_on_disk = (operator.index.count for operator in both.operators)
        assert (in_memory, mostly_on_disk < 4_000) == (20_000, True)


def test_keys_on_disk_are_forgotten_some_time_after_their_first_row() -> None:
    with opened_backends(rows_memory_bytes=1) as backends:
        both = Both(SPECS["for ten seconds"], backends)
        for at_s in (1, 21, 41):
            for start in range(0, 60, 10):
                both.process([(f"key {number}", at_s) for number in range(start, start + 10)])
            on_disk = both.operators[1]
            assert on_disk.index.count < 40, "of sixty"
            both.on_watermark((at_s + 9) * 1000)
            both.process([(f"key {number}", at_s) for number in range(60)])
            assert sum(entries_of(on_disk)) > 0
            both.on_watermark((at_s + 10) * 1000)
            assert entries_of(on_disk) == (0, 0)
            del on_disk
        del both


def entries_of(operator: DeduplicateOperator) -> tuple[int, int]:
    """On disk: of rows, and of ends."""
    assert operator._on_disk is not None and operator._on_disk._evicted is not None
    evicted = operator._on_disk._evicted
    assert evicted._by_end is not None
    counts = [sum(len([*state.scan(group)]) for group in range(8)) for state in (evicted._state, evicted._by_end)]
    return counts[0], counts[1]
