"""Operators with all rows in memory, on the heap: stored whole while they are few, by what changed from then on."""

import logging
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit import test_groups_on_disk as groups
from tests.unit import test_joins_on_disk as joins
from tests.unit import test_keys_on_disk as seen_keys
from tests.unit import test_sessions_on_disk as sessions
from tests.unit.test_groups_on_disk import stored_bytes
from tests.unit.test_stream_join import join
from tests.unit.timed_rows import batch
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import aggregate, compaction, deduplicate, stream_join
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import OperatorSpec
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import HeapBackends, RocksBackends, StateBackends

ALL = KeyGroupRange(0, 8)
MANY, FEW = 4_000, 40
WHOLE_UP_TO_BYTES = 20_000

Rows = Callable[[Sequence[int]], pa.RecordBatch]


# Each with rows of its own for numbers.
OPERATORS: dict[str, tuple[OperatorSpec, Rows]] = {
    "groups": (groups.SPECS["update"], lambda numbers: groups.numbered(groups.SPECS["update"], numbers)),
    "windows": (groups.SPECS["append"], lambda numbers: groups.numbered(groups.SPECS["append"], numbers)),
    "lists": (groups.SPECS["lists"], lambda numbers: groups.numbered(groups.SPECS["lists"], numbers)),
    "keys": (seen_keys.SPECS["for ever"], lambda numbers: seen_keys.rows_at([(f"k{at}", 0) for at in numbers])),
    "timed keys": (
        seen_keys.SPECS["by key and time"],
        lambda numbers: at_seconds("timed keys", [(10, number) for number in numbers]),
    ),
    "sessions": (sessions.APPEND, lambda numbers: sessions.batch_of(sessions.APPEND, sessions.keys(numbers))),
    "join": (join(JoinType.FULL_OUTER), lambda numbers: batch(joins.keys(numbers))),
}


class Running:
    def __init__(self, name: str, backends: StateBackends, restored: Sequence[RestoredSection] = ()) -> None:
        spec, self._rows = OPERATORS[name]
        self.operator: Any = build_operator(spec)
        none: Any = None
        context = TaskContext(
            TaskId(VertexId(1), 0),
            1,
            8,
            ALL,
            ManualClock(),
            none,
            none,
            open_rows=lambda: backends.open_rows(ALL),
            open_runs=lambda: backends.open_runs(ALL),
        )
        self.operator.open(context, restored)

    def process(self, numbers: Sequence[int]) -> None:
        self.operator.process(self._rows(numbers), lambda rows: None)

    def snapshot(self) -> list[Section]:
        sections: list[Section] = self.operator.snapshot()
        return sections

    def stored(self) -> list[RestoredSection]:
        return restored_from(self.snapshot())


def in_memory(name: str, restored: Sequence[RestoredSection], folder: Path) -> list[Any]:
    """What one that is restored from these stores whole, row by row."""
    backends = HeapBackends(folder)
    try:
        sections = Running(name, backends, restored).stored()
    finally:
        backends.close()
    assert not any(section.files for section in sections)
    rows = [row for section in sections for rows in pa.ipc.open_stream(section.data) for row in rows.to_pylist()]
    return sorted(rows, key=repr)


def in_log(sections: Sequence[RestoredSection]) -> bool:
    names = {section.name for section in sections}
    assert ROW_LOG_SECTION not in names or names == {ROW_LOG_SECTION}
    return ROW_LOG_SECTION in names


@pytest.fixture
def heap(tmp_path: Path) -> Iterator[HeapBackends]:
    backends = HeapBackends(tmp_path, rows_whole_up_to_bytes=WHOLE_UP_TO_BYTES)
    yield backends
    backends.close()


