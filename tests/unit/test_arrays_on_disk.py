"""Groups with arrays leave memory as others do: at the cost of what leaves, and with their values in order."""

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_groups_on_disk import (
    KEY_GROUPS,
    SPECS,
    Subtask,
    _newest,
    _rows_of,
    backends,
    on_disk,
    replace_memory,
    rows_from,
    tiny_steps,
)
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import evicted_rows, parts
from tidegate.operators.accumulators.chains import Chains, ChainsOfNow
from tidegate.operators.aggregate import AggregateOperator
from tidegate.operators.columnar import KeyIndex
from tidegate.operators.contract import TaskContext
from tidegate.operators.evicted_rows import Ends, EvictedRows
from tidegate.plan.key_groups import hash_rows
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import HeapBackends, RocksBackends

__all__ = ["backends", "tiny_steps"]


def valued(spec: AggregateSpec, rows: Sequence[tuple[int, int]], text: str | None = None) -> pa.RecordBatch:
    """Numbers of groups, and values in them."""
    return rows_from(spec, [(0, (number, None), value, text, None) for number, value in rows])


def check_same(subtask: Subtask, numbers: Sequence[int]) -> None:
    """Of these groups, which are brought back for it."""
    subtask.settle()
    for out in subtask.out:
        out.clear()
    subtask.process(valued(subtask.spec, [(number, -1) for number in numbers]))
    in_memory, on_disk = (_newest(_rows_of(out), 2) for out in subtask.settle())
    assert len(in_memory) == len(numbers)
    assert on_disk == in_memory


