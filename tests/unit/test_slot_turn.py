"""When the loop of a slot may sleep, and which tasks it lets work."""

import select
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.links import LocalLink
from tidegate.worker.slot import SlotRun


class Tasks:
    """Tasks with nothing to do, but for what `send` delivers."""

    tasks: tuple[Any, ...] = ()

    def __init__(self, send: Callable[[], None]) -> None:
        self.send_elements = send
        self.arrived = 0

    def on_element(self, channel: int, arrived: object) -> None:
        self.arrived += 1

    def lets_wait(self, task: object) -> bool:
        return False

    def has_work(self) -> bool:
        return False

    def next_deadline_ms(self) -> float | None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


@pytest.mark.parametrize("delivers", [True, False])
def test_a_slot_does_not_sleep_on_what_it_has_delivered_to_itself(
    monkeypatch: pytest.MonkeyPatch, delivers: bool
) -> None:
    """Sealed outside of a step, by time or by a barrier, when the receiver's step of this turn is over."""
    element: Any = None
    tasks = Tasks(lambda: run._deliver(0, element) if delivers else None)
    run, waits_ms = run_of(tasks, monkeypatch)
    run.turn([])
    assert (waits_ms[0] == 0.0) is delivers
    assert tasks.arrived == delivers


@pytest.mark.parametrize("lets_wait", [True, False])
def test_a_task_that_a_checkpoint_would_have_to_wait_for_does_no_step_and_the_slot_sleeps(
    monkeypatch: pytest.MonkeyPatch, lets_wait: bool
) -> None:
    tasks, task = Tasks(lambda: None), WorkingTask()
    tasks.tasks = (task,)
    monkeypatch.setattr(tasks, "lets_wait", lambda one: one is task and lets_wait)
    run, waits_ms = run_of(tasks, monkeypatch)
    run.turn([])
    assert (task.steps, waits_ms[0] > 0.0) == ((0, True) if lets_wait else (1, False))


class WorkingTask:
    steps = 0

    def step(self) -> bool:
        self.steps += 1
        return True


def run_of(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[float]]:
    """A slot without peers, and how long it waited in each turn."""
    run: Any = SlotRun.__new__(SlotRun)
    run._tasks, run._between_steps = tasks, select.poll()
    run._peers, run._clock, run._local = {}, ManualClock(), LocalLink(run._deliver)
    waits_ms: list[float] = []
    monkeypatch.setattr(SlotRun, "_receive", lambda self, wait_ms, fds: waits_ms.append(wait_ms) or set())
    return run, waits_ms
