"""What retention may remove."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId
from tidegate.protocol.retention import to_retire


def ids(*numbers: int) -> list[CheckpointId]:
    return [CheckpointId(number) for number in numbers]


def test_all_but_the_newest_go() -> None:
    assert to_retire(ids(1, 2, 3, 4), committed=frozenset(ids(1, 2, 3, 4)), keep=2) == ids(1, 2)


def test_fewer_than_are_kept_all_stay() -> None:
    assert to_retire(ids(1, 2), committed=frozenset(ids(1, 2)), keep=3) == []


def test_an_uncommitted_one_stays_however_old_it_is() -> None:
    assert to_retire(ids(1, 2, 3), committed=frozenset(ids(2, 3)), keep=1) == ids(2)


@given(st.sets(st.integers(1, 50)), st.sets(st.integers(1, 50)), st.integers(1, 5))
def test_what_goes_is_committed_and_the_newest_are_never_among_it(
    completed: set[int], committed: set[int], keep: int
) -> None:
    oldest_first = ids(*sorted(completed))
    leaving = to_retire(oldest_first, committed=frozenset(ids(*committed)), keep=keep)
    assert set(leaving) <= committed
    assert not set(leaving) & set(oldest_first[-keep:])
    assert set(oldest_first[:-keep]) & committed == set(leaving)
