"""Many groups that are finished at once: found and given out in bounded parts, the earliest first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import expiry
from tidegate.operators.contract import TaskContext
from tidegate.operators.due_slots import DueSlots
from tidegate.operators.expiry import Expiry, Finished
from tidegate.protocol.watermarks import KeyGroupFloors

MS = 1000


@given(
    runs=st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=6),
    most=st.integers(1, 40),
)
@settings(max_examples=200, deadline=None)
def test_due_slots_are_given_out_by_their_ends_never_more_than_asked_for(runs: list[list[int]], most: int) -> None:
    due, ends = DueSlots(), {}
    for run in runs:
        slots = np.arange(len(ends), len(ends) + len(run))
        ends |= dict(zip(slots.tolist(), run, strict=True))
        due.add(slots, np.array(run, dtype=np.int64))
    given_out: list[int] = []
    while not due.is_empty():
        part = due.take(most)
        # Each run may give one, however few are asked for.
        assert 0 < len(part) <= max(most, len(runs))
        given_out += part.tolist()
    assert sorted(given_out) == sorted(ends)
    assert [ends[slot] for slot in given_out] == sorted(ends.values())


class Looking:
    """Groups that end at so many ms, looked through in small parts."""

    def __init__(self, ends_ms: list[int], floors: KeyGroupFloors | None = None) -> None:
        none: Any = None
        self.expiry = Expiry()
        context = TaskContext(TaskId(VertexId(1), 0), 1, 4, KeyGroupRange(0, 4), none, none, none)
        self.expiry.open(context if floors is None else TaskContext(*_fields(context), floors=floors))
        self.watch(0, ends_ms)
        self.seen: list[int] = []

    def watch(self, first: int, ends_ms: list[int]) -> None:
        slots = np.arange(first, first + len(ends_ms))
        self.expiry.watch(slots, np.array(ends_ms, dtype=np.int64) * MS, first + len(ends_ms))

    def hashes(self, slots: slice | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = np.zeros(len(self.expiry.live), dtype=np.uint64)[slots]
        self.seen.append(len(found))
        return found

    def next(self, most: int = 1000) -> Finished:
        found = self.expiry.finished(most, self.hashes)
        self.expiry.end(found.slots)
        return found

    def rest(self, most: int = 1000) -> list[int]:
        slots: list[int] = []
        while True:
            found = self.next(most)
            slots += found.slots.tolist()
            if not found.has_more:
                return slots


def _fields(context: TaskContext) -> tuple[Any, ...]:
    names = ("task", "parallelism", "max_parallelism", "key_groups", "clock", "user_code", "open_state")
    return tuple(getattr(context, name) for name in names)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MOST_FOUND", 10)
    monkeypatch.setattr(expiry, "MOST_LOOKED_AT", 40)


def test_a_look_at_many_groups_takes_several_calls_and_gives_the_earliest_first() -> None:
    looking = Looking([100 - number for number in range(100)])
    looking.expiry.on_watermark(1000)
    calls = [looking.next(most=10) for _ in range(10)]
    assert [len(found.slots) for found in calls[:9]] == [0] * 9
    assert all(found.has_more for found in calls)
    assert [*calls[9].slots.tolist(), *looking.rest()] == list(range(99, -1, -1))


def test_groups_that_are_not_due_are_passed_many_at_a_time() -> None:
    looking = Looking([5000] * 100 + [1])
    looking.expiry.on_watermark(1000)
    assert [looking.next().has_more for _ in range(3)] == [True, True, False]
    assert looking.expiry.live.tolist() == [True] * 100 + [False]


def test_nothing_is_looked_at_before_the_first_group_ends() -> None:
    looking = Looking([5000] * 100)
    looking.expiry.on_watermark(1000)
    assert not looking.next().has_more
    assert not looking.expiry.is_giving_out()


def test_event_time_that_moves_during_a_look_finishes_what_was_passed_already() -> None:
    looking = Looking([5000, *[1] * 99])
    looking.expiry.on_watermark(1000)
    assert looking.next().has_more
    looking.expiry.on_watermark(6000)
    assert sorted(looking.rest()) == list(range(100))


def test_groups_that_come_during_a_look_are_found_when_they_end() -> None:
    looking = Looking([1] * 50)
    looking.expiry.on_watermark(1000)
    assert looking.next().has_more
    looking.watch(50, [2000, 3000])
    assert sorted(looking.rest()) == list(range(50))
    looking.expiry.on_watermark(2000)
    assert looking.rest() == [50]
    looking.expiry.on_watermark(3000)
    assert looking.rest() == [51]


def test_a_group_whose_end_was_moved_while_it_waited_is_not_finished() -> None:
    looking = Looking([1] * 20)
    looking.expiry.on_watermark(1000)
    assert looking.next(most=2).has_more
    assert len(looking.next(most=2).slots) == 2
    looking.watch(19, [9000])
    assert 19 not in looking.rest(most=2)
    looking.expiry.on_watermark(9000)
    assert looking.rest() == [19]


def test_with_floors_a_look_comes_to_its_end_too() -> None:
    looking = Looking([500] * 30 + [5000] * 30, floors=KeyGroupFloors(((KeyGroupRange(0, 4), 700),)))
    looking.expiry.on_watermark(100)
    assert sorted(looking.rest()) == list(range(30))
    assert looking.rest() == []
    assert max(looking.seen) <= 30
