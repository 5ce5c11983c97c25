"""Blocks of slots in which something may be marked: whoever takes marks finds each of them, and looks at few others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators import block_marks
from tidegate.operators.block_marks import BLOCK_SLOTS, LEAST_SLOTS, BlockMarks
from tidegate.operators.columnar import GrowingArray

BIT, OTHER_BIT = 8, 2


class Marked:
    """Slots with a bit, as an owner keeps them."""

    def __init__(self, slot_count: int) -> None:
        self.flags: GrowingArray[np.uint8] = GrowingArray(np.uint8)
        self.marks = BlockMarks(self.flags, BIT)
        self.grow_to(slot_count)

    def grow_to(self, slot_count: int) -> None:
        self.flags.grow_to(slot_count)
        self.marks.grow_to(slot_count)

    def mark(self, slots: list[int]) -> None:
        self.flags.used[slots] |= BIT
        self.marks.mark(np.array(slots, dtype=np.int64))

    def take(self, start: int, most: int) -> tuple[list[int], int]:
        slots, stop = self.marks.take(start, most)
        self.flags.used[slots] &= ~np.uint8(BIT)
        return slots.tolist(), stop

    def take_round(self, most: int) -> list[int]:
        found: list[int] = []
        stop = 0
        while stop < self.flags.count:
            some, stop = self.take(stop, most)
            found += some
        return found


@pytest.mark.parametrize("slot_count", [100, LEAST_SLOTS + 5])
def test_what_is_marked_is_taken_once_in_order(slot_count: int) -> None:
    marked = Marked(slot_count)
    marked.take_round(slot_count)
    marked.flags.used[:] |= OTHER_BIT
    marked.mark([slot_count - 1, 17, 3, 17])
    assert not marked.marks.is_empty()
    assert marked.take_round(2) == [3, 17, slot_count - 1]
    assert marked.marks.is_empty()
    assert marked.take_round(2) == []
    assert (marked.flags.used == OTHER_BIT).all()


def test_of_few_slots_one_marked_among_all_is_not_missed() -> None:
    marked = Marked(LEAST_SLOTS - 1)
    marked.mark([LEAST_SLOTS // 2 + BLOCK_SLOTS])
    assert not marked.marks.is_empty()
    assert marked.take_round(1000) == [LEAST_SLOTS // 2 + BLOCK_SLOTS]


def test_what_was_marked_while_slots_were_few_is_found_when_they_are_many() -> None:
    marked = Marked(40)
    marked.mark([5, 39])
    marked.grow_to(LEAST_SLOTS)
    assert marked.take_round(1000) == [5, 39]


def test_what_is_marked_behind_the_place_that_was_reached_is_for_the_next_round() -> None:
    marked = Marked(LEAST_SLOTS)
    marked.take_round(LEAST_SLOTS)
    marked.mark([10, 1000])
    assert marked.take(0, 1) == ([10], 11)
    marked.mark([9, 12, 1001])
    assert marked.take(11, LEAST_SLOTS)[0] == [12, 1000, 1001]
    assert not marked.marks.is_empty()
    assert marked.take_round(1) == [9]
    assert marked.marks.is_empty()


def test_a_call_takes_no_more_than_it_may() -> None:
    marked = Marked(LEAST_SLOTS)
    marked.mark(list(range(LEAST_SLOTS)))
    assert marked.take(0, 40) == (list(range(40)), 40)
    assert marked.take(40, 1) == ([40], 41)
    assert marked.take(41, 7) == (list(range(41, 48)), 48)


def test_one_that_is_marked_again_and_again_does_not_keep_the_others_from_their_turn() -> None:
    marked = Marked(LEAST_SLOTS)
    marked.take_round(LEAST_SLOTS)
    marked.mark(list(range(BLOCK_SLOTS)))
    found, stop = list[int](), 0
    for _ in range(BLOCK_SLOTS):
        some, stop = marked.take(stop, 1)
        found += some
        marked.mark([0])
    assert found == list(range(BLOCK_SLOTS))


@pytest.mark.parametrize("slot_count", [100, LEAST_SLOTS + 5])
def test_all_that_are_marked_can_be_seen_without_taking_them(slot_count: int) -> None:
    marked = Marked(slot_count)
    marked.take_round(slot_count)
    marked.mark([slot_count - 1, 17, 3])
    assert marked.marks.slots().tolist() == [3, 17, slot_count - 1]
    assert marked.take_round(1) == [3, 17, slot_count - 1]
    assert marked.marks.slots().tolist() == []


def test_only_blocks_with_marks_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = Marked(LEAST_SLOTS)
    marked.take_round(LEAST_SLOTS)
    looked_at: list[int] = []
    look = marked.marks._bits_of

    def watched(blocks: Any) -> Any:
        looked_at.extend(blocks.tolist())
        return look(blocks)

    monkeypatch.setattr(marked.marks, "_bits_of", watched)
    marked.mark([100 * BLOCK_SLOTS, 7 * BLOCK_SLOTS + 1])
    assert marked.take_round(LEAST_SLOTS) == [7 * BLOCK_SLOTS + 1, 100 * BLOCK_SLOTS]
    assert looked_at == [7, 100]


def test_how_many_are_marked_is_known_about() -> None:
    marked = Marked(2 * LEAST_SLOTS)
    marked.take_round(LEAST_SLOTS)
    marked.mark(list(range(0, 50_000, 5)))
    assert 9_000 < marked.marks.count() < 11_000


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_whatever_is_marked_and_taken_none_is_lost(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(block_marks, "LEAST_SLOTS", 64)
        patched.setattr(block_marks, "_STEP_BLOCKS", data.draw(st.integers(1, 3)))
        patched.setattr(block_marks, "_LEAST_LOOKED_AT", data.draw(st.integers(1, 2)))
        marked, expected, stop = Marked(data.draw(st.integers(1, 100))), set[int](), 0
        for _ in range(data.draw(st.integers(1, 20))):
            if data.draw(st.booleans()):
                some = data.draw(st.lists(st.integers(0, marked.flags.count - 1), max_size=20))
                marked.mark(some)
                expected |= set(some)
            elif data.draw(st.booleans()):
                marked.grow_to(marked.flags.count + data.draw(st.integers(0, 40)))
            else:
                most = data.draw(st.integers(1, 30))
                found, stop = marked.take(stop, most)
                assert set(found) <= expected and len(found) <= most
                expected -= set(found)
                stop = 0 if stop == marked.flags.count else stop
        assert set(marked.take_round(1000)) == expected
