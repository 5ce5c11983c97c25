"""Switching by cost: only when draining surely fails, storing is quicker, and both rates are known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.switching import (
    DRAIN_MARGIN,
    KNOWN_AFTER_MS,
    RATE_HALF_LIFE_MS,
    UNKNOWN_SPEED,
    DrainRate,
    StorageSpeed,
    should_switch_now,
)

QUICK = StorageSpeed(stored_bytes=1 << 20, storing_ms=10.0)


def storing(bytes_per_ms: float) -> StorageSpeed:
    """Seen with an upload so small that only the rate counts."""
    return StorageSpeed(1, 1 / bytes_per_ms) if bytes_per_ms else StorageSpeed(1, float("inf"))


def test_a_queue_that_cannot_drain_in_time_switches_when_storing_is_quicker() -> None:
    assert should_switch_now(queued_bytes=10_000, drain_bytes_per_ms=1.0, storage=QUICK, left_ms=900.0)


def test_a_queue_that_drains_in_time_stays_aligned() -> None:
    assert not should_switch_now(queued_bytes=500, drain_bytes_per_ms=1.0, storage=QUICK, left_ms=900.0)


@pytest.mark.parametrize(("drain_ms", "switches"), [(1000, False), (1250, False), (1251, True), (2000, True)])
def test_draining_must_look_a_quarter_longer_than_what_is_left(drain_ms: int, switches: bool) -> None:
    assert DRAIN_MARGIN == 1.25
    decided = should_switch_now(queued_bytes=drain_ms, drain_bytes_per_ms=1.0, storage=QUICK, left_ms=1000.0)
    assert decided is switches


@pytest.mark.parametrize(("storage_bytes_per_ms", "switches"), [(0.0, False), (0.5, False), (1.0, False), (1.1, True)])
def test_storage_that_is_no_quicker_than_draining_stays_aligned(storage_bytes_per_ms: float, switches: bool) -> None:
    decided = should_switch_now(
        queued_bytes=10_000, drain_bytes_per_ms=1.0, storage=storing(storage_bytes_per_ms), left_ms=1.0
    )
    assert decided is switches


@pytest.mark.parametrize(("drain", "storage"), [(None, QUICK), (1.0, UNKNOWN_SPEED), (None, UNKNOWN_SPEED)])
def test_an_unknown_rate_never_switches(drain: float | None, storage: StorageSpeed) -> None:
    assert not should_switch_now(queued_bytes=1 << 40, drain_bytes_per_ms=drain, storage=storage, left_ms=0.0)


def test_a_task_that_stands_still_switches() -> None:
    assert should_switch_now(queued_bytes=1, drain_bytes_per_ms=0.0, storage=storing(1.0), left_ms=1e9)


def test_an_empty_queue_never_switches() -> None:
    assert not should_switch_now(queued_bytes=0, drain_bytes_per_ms=0.0, storage=storing(1.0), left_ms=0.0)


def test_a_deadline_that_has_passed_counts_as_nothing_left() -> None:
    assert should_switch_now(queued_bytes=10, drain_bytes_per_ms=1.0, storage=storing(9.0), left_ms=-50.0)


@settings(max_examples=100)
@given(st.integers(0, 1 << 30), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e5))
def test_less_time_left_never_takes_a_switch_back(queued: int, drain: float, storage: float, left_ms: float) -> None:
    def decided(left_ms: float) -> bool:
        return should_switch_now(
            queued_bytes=queued, drain_bytes_per_ms=drain, storage=storing(storage), left_ms=left_ms
        )

    assert decided(left_ms / 2) or not decided(left_ms)


def test_a_small_upload_never_makes_storage_look_faster_than_it_is() -> None:
    seen = StorageSpeed(stored_bytes=1000, storing_ms=10.0)
    assert [seen.storing_ms_of(size) for size in (1, 1000, 4000)] == [10.0, 10.0, 40.0]


# -- the drain rate


def test_the_rate_is_unknown_until_enough_was_seen() -> None:
    rate = DrainRate()
    assert rate.bytes_per_ms is None
    rate.on_consumed(500, KNOWN_AFTER_MS / 2)
    assert rate.bytes_per_ms is None
    rate.on_consumed(500, KNOWN_AFTER_MS)
    assert rate.bytes_per_ms is not None


def test_a_constant_rate_is_given_as_it_is_whatever_the_slices() -> None:
    rate = DrainRate()
    for elapsed_ms in [1, 30, 10, 7] * 50:
        rate.on_consumed(20 * elapsed_ms, float(elapsed_ms))
    assert rate.bytes_per_ms == pytest.approx(20.0)


def test_the_past_counts_half_after_each_half_life() -> None:
    rate = DrainRate()
    rate.on_consumed(100_000, RATE_HALF_LIFE_MS)
    rate.on_consumed(0, RATE_HALF_LIFE_MS)
    assert rate.bytes_per_ms == pytest.approx(100_000 / 2 / (RATE_HALF_LIFE_MS * 1.5))


def test_one_slow_call_among_many_does_not_decide() -> None:
    rate = DrainRate()
    for _ in range(200):
        rate.on_consumed(1000, 10.0)
    rate.on_consumed(10, 100.0)
    assert rate.bytes_per_ms == pytest.approx(100.0, rel=0.15)


def test_a_slice_too_quick_for_the_clock_counts_with_the_next() -> None:
    rate = DrainRate()
    for _ in range(20):
        rate.on_consumed(100, 0.0)
        rate.on_consumed(100, 10.0)
    assert rate.bytes_per_ms == pytest.approx(20.0, rel=0.02)
