"""Entries below a key: list elements and map entries, each an entry of keyed state of its own.

Which subkeys a key has is asked of state that keeps its entries in order; for other state there is an index in memory,
made anew at a restore. Must never name an entry that keyed state does not hold.
"""

import struct
from collections.abc import Iterator
from typing import Protocol

from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import KeyedState, OrderedState

_LENGTH = struct.Struct(">I")


class SubkeyedState(KeyedState, Protocol):
    """Whose keys are made by `entry_key`; what deletes an entry, expiry too, goes through here."""

    def subkeys(self, key_group: int, key: bytes) -> list[bytes]: ...
    def last_subkey(self, key_group: int, key: bytes) -> bytes | None: ...


def open_subkeys(state: KeyedState, key_groups: KeyGroupRange) -> SubkeyedState:
    return OrderedSubkeys(state) if isinstance(state, OrderedState) else IndexedSubkeys(state, key_groups)


class OrderedSubkeys:
    """Keeps nothing: state may be larger than memory."""

    def __init__(self, state: OrderedState) -> None:
        self._state = state
        self.get = state.get
        self.put = state.put
        self.delete = state.delete
        self.scan = state.scan

    def subkeys(self, key_group: int, key: bytes) -> list[bytes]:
        """In the order of their bytes."""
        beginning = entry_key(key, b"")
        return [entry[len(beginning) :] for entry in self._state.keys_from(key_group, beginning)]

    def last_subkey(self, key_group: int, key: bytes) -> bytes | None:
        beginning = entry_key(key, b"")
        last = self._state.last_key_from(key_group, beginning)
        return None if last is None else last[len(beginning) :]


class IndexedSubkeys:
    """Of state whose entries have no order."""

    def __init__(self, state: KeyedState, key_groups: KeyGroupRange) -> None:
        self._state = state
        self._subkeys: dict[tuple[int, bytes], dict[bytes, None]] = {}
        for key_group in range(key_groups.first, key_groups.last):
            # In the order of their bytes, so that a restored list has its elements in order.
            for entry, _ in sorted(state.scan(key_group)):
                self._add(key_group, entry)

    def subkeys(self, key_group: int, key: bytes) -> list[bytes]:
        """In the order they were added; after a restore those from before in the order of their bytes."""
        return list(self._subkeys.get((key_group, key), ()))

    def last_subkey(self, key_group: int, key: bytes) -> bytes | None:
        subkeys = self._subkeys.get((key_group, key))
        return next(reversed(subkeys)) if subkeys else None

    def get(self, key_group: int, key: bytes) -> bytes | None:
        return self._state.get(key_group, key)

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        self._add(key_group, key)
        self._state.put(key_group, key, value)

    def delete(self, key_group: int, key: bytes) -> None:
        owner, subkey = entry_parts(key)
        subkeys = self._subkeys.get((key_group, owner))
        if subkeys is not None:
            subkeys.pop(subkey, None)
            if not subkeys:
                del self._subkeys[(key_group, owner)]
        self._state.delete(key_group, key)

    def scan(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        return self._state.scan(key_group)

    def _add(self, key_group: int, entry: bytes) -> None:
        owner, subkey = entry_parts(entry)
        self._subkeys.setdefault((key_group, owner), {})[subkey] = None


def entry_key(key: bytes, subkey: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key + subkey


def entry_parts(entry: bytes) -> tuple[bytes, bytes]:
    """The key and what stands below it."""
    length = _LENGTH.unpack_from(entry)[0] if len(entry) >= _LENGTH.size else -1
    end = _LENGTH.size + length
    if not 0 <= length <= len(entry) - _LENGTH.size:
        raise Damaged(f"A stored entry of a list or map has only {len(entry)} bytes: restore from an older checkpoint.")
    return entry[_LENGTH.size : end], entry[end:]
