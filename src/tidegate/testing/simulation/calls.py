"""Calls that wait, in the simulation: each is answered when the scheduler says so, in whatever order."""

from collections.abc import Callable
from random import Random
from typing import Any

from tidegate.operators.contract import Answered, CallStyle, Outcome, WaitingCalls


class SimCalls:
    """`WaitingCalls` whose answers come one by one."""

    def __init__(self, random: Random, most_calls: int) -> None:
        self._random = random
        self._most_calls = most_calls
        self._under_way: list[tuple[int, Callable[[], Any]]] = []
        self._done: list[tuple[int, Outcome]] = []

    def start(self, number: int, call: Callable[[], Any]) -> None:
        self._under_way.append((number, call))
        assert len(self._under_way) <= self._most_calls, "more calls are under way than were asked for"

    def take_done(self) -> list[tuple[int, Outcome]]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._under_way.clear()

    def answer_one(self) -> bool:
        if not self._under_way:
            return False
        number, call = self._under_way.pop(self._random.randrange(len(self._under_way)))
        self._done.append((number, Answered(call())))
        return True


class SlotCalls:
    """All calls of one slot."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._opened: list[SimCalls] = []

    def open(self, style: CallStyle, most_calls: int, name: str) -> WaitingCalls:
        self._opened.append(SimCalls(self._random, most_calls))
        return self._opened[-1]

    def answer_one(self) -> bool:
        return bool(self._opened) and self._random.choice(self._opened).answer_one()

    def forget(self) -> None:
        """A new generation begins; answers to the old one reach nobody."""
        self._opened.clear()
