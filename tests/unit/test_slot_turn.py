"""When the loop of a slot may sleep."""

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
    run: Any = SlotRun.__new__(SlotRun)
    element: Any = None
    run._tasks = Tasks(lambda: run._deliver(0, element) if delivers else None)
    run._peers, run._clock, run._local = {}, ManualClock(), LocalLink(run._deliver)
    waits_ms: list[float] = []
    monkeypatch.setattr(SlotRun, "_receive", lambda self, wait_ms, fds: waits_ms.append(wait_ms) or set())
    run.turn([])
    assert (waits_ms[0] == 0.0) is delivers
    assert run._tasks.arrived == delivers
