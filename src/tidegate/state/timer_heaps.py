"""Timers by their time, in two heaps: those below the floor of their key group, due whatever the time, and the others.

Who leaves is not looked for: it is passed over when it comes to the top, and is gone when the heaps are made anew.
"""

import heapq
from collections.abc import Callable

from tidegate.state.timer_entries import Timer


class TimerHeaps:
    """`counts`: whether a timer that was pushed is still one."""

    def __init__(self, counts: Callable[[Timer], bool]) -> None:
        self._counts = counts
        self._below_floor: list[Timer] = []
        self._ahead: list[Timer] = []

    def __len__(self) -> int:
        """Those that do not count any more included."""
        return len(self._below_floor) + len(self._ahead)

    def push(self, timer: Timer, *, floor_ms: int) -> None:
        heapq.heappush(self._below_floor if timer.at_ms <= floor_ms else self._ahead, timer)

    def clear(self) -> None:
        self._below_floor, self._ahead = [], []

    def first_due(self, due_ms: int) -> Timer | None:
        below_floor, ahead = self._first(self._below_floor), self._first(self._ahead)
        if ahead is None or ahead.at_ms > due_ms:
            return below_floor
        return ahead if below_floor is None else min(below_floor, ahead)

    def next_ms(self) -> int | None:
        first = min(filter(None, (self._first(self._below_floor), self._first(self._ahead))), default=None)
        return None if first is None else first.at_ms

    def _first(self, heap: list[Timer]) -> Timer | None:
        while heap:
            if self._counts(heap[0]):
                return heap[0]
            heapq.heappop(heap)
        return None
