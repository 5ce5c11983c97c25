"""Slots that are due, given out by their ends, the earliest first, without ever sorting all of them at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidegate.operators.key_table import Slots


@dataclass(slots=True)
class _Run:
    """Slots by ascending end; `at`: the first that was not given out."""

    slots: Slots
    ends_us: npt.NDArray[np.int64]
    at: int = 0


class DueSlots:
    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, slots: Slots, ends_us: npt.NDArray[np.int64]) -> None:
        """Slots in a number that is quickly sorted, with their ends."""
        if len(slots) == 0:
            return
        if not (ends_us[1:] >= ends_us[:-1]).all():
            order = np.argsort(ends_us, kind="stable")
            slots, ends_us = slots[order], ends_us[order]
        self._runs.append(_Run(slots, ends_us))

    def is_empty(self) -> bool:
        return not self._runs

    def take(self, most: int) -> Slots:
        """Up to so many of the earliest; at least one, if there is one."""
        if not self._runs:
            return np.zeros(0, dtype=np.int64)
        until_us = self._reach_us(max(1, most // len(self._runs)))
        earlier = [self._split(run, int(np.searchsorted(run.ends_us, until_us, side="left"))) for run in self._runs]
        slots = np.concatenate([run.slots for run in earlier])
        ends_us = np.concatenate([run.ends_us for run in earlier])
        parts, left = [slots[np.argsort(ends_us, kind="stable")]], max(0, most - len(slots))
        for run in self._runs:
            stop = int(np.searchsorted(run.ends_us, until_us, side="right"))
            parts.append(self._split(run, min(stop, run.at + left)).slots)
            left -= len(parts[-1])
        self._runs = [run for run in self._runs if run.at < len(run.slots)]
        return np.concatenate(parts)

    def _reach_us(self, per_run: int) -> int:
        """An end below which no run has more slots than `per_run`, and one has at least as many up to it."""
        return min(int(run.ends_us[min(run.at + per_run, len(run.slots) - 1)]) for run in self._runs)

    @staticmethod
    def _split(run: _Run, stop: int) -> _Run:
        stop = max(stop, run.at)
        start, run.at = run.at, stop
        return _Run(run.slots[start:stop], run.ends_us[start:stop])