@pytest.mark.parametrize("name", OPERATORS)
def test_few_rows_are_stored_whole_and_many_by_what_changed(name: str, heap: HeapBackends, tmp_path: Path) -> None:
    running, whole, known = Running(name, heap), Running(name, HeapBackends(tmp_path)), set[str]()
    for numbers, expected in ((range(10), False), (range(10, MANY), True)):
        for each in (running, whole):
            each.process(numbers)
        stored = running.stored()
        assert in_log(stored) == expected
        assert in_memory(name, stored, tmp_path) == in_memory(name, whole.stored(), tmp_path)
    all_bytes = stored_bytes(stored, known)
    for each in (running, whole):
        each.process(range(MANY, MANY + FEW))
        each.process(range(FEW))
    changed = running.stored()
    assert 0 < stored_bytes(changed, known) < all_bytes / 10
    assert in_memory(name, changed, tmp_path) == in_memory(name, whole.stored(), tmp_path)
    assert stored_bytes(running.stored(), known) == 0, "nothing changed"


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backend", ["heap, by what changed", "heap, whole", "rocksdb"])
def test_either_backend_goes_on_from_a_log_of_the_heap(
    name: str, backend: str, heap: HeapBackends, tmp_path: Path
) -> None:
    running = Running(name, heap)
    running.process(range(MANY))
    stored = running.stored()
    backends: StateBackends
    match backend:
        case "heap, by what changed":
            backends = HeapBackends(tmp_path, rows_whole_up_to_bytes=WHOLE_UP_TO_BYTES)
        case "heap, whole":
            backends = HeapBackends(tmp_path)
        case _:
            backends = RocksBackends(tmp_path, memory_bytes=8 << 20)
    again = Running(name, backends, stored)
    for each in (running, again):
        each.process(range(MANY // 2, MANY + FEW))
    sections = again.stored()
    assert in_log(sections) == (backend != "heap, whole")
    assert in_memory(name, sections, tmp_path) == in_memory(name, running.stored(), tmp_path)
    if backend == "heap, whole":
        del running, stored, sections
        heap.close()
        assert list(tmp_path.rglob("*.rows")) == [], "nobody needs them any more"
    backends.close()


@pytest.mark.parametrize("name", OPERATORS)
def test_without_a_usable_disk_rows_are_stored_whole_and_one_warning_says_so(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "local").write_text("a file, not a folder")
    running = Running(name, HeapBackends(tmp_path / "local", rows_whole_up_to_bytes=WHOLE_UP_TO_BYTES))
    whole = Running(name, HeapBackends(tmp_path))
    for numbers in (range(MANY), range(FEW)):
        for each in (running, whole):
            each.process(numbers)
        stored = running.stored()
        assert not in_log(stored)
        assert in_memory(name, stored, tmp_path) == in_memory(name, whole.stored(), tmp_path)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "State is stored whole from now on" in caplog.text


@pytest.mark.parametrize("name", OPERATORS)
def test_a_disk_that_is_full_costs_one_checkpoint(
    name: str, heap: HeapBackends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, whole = Running(name, heap), Running(name, HeapBackends(tmp_path))
    for each in (running, whole):
        each.process(range(MANY))
    running.stored()
    for each in (running, whole):
        each.process(range(MANY - FEW, MANY + FEW))

    def full(file: StepwiseFile, pieces: Pieces | None) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(StepwiseFile, "_write", full)
    with pytest.raises(DidNotHappen, match="No space left"):
        running.stored()
    monkeypatch.undo()
    for each in (running, whole):
        each.process(range(MANY, MANY + 2 * FEW))
    stored = running.stored()
    assert not in_log(stored)
    assert in_memory(name, stored, tmp_path) == in_memory(name, whole.stored(), tmp_path)
    assert list(tmp_path.rglob("*.rows")) == []
    if name == "join":
        runs = running.operator._left.store.runs
        assert [run.numbers for run in runs] == [None] * len(runs), "nor is noted what nobody will ask for"


@pytest.mark.parametrize("name", ["groups", "keys"])
def test_what_is_owed_to_a_checkpoint_is_as_it_was_also_if_the_next_one_finds_the_log_given_up(
    name: str, heap: HeapBackends, tmp_path: Path
) -> None:
    running, whole = Running(name, heap), Running(name, HeapBackends(tmp_path))
    for each in (running, whole):
        each.process(range(MANY))
    owed, expected = running.snapshot(), whole.stored()
    running.operator._store.log._whole_up_to_bytes = inf
    assert not in_log(running.stored())
    running.process(range(MANY + FEW))
    assert in_memory(name, restored_from(owed), tmp_path) == in_memory(name, expected, tmp_path)


def test_a_log_of_a_join_is_not_begun_while_rows_wait_to_be_looked_at(
    heap: HeapBackends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has met a partner is noted with what was found before the log was there."""
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", 1)
    running, whole = Running("join", heap), Running("join", HeapBackends(tmp_path))
    for each in (running, whole):
        each.process(range(MANY))
        each.operator.process_right(batch(joins.keys(range(FEW))), lambda rows: None)
        assert each.operator.holds_rows()
        assert not in_log(each.stored())
        while each.operator.give(100, lambda rows: None):
            pass
    stored = running.stored()
    assert in_log(stored)
    assert in_memory("join", stored, tmp_path) == in_memory("join", whole.stored(), tmp_path)


def at_seconds(name: str, rows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """Of seconds and numbers, each a group or a key that ends by event time."""
    if name == "windows":
        spec = groups.SPECS["append"]
        return groups.rows_from(spec, [(at, (number, None), 1, None, None) for at, number in rows])
    return seen_keys.rows_at([(f"k{number}", at) for at, number in rows])


@pytest.mark.parametrize("fires", range(0, 14, 2))
@pytest.mark.parametrize("name", ["windows", "timed keys"])
def test_a_log_is_begun_and_given_up_while_others_are_left_behind(
    name: str, fires: int, heap: HeapBackends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that stay get other numbers: those of the log too, if it is there."""
    for module, few in ((aggregate, "_FEW_GROUPS"), (deduplicate, "_FEW_KEYS")):
        monkeypatch.setattr(module, few, 2)
    monkeypatch.setattr(compaction, "MOST_COPIED_KEYS", 100)
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", 4096)
    rounds = [[(1, number) for number in range(600)] + [(6, number) for number in range(400)]]
    rounds.append([(10, number) for number in range(300)])
    for first, then in ((inf, 0), (0, inf)):
        running, whole = Running(name, heap), Running(name, HeapBackends(tmp_path))
        log = running.operator._store.log
        log._whole_up_to_bytes = first
        for rows, watermark_ms, left in zip(rounds, (5_000, 9_000), (400, 300), strict=True):
            for each in (running, whole):
                each.operator.process(at_seconds(name, rows), lambda rows: None)
                each.stored()
                each.operator.on_watermark(watermark_ms)
                for _ in range(fires):
                    each.operator.fire(1, lambda rows: None)
            log._whole_up_to_bytes = then
            for each in (running, whole):
                each.snapshot()
                while each.operator.fire(1, lambda rows: None):
                    pass
                assert each.operator.index.count == left
            assert in_memory(name, running.stored(), tmp_path) == in_memory(name, whole.stored(), tmp_path)
