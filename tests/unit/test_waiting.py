"""Under which counter of a task the time goes in which it takes no input."""

import pytest

from tidegate.worker.task_reports import TaskCounters
from tidegate.worker.waiting import Waiting, WaitsFor


@pytest.mark.parametrize(
    ("waits_for", "busy_ms", "backpressured_ms", "unstored_ms"),
    [(WaitsFor.OUTPUT, 0.0, 30.0, 0.0), (WaitsFor.STORE, 0.0, 30.0, 30.0), (WaitsFor.SINK, 30.0, 0.0, 0.0)],
)
def test_a_wait_counts_while_it_lasts_and_once(
    waits_for: WaitsFor, busy_ms: float, backpressured_ms: float, unstored_ms: float
) -> None:
    counters = TaskCounters()
    waiting = Waiting(counters)
    waiting.look(waits_for, 100.0)
    assert waiting.is_on()
    waiting.count(110.0)
    waiting.look(waits_for, 120.0)
    waiting.look(None, 130.0)
    assert not waiting.is_on()
    waiting.count(500.0)
    waiting.look(None, 600.0)
    assert (counters.busy_ms, counters.backpressured_ms, counters.unstored_ms) == (
        busy_ms,
        backpressured_ms,
        unstored_ms,
    )


def test_a_wait_for_one_thing_that_becomes_one_for_another_counts_for_each() -> None:
    counters = TaskCounters()
    waiting = Waiting(counters)
    waiting.look(WaitsFor.SINK, 0.0)
    waiting.look(WaitsFor.OUTPUT, 5.0)
    waiting.look(None, 7.0)
    assert (counters.busy_ms, counters.backpressured_ms) == (5.0, 2.0)
