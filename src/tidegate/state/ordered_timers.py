"""Timers over state that keeps its entries in order: in memory are the first few of each key group, and no others.

An entry starts with its time, so that the first timers of a key group are its first entries. Which timers a key has is
in a second state beside them, made for a key group when that is first asked there: whoever never asks does not pay for
it. Must never hold a timer that keyed state does not, nor more of them than it says.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import OrderedState
from tidegate.state.subkeys import entry_key
from tidegate.state.timer_entries import (
    NO_VALUE,
    TIME_BYTES,
    Timer,
    decode_time,
    decode_timer,
    encode_time,
    encode_timer,
    no_floor,
)
from tidegate.state.timer_heaps import TimerHeaps

# In memory at a time, over all key groups. Reading the next ones of a key group costs a seek: a few hundred make up for
# it, and more would take longer than a slice. A key group has a few, however many key groups there are.
MOST_CACHED_TIMERS = 1 << 14
MOST_OF_A_KEY_GROUP = 256
LEAST_OF_A_KEY_GROUP = 4
# Of the others, some that were written of late: many register the same timer with each row, and what is written again
# is in the next checkpoint again.
MOST_WRITTEN_KNOWN = 1 << 14
# Former heads stay in the heaps until they come to the top; beyond this many and half of all, heaps are made anew.
STALE_HEADS_KEPT = 1024

# Stands among the times by key: those of this key group are all there. No entry of a key is as short.
_MADE = b""
_MADE_AT_A_TIME = 1024


def by_key_name(timers: str) -> str:
    """Under which the times by key of the timers of that name are kept."""
    return timers + "/by-key"


class OrderedTimers:
    """`Timers` over `state`, with `by_key` for the times of a key."""

    def __init__(
        self,
        state: OrderedState,
        by_key: OrderedState,
        key_groups: KeyGroupRange,
        *,
        floor_ms_of: Callable[[int], int] = no_floor,
    ) -> None:
        self._state = state
        self._by_key = _TimesByKey(by_key, state)
        own = range(key_groups.first, key_groups.last)
        most = max(LEAST_OF_A_KEY_GROUP, min(MOST_OF_A_KEY_GROUP, MOST_CACHED_TIMERS // max(1, len(own))))
        self._firsts = {
            key_group: _FirstTimers(state, key_group, most=most, floor_ms=floor_ms_of(key_group)) for key_group in own
        }
        self._written: set[tuple[int, bytes]] = set()
        # Of every key group that has one the head: that it is not due says that nothing of its key group is.
        self._heads = TimerHeaps(lambda timer: self._firsts[timer.key_group].head is timer)
        self._rebuild()

    @property
    def cached_count(self) -> int:
        return sum(len(firsts) for firsts in self._firsts.values())

    def register(self, key_group: int, key: bytes, at_ms: int) -> None:
        firsts, entry = self._firsts[key_group], encode_timer(at_ms, key)
        if entry in firsts if firsts.covers(entry) else (key_group, entry) in self._written:
            return
        # It may be there all the same. To read, from a disk perhaps, costs many times as much as to write it again.
        self._state.put(key_group, entry, NO_VALUE)
        self._by_key.add(key_group, key, at_ms)
        if not firsts.add(entry):
            self._remember_written(key_group, entry)
        self._follow_head(firsts)

    def delete(self, key_group: int, key: bytes, at_ms: int) -> None:
        firsts, entry = self._firsts[key_group], encode_timer(at_ms, key)
        if firsts.covers(entry) and entry not in firsts:
            return
        self._state.delete(key_group, entry)
        self._by_key.remove(key_group, key, at_ms)
        self._written.discard((key_group, entry))
        firsts.remove(entry)
        self._follow_head(firsts)

    def of(self, key_group: int, key: bytes) -> list[int]:
        return self._by_key.of(key_group, key)

    def pop_due(self, due_ms: int) -> Timer | None:
        timer = self.first_due(due_ms)
        if timer is not None:
            self.delete(timer.key_group, timer.key, timer.at_ms)
        return timer

    def has_due(self, due_ms: int) -> bool:
        return self.first_due(due_ms) is not None

    def next_ms(self) -> int | None:
        return self._heads.next_ms()

    def first_due(self, due_ms: int) -> Timer | None:
        return self._heads.first_due(due_ms)

    def _remember_written(self, key_group: int, entry: bytes) -> None:
        if len(self._written) >= MOST_WRITTEN_KNOWN:
            self._written.clear()
        self._written.add((key_group, entry))

    def _follow_head(self, firsts: "_FirstTimers") -> None:
        if firsts.has_new_head():
            self._push(firsts)
            if len(self._heads) > 2 * len(self._firsts) + STALE_HEADS_KEPT:
                self._rebuild()

    def _push(self, firsts: "_FirstTimers") -> None:
        if firsts.head is not None:
            self._heads.push(firsts.head, floor_ms=firsts.floor_ms)

    def _rebuild(self) -> None:
        self._heads.clear()
        for firsts in self._firsts.values():
            self._push(firsts)


class _FirstTimers:
    """Of one key group: exactly the entries of state below `_rest_from`; None: there are no others.

    There is a head as long as the key group has a timer.
    """

    __slots__ = ("_entries", "_key_group", "_most", "_rest_from", "_state", "floor_ms", "head")

    def __init__(self, state: OrderedState, key_group: int, *, most: int, floor_ms: int) -> None:
        self._state = state
        self._key_group = key_group
        self._most = most
        self.floor_ms = floor_ms
        self._entries: list[bytes] = []
        self._rest_from: bytes | None = b""
        self.head: Timer | None = None
        self._refill()
        self.has_new_head()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: bytes) -> bool:
        at = bisect_left(self._entries, entry)
        return at < len(self._entries) and self._entries[at] == entry

    def covers(self, entry: bytes) -> bool:
        """Whether it is known if there is such an entry."""
        return self._rest_from is None or entry < self._rest_from

    def add(self, entry: bytes) -> bool:
        """One that state holds, and that is not here; False if it is not one of the first."""
        if not self.covers(entry):
            return False
        self._entries.insert(bisect_left(self._entries, entry), entry)
        if len(self._entries) > self._most:
            self._rest_from = self._entries.pop()
        return True

    def remove(self, entry: bytes) -> None:
        """One that state does not hold any more."""
        at = bisect_left(self._entries, entry)
        if at < len(self._entries) and self._entries[at] == entry:
            del self._entries[at]
            if not self._entries:
                self._refill()

    def has_new_head(self) -> bool:
        """Since it was last asked; `head` is the present one afterwards."""
        if not self._entries:
            had_one, self.head = self.head is not None, None
            return had_one
        at_ms, key = decode_timer(self._entries[0])
        if self.head is not None and self.head.at_ms == at_ms and self.head.key == key:
            return False
        self.head = Timer(at_ms, self._key_group, key)
        return True

    def _refill(self) -> None:
        if self._rest_from is None:
            return
        # From where it ended: what was removed before is not passed over again, entry by entry.
        self._entries = self._state.first_keys(self._key_group, self._rest_from, self._most)
        self._rest_from = _successor(self._entries[-1]) if len(self._entries) == self._most else None


class _TimesByKey:
    """Entries of key and time, complete in the key groups that have a mark; in others there are none."""

    def __init__(self, state: OrderedState, timers: OrderedState) -> None:
        self._state = state
        self._timers = timers
        self._is_made: dict[int, bool] = {}

    def add(self, key_group: int, key: bytes, at_ms: int) -> None:
        if self._made(key_group):
            self._state.put(key_group, entry_key(key, encode_time(at_ms)), NO_VALUE)

    def remove(self, key_group: int, key: bytes, at_ms: int) -> None:
        if self._made(key_group):
            self._state.delete(key_group, entry_key(key, encode_time(at_ms)))

    def of(self, key_group: int, key: bytes) -> list[int]:
        if not self._made(key_group):
            self._make(key_group)
        beginning = entry_key(key, b"")
        times = [entry[len(beginning) :] for entry in self._state.keys_from(key_group, beginning)]
        if any(len(time) != TIME_BYTES for time in times):
            raise Damaged("A stored time of a timer has a wrong length: restore from an older checkpoint.")
        return [decode_time(time) for time in times]

    def _made(self, key_group: int) -> bool:
        is_made = self._is_made.get(key_group)
        if is_made is None:
            is_made = self._is_made[key_group] = self._state.get(key_group, _MADE) is not None
        return is_made

    def _make(self, key_group: int) -> None:
        for entry in self._all_timers(key_group):
            at_ms, key = decode_timer(entry)
            self._state.put(key_group, entry_key(key, encode_time(at_ms)), NO_VALUE)
        self._state.put(key_group, _MADE, NO_VALUE)
        self._is_made[key_group] = True

    def _all_timers(self, key_group: int) -> Iterator[bytes]:
        start = b""
        while entries := self._timers.first_keys(key_group, start, _MADE_AT_A_TIME):
            yield from entries
            start = _successor(entries[-1])


def _successor(entry: bytes) -> bytes:
    """The first that comes after it."""
    return entry + b"\x00"
