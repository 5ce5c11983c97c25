"""Rows of an outer or semi join with very many partners: looked for bit by bit, and nothing comes alone too soon."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_held_pairs import given_by, many
from tests.unit.test_stream_join import LESS, NONE, Harness, Row, join, side
from tests.unit.timed_rows import rows_of
from tidegate.model.ids import KeyGroupRange
from tidegate.operators import join_rows, stored_rows, stream_join
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import StreamJoinSpec

MOST = 10
OUTER = [JoinType.LEFT_OUTER, JoinType.RIGHT_OUTER, JoinType.FULL_OUTER]


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each look was at."""
    seen: list[int] = []
    same_keys = stream_join.same_keys

    def counting(left: pa.RecordBatch, right: pa.RecordBatch, key_count: int) -> Any:
        seen.append(left.num_rows)
        return same_keys(left, right, key_count)

    monkeypatch.setattr(stream_join, "same_keys", counting)
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", MOST)
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 16)
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 64)
    return seen


class Tasks:
    """The tasks of a join, each with its key groups; rows go to the owner of their key."""

    def __init__(self, spec: StreamJoinSpec, bounds: list[int], sections: list[Any] | None = None) -> None:
        self.spec = spec
        self.harnesses = [
            Harness(spec, sections or [], KeyGroupRange(first, last))
            for first, last in zip([0, *bounds], [*bounds, 128], strict=True)
        ]

    def left(self, *rows: Row) -> list[Any]:
        return [pair for harness, own in self._owned(rows) for pair in harness.left(*own)]

    def right(self, *rows: Row) -> list[Any]:
        return [pair for harness, own in self._owned(rows) for pair in harness.right(*own)]

    def give(self, most: int) -> list[Any]:
        out: list[pa.RecordBatch] = []
        for harness in self.harnesses:
            harness.operator.give(most, out.append)
        return rows_of(out)

    def all_held(self) -> list[Any]:
        return [row for harness in self.harnesses for part in given_by(harness) for row in part]

    def advance(self, seconds: int) -> list[Any]:
        return [row for harness in self.harnesses for row in harness.advance(seconds)]

    def restarted(self, bounds: list[int]) -> "Tasks":
        return Tasks(self.spec, bounds, [each for harness in self.harnesses for each in harness.sections()])

    def _owned(self, rows: tuple[Row, ...]) -> Iterator[tuple[Harness, list[Row]]]:
        keys = pa.RecordBatch.from_arrays([pa.array([row[0] for row in rows], pa.string())], names=["k"])
        groups = key_group_of(hash_rows(keys, 1), 128).tolist()
        for harness in self.harnesses:
            owned = range(harness.key_groups.first, harness.key_groups.last)
            own = [row for row, group in zip(rows, groups, strict=True) if group in owned]
            if own:
                yield harness, own


@pytest.mark.parametrize("kind", OUTER)
def test_partners_are_looked_for_in_slices_and_pairs_given_after_that_each_once(
    kind: JoinType, looked_at: list[int]
) -> None:
    harness = Harness(join(kind))
    harness.left(*many(100))
    looked_at.clear()
    assert harness.right(("k", 11, 0)) == []
    assert looked_at == [] and harness.operator.room() == 0
    parts = given_by(harness)
    assert max(looked_at) == 7
    assert max(len(part) for part in parts) == 7
    assert Counter(row for part in parts for row in part) == Counter((*row, "k", 11, 0) for row in many(100))
    assert harness.operator.room() > 0
    assert len(harness.left(("k", 10, 100))) == 1
    assert harness.advance(1000) == []


def test_a_semi_join_shows_each_left_row_once_whichever_side_comes_last(looked_at: list[int]) -> None:
    harness = Harness(join(JoinType.LEFT_SEMI))
    harness.left(*many(100))
    looked_at.clear()
    assert harness.right(("k", 11, 0), ("k", 11, 1)) == []
    parts = given_by(harness)
    assert max(looked_at) <= 7
    assert Counter(row for part in parts for row in part) == Counter(many(100))
    assert harness.right(*(("k", 11, number) for number in range(100))) == []
    assert harness.left(("k", 10, 7)) == []
    assert [row for part in given_by(harness) for row in part] == [("k", 10, 7)]
    assert harness.right(("k", 11, 0)) == []
    assert [row for part in given_by(harness) for row in part] == []


