"""A row with very many partners: a join gives the pairs slice by slice, and a snapshot may fall in between."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_stream_join import Harness, Row, join, side
from tests.unit.timed_rows import rows_of
from tidegate.model.ids import KeyGroupRange
from tidegate.operators import join_rows, stored_rows, stream_join
from tidegate.operators.contract import GivesLater
from tidegate.plan.expressions import Call, Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import Giving
from tidegate.testing.state_suite import restored_from

MOST = 10


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", MOST)
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 16)
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 64)


def many(count: int, key: str = "k") -> list[Row]:
    return [(key, 10, number) for number in range(count)]


def given_by(harness: Harness, most: int = 7) -> list[list[Any]]:
    """What each call gives until nothing is held."""
    parts: list[list[Any]] = []
    while harness.operator.holds_rows():
        out: list[pa.RecordBatch] = []
        assert 0 < harness.operator.give(most, out.append) <= most
        parts.append(rows_of(out))
    return parts


def key_group(key: str) -> int:
    return int(key_group_of(hash_rows(pa.RecordBatch.from_pydict({"k": [key]}), 1), 128)[0])


def test_pairs_of_a_row_with_many_partners_come_in_slices_and_each_once() -> None:
    harness = Harness(join(JoinType.INNER))
    assert isinstance(harness.operator, GivesLater)
    harness.left(*many(100))
    assert harness.right(("k", 11, 0)) == []
    assert harness.operator.room() == 0
    parts = given_by(harness)
    assert max(len(part) for part in parts) == 7
    assert Counter(row[2] for part in parts for row in part) == Counter(range(100))
    assert harness.operator.room() > 0
    assert len(harness.left(("k", 10, 100))) == 1


def test_pairs_do_not_overtake_those_that_are_held() -> None:
    harness = Harness(join(JoinType.INNER))
    harness.left(*many(100), ("x", 10, 0))
    harness.right(("k", 11, 0))
    assert harness.right(("x", 11, 0)) == []
    assert given_by(harness)[-1] == [("x", 10, 0, "x", 11, 0)]


def test_few_pairs_come_at_once() -> None:
    harness = Harness(join(JoinType.INNER))
    harness.left(*many(MOST))
    assert len(harness.right(("k", 11, 0))) == MOST
    assert not harness.operator.holds_rows()


@pytest.mark.parametrize(
    "kind", [JoinType.INNER, JoinType.LEFT_OUTER, JoinType.RIGHT_OUTER, JoinType.FULL_OUTER, JoinType.LEFT_SEMI]
)
def test_where_pairs_belong_to_the_epoch_of_their_rows_they_come_at_once(kind: JoinType) -> None:
    harness = Harness(replace(join(kind), giving=Giving.AT_ONCE))
    harness.left(*many(100))
    assert len(harness.right(("k", 11, 0))) == 100
    assert not harness.operator.holds_rows()


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL_OUTER, JoinType.LEFT_SEMI])
def test_partners_of_rows_that_are_held_are_not_removed_and_event_time_waits_for_them(kind: JoinType) -> None:
    harness = Harness(join(kind, left=side(ahead_s=0), right=side(ahead_s=0)))
    assert harness.operator.watermark_behind(5_000) == 5_000
    harness.left(*many(100))
    harness.right(("k", 11, 0))
    harness.operator.on_watermark(60_000)
    assert harness.operator.fire(1000, lambda rows: None)
    assert harness.operator.watermark_behind(60_000) == 5_000
    assert sum(len(part) for part in given_by(harness)) == 100
    while harness.operator.fire(1000, lambda rows: None):
        pass
    assert harness.operator.watermark_behind(60_000) == 60_000
    assert harness.operator.state_bytes() == 0


@pytest.mark.parametrize("given_before", [0, 3])
def test_what_is_held_is_in_a_snapshot_as_it_was_and_goes_to_the_owner_of_the_key(given_before: int) -> None:
    both = Call("GreaterThanOrEqual", (Column(2, "v", pa.int64()), Column(5, "v", pa.int64())), pa.bool_(), True)
    harness = Harness(join(JoinType.INNER, condition=both))
    harness.left(*many(100), *many(50, "other"))
    harness.right(("k", 11, 5), ("other", 11, 5))
    out: list[pa.RecordBatch] = []
    for _ in range(given_before):
        harness.operator.give(7, out.append)
    before = rows_of(out)
    frozen = harness.operator.snapshot()
    after = [row for part in given_by(harness) for row in part]
    # Encoded when all was given and the partners are gone.
    harness.advance(1000)
    sections = restored_from(frozen)
    again = [
        Harness(harness.spec, sections, key_groups) for key_groups in (KeyGroupRange(0, 50), KeyGroupRange(50, 128))
    ]
    # By one task first, so that what it stores again is of several keys.
    whole = Harness(harness.spec, sections).sections()
    twice = [Harness(each.spec, whole, each.key_groups) for each in again]
    for restored in (again, twice):
        found: list[Any] = []
        for each in restored:
            own = [row for part in given_by(each) for row in part]
            assert all(each.key_groups.first <= key_group(row[0]) < each.key_groups.last for row in own)
            found += own
        assert Counter(found) == Counter(after)
    expected = [("k", number) for number in range(5, 100)] + [("other", number) for number in range(5, 50)]
    assert Counter((row[0], row[2]) for row in before + after) == Counter(expected)


@pytest.mark.parametrize("seed", range(6))
def test_every_pair_comes_once_whatever_is_held_stored_and_restored(seed: int) -> None:
    random = np.random.default_rng(seed)
    harness = Harness(join(JoinType.INNER, left=side(), right=side()))
    left: list[Row] = []
    right: list[Row] = []
    found: list[Any] = []
    for number in range(120):
        rows: list[Row] = [(str(key), 10, number) for key in random.integers(0, 3, random.integers(1, 6)).tolist()]
        match random.integers(0, 6):
            case 0 | 1:
                found += harness.left(*rows)
                left += rows
            case 2 | 3:
                found += harness.right(*rows)
                right += rows
            case 4:
                out: list[pa.RecordBatch] = []
                harness.operator.give(5, out.append)
                found += rows_of(out)
            case _:
                harness = Harness(harness.spec, harness.sections())
    found += [row for part in given_by(harness) for row in part]
    assert Counter(found) == Counter((*one, *other) for one in left for other in right if one[0] == other[0])
