"""Groups with arrays leave memory as others do: at the cost of what leaves, and with their values in order."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.unit.test_groups_on_disk import (
    Subtask,
    _newest,
    _rows_of,
    backends,
    on_disk,
    replace_memory,
    rows_from,
    tiny_steps,
)
from tidegate.operators.accumulators.chains import ChainsOfNow
from tidegate.plan.physical import AggregateSpec
from tidegate.worker.state_backends import RocksBackends

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
