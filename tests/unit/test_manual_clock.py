"""A clock that a test moves by hand."""

import math

import pytest

from tidegate.model.clock import Clock
from tidegate.testing.manual_clock import ManualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(wall_start_ms=5000)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (0.0, 5000)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (0.0, 5000)


def test_both_times_move_together() -> None:
    clock = ManualClock(wall_start_ms=5000)
    clock.advance(100)
    clock.advance(0.75)
    clock.advance(0.25)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (101.0, 5101)
    clock.advance_to(250)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (250.0, 5250)


def test_time_may_be_moved_to_where_it_is() -> None:
    clock = ManualClock()
    clock.advance_to(10)
    clock.advance_to(10)
    clock.advance(0)
    assert clock.monotonic_ms() == 10.0


@pytest.mark.parametrize("ms", [-1, math.nan])
def test_time_does_not_go_back(ms: float) -> None:
    clock = ManualClock()
    clock.advance(10)
    with pytest.raises(ValueError, match="stands at 10"):
        clock.advance(ms)
    with pytest.raises(ValueError, match="stands at 10"):
        clock.advance_to(ms)
    assert clock.monotonic_ms() == 10.0
