"""Timers of keys: an entry of keyed state each, so that they are snapshotted, restored and rescaled with it.

Due timers come in the order of their time, then key group, then key, whatever the order they were registered in: a
restored run fires them as the first one would have. Must never hold a timer that keyed state does not.
"""

import heapq
import struct
from collections.abc import Callable
from typing import NamedTuple

from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import KeyedState

# Deleted timers stay in the heaps until they come to the top; beyond this many and half of all, heaps are made anew.
STALE_ENTRIES_KEPT = 1024

_NO_VALUE = b""
_TIME = struct.Struct(">Q")
# Makes the unsigned bytes sort as the signed times do.
_SIGN = 1 << 63


class Timer(NamedTuple):
    """In the order in which timers fire."""

    at_ms: int
    key_group: int
    key: bytes


def no_floor(key_group: int) -> int:
    return MIN_WATERMARK_MS


class Timers:
    """`floor_ms_of`: how far time had come for a key group before it came to this subtask; due up to there at once."""

    def __init__(self, state: KeyedState, *, floor_ms_of: Callable[[int], int] = no_floor) -> None:
        self._state = state
        self._floor_ms_of = floor_ms_of
        self._times: dict[tuple[int, bytes], set[int]] = {}
        self._count = 0
        # Every timer has an entry in one of the two; an entry whose timer is gone is passed over.
        self._below_floor: list[Timer] = []
        self._ahead: list[Timer] = []

    def __len__(self) -> int:
        return self._count

    def load(self, key_groups: KeyGroupRange) -> None:
        """Takes over what keyed state holds, after a restore."""
        self._times.clear()
        for key_group in range(key_groups.first, key_groups.last):
            for entry, _ in self._state.scan(key_group):
                at_ms, key = decode_timer(entry)
                self._times.setdefault((key_group, key), set()).add(at_ms)
        self._rebuild()

    def register(self, key_group: int, key: bytes, at_ms: int) -> None:
        """The same time again for a key is the same timer."""
        times = self._times.setdefault((key_group, key), set())
        if at_ms not in times:
            times.add(at_ms)
            self._count += 1
            self._state.put(key_group, _encode(at_ms, key), _NO_VALUE)
            self._push(Timer(at_ms, key_group, key))

    def delete(self, key_group: int, key: bytes, at_ms: int) -> None:
        if at_ms in self._times.get((key_group, key), ()):
            self._remove(Timer(at_ms, key_group, key))
            if len(self._below_floor) + len(self._ahead) > 2 * self._count + STALE_ENTRIES_KEPT:
                self._rebuild()

    def of(self, key_group: int, key: bytes) -> list[int]:
        return sorted(self._times.get((key_group, key), ()))

    def pop_due(self, due_ms: int) -> Timer | None:
        """Removes the first timer of those due by `due_ms`.

        One at a time: what the user's code does for one may delete the next, or register one that goes before it.
        """
        timer = self.first_due(due_ms)
        if timer is not None:
            self._remove(timer)
        return timer

    def has_due(self, due_ms: int) -> bool:
        return self.first_due(due_ms) is not None

    def next_ms(self) -> int | None:
        first = min(filter(None, (self._first(self._below_floor), self._first(self._ahead))), default=None)
        return None if first is None else first.at_ms

    def first_due(self, due_ms: int) -> Timer | None:
        """The one that `pop_due` would remove; it stays."""
        below, ahead = self._first(self._below_floor), self._first(self._ahead)
        if ahead is None or ahead.at_ms > due_ms:
            return below
        return ahead if below is None else min(below, ahead)

    def _first(self, heap: list[Timer]) -> Timer | None:
        while heap:
            first = heap[0]
            if first.at_ms in self._times.get((first.key_group, first.key), ()):
                return first
            heapq.heappop(heap)
        return None

    def _push(self, timer: Timer) -> None:
        is_below = timer.at_ms <= self._floor_ms_of(timer.key_group)
        heapq.heappush(self._below_floor if is_below else self._ahead, timer)

    def _remove(self, timer: Timer) -> None:
        owner = (timer.key_group, timer.key)
        times = self._times[owner]
        times.discard(timer.at_ms)
        if not times:
            del self._times[owner]
        self._count -= 1
        self._state.delete(timer.key_group, _encode(timer.at_ms, timer.key))

    def _rebuild(self) -> None:
        self._below_floor, self._ahead, self._count = [], [], 0
        for (key_group, key), times in self._times.items():
            self._count += len(times)
            for at_ms in times:
                self._push(Timer(at_ms, key_group, key))


def _encode(at_ms: int, key: bytes) -> bytes:
    return _TIME.pack(at_ms + _SIGN) + key


def decode_timer(entry: bytes) -> tuple[int, bytes]:
    """Its time and its key."""
    if len(entry) < _TIME.size:
        raise Damaged(f"A stored timer has only {len(entry)} bytes: restore from an older checkpoint.")
    return _TIME.unpack_from(entry)[0] - _SIGN, entry[_TIME.size :]
