"""Debloating: windows follow the drain rate, stay within their bounds, and stand still when nothing really changed.

How that looks with real gates and outputs is in `test_flow`.
"""

import random

import pytest

from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.debloat import PERIOD_MS, Debloat, SetWindow, WindowBounds

A, B, C = (ChannelId(EdgeId(0), sender, 0) for sender in range(3))
LEAST_BYTES = 1000
START_BYTES = 5000
MOST_BYTES = 1 << 20
TARGET_MS = 1000.0


class Gate:
    """Drives one Debloat by whole periods and keeps the windows it set."""

    def __init__(self, *channels: ChannelId, most_bytes: int = MOST_BYTES, total_bytes: int = 64 << 20) -> None:
        self.now_ms = 0.0
        self.windows = dict.fromkeys(channels, START_BYTES)
        bounds = WindowBounds(
            least_bytes=LEAST_BYTES, start_bytes=START_BYTES, most_bytes=most_bytes, most_total_bytes=total_bytes
        )
        self.debloat = Debloat(target_ms=TARGET_MS, bounds=bounds, channels=channels, now_ms=0.0)

    def period(self, *, drain: float | None, slice_bytes: int = 0, **consumed_bytes: int) -> list[SetWindow]:
        """`drain`: bytes per ms."""
        for name, size_bytes in consumed_bytes.items():
            self.debloat.on_consumed({"a": A, "b": B, "c": C}[name], size_bytes)
        self.now_ms += PERIOD_MS
        changes = self.debloat.on_time(self.now_ms, drain_bytes_per_ms=drain, slice_bytes=slice_bytes)
        self.windows.update((change.channel, change.window_bytes) for change in changes)
        return changes


def test_a_constant_rate_gives_a_window_of_three_quarters_of_rate_times_target_and_then_nothing_changes() -> None:
    gate = Gate(A)
    assert gate.period(drain=100.0, a=20_000) == [SetWindow(A, 75_000)]
    assert [gate.period(drain=100.0, a=20_000) for _ in range(50)] == [[]] * 50


def test_a_rate_that_wobbles_by_a_tenth_does_not_move_the_window() -> None:
    chance = random.Random(3)
    gate = Gate(A)
    gate.period(drain=100.0, a=20_000)
    assert [gate.period(drain=chance.uniform(90, 110), a=20_000) for _ in range(200)] == [[]] * 200


@pytest.mark.parametrize("periods", [1, 2, 4])
def test_a_rate_that_is_back_where_it_was_within_a_second_does_not_move_the_window(periods: int) -> None:
    gate = Gate(A)
    gate.period(drain=100.0, a=20_000)
    for _ in range(20):
        slow = [gate.period(drain=30.0, a=6_000) for _ in range(periods)]
        back = [gate.period(drain=100.0, a=20_000) for _ in range(periods)]
        assert slow + back == [[]] * 2 * periods


@pytest.mark.parametrize(("after", "window_bytes"), [(1000.0, 750_000), (10.0, 7_500)])
def test_a_rate_that_stays_is_followed_after_a_second(after: float, window_bytes: int) -> None:
    gate = Gate(A)
    gate.period(drain=100.0, a=20_000)
    assert [gate.period(drain=after, a=20_000) for _ in range(5)] == [[]] * 5
    assert gate.period(drain=after, a=20_000) == [SetWindow(A, window_bytes)]


def test_a_rate_that_falls_bit_by_bit_is_followed_as_far_as_it_was_a_second_ago() -> None:
    gate = Gate(A)
    rates = [100.0 * 0.9**period for period in range(30)]
    for drain in rates:
        gate.period(drain=drain, a=20_000)
    a_second_ago_bytes = rates[-6] * TARGET_MS * 0.75
    assert a_second_ago_bytes - 1 <= gate.windows[A] <= a_second_ago_bytes / 0.75


def test_unequal_channels_share_what_is_left_beside_a_slice_for_each_by_their_own_rates() -> None:
    gate = Gate(A, B, C)
    for _ in range(10):
        gate.period(drain=100.0, a=12_000, b=6_000, c=2_000)
    rest_bytes = 75_000 - 3 * LEAST_BYTES
    expected = {A: 0.6, B: 0.3, C: 0.1}
    assert gate.windows == {c: LEAST_BYTES + int(rest_bytes * share) for c, share in expected.items()}


def test_a_channel_that_takes_over_takes_its_share_of_the_window() -> None:
    gate = Gate(A, B)
    for _ in range(10):
        gate.period(drain=100.0, a=20_000)
    assert gate.windows == {A: 74_000, B: LEAST_BYTES}
    for _ in range(50):
        gate.period(drain=100.0, b=20_000)
    assert gate.windows[A] == pytest.approx(LEAST_BYTES, rel=0.25)
    assert gate.windows[B] == pytest.approx(74_000, rel=0.25)


def test_channels_that_deliver_in_turns_keep_their_windows() -> None:
    gate = Gate(A, B)
    for _ in range(25):
        gate.period(drain=100.0, a=20_000)
        gate.period(drain=100.0, b=20_000)
    later = [gate.period(drain=100.0, a=20_000) + gate.period(drain=100.0, b=20_000) for _ in range(25)]
    assert later == [[]] * 25


def test_a_window_is_never_smaller_than_one_slice() -> None:
    gate = Gate(A, B)
    gate.period(drain=0.001, slice_bytes=3000, a=1)
    assert gate.windows == {A: 3000, B: 3000}


def test_nor_than_the_least_that_was_said() -> None:
    gate = Gate(A, B)
    gate.period(drain=0.001, slice_bytes=10, a=1)
    assert gate.windows == {A: LEAST_BYTES, B: LEAST_BYTES}


def test_a_window_is_never_larger_than_the_most() -> None:
    gate = Gate(A, most_bytes=50_000)
    gate.period(drain=1e6, slice_bytes=1 << 30, a=200)
    assert gate.windows[A] == 50_000


def test_all_windows_together_stay_below_the_total() -> None:
    chance = random.Random(5)
    gate = Gate(A, B, C, total_bytes=30_000)
    for _ in range(300):
        drain, slice_bytes = chance.choice([1.0, 20.0, 1000.0]), chance.choice([10, 20_000])
        gate.period(drain=drain, slice_bytes=slice_bytes, a=1, b=chance.randint(0, 9), c=chance.randint(0, 9))
        assert sum(gate.windows.values()) <= 30_000


def test_a_period_without_input_changes_nothing() -> None:
    gate = Gate(A, B)
    gate.period(drain=100.0, a=20_000, b=5_000)
    assert [gate.period(drain=100.0) for _ in range(100)] == [[]] * 100


def test_while_the_rate_is_unknown_no_window_changes() -> None:
    gate = Gate(A)
    assert [gate.period(drain=None, a=5_000) for _ in range(10)] == [[]] * 10


def test_before_anything_was_consumed_no_window_changes() -> None:
    gate = Gate(A)
    assert [gate.period(drain=0.0) for _ in range(10)] == [[]] * 10


def test_nothing_is_decided_before_the_period_is_over() -> None:
    gate = Gate(A)
    gate.debloat.on_consumed(A, 20_000)
    assert gate.debloat.next_deadline_ms() == PERIOD_MS
    assert gate.debloat.on_time(PERIOD_MS - 1, drain_bytes_per_ms=100.0, slice_bytes=0) == []
    assert gate.debloat.on_time(PERIOD_MS, drain_bytes_per_ms=100.0, slice_bytes=0) == [SetWindow(A, 75_000)]
    assert gate.debloat.next_deadline_ms() == 2 * PERIOD_MS