def test_groups_with_arrays_that_do_not_fit_are_not_in_memory(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    subtask = on_disk(replace_memory(backends, 256 << 10), name="lists in update")
    for start in range(0, 10_000, 500):
        subtask.process(valued(subtask.spec, [(number, number % 7) for number in range(start, start + 500)] * 2))
        subtask.settle()
    in_memory, mostly_on_disk = (operator.index.count for operator in subtask.operators)
    assert (in_memory, mostly_on_disk < 3_000) == (10_000, True)
    check_same(subtask, range(0, 10_000, 10))


def test_a_few_groups_with_long_arrays_leave_memory_too(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    memory_bytes = 256 << 10
    subtask = on_disk(replace_memory(backends, memory_bytes), name="lists in update")
    for number in range(100):
        subtask.process(valued(subtask.spec, [(number, value) for value in range(500)]))
        subtask.settle()
    in_memory, mostly_on_disk = (operator.state_bytes() for operator in subtask.operators)
    held_bytes = subtask.operators[1]._size_bytes()
    assert (in_memory > 4 * memory_bytes, held_bytes < memory_bytes) == (True, True), (in_memory, held_bytes)
    assert mostly_on_disk > held_bytes
    check_same(subtask, range(100))


def test_a_list_keeps_its_order_when_its_group_leaves_and_comes_back(backends: RocksBackends) -> None:
    subtask = on_disk(replace_memory(backends, 1), name="lists in update")
    values = [(at * 7 % 11, at) for at in range(200)]
    for at in range(0, len(values), 5):
        subtask.process(valued(subtask.spec, values[at : at + 5]))
    assert subtask.operators[1].index.count < 11, "some are on disk"
    check_same(subtask, range(11))
    rows = [row for batch in subtask.out[1] for row in batch.to_pylist()]
    expected = {number: [value for group, value in values if group == number] + [-1] for number in range(11)}
    assert {row["c0"]: row["c6"] for row in rows} == expected


def test_groups_with_arrays_that_leave_are_copied_part_by_part(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step reads the entries of those that it writes, and no others."""
    subtask, read = on_disk(backends, name="lists in update"), list[int]()
    operator, found = subtask.operators[1], ChainsOfNow.of
    subtask.process(valued(subtask.spec, [(number, number) for number in range(40)], text="t"))
    subtask.settle()
    replace_memory(backends, 1)
    monkeypatch.setattr(ChainsOfNow, "of", lambda chains, ends: (read.append(len(ends)), found(chains, ends))[1])
    steps = 0
    while operator._on_disk is not None and operator._compaction is None:
        operator._leave_some(operator._on_disk, 0, subtask.out[1].append)
        steps += 1
    assert steps > 10, "a few at a time"
    assert (sum(read), max(read)) == (5 * 40, 2), "for each of the five calls with arrays each group once"
    operator._leave_what_does_not_fit()
    assert operator.index.count == 0
    check_same(subtask, range(40))


def test_a_group_with_arrays_that_changes_while_others_leave_stays(backends: RocksBackends) -> None:
    subtask = on_disk(backends, name="lists in update")
    subtask.process(valued(subtask.spec, [(number, number) for number in range(40)]))
    subtask.settle()
    replace_memory(backends, 1)
    for value in range(25):
        # These come last, with others between: when it is their turn they are not as they were when leaving began.
        subtask.process(valued(subtask.spec, [(number, value) for number in range(30, 40, 2)]))
    for value in range(60):
        # Not in use any more, they leave.
        subtask.process(valued(subtask.spec, [(100 + value, value)]))
    assert subtask.operators[1].index.count < 40
    check_same(subtask, range(40))


def test_large_values_of_groups_that_left_are_not_in_memory(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    memory_bytes = 256 << 10
    subtask = on_disk(replace_memory(backends, memory_bytes))
    for number in range(100):
        subtask.process(valued(subtask.spec, [(number, 1)], text=f"{number} " * 5_000))
        subtask.settle()
    assert subtask.operators[1]._size_bytes() < memory_bytes < subtask.operators[0]._size_bytes()


def test_the_batch_that_values_were_part_of_counts_once(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    subtask = on_disk(backends, name="lists in update")
    rows = valued(subtask.spec, [(number % 10, number) for number in range(4_000)])
    for at in range(0, 4_000, 100):
        subtask.operators[1].process(rows.slice(at, 100), subtask.out[1].append)
    assert subtask.operators[1]._size_bytes() < 4_000 * 200


@pytest.fixture(params=["heap", "rocksdb"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeapBackends | RocksBackends]:
    """With all groups in memory and in a log."""
    opened = (
        HeapBackends(tmp_path, rows_whole_up_to_bytes=0)
        if request.param == "heap"
        else RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
    )
    yield opened
    opened.close()


def logged(
    backends: HeapBackends | RocksBackends, name: str = "lists in update", restored: Sequence[RestoredSection] = ()
) -> AggregateOperator:
    operator = AggregateOperator(SPECS[name])
    key_groups, none = KeyGroupRange(0, KEY_GROUPS), cast(Any, None)
    context = TaskContext(TaskId(VertexId(1), 0), 1, KEY_GROUPS, key_groups, ManualClock(), none, none)
    operator.open(replace(context, open_rows=lambda: backends.open_rows(key_groups)), restored)
    return operator


def with_values(operator: AggregateOperator, groups: Sequence[int], values_each: int) -> None:
    rows = [(number, value) for value in range(values_each) for number in groups]
    operator.process(valued(operator._spec, rows, text="t"), lambda rows: None)


def test_the_barrier_does_as_much_however_many_values_there_are(
    either: HeapBackends | RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    noted: list[int] = []
    ends = Chains.ends
    monkeypatch.setattr(Chains, "ends", lambda chains, owners: (noted.append(len(owners)), ends(chains, owners))[1])

    def copied_bytes(values_each: int) -> int:
        operator = logged(either)
        with_values(operator, range(50), values_each)
        restored_from(operator.snapshot())
        with_values(operator, range(50), 1)
        arrow_bytes = pa.total_allocated_bytes()
        noted.clear()
        tracemalloc.start()
        sections = operator.snapshot()
        found_bytes = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow_bytes
        tracemalloc.stop()
        assert noted == [], "no group is looked at"
        with_values(operator, range(3), 1)
        assert noted == [3] * 5, "of each call those that are about to change, and nothing for each value"
        restored_from(sections)
        assert sum(noted) == 5 * 50, "each group once"
        return found_bytes

    few, many = copied_bytes(2), copied_bytes(400)
    assert many < few + 200 < 5_000, (few, many)


@pytest.mark.parametrize("name", ["lists", "lists in update"])
def test_a_step_of_a_snapshot_encodes_a_bounded_part_of_the_values(
    name: str, either: HeapBackends | RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    operator, read = logged(either, name), list[int]()
    with_values(operator, range(40), 100)
    with_values(operator, [3], 5_000)
    of = ChainsOfNow.of

    def counted(chains: ChainsOfNow, ends: Any) -> Any:
        found = of(chains, ends)
        read.append(len(found.entries) if len(ends) > 1 else 0)
        return found

    monkeypatch.setattr(ChainsOfNow, "of", counted)
    monkeypatch.setattr(parts, "PART_BYTES", 50_000)
    sections = operator.snapshot()
    for section in sections:
        assert section.steps is not None
        for _ in section.steps():
            # Five calls, of which each takes eight bytes and more for a value.
            assert sum(read) < 50_000 / 8
            read.clear()
    again = logged(either, name, restored_from(sections))
    lists = again._calls.results(np.arange(again.index.count))[4]
    assert sorted(map(len, lists.to_pylist())) == [100] * 39 + [5_100]


def test_a_snapshot_of_few_groups_is_encoded_by_their_values_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored whole, as they are on the heap while they take little."""
    monkeypatch.undo()
    operator = AggregateOperator(SPECS["lists in update"])
    none = cast(Any, None)
    operator.open(
        TaskContext(TaskId(VertexId(1), 0), 1, KEY_GROUPS, KeyGroupRange(0, KEY_GROUPS), ManualClock(), none, none), []
    )
    with_values(operator, range(40), 100)
    assert len(operator.snapshot()) == 1
    monkeypatch.setattr(parts, "PART_BYTES", 50_000)
    rows = [len(pa.ipc.open_stream(section.data).read_all()) for section in restored_from(operator.snapshot())]
    assert sum(rows) == 40 and max(rows) <= 5


def evicted(backends: RocksBackends, *, is_in_key: bool) -> EvictedRows:
    schema = pa.schema([("end", pa.int64()), ("n", pa.int64()), ("v", pa.binary())])
    ends = Ends(lambda columns: columns[0].to_numpy().astype(np.int64), is_in_key=is_in_key)
    return EvictedRows(
        backends.open(KeyGroupRange(0, KEY_GROUPS)), schema, key_count=2, max_parallelism=8, ends=ends, restored=[]
    )


def keys_of(numbers: Sequence[int]) -> pa.RecordBatch:
    ends = pa.array([10] * len(numbers), pa.int64())
    return pa.RecordBatch.from_arrays([ends, pa.array(numbers, pa.int64())], names=["end", "n"])


def put_rows(rows: EvictedRows, numbers: Sequence[int], value: bytes) -> None:
    keys = keys_of(numbers)
    rows.put([*keys.columns, pa.array([value] * len(numbers))], hash_rows(keys, 2), most_seen_bytes=1 << 20)


@pytest.mark.parametrize("is_in_key", [True, False])
def test_long_rows_that_have_ended_come_back_by_their_bytes(
    is_in_key: bool, backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(evicted_rows, "READ_BYTES", 100_000)
    rows, found, due_at_once = evicted(backends, is_in_key=is_in_key), list[int](), list[int]()
    put_rows(rows, range(200, 500), b"short")
    put_rows(rows, range(200), b"long" * 5_000)
    while (due := rows.due(np.full(8, 10), range(8), 4_096)) is not None:
        found += due.column("n").to_pylist()
        due_at_once.append(due.get_total_buffer_size())
        rows.remove(due)
    assert sorted(found) == list(range(500))
    assert max(due_at_once) < 3 * 100_000
    assert len(due_at_once) < 80, "and not one by one"


def test_long_rows_of_keys_that_come_again_are_read_by_their_bytes(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(evicted_rows, "READ_BYTES", 100_000)
    rows, index = evicted(backends, is_in_key=True), KeyIndex([pa.int64(), pa.int64()])
    for numbers, value, most, least in (
        (range(40), b"long" * 5_000, 5, 5),
        (range(100, 1_000), b"short", 900, 100),
    ):
        put_rows(rows, numbers, value)
        slots = index.find_or_add(keys_of(numbers))
        found = list(rows.get(index, np.append(slots, index.find_or_add(keys_of([5_000])))))
        assert np.concatenate([each for each, _ in found]).tolist() == slots.tolist()
        assert [row for _, batch in found for row in batch.column("n").to_pylist()] == list(numbers)
        assert max(len(each) for each, _ in found) <= most
        assert len(found) <= len(slots) / least + 8


def test_windows_with_long_arrays_end_a_few_at_a_time(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are in memory or on disk."""
    monkeypatch.undo()
    subtask = on_disk(replace_memory(backends, 64 << 10), name="lists")
    for number in range(60):
        subtask.process(valued(subtask.spec, [(number, value) for value in range(300)], text="t"))
    assert 0 < subtask.operators[1].index.count < 30, "most are on disk"
    monkeypatch.setattr(parts, "PART_BYTES", 100_000)
    monkeypatch.setattr(evicted_rows, "READ_BYTES", 30_000)
    subtask.on_watermark(1_000, fires=1)
    for out in subtask.settle():
        assert sum(batch.num_rows for batch in out) == 60
        assert max(batch.num_rows for batch in out) <= 10, "no batch has the arrays of many"
    in_memory, from_disk = (sorted(_rows_of(out)) for out in subtask.out)
    assert from_disk == in_memory
