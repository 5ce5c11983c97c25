"""What tasks did in the last second or so, from two of their reports: busy, without room, idle, rows and bytes."""

from dataclasses import dataclass
from typing import Final

from tidegate.model.ids import SlotIndex, TaskId
from tidegate.network.messages import Progress, TaskProgress

# Shorter spans swing with single slices.
_LEAST_SPAN_MS: Final = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """`idle_ms_per_s` is the rest: no input, or another task of the slot had its turn."""

    busy_ms_per_s: float = 0.0
    backpressured_ms_per_s: float = 0.0
    idle_ms_per_s: float = 0.0
    rows_in_per_s: float = 0.0
    rows_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0


UNKNOWN = Rates()


class TaskRates:
    def __init__(self) -> None:
        self._since: dict[SlotIndex, Progress] = {}
        self._rates: dict[TaskId, Rates] = {}

    def on_progress(self, slot: SlotIndex, progress: Progress) -> None:
        since = self._since.setdefault(slot, progress)
        span_ms = progress.now_ms - since.now_ms
        if span_ms < _LEAST_SPAN_MS:
            return
        before = {task.task: task for task in since.tasks}
        for task in progress.tasks:
            if task.task in before:
                self._rates[task.task] = _rates(before[task.task], task, span_s=span_ms / 1000)
        self._since[slot] = progress

    def of(self, task: TaskId) -> Rates:
        return self._rates.get(task, UNKNOWN)


def _rates(before: TaskProgress, now: TaskProgress, *, span_s: float) -> Rates:
    busy = min(1000.0, (now.busy_ms - before.busy_ms) / span_s)
    backpressured = min(1000.0 - busy, max(0.0, now.backpressured_ms - before.backpressured_ms) / span_s)
    return Rates(
        busy_ms_per_s=busy,
        backpressured_ms_per_s=backpressured,
        idle_ms_per_s=max(0.0, 1000.0 - busy - backpressured),
        rows_in_per_s=(now.rows_in - before.rows_in) / span_s,
        rows_out_per_s=(now.rows_out - before.rows_out) / span_s,
        bytes_in_per_s=(now.bytes_in - before.bytes_in) / span_s,
        bytes_out_per_s=(now.bytes_out - before.bytes_out) / span_s,
    )
