"""Keys that were seen are known; of those that were not, few are taken for such."""

import numpy as np

from tidegate.operators.keys_seen import KeysSeen

_ENOUGH = 1 << 30


def hashes_of(first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(7).integers(0, 1 << 63, last, dtype=np.uint64)[first:]


def test_a_key_that_was_added_is_known_however_many_follow() -> None:
    seen = KeysSeen()
    for start in range(0, 200_000, 10_000):
        seen.add(hashes_of(start, start + 10_000), most_bytes=_ENOUGH)
    assert seen.may_hold(hashes_of(0, 200_000)).all()


def test_few_keys_that_were_not_added_are_taken_for_such() -> None:
    seen = KeysSeen()
    for start in range(0, 100_000, 5_000):
        seen.add(hashes_of(start, start + 5_000), most_bytes=_ENOUGH)
    assert seen.may_hold(hashes_of(100_000, 200_000)).mean() < 0.08
    assert seen.size_bytes() < 5 * 100_000


def test_keys_that_come_again_take_no_more_room() -> None:
    seen = KeysSeen()
    seen.add(hashes_of(0, 5_000), most_bytes=_ENOUGH)
    size_bytes = seen.size_bytes()
    for _ in range(10):
        seen.add(hashes_of(0, 5_000), most_bytes=_ENOUGH)
    assert seen.size_bytes() == size_bytes


def test_nothing_is_known_at_first() -> None:
    assert not KeysSeen().may_hold(hashes_of(0, 10)).any()


def test_beyond_its_bound_it_is_wrong_more_often_and_no_larger() -> None:
    seen, most_bytes = KeysSeen(), 100_000
    for start in range(0, 200_000, 10_000):
        seen.add(hashes_of(start, start + 10_000), most_bytes=most_bytes)
    assert seen.size_bytes() <= most_bytes
    assert seen.may_hold(hashes_of(0, 200_000)).all()
    # Four times as many as there is room for.
    assert 0.05 < seen.may_hold(hashes_of(200_000, 300_000)).mean() < 0.35


def test_keys_that_share_a_byte_are_all_known() -> None:
    hashes = np.arange(64, dtype=np.uint64)
    seen = KeysSeen()
    seen.add(hashes, most_bytes=_ENOUGH)
    assert seen.may_hold(hashes).all()


def test_a_table_goes_when_all_its_keys_have_ended() -> None:
    seen = KeysSeen()
    for second in range(1, 40):
        hashes = hashes_of(5_000 * second, 5_000 * (second + 1))
        seen.add(hashes, most_bytes=_ENOUGH, last_end_us=10 * second)
        seen.forget_ended(10 * second - 20)
        assert seen.may_hold(hashes).all()
        assert seen.may_hold(hashes_of(5_000 * (second - 1), 5_000 * second)).all() or second == 1
    # Two seconds of keys are there, however long it lasts.
    assert seen.size_bytes() < 4 * 5_000 * 10
    seen.forget_ended(10 * 39)
    assert seen.size_bytes() == 0


def test_a_key_that_comes_again_and_ends_later_is_known_until_then() -> None:
    seen, hashes = KeysSeen(), hashes_of(0, 100)
    seen.add(hashes, most_bytes=_ENOUGH, last_end_us=10)
    seen.add(hashes_of(100, 30_000), most_bytes=_ENOUGH, last_end_us=20)
    seen.add(hashes, most_bytes=_ENOUGH, last_end_us=30)
    seen.forget_ended(29)
    assert seen.may_hold(hashes).all()
