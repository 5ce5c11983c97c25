"""Keys that are left behind part by part: nothing that is alive is lost, whatever comes in between."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_windows_of_groups import Running, merged, spec_of
from tests.unit.timed_rows import SCHEMA, batch, rows_of
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import aggregate, compaction, deduplicate, session_aggregate, session_compaction
from tidegate.operators.build import build_operator
from tidegate.operators.columnar import GrowingArray, KeyIndex
from tidegate.operators.compaction import Compacted, Compaction, KeptArrays
from tidegate.operators.contract import TaskContext
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import EventTimeKey, ForgetByKey, OutputMode
from tidegate.plan.physical import DeduplicateSpec

COPIED = 7


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_COPIED_KEYS", COPIED)
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", COPIED * 8)
    monkeypatch.setattr(session_compaction, "MOST_COPIED_BYTES", COPIED * 8)
    monkeypatch.setattr(session_compaction, "MOST_LINKED_SESSIONS", COPIED)
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 4)
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
    for _ in range(8):
        assert making.advance(lambda: live) is None
    done = making.advance(lambda: live)
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
    assert making.advance(lambda: live) is None
    live[slots[30]] = True
    new = index.find_or_add(keys_of(range(100, 120)))
    live = np.append(live, np.ones(20, dtype=np.bool_))
    while (done := making.advance(lambda: live)) is None:
        pass
    assert sorted(done.slots.tolist()) == sorted([*slots[:20].tolist(), int(slots[30]), *new.tolist()])
    assert done.index.gather(slice(0, 41))[0].to_pylist() == index.gather(done.slots)[0].to_pylist()


def numbered(dtype: Any, *, width: int | None = None) -> GrowingArray[Any]:
    array: GrowingArray[Any] = GrowingArray(dtype, width=width)
    array.append(np.arange(100 * (width or 1)).reshape((100, width) if width else (100,)) % 100)
    return array


def copied_counts(arrays: Sequence[GrowingArray[Any]], making: Compaction, live: Any) -> tuple[Compacted, list[int]]:
    """What the whole of it gives, and how many bytes of values each step copied."""
    seen: list[int] = []
    copy_part = KeptArrays._copy_part
    with pytest.MonkeyPatch.context() as patched:

        def counting(kept: KeptArrays, most_bytes: int) -> int:
            seen[-1] += (count := copy_part(kept, most_bytes))
            return count

        patched.setattr(KeptArrays, "_copy_part", counting)
        while seen.append(0) is None and (done := making.advance(lambda: live)) is None:
            pass
    return done, seen


def test_a_step_copies_a_bounded_part_of_what_stands_by_slot() -> None:
    index = KeyIndex([pa.int64()])
    index.find_or_add(keys_of(range(100)))
    arrays = [numbered(np.int64), numbered(np.uint8), numbered(np.int32, width=2)]
    before = [array.used.copy() for array in arrays]
    live = np.arange(100) % 3 > 0
    done, copied_bytes = copied_counts(arrays, Compaction(index, live, arrays), live)
    assert max(copied_bytes) <= COPIED * 8 + 8, "a value is copied whole"
    assert sum(copied_bytes) == np.count_nonzero(live) * (8 + 1 + 8)
    assert all((array.used == old).all() for array, old in zip(arrays, before, strict=True)), "still in use"
    done.values.put_in_place()
    for array, old in zip(arrays, before, strict=True):
        assert (array.used == old[done.slots]).all()
        array.grow_to(90)
        assert not array.used[done.index.count :].any()


def test_values_that_change_meanwhile_are_copied_anew_and_in_one_step_if_they_do_too_often() -> None:
    index = KeyIndex([pa.int64()])
    index.find_or_add(keys_of(range(100)))
    values = numbered(np.int64)
    live = np.ones(100, dtype=np.bool_)
    making = Compaction(index, live, [values])
    done, changes = None, 0
    while done is None:
        making.values_changed()
        values.used[0] = changes = changes + 1
        done = making.advance(lambda: live)
    keys_steps = 100 // COPIED + 1
    assert changes == keys_steps + compaction.MOST_BEGINNINGS + 1
    done.values.put_in_place()
    assert values.used.tolist() == [changes, *range(1, 100)]


@pytest.mark.parametrize("steps_before", [1, 5, 7, 8, 9, 11])
def test_a_key_that_comes_again_while_forgotten_ones_are_left_behind_passes_once(steps_before: int) -> None:
    none: Any = None
    operator = build_operator(DeduplicateSpec(2, 1, ForgetByKey(1), SCHEMA))
    operator.open(TaskContext(TaskId(VertexId(1), 0), 1, 128, KeyGroupRange(0, 128), none, none, none), [])
    out: list[pa.RecordBatch] = []
    operator.process(batch([(str(number), 10 if number < 60 else 90, 0) for number in range(100)]), out.append)
    operator.on_watermark(50_000)
    for _ in range(steps_before):
        assert operator.fire(1, out.append)
    again = [(str(number), 90, 0) for number in range(80)]
    out.clear()
    operator.process(batch(again), out.append)
    assert len(rows_of(out)) == 60
    steps = steps_before
    while operator.fire(1, out.append):
        steps += 1
    assert steps > 2 * (100 // COPIED), "keys, then what stands beside them"
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


@pytest.mark.parametrize("given_before", [0, 3, 12, 30])
@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_groups_that_change_at_any_step_of_it_have_their_newest_values(mode: OutputMode, given_before: int) -> None:
    running = Running(spec_of(mode, EventTimeKey.WINDOW))
    running.process([(str(number), (0, 10) if number < 60 else (90, 100), 1) for number in range(100)])
    running.operator.on_watermark(50)
    for _ in range(given_before):
        running.operator.fire(1, running.out.append)
    running.process([(str(number), (90, 100), 1) for number in range(50, 110)])
    shown = running.flushed()
    while running.operator.fire(1, running.out.append):
        pass
    shown += running.flushed()
    running.advance(200)
    last = {row[0]: row[2] for row in shown + running.taken() if row[1] == (90, 100)}
    assert last == {str(number): 2 if 60 <= number < 100 else 1 for number in range(50, 110)}


def test_groups_that_were_shown_while_finished_ones_are_left_behind_are_not_shown_again() -> None:
    def begun(steps: int) -> Running:
        running = Running(spec_of(OutputMode.UPDATE, EventTimeKey.WINDOW))
        rows = [(str(number), (0, 10) if number < 61 else (90, 100), 1) for number in range(120)]
        running.process(rows)
        running.operator.on_watermark(50)
        for _ in range(steps):
            assert running.operator.fire(1, running.out.append)
        return running

    steps = 1
    running = begun(0)
    while running.operator.fire(1, running.out.append):
        steps += 1
    for left in range(1, 10):
        running = begun(steps - left)
        assert len(running.flushed()) == 120
        while running.operator.fire(1, running.out.append):
            pass
        running.process([("100", (90, 100), 1)])
        assert [row[0] for row in running.flushed()] == ["100"]


class Sessions:
    """Half of the sessions are over; each of the keys that are left has two."""

    def __init__(self) -> None:
        self.running = Running(spec_of(OutputMode.APPEND, EventTimeKey.SESSION))
        over = [(f"over {number}", (0, 10), 1) for number in range(150)]
        self.left = [
            (f"left {number}", (start, start + 10), start + number) for start in (80, 95) for number in range(50)
        ]
        self.running.process([*over[:75], *self.left, *over[75:]])
        self.running.operator.on_watermark(50)

    def fire(self) -> bool:
        return self.running.operator.fire(1, self.running.out.append)


def test_sessions_that_are_over_are_left_behind_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    added: list[int] = []
    add = session_compaction.Sessions.add_closed_up

    def counting(self: Any, keys: Any, starts_us: Any) -> None:
        added.append(len(keys))
        add(self, keys, starts_us)

    monkeypatch.setattr(session_compaction.Sessions, "add_closed_up", counting)
    before_bytes = sessions.running.operator.state_bytes()
    steps = 1
    while sessions.fire():
        steps += 1
    # Keys in use, keys, two arrays of ends and flags, of counts and sums, their numbers, sessions.
    assert steps > 5 * (100 // COPIED)
    assert max(added) == COPIED and sum(added) == 100
    assert sessions.running.operator.state_bytes() < before_bytes / 2
    assert len(sessions.running.taken()) == 150
    between = [(f"left {number}", (89, 96), 1) for number in range(50)]
    sessions.running.process([*between, ("over 3", (60, 70), 5)])
    sessions.running.advance(1000)
    expected = [(f"left {n}", (80, 105), 3, 176 + 2 * n, tuple(sorted((80 + n, 95 + n, 1)))) for n in range(50)]
    assert sessions.running.taken() == sorted([*expected, ("over 3", (60, 70), 1, 5, (5,))])


@pytest.mark.parametrize("steps_before", [1, 3, 20, 40, 60, 85])
def test_sessions_that_change_or_are_stored_at_any_step_of_it_stay_what_they_are(steps_before: int) -> None:
    sessions = Sessions()
    for _ in range(steps_before):
        sessions.fire()
    sessions.running.taken()
    stored = sessions.running.stored()
    new = [("left 7", (90, 95), 1), ("new", (60, 70), 2), ("left 8", (130, 140), 3)]
    halves = [Running(sessions.running.spec, stored, KeyGroupRange(*part)) for part in ((0, 50), (50, 128))]
    expected = sorted(merged([*sessions.left, *new]))
    sessions.running.process(new)
    sessions.running.advance(1000)
    assert [row for row in sessions.running.taken() if not row[0].startswith("over")] == expected
    found = []
    for half in halves:
        own = half.context.key_groups
        half.process([row for row in new if own.first <= key_group_of_key(row[0]) < own.last])
        half.advance(1000)
        found += [row for row in half.taken() if not row[0].startswith("over")]
    assert sorted(found) == expected


def test_sessions_that_change_at_every_step_are_left_behind_at_last() -> None:
    sessions = Sessions()
    steps = 0
    while sessions.fire():
        steps += 1
        sessions.running.process([(f"left {steps % 50}", (80, 90), 0)])
        assert steps < 100
    assert len(sessions.running.taken()) == 150
    sessions.running.advance(1000)
    assert len(sessions.running.taken()) == 100


def test_slots_of_sessions_that_became_part_of_others_are_used_again() -> None:
    running = Running(spec_of(OutputMode.COMPLETE, EventTimeKey.SESSION))
    apart = [("a", (start, start + 10), start) for start in range(0, 2000, 20)]
    running.process(apart)
    before_bytes = running.operator.state_bytes()
    for at in range(10):
        running.process([("a", (0, 2000), 1)])
        assert len(running.flushed()) == 1 + 9 * at
        others = [("b", (start, start + 10), at) for start in range(at * 10_000, at * 10_000 + 180, 20)]
        running.process(others)
        assert len(running.flushed()) == 1 + 9 * (at + 1)
    # With what is nobody's of the values that were collected, of which a few stay.
    assert running.operator.state_bytes() < before_bytes + 100 * 100


def key_group_of_key(key: str) -> int:
    return int(key_group_of(hash_rows(pa.RecordBatch.from_pydict({"k": [key]}), 1), 128)[0])
