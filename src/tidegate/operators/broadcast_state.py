"""Broadcast state: the same in every subtask, because only rows that all of them get may change it.

Snapshots share the dictionaries; the first write after one copies. Must never change a dictionary that a snapshot
still refers to, nor be written to while rows of another input or a timer are handled.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.state.codec import decode, encode_key, encode_value
from tidegate.state.contract import Redistribution, RestoredSection, Section

SECTION = "broadcast"

_encode = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(dict[str, dict[bytes, bytes]])


class BroadcastStates:
    """All broadcast state of one operator in one subtask."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[bytes, bytes]] = {}
        self._shared: set[str] = set()
        self._size_bytes = 0
        self._is_writable = False

    def restore(self, section: RestoredSection) -> None:
        self._entries = decode_states(section)
        self._size_bytes = sum(len(k) + len(v) for entries in self._entries.values() for k, v in entries.items())

    def snapshot(self) -> Section:
        taken = {name: entries for name, entries in self._entries.items() if entries}
        self._shared.update(taken)
        return Section(SECTION, None, partial(_encode, taken), Redistribution.BROADCAST)

    @contextmanager
    def writable(self) -> Iterator[None]:
        self._is_writable = True
        try:
            yield
        finally:
            self._is_writable = False

    def size_bytes(self) -> int:
        return self._size_bytes

    def of(self, name: str) -> Mapping[bytes, bytes]:
        return self._entries.get(name, {})

    def put(self, name: str, key: bytes, value: bytes) -> None:
        entries = self._writable_entries(name)
        old = entries.get(key)
        entries[key] = value
        self._size_bytes += len(key) + len(value) if old is None else len(value) - len(old)

    def delete(self, name: str, key: bytes) -> None:
        old = self._writable_entries(name).pop(key, None)
        if old is not None:
            self._size_bytes -= len(key) + len(old)

    def _writable_entries(self, name: str) -> dict[bytes, bytes]:
        if not self._is_writable:
            raise UserCodeFailure(
                f"Broadcast state {name!r} is changed outside of handle_right: change it only there, "
                "because every subtask gets those rows and must end with the same state."
            )
        entries = self._entries.setdefault(name, {})
        if name in self._shared:
            entries = self._entries[name] = entries.copy()
            self._shared.discard(name)
        return entries


def decode_states(section: RestoredSection) -> dict[str, dict[bytes, bytes]]:
    """Keys and values of each state, by its name."""
    try:
        return _DECODER.decode(section.data)
    except msgspec.DecodeError as error:
        raise Damaged(
            f"Broadcast state cannot be read from its section ({error}): restore from an older checkpoint."
        ) from error


class NamedBroadcastState:
    """`BroadcastState` of one name, as user code sees it."""

    def __init__(self, name: str, states: BroadcastStates) -> None:
        self._name = name
        self._states = states

    def get(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        data = self._states.of(self._name).get(encode_key(key, state=self._name))
        return None if data is None else decode(data)

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        # A list of its own lets the caller write while it reads.
        for key, value in list(self._states.of(self._name).items()):
            yield decode(key), decode(value)

    def put(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._states.put(self._name, encode_key(key, state=self._name), encode_value(value, state=self._name))

    def delete(self, key: tuple[Any, ...]) -> None:
        self._states.delete(self._name, encode_key(key, state=self._name))
