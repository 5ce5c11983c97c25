"""Entries that live for a while: each value starts with the time at which it expires.

An expired entry reads as absent at once and is removed later, a few at a time. Every put starts the time anew, a get
does not. Must never wrap a state that also has entries without an expiry: the name tells the two apart; nor wait for
anything only to remove some.
"""

import struct
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from tidegate.model.clock import Clock
from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import KeyedState

TTL_SUFFIX = "?ttl"

# Most entries have not expired when they are looked at: a few looks for each removal keep up with what is written.
LOOKS_PER_REMOVAL = 4
# A scan of an empty key group costs little, but not nothing.
KEY_GROUPS_PER_CALL = 8

_EXPIRY = struct.Struct(">Q")


def ttl_name(name: str) -> str:
    """Under which the state of that name is kept while it has a TTL."""
    return name + TTL_SUFFIX


@runtime_checkable
class WaitingScan(Protocol):
    """The `scan` of a state that cannot be scanned at times."""

    def waits(self) -> bool:
        """Whether it would if it was called now."""
        ...


class TtlState:
    """`KeyedState` over another one."""

    def __init__(self, state: KeyedState, *, ttl_ms: int, clock: Clock, key_groups: KeyGroupRange) -> None:
        self._state = state
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._key_groups = key_groups
        self._cursor_group = key_groups.first
        self._cursor: Iterator[tuple[bytes, bytes]] | None = None
        scan = state.scan
        self._waiting_scan = scan if isinstance(scan, WaitingScan) else None

    def get(self, key_group: int, key: bytes) -> bytes | None:
        stored = self._state.get(key_group, key)
        if stored is None or _expiry_ms(stored) <= self._clock.wall_ms():
            return None
        return stored[_EXPIRY.size :]

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        self._state.put(key_group, key, with_expiry(value, self._clock.wall_ms() + self._ttl_ms))

    def delete(self, key_group: int, key: bytes) -> None:
        self._state.delete(key_group, key)

    def scan(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        now_ms = self._clock.wall_ms()
        for key, stored in self._state.scan(key_group):
            if _expiry_ms(stored) > now_ms:
                yield key, stored[_EXPIRY.size :]

    def expire_some(self, budget: int) -> int:
        """Goes on where the last call stopped; removes at most `budget` expired entries and tells how many.

        None while the state cannot be scanned: there is no hurry, and the stream would wait.
        """
        if self._waiting_scan is not None and self._waiting_scan.waits():
            return 0
        now_ms = self._clock.wall_ms()
        removed = 0
        for key_group, key, seen in self._next_entries(LOOKS_PER_REMOVAL * budget):
            # The cursor may have seen it before it was written again.
            if _expiry_ms(seen) <= now_ms and self._has_expired(key_group, key, now_ms):
                self._state.delete(key_group, key)
                removed += 1
                if removed == budget:
                    break
        return removed

    def _next_entries(self, limit: int) -> Iterator[tuple[int, bytes, bytes]]:
        groups_left = min(KEY_GROUPS_PER_CALL, self._key_groups.last - self._key_groups.first)
        while limit > 0 and groups_left > 0:
            if self._cursor is None:
                self._cursor = self._state.scan(self._cursor_group)
            entry = next(self._cursor, None)
            if entry is not None:
                limit -= 1
                yield (self._cursor_group, *entry)
                continue
            self._cursor = None
            self._cursor_group += 1
            if self._cursor_group >= self._key_groups.last:
                self._cursor_group = self._key_groups.first
            groups_left -= 1

    def _has_expired(self, key_group: int, key: bytes, now_ms: int) -> bool:
        stored = self._state.get(key_group, key)
        return stored is not None and _expiry_ms(stored) <= now_ms


def with_expiry(value: bytes, expiry_ms: int) -> bytes:
    """A value as it is stored."""
    return _EXPIRY.pack(expiry_ms) + value


def split_expiry(stored: bytes) -> tuple[int, bytes]:
    """When a stored value expires, and the value."""
    return _expiry_ms(stored), stored[_EXPIRY.size :]


def _expiry_ms(stored: bytes) -> int:
    if len(stored) < _EXPIRY.size:
        raise Damaged(f"A stored value with a TTL has only {len(stored)} bytes: restore from an older checkpoint.")
    expiry_ms: int = _EXPIRY.unpack_from(stored)[0]
    return expiry_ms
