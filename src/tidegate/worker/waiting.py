"""What a task waits for when it takes no input, and under which of its counters that time goes."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from tidegate.worker.task_reports import TaskCounters


class WaitsFor(Enum):
    OUTPUT = auto()
    """Room in the windows of those behind it."""
    STORE = auto()
    """Changes of its state to be stored."""
    SINK = auto()
    """Its own sink, which works on beside the loop."""


@dataclass(slots=True)
class Waiting:
    """Counts into `counters`, which lag behind while the task waits until `count` is called."""

    counters: TaskCounters
    _for: WaitsFor | None = None
    _since_ms: float = 0.0

    def is_on(self) -> bool:
        return self._for is not None

    def look(self, waits_for: WaitsFor | None, now_ms: float) -> None:
        """Whether, and what for, it has to wait now."""
        if waits_for is not self._for:
            self.count(now_ms)
            self._for, self._since_ms = waits_for, now_ms

    def count(self, now_ms: float) -> None:
        if self._for is None:
            return
        waited_ms, self._since_ms = now_ms - self._since_ms, now_ms
        match self._for:
            case WaitsFor.OUTPUT:
                self.counters.backpressured_ms += waited_ms
            case WaitsFor.STORE:
                self.counters.backpressured_ms += waited_ms
                self.counters.unstored_ms += waited_ms
            case WaitsFor.SINK:
                # It is the task's own work, by another thread.
                self.counters.busy_ms += waited_ms
            case _:
                assert_never(self._for)
