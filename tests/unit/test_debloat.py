"""Debloating: windows follow the rate, stay within their bounds, and stand still when nothing really changed."""

import random

import pytest

from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.debloat import PERIOD_MS, Debloat, SetWindow

A, B, C = (ChannelId(EdgeId(0), sender, 0) for sender in range(3))
LEAST_BYTES = 1000
MOST_BYTES = 1 << 20
TARGET_MS = 1000.0


class Gate:
    """Drives one Debloat by whole periods and keeps the windows it set."""

    def __init__(self, *channels: ChannelId, most_bytes: int = MOST_BYTES) -> None:
        self.now_ms = 0.0
        self.windows = dict.fromkeys(channels, most_bytes)
        self.debloat = Debloat(
            target_ms=TARGET_MS, least_bytes=LEAST_BYTES, most_bytes=most_bytes, channels=channels, now_ms=0.0
        )

    def period(self, *, queued_bytes: int = 1, **consumed_bytes: int) -> list[SetWindow]:
        for name, size_bytes in consumed_bytes.items():
            self.debloat.on_consumed({"a": A, "b": B, "c": C}[name], size_bytes)
        self.now_ms += PERIOD_MS
        changes = self.debloat.on_time(self.now_ms, queued_bytes=queued_bytes)
        self.windows.update((change.channel, change.window_bytes) for change in changes)
        return changes


def test_a_constant_rate_gives_a_window_of_rate_times_target_and_then_nothing_changes() -> None:
    gate = Gate(A)
    assert gate.period(a=20_000) == [SetWindow(A, 100_000)]
    assert [gate.period(a=20_000) for _ in range(50)] == [[]] * 50


def test_a_rate_that_wobbles_by_a_tenth_does_not_move_the_window() -> None:
    chance = random.Random(3)
    gate = Gate(A)
    gate.period(a=20_000)
    assert [gate.period(a=chance.randint(18_000, 22_000)) for _ in range(200)] == [[]] * 200


@pytest.mark.parametrize("first", [18_000, 22_000])
def test_a_rate_that_swings_between_its_extremes_does_not_move_the_window(first: int) -> None:
    gate = Gate(A)
    gate.period(a=first)
    assert [gate.period(a=size) for _ in range(50) for size in (18_000, 22_000)] == [[]] * 100


def test_a_rate_that_falls_to_a_tenth_is_followed_within_a_few_periods() -> None:
    gate = Gate(A)
    for _ in range(10):
        gate.period(a=20_000)
    for _ in range(5):
        gate.period(a=2_000)
    assert gate.windows[A] <= 16_000
    for _ in range(5):
        gate.period(a=2_000)
    assert gate.windows[A] == pytest.approx(10_000, rel=0.25)


def test_a_rate_that_rises_tenfold_is_followed_within_a_few_periods() -> None:
    gate = Gate(A)
    gate.period(a=2_000)
    for _ in range(5):
        gate.period(a=20_000)
    assert gate.windows[A] >= 75_000


def test_unequal_channels_share_the_window_by_their_own_rates() -> None:
    gate = Gate(A, B, C)
    for _ in range(10):
        gate.period(a=12_000, b=6_000, c=2_000)
    assert gate.windows == {A: 60_000, B: 30_000, C: 10_000}


def test_a_channel_that_takes_over_takes_its_share_of_the_window() -> None:
    gate = Gate(A, B)
    for _ in range(10):
        gate.period(a=20_000)
    assert gate.windows == {A: 100_000, B: LEAST_BYTES}
    for _ in range(50):
        gate.period(b=20_000)
    assert gate.windows[A] == LEAST_BYTES
    assert gate.windows[B] == pytest.approx(100_000, rel=0.25)


def test_channels_that_deliver_in_turns_keep_their_windows() -> None:
    gate = Gate(A, B)
    for _ in range(25):
        gate.period(a=20_000)
        gate.period(b=20_000)
    assert [gate.period(a=20_000) + gate.period(b=20_000) for _ in range(25)] == [[]] * 25


def test_a_window_is_never_smaller_than_one_slice() -> None:
    gate = Gate(A, B)
    gate.period(a=1)
    assert gate.windows == {A: LEAST_BYTES, B: LEAST_BYTES}


def test_a_window_is_never_larger_than_the_most() -> None:
    gate = Gate(A, most_bytes=50_000)
    gate.period(a=200)
    for _ in range(10):
        gate.period(a=10_000_000)
    assert gate.windows[A] == 50_000


def test_a_period_without_input_does_not_shrink_the_window() -> None:
    gate = Gate(A)
    gate.period(a=20_000)
    assert [gate.period(queued_bytes=0) for _ in range(100)] == [[]] * 100
    assert gate.period(a=20_000) == []


def test_a_task_that_stands_still_before_a_full_queue_shrinks_the_window() -> None:
    gate = Gate(A)
    gate.period(a=20_000)
    for _ in range(20):
        gate.period(queued_bytes=5_000)
    assert gate.windows[A] < 1_400


def test_before_anything_was_consumed_no_rate_is_known_and_no_window_changes() -> None:
    gate = Gate(A)
    assert [gate.period(queued_bytes=5_000) for _ in range(10)] == [[]] * 10


def test_nothing_is_decided_before_the_period_is_over() -> None:
    gate = Gate(A)
    gate.debloat.on_consumed(A, 20_000)
    assert gate.debloat.next_deadline_ms() == PERIOD_MS
    assert gate.debloat.on_time(PERIOD_MS - 1, queued_bytes=1) == []
    assert gate.debloat.on_time(PERIOD_MS, queued_bytes=1) == [SetWindow(A, 100_000)]
    assert gate.debloat.next_deadline_ms() == 2 * PERIOD_MS


def test_a_period_that_lasted_longer_counts_for_as_long_as_it_did() -> None:
    late, punctual = Gate(A), Gate(A)
    for gate in (late, punctual):
        gate.period(a=20_000)
    late.debloat.on_consumed(A, 10_000)
    late.debloat.on_time(late.now_ms + 5 * PERIOD_MS, queued_bytes=1)
    for _ in range(5):
        punctual.period(a=2_000)
    assert late.debloat._rate_bytes_per_ms == pytest.approx(punctual.debloat._rate_bytes_per_ms)
