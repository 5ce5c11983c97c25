"""Keys that are left behind part by part: nothing that is alive is lost, whatever comes in between."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_windows_of_groups import Running, spec_of
from tests.unit.timed_rows import SCHEMA, batch, rows_of
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import aggregate, compaction, deduplicate
from tidegate.operators.build import build_operator
from tidegate.operators.columnar import KeyIndex
from tidegate.operators.compaction import Compaction
from tidegate.operators.contract import TaskContext
from tidegate.plan.nodes import EventTimeKey, ForgetByKey, OutputMode
from tidegate.plan.physical import DeduplicateSpec

COPIED = 7


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_COPIED_KEYS", COPIED)
    monkeypatch.setattr(deduplicate, "_FEW_KEYS", 4)
    monkeypatch.setattr(aggregate, "_FEW_GROUPS", 4)


def keys_of(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["key"])


def test_a_step_copies_a_bounded_number_of_keys_and_the_old_index_stays_in_use() -> None:
    index = KeyIndex([pa.int64()])
    slots = index.find_or_add(keys_of(range(100)))
    live = np.zeros(100, dtype=np.bool_)
    live[slots[::2]] = True
    making = Compaction(index, live)
    for _ in range(7):
        assert making.advance(live) is None
    done = making.advance(live)
    assert done is not None
    assert done.index.find_or_add(keys_of(range(0, 100, 2))).max() == 49
    assert done.index.gather(slice(0, 50))[0].to_pylist() == index.gather(done.slots)[0].to_pylist()
    assert index.find_or_add(keys_of(range(100))).tolist() == slots.tolist()


def test_keys_that_come_or_come_again_meanwhile_are_kept() -> None:
    index = KeyIndex([pa.int64()])
    slots = index.find_or_add(keys_of(range(40)))
    live = np.zeros(40, dtype=np.bool_)
    live[slots[:20]] = True
    making = Compaction(index, live)
    assert making.advance(live) is None
    live[slots[30]] = True
    new = index.find_or_add(keys_of(range(100, 120)))
    live = np.append(live, np.ones(20, dtype=np.bool_))
    while (done := making.advance(live)) is None:
        pass
    assert sorted(done.slots.tolist()) == sorted([*slots[:20].tolist(), int(slots[30]), *new.tolist()])
    assert done.index.gather(slice(0, 41))[0].to_pylist() == index.gather(done.slots)[0].to_pylist()


def test_a_key_that_comes_again_while_forgotten_ones_are_left_behind_passes_once() -> None:
    none: Any = None
    operator = build_operator(DeduplicateSpec(2, 1, ForgetByKey(1), SCHEMA))
    operator.open(TaskContext(TaskId(VertexId(1), 0), 1, 128, KeyGroupRange(0, 128), none, none, none), [])
    out: list[pa.RecordBatch] = []
    operator.process(batch([(str(number), 10 if number < 60 else 90, 0) for number in range(100)]), out.append)
    operator.on_watermark(50_000)
    assert operator.fire(1, out.append)
    again = [(str(number), 90, 0) for number in range(80)]
    out.clear()
    operator.process(batch(again), out.append)
    assert len(rows_of(out)) == 60
    steps = 1
    while operator.fire(1, out.append):
        steps += 1
    assert steps > 40 // COPIED
    out.clear()
    operator.process(batch([(str(number), 90, 0) for number in range(101)]), out.append)
    assert [row[0] for row in rows_of(out)] == ["100"]


@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_groups_change_and_are_stored_while_finished_ones_are_left_behind(mode: OutputMode) -> None:
    running = Running(spec_of(mode, EventTimeKey.WINDOW))
    running.process([(str(number), (0, 10) if number < 60 else (90, 100), 1) for number in range(100)])
    running.operator.on_watermark(50)
    assert running.operator.fire(1, running.out.append)
    stored = running.stored()
    late = [(str(number), (90, 100), 1) for number in range(50, 110)]
    running.process(late)
    while running.operator.fire(1, running.out.append):
        pass
    running.process(late)
    restored = Running(running.spec, stored)
    restored.process(late + late)
    for each in (running, restored):
        each.out.clear() if mode is OutputMode.APPEND else each.flushed()
        each.process([(str(number), (90, 100), 0) for number in range(50, 110)])
        each.advance(200)
        found = {row[0]: row[2] for row in each.taken()}
        assert found == {str(number): 4 if 60 <= number < 100 else 3 for number in range(50, 110)}


def test_in_update_mode_a_barrier_between_two_parts_of_what_is_finished_shows_no_group_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aggregate, "LEAST_FIRED_GROUPS", 10)
    running = Running(spec_of(OutputMode.UPDATE, EventTimeKey.WINDOW))
    running.process([(str(number), (0, 10), 1) for number in range(100)])
    running.operator.on_watermark(50)
    shown: list[Any] = []
    assert running.operator.fire(1, running.out.append)
    assert len(running.out[0]) == 10
    shown += running.taken()
    shown += running.flushed()
    while running.operator.fire(1, running.out.append):
        pass
    shown += running.taken()
    assert sorted(row[0] for row in shown) == sorted(str(number) for number in range(100))
