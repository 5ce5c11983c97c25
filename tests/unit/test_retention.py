"""What retention may remove."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId
from tidegate.protocol.retention import Completed, KeepFor, KeepNumber, skipped_to_retire, to_retire

HOUR_MS = 3_600_000


def completed(
    checkpoint: int, at_ms: int | None = None, *, committed: bool = True, savepoint: bool = False
) -> Completed:
    return Completed(
        checkpoint=CheckpointId(checkpoint),
        completed_at_ms=checkpoint * 100 if at_ms is None else at_ms,
        is_committed=committed,
        is_savepoint=savepoint,
    )


def test_all_but_the_newest_go() -> None:
    assert to_retire([completed(n) for n in (1, 2, 3, 4)], keep=KeepNumber(2), now_ms=0) == [1, 2]


def test_fewer_than_are_kept_all_stay() -> None:
    assert to_retire([completed(1), completed(2)], keep=KeepNumber(3), now_ms=0) == []


def test_nothing_is_retired_of_nothing() -> None:
    assert to_retire([], keep=KeepNumber(1), now_ms=0) == []
    assert to_retire([], keep=KeepFor(0), now_ms=0) == []


@pytest.mark.parametrize("keep", [KeepNumber(1), KeepFor(0)])
def test_an_uncommitted_one_stays_however_old_it_is(keep: KeepNumber | KeepFor) -> None:
    found = [completed(1, committed=False), completed(2), completed(3)]
    assert to_retire(found, keep=keep, now_ms=HOUR_MS) == [2]


@pytest.mark.parametrize("keep", [KeepNumber(1), KeepFor(0)])
def test_a_savepoint_stays_and_takes_no_place_of_a_checkpoint(keep: KeepNumber | KeepFor) -> None:
    found = [completed(1, savepoint=True), completed(2), completed(3), completed(4, savepoint=True)]
    assert to_retire(found, keep=keep, now_ms=HOUR_MS) == [2]


def test_what_completed_within_the_time_stays() -> None:
    found = [completed(1, 1_000), completed(2, 2_000), completed(3, 3_000)]
    assert to_retire(found, keep=KeepFor(1_000), now_ms=3_000) == [1]
    assert to_retire(found, keep=KeepFor(1_000), now_ms=3_001) == [1, 2]


def test_the_newest_stays_however_long_ago_it_completed() -> None:
    assert to_retire([completed(1), completed(2)], keep=KeepFor(1_000), now_ms=10 * HOUR_MS) == [1]


def test_a_clock_that_was_set_back_retires_nothing_early() -> None:
    assert to_retire([completed(1, 9_000), completed(2, 9_500)], keep=KeepFor(1_000), now_ms=100) == []


def test_one_that_was_passed_over_goes_when_so_many_newer_ones_are_committed() -> None:
    skipped = [completed(3, committed=False), completed(5)]
    found = [completed(2), completed(6), completed(7, committed=False), completed(8, savepoint=True)]
    assert skipped_to_retire(skipped, found, keep=KeepNumber(1), now_ms=0) == [3, 5]
    assert skipped_to_retire(skipped, found, keep=KeepNumber(2), now_ms=0) == [], (
        "open ones and savepoints do not count"
    )
    found.append(completed(9))
    assert skipped_to_retire(skipped, found, keep=KeepNumber(2), now_ms=0) == [3, 5]
    assert skipped_to_retire(skipped, [completed(1), completed(2)], keep=KeepNumber(1), now_ms=0) == []


def test_or_when_its_time_is_over_and_there_is_a_newer_one() -> None:
    skipped = [completed(1, 1_000), completed(2, 2_000)]
    assert skipped_to_retire(skipped, [], keep=KeepFor(1_000), now_ms=HOUR_MS) == []
    assert skipped_to_retire(skipped, [completed(3, 2_900)], keep=KeepFor(1_000), now_ms=3_000) == [1]
    assert skipped_to_retire(skipped, [completed(3, 2_900)], keep=KeepFor(1_000), now_ms=HOUR_MS) == [1, 2]


@pytest.mark.parametrize("keep", [KeepNumber(1), KeepFor(0)])
def test_a_savepoint_that_was_passed_over_stays(keep: KeepNumber | KeepFor) -> None:
    newer = [completed(2), completed(3)]
    assert skipped_to_retire([completed(1, savepoint=True)], newer, keep=keep, now_ms=HOUR_MS) == []


def test_keeping_none_is_not_possible() -> None:
    with pytest.raises(AssertionError, match="the newest checkpoint is always kept"):
        KeepNumber(0)


histories = st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.booleans()), max_size=12).map(
    lambda rows: [
        completed(number, at_ms, committed=is_committed, savepoint=is_savepoint)
        for number, (at_ms, is_committed, is_savepoint) in enumerate(sorted(rows), start=1)
    ]
)
keeps = st.integers(1, 5).map(KeepNumber) | st.integers(0, 30).map(KeepFor)


@given(histories, keeps, st.integers(0, 80))
def test_what_goes_is_committed_and_no_savepoint_and_the_newest_is_never_among_it(
    found: list[Completed], keep: KeepNumber | KeepFor, now_ms: int
) -> None:
    leaving = to_retire(found, keep=keep, now_ms=now_ms)
    assert leaving == sorted(set(leaving))
    own = [c for c in found if not c.is_savepoint]
    newest = own[-keep.checkpoints :] if isinstance(keep, KeepNumber) else own[-1:]
    young = {c.checkpoint for c in own if isinstance(keep, KeepFor) and now_ms - c.completed_at_ms <= keep.duration_ms}
    expected = [c for c in own if c.is_committed and c not in newest and c.checkpoint not in young]
    assert leaving == [c.checkpoint for c in expected]