@pytest.mark.parametrize("looks", [0, 3, 14, 16, 20])
@pytest.mark.parametrize("kind", OUTER)
def test_a_barrier_in_between_loses_no_pair_and_shows_no_row_with_a_partner_alone(kind: JoinType, looks: int) -> None:
    tasks = Tasks(join(kind, condition=LESS), [])
    tasks.left(*many(100), *many(40, "other"))
    tasks.right(("k", 11, 60), ("other", 11, 30), ("x", 11, 0))
    found = [row for _ in range(looks) for row in tasks.give(7)]
    again = tasks.restarted([50, 100])
    twice = again.restarted([])
    pairs = [(*row, "k", 11, 60) for row in many(60)] + [(*row, "other", 11, 30) for row in many(30, "other")]
    alone_left = [("k", 10, number, *NONE) for number in range(60, 100)]
    alone_left += [("other", 10, number, *NONE) for number in range(30, 40)]
    for each in (tasks, again, twice):
        assert Counter(found + each.all_held()) == Counter(pairs)
        alone = each.advance(1000)
        assert Counter(row for row in alone if row[0] is not None) == Counter(
            alone_left if kind is not JoinType.RIGHT_OUTER else []
        )
        assert [row for row in alone if row[0] is None] == (
            [] if kind is JoinType.LEFT_OUTER else [(*NONE, "x", 11, 0)]
        )


@pytest.mark.parametrize("looks", [0, 1, 5, 9])
@pytest.mark.parametrize("last", ["left", "right"])
def test_a_barrier_in_between_shows_no_row_of_a_semi_join_twice_and_loses_none(last: str, looks: int) -> None:
    tasks = Tasks(join(JoinType.LEFT_SEMI, condition=LESS), [])
    right: list[Row] = [("k", 11, 5), ("k", 11, 8), ("k", 11, 0)]
    if last == "left":
        tasks.right(*right)
        assert tasks.left(*many(20)) == []
    else:
        tasks.left(*many(20))
        assert tasks.right(*right) == []
    found = [row for _ in range(looks) for row in tasks.give(7)]
    for each in (tasks.restarted([50, 100]), tasks):
        assert Counter(found + each.all_held()) == Counter(many(8))
        others = each.right(("k", 11, 100)) + each.all_held()
        assert Counter(others) == Counter(("k", 10, number) for number in range(8, 20))


def test_rows_that_come_while_others_are_looked_at_meet_them_too() -> None:
    harness = Harness(join(JoinType.FULL_OUTER))
    harness.left(*many(50))
    harness.right(("k", 11, 0))
    assert harness.left(("k", 10, 50), ("y", 10, 0)) == []
    assert harness.right(("y", 11, 1)) == []
    found = [row for part in given_by(harness) for row in part]
    assert Counter(found) == Counter([*((*row, "k", 11, 0) for row in many(51)), ("y", 10, 0, "y", 11, 1)])
    assert harness.advance(1000) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [*OUTER, JoinType.LEFT_SEMI])
def test_the_answer_is_that_of_two_loops_whatever_is_held_stored_and_restored(kind: JoinType, seed: int) -> None:
    random = np.random.default_rng(seed)
    tasks = Tasks(join(kind, left=side(ahead_s=0), right=side(ahead_s=0), condition=LESS), [])
    left: list[Row] = []
    right: list[Row] = []
    found: list[Any] = []
    for number in range(60):
        keys, value = random.integers(0, 4, random.integers(1, 9)).tolist(), int(random.integers(0, 100))
        rows: list[Row] = [(str(key), 10, value * 1000 + number * 8 + at) for at, key in enumerate(keys)]
        match random.integers(0, 6):
            case 0 | 1:
                found += tasks.left(*rows)
                left += rows
            case 2 | 3:
                found += tasks.right(*rows)
                right += rows
            case 4:
                found += tasks.give(int(random.integers(1, 9)))
            case _:
                tasks = tasks.restarted([[], [64], [40, 80]][random.integers(0, 3)])
    found += tasks.all_held()
    found += tasks.advance(1000)
    assert Counter(found) == expected(kind, left, right)


def expected(kind: JoinType, left: list[Row], right: list[Row]) -> Counter[Any]:
    pairs = [
        (*one, *other) for one in left for other in right if one[0] == other[0] and (one[2] or 0) < (other[2] or 0)
    ]
    with_partner = {pair[:3] for pair in pairs}
    if kind is JoinType.LEFT_SEMI:
        return Counter(row for row in left if row in with_partner)
    alone_left = [(*row, *NONE) for row in left if row not in {pair[:3] for pair in pairs}]
    alone_right = [(*NONE, *row) for row in right if row not in {pair[3:] for pair in pairs}]
    return Counter(
        [
            *pairs,
            *(alone_left if kind is not JoinType.RIGHT_OUTER else []),
            *(alone_right if kind is not JoinType.LEFT_OUTER else []),
        ]
    )
