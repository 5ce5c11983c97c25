"""Timers of keys: an entry of keyed state each, so that they are snapshotted, restored and rescaled with it.

Due timers come in the order of their time, then key group, then key, whatever the order they were registered in: a
restored run fires them as the first one would have. Must never hold a timer that keyed state does not.
"""

from collections.abc import Callable
from typing import Protocol

from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import KeyedState, OrderedState, StateBackend
from tidegate.state.ordered_timers import OrderedTimers, by_key_name
from tidegate.state.timer_entries import NO_VALUE, Timer, decode_timer, encode_timer, no_floor
from tidegate.state.timer_heaps import TimerHeaps

# Deleted timers stay in the heaps until they come to the top; beyond this many and half of all, heaps are made anew.
STALE_ENTRIES_KEPT = 1024


class Timers(Protocol):
    def register(self, key_group: int, key: bytes, at_ms: int) -> None:
        """The same time again for a key is the same timer."""
        ...

    def delete(self, key_group: int, key: bytes, at_ms: int) -> None:
        """Nothing, if there is no such timer."""
        ...

    def of(self, key_group: int, key: bytes) -> list[int]:
        """The times of a key, in order."""
        ...

    def pop_due(self, due_ms: int) -> Timer | None:
        """Removes the first timer of those due by `due_ms`.

        One at a time: what the user's code does for one may delete the next, or register one that goes before it.
        """
        ...

    def first_due(self, due_ms: int) -> Timer | None:
        """The one that `pop_due` would remove; it stays."""
        ...

    def has_due(self, due_ms: int) -> bool: ...
    def next_ms(self) -> int | None: ...


def timers_over(
    backend: StateBackend, name: str, key_groups: KeyGroupRange, *, floor_ms_of: Callable[[int], int] = no_floor
) -> Timers:
    """Those that the state of that name holds, after a restore.

    `floor_ms_of`: how far time had come for a key group before it came to this subtask; due up to there at once.
    """
    state = backend.keyed(name)
    if isinstance(state, OrderedState):
        by_key = backend.keyed(by_key_name(name))
        assert isinstance(by_key, OrderedState), "a backend has states of one kind"
        return OrderedTimers(state, by_key, key_groups, floor_ms_of=floor_ms_of)
    _forget_times_by_key(backend, name, key_groups)
    timers = HeapTimers(state, floor_ms_of=floor_ms_of)
    timers.load(key_groups)
    return timers


def _forget_times_by_key(backend: StateBackend, name: str, key_groups: KeyGroupRange) -> None:
    """Those of a checkpoint of ordered state, which the changelog lets the heap read: here nobody keeps them true."""
    if by_key_name(name) in backend.state_names():
        by_key = backend.keyed(by_key_name(name))
        for key_group in range(key_groups.first, key_groups.last):
            for entry, _ in by_key.scan(key_group):
                by_key.delete(key_group, entry)


class HeapTimers:
    """`Timers` over state without an order: all of them are in memory a second time."""

    def __init__(self, state: KeyedState, *, floor_ms_of: Callable[[int], int] = no_floor) -> None:
        self._state = state
        self._floor_ms_of = floor_ms_of
        self._times: dict[tuple[int, bytes], set[int]] = {}
        self._count = 0
        self._heaps = TimerHeaps(lambda timer: timer.at_ms in self._times.get((timer.key_group, timer.key), ()))

    def load(self, key_groups: KeyGroupRange) -> None:
        """Takes over what keyed state holds, after a restore."""
        self._times.clear()
        for key_group in range(key_groups.first, key_groups.last):
            for entry, _ in self._state.scan(key_group):
                at_ms, key = decode_timer(entry)
                self._times.setdefault((key_group, key), set()).add(at_ms)
        self._rebuild()

    def register(self, key_group: int, key: bytes, at_ms: int) -> None:
        times = self._times.setdefault((key_group, key), set())
        if at_ms not in times:
            times.add(at_ms)
            self._count += 1
            self._state.put(key_group, encode_timer(at_ms, key), NO_VALUE)
            self._push(Timer(at_ms, key_group, key))

    def delete(self, key_group: int, key: bytes, at_ms: int) -> None:
        if at_ms in self._times.get((key_group, key), ()):
            self._remove(Timer(at_ms, key_group, key))
            if len(self._heaps) > 2 * self._count + STALE_ENTRIES_KEPT:
                self._rebuild()

    def of(self, key_group: int, key: bytes) -> list[int]:
        return sorted(self._times.get((key_group, key), ()))

    def pop_due(self, due_ms: int) -> Timer | None:
        timer = self.first_due(due_ms)
        if timer is not None:
            self._remove(timer)
        return timer

    def has_due(self, due_ms: int) -> bool:
        return self.first_due(due_ms) is not None

    def next_ms(self) -> int | None:
        return self._heaps.next_ms()

    def first_due(self, due_ms: int) -> Timer | None:
        return self._heaps.first_due(due_ms)

    def _push(self, timer: Timer) -> None:
        self._heaps.push(timer, floor_ms=self._floor_ms_of(timer.key_group))

    def _remove(self, timer: Timer) -> None:
        owner = (timer.key_group, timer.key)
        times = self._times[owner]
        times.discard(timer.at_ms)
        if not times:
            del self._times[owner]
        self._count -= 1
        self._state.delete(timer.key_group, encode_timer(timer.at_ms, timer.key))

    def _rebuild(self) -> None:
        self._heaps.clear()
        self._count = 0
        for (key_group, key), times in self._times.items():
            self._count += len(times)
            for at_ms in times:
                self._push(Timer(at_ms, key_group, key))
