"""Groups that changed and are not shown yet: their turn, their pace, and that none is lost wherever groups are."""

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_aggregate import Harness
from tests.unit.test_aggregate import spec_of as plain_spec_of
from tests.unit.test_groups_on_disk import SPECS, Job, Row, Taken, _newest, _rows_of, rows_from, sections_on_disk, steps
from tests.unit.tiny_steps import opened_backends, run_steps, take_ahead, take_tiny_steps
from tidegate.operators import aggregate, changed_groups
from tidegate.operators.changed_groups import EMIT_INTERVAL_MS, SHOWING_MS, ChangedGroups, Pace
from tidegate.state.contract import Section
from tidegate.testing.state_suite import restored_from

MOST = 1 << 16


def taken(changed: ChangedGroups, most: int, now_ms: float) -> list[int]:
    slots: list[int] = changed.take(most, now_ms).tolist()
    return slots


def some_changed(count: int) -> ChangedGroups:
    changed = ChangedGroups(pa.schema([("k", pa.int64())]))
    changed.open(0.0)
    changed.grow_to(count)
    changed.mark(np.arange(count))
    return changed


# -- their turn


def test_a_round_that_was_begun_goes_on_at_once_and_the_next_one_after_a_while() -> None:
    changed = some_changed(5)
    assert changed.due_at_ms == EMIT_INTERVAL_MS
    assert taken(changed, 2, 50.0) == [0, 1], "as a barrier does, before they are due"
    assert changed.due_at_ms == 50.0
    changed.mark(np.array([0]))
    assert taken(changed, 2, 60.0) == [2, 3]
    assert taken(changed, 2, 70.0) == [4]
    assert changed.any, "the first one changed again"
    assert changed.due_at_ms == 70.0 + EMIT_INTERVAL_MS
    assert taken(changed, 2, 80.0) == [0]
    assert not changed.any


def test_what_was_shown_out_of_turn_is_not_shown_again() -> None:
    changed = some_changed(5)
    assert changed.among(np.array([1, 3])).tolist() == [1, 3]
    changed.on_shown(np.array([1, 3]))
    assert changed.among(np.array([1, 2, 3])).tolist() == [2]
    assert taken(changed, 10, 0.0) == [0, 2, 4]


# -- their pace


def paced(pace: Pace, *, group_ms: float, call_ms: float = 0.0, parts: int) -> int:
    for _ in range(parts):
        pace.observe(pace.groups, call_ms + pace.groups * group_ms)
    return pace.groups


def test_it_begins_with_few_groups_and_comes_to_as_many_as_take_about_a_slice() -> None:
    assert Pace(MOST).groups == 16
    assert paced(Pace(MOST), group_ms=1.0, parts=1) == SHOWING_MS
    assert paced(Pace(MOST), group_ms=0.01, parts=8) == pytest.approx(SHOWING_MS / 0.01, rel=0.01)
    assert paced(Pace(MOST), group_ms=0.0, parts=8) == MOST
    assert paced(Pace(MOST), group_ms=10_000.0, parts=3) == 1


def test_what_a_call_costs_whatever_it_shows_is_not_put_down_to_the_groups() -> None:
    assert paced(Pace(MOST), group_ms=0.0001, call_ms=0.5, parts=10) == MOST
    pace = Pace(MOST)
    paced(pace, group_ms=0.0, parts=10)
    pace.observe(3, 0.5)
    assert pace.groups == MOST


def test_of_many_an_eighth_comes_first() -> None:
    pace = Pace(MOST)
    assert pace.probe_groups == 16
    paced(pace, group_ms=0.0, parts=10)
    assert pace.probe_groups == MOST // 8


# -- in snapshots


