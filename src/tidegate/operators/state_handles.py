"""Value, list and map state of one name, as a user's processor sees them: always at the key that is being handled.

Must never reach state of another key, nor of any key while none is being handled.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.model.errors import Damaged, UserCodeFailure
from tidegate.state.codec import decode, encode_key, encode_value
from tidegate.state.contract import KeyedState
from tidegate.state.subkeys import SubkeyedState, entry_key

_POSITION = struct.Struct(">Q")


@dataclass(slots=True)
class CurrentKey:
    """Where states and timers read and write. `calls`: the user's methods that are called for a key."""

    calls: str
    key_group: int = 0
    key: bytes | None = None

    def required_for(self, what: str) -> bytes:
        if self.key is None:
            raise UserCodeFailure(f"{what} used outside of {self.calls}, where there is no key: use it only there.")
        return self.key


class ValueState:
    """`ValueStateHandle` over one keyed state, at the current key."""

    def __init__(self, name: str, fields: Sequence[str], state: KeyedState, current: CurrentKey) -> None:
        self._name = name
        self._fields = fields
        self._state = state
        self._current = current

    def exists(self) -> bool:
        return self._state.get(self._current.key_group, self._key()) is not None

    def get(self) -> tuple[Any, ...] | None:
        data = self._state.get(self._current.key_group, self._key())
        return None if data is None else decode(data)

    def update(self, new_value: tuple[Any, ...]) -> None:
        data = _encoded(new_value, self._fields, self._name)
        self._state.put(self._current.key_group, self._key(), data)

    def clear(self) -> None:
        self._state.delete(self._current.key_group, self._key())

    def _key(self) -> bytes:
        return self._current.required_for(f"State {self._name!r} is")


class ListState:
    """`ListStateHandle`: each element is an entry below the key, under its position, and expires by itself."""

    def __init__(
        self, name: str, fields: Sequence[str], state: KeyedState, entries: SubkeyedState, current: CurrentKey
    ) -> None:
        self._name = name
        self._fields = fields
        self._state = state
        self._entries = entries
        self._current = current

    def exists(self) -> bool:
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        key, key_group = self._key(), self._current.key_group
        # A list of its own lets the caller write while it reads.
        return self._read(key_group, key, self._entries.subkeys(key_group, key))

    def put(self, new_values: Sequence[tuple[Any, ...]]) -> None:
        encoded = [_encoded(value, self._fields, self._name) for value in new_values]
        self.clear()
        self._append(encoded)

    def append_value(self, new_value: tuple[Any, ...]) -> None:
        self._append([_encoded(new_value, self._fields, self._name)])

    def append_list(self, new_values: Sequence[tuple[Any, ...]]) -> None:
        self._append([_encoded(value, self._fields, self._name) for value in new_values])

    def clear(self) -> None:
        key = self._key()
        for subkey in self._entries.subkeys(self._current.key_group, key):
            self._state.delete(self._current.key_group, entry_key(key, subkey))

    def _append(self, encoded: Sequence[bytes]) -> None:
        key, key_group = self._key(), self._current.key_group
        last = self._entries.last_subkey(key_group, key)
        first = 0 if last is None else decode_position(last) + 1
        for position, data in enumerate(encoded, first):
            self._state.put(key_group, entry_key(key, encode_position(position)), data)

    def _read(self, key_group: int, key: bytes, subkeys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        for subkey in subkeys:
            data = self._state.get(key_group, entry_key(key, subkey))
            if data is not None:
                yield decode(data)

    def _key(self) -> bytes:
        return self._current.required_for(f"State {self._name!r} is")


class MapState:
    """`MapStateHandle`: each of the map's entries is one below the key, and expires by itself."""

    def __init__(
        self,
        name: str,
        key_fields: Sequence[str],
        value_fields: Sequence[str],
        state: KeyedState,
        entries: SubkeyedState,
        current: CurrentKey,
    ) -> None:
        self._name = name
        self._key_fields = key_fields
        self._value_fields = value_fields
        self._state = state
        self._entries = entries
        self._current = current

    def exists(self) -> bool:
        return next(self.items(), None) is not None

    def get_value(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        data = self._state.get(self._current.key_group, self._entry(key))
        return None if data is None else decode(data)

    def contains_key(self, key: tuple[Any, ...]) -> bool:
        return self._state.get(self._current.key_group, self._entry(key)) is not None

    def update_value(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        data = _encoded(value, self._value_fields, self._name)
        self._state.put(self._current.key_group, self._entry(key), data)

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """In the order of the keys' bytes, which is the same after a restore."""
        owner, key_group = self._key(), self._current.key_group
        return self._read(key_group, owner, sorted(self._entries.subkeys(key_group, owner)))

    def remove_key(self, key: tuple[Any, ...]) -> None:
        self._state.delete(self._current.key_group, self._entry(key))

    def clear(self) -> None:
        owner = self._key()
        for subkey in self._entries.subkeys(self._current.key_group, owner):
            self._state.delete(self._current.key_group, entry_key(owner, subkey))

    def _read(
        self, key_group: int, owner: bytes, subkeys: Sequence[bytes]
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for subkey in subkeys:
            data = self._state.get(key_group, entry_key(owner, subkey))
            if data is not None:
                yield decode(subkey), decode(data)

    def _entry(self, key: tuple[Any, ...]) -> bytes:
        _check_fields(key, self._key_fields, self._name)
        return entry_key(self._key(), encode_key(key, state=self._name))

    def _key(self) -> bytes:
        return self._current.required_for(f"State {self._name!r} is")


def encode_position(position: int) -> bytes:
    """Under which an element of a list lies below its key."""
    return _POSITION.pack(position)


def decode_position(subkey: bytes) -> int:
    if len(subkey) != _POSITION.size:
        raise Damaged(f"A stored element of a list has a place of {len(subkey)} bytes: restore an older checkpoint.")
    position: int = _POSITION.unpack(subkey)[0]
    return position


def _encoded(value: tuple[Any, ...], fields: Sequence[str], name: str) -> bytes:
    _check_fields(value, fields, name)
    return encode_value(value, state=name)


def _check_fields(value: object, fields: Sequence[str], name: str) -> None:
    if not isinstance(value, tuple) or len(value) != len(fields):
        raise UserCodeFailure(
            f"State {name!r} has the fields ({', '.join(fields)}): update it with a tuple of "
            f"{len(fields)}, not with {value!r}."
        )