@pytest.fixture
def _leaves_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier shows a group or two."""
    monkeypatch.setattr(aggregate, "SHOWING_MS", 0.0)
    monkeypatch.setattr(changed_groups, "_FIRST_GROUPS", 2)
    monkeypatch.setattr(changed_groups, "_GROWTH", 1)


@pytest.mark.usefixtures("_leaves_most")
def test_a_snapshot_names_those_that_the_barrier_has_left_as_they_are_then() -> None:
    harness = Harness(plain_spec_of([pa.string()]))
    harness.process([*"abcdef", None], [1] * 7)
    shown = harness.flushed()
    sections = harness.operator.snapshot()
    # They are stored later: by then others have changed, and some were shown.
    harness.process(["a", "x"], [1, 1])
    while harness.operator._changed.any:
        harness.flushed()
    again = Harness(harness.spec, restored_from(sections))
    left = []
    while again.operator._changed.any:
        left += again.flushed()
    assert len(shown) == 2
    assert sorted(shown + left, key=str) == sorted([(key, 1, 1, 1) for key in [*"abcdef", None]], key=str)


@pytest.mark.usefixtures("_leaves_most")
def test_the_one_group_without_keys_is_always_shown_at_the_barrier() -> None:
    harness = Harness(plain_spec_of([]))
    harness.process([1, 2])
    assert harness.flushed() == [(2, 2, 3)]
    again = Harness(harness.spec, restored_from(harness.operator.snapshot()))
    assert again.flushed() == []


@dataclass(frozen=True)
class TakenWith:
    """A snapshot with what was shown before it: the newest of each group, in memory and on disk."""

    taken: Taken
    newest: tuple[dict[Row, Row], dict[Row, Row]]


class SlowJob(Job):
    """As `Job`, where a barrier shows a group or two and the next snapshots have the others."""

    newest: tuple[dict[Row, Row], dict[Row, Row]] = ({}, {})

    def give(self, most: int) -> None:
        for subtask in self.subtasks:
            subtask.clock.advance(EMIT_INTERVAL_MS)
            for operator, out in zip(subtask.operators, subtask.out, strict=True):
                operator.give(most, out.append)

    def check(self) -> None:
        """Once all are shown, both have shown the same newest rows."""
        for subtask in self.subtasks:
            for operator, out in zip(subtask.operators, subtask.out, strict=True):
                while operator._changed.any or operator.fire(1, out.append):
                    operator.before_barrier(out.append)
            assert subtask.operators[1].is_consistent()
        self._note_shown()
        assert self.newest[1] == self.newest[0]

    def take(self) -> TakenWith:
        for subtask in self.subtasks:
            for operator, out in zip(subtask.operators, subtask.out, strict=True):
                operator.before_barrier(out.append)
        self._note_shown()
        sections = [subtask.snapshot() for subtask in self.subtasks]
        own = [subtask.key_groups for subtask in self.subtasks]
        return TakenWith(Taken(sections, own, self.watermark_ms), (dict(self.newest[0]), dict(self.newest[1])))

    def go_back(self, taken: TakenWith, parallelism: int, *, from_heap: bool) -> None:
        self.restore(taken.taken, parallelism, from_heap=from_heap)
        self.newest = dict(taken.newest[0]), dict(taken.newest[0 if from_heap else 1])

    def _note_shown(self) -> None:
        for subtask in self.subtasks:
            for newest, out in zip(self.newest, subtask.out, strict=True):
                newest |= _newest(_rows_of(out), self.spec.key_count)
                out.clear()


@pytest.fixture
def _tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(aggregate, "_FEW_GROUPS", 2)


@pytest.mark.usefixtures("_leaves_most", "_tiny_steps")
@pytest.mark.parametrize("name", ["update", "update of windows"])
@settings(max_examples=60, deadline=None)
@given(
    drawn=steps,
    given_between=st.lists(st.sampled_from([0, 0, 1, 2, 5, 20]), min_size=1, max_size=8),
    memory_bytes=st.sampled_from([1, 3000, 1 << 30, None]),
)
def test_groups_that_a_barrier_leaves_are_shown_behind_it_wherever_they_are(
    name: str, drawn: list[Any], given_between: list[int], memory_bytes: int | None
) -> None:
    with opened_backends(rows_memory_bytes=memory_bytes) as backends:
        job = SlowJob(SPECS[name], backends)
        job.newest = {}, {}
        last: TakenWith | None = None
        for (kind, what), most in zip(drawn, cycle(given_between), strict=False):
            if most:
                job.give(most)
            match kind:
                case "rows":
                    job.process(rows_from(job.spec, what))
                case "watermark":
                    job.on_watermark(what[0], fires=what[1])
                case "check":
                    job.check()
                case "snapshot":
                    last = job.take()
                    run_steps(_on_disk(last), what)
                case "steps":
                    run_steps(_on_disk(last), what)
                case "ahead":
                    for subtask in job.subtasks:
                        take_ahead(subtask.operators[1], what)
                case "restore":
                    parallelism, from_heap, is_late = what
                    last = last if is_late and last is not None else job.take()
                    job.go_back(last, parallelism, from_heap=from_heap)
        job.check()
        job.on_watermark(1 << 40, fires=0)
        job.check()
        del job, last


def at_second(job: Job, second: int, numbers: range) -> None:
    job.process(rows_from(job.spec, [(second, (number, None), 1, None, None) for number in numbers]))


@pytest.mark.usefixtures("_leaves_most", "_tiny_steps")
def test_no_group_leaves_memory_while_finished_ones_wait_to_be_shown() -> None:
    """They are known by their slots, which others would have then."""
    with opened_backends(rows_memory_bytes=1) as backends:
        job = SlowJob(SPECS["update of windows"], backends)
        job.newest = {}, {}
        at_second(job, 0, range(12))
        at_second(job, 9, range(12))
        job.on_watermark(1_000, fires=1)
        (subtask,) = job.subtasks
        assert all(operator._ending is not None for operator in subtask.operators)
        for number in range(20, 60):
            job.give(50)
            at_second(job, 9, range(number, number + 1))
        job.check()
        job.on_watermark(1 << 40, fires=0)
        job.check()
        assert len(job.newest[0]) == 12 + 12 + 40
        del job, subtask


@pytest.mark.usefixtures("_leaves_most")
def test_what_is_finished_comes_first_and_others_are_due_when_it_has_gone() -> None:
    """Else what is finished would be taken to wait for them."""
    with opened_backends(rows_memory_bytes=1 << 30) as backends:
        job = SlowJob(SPECS["update of windows"], backends)
        job.newest = {}, {}
        at_second(job, 0, range(12))
        at_second(job, 9, range(3))
        operator, out = job.subtasks[0].operators[0], job.subtasks[0].out[0]
        job.subtasks[0].clock.advance(EMIT_INTERVAL_MS)
        assert operator.holds_rows()
        operator.on_watermark(1_000)
        parts = 0
        while operator.fire(1, out.append):
            assert not operator.holds_rows()
            parts += 1
        assert parts >= 12 // 2 - 1
        assert operator.holds_rows()
        assert operator.give(100, out.append) == 3
        del job, operator, out


def _on_disk(last: TakenWith | None) -> list[Section]:
    return sections_on_disk(None if last is None else last.taken)
