"""Keyed state in dictionaries, one per state and key group. Snapshots share them; the first write after one copies.

Must never change a dictionary that a snapshot still refers to.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from tidegate.model.errors import Damaged, IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ENTRIES_SECTION, ROCKSDB_SECTION, ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.entry_files import Change, changes_in

# A section is encoded between two steps of the stream: about this much keeps the stream waiting for a few ms.
SECTION_TARGET_BYTES = 1 << 20

_SECTION_PREFIX = "keyed/"
_encode = msgspec.msgpack.Encoder().encode
_GROUPS = msgspec.msgpack.Decoder(dict[int, memoryview])
_ENTRIES = msgspec.msgpack.Decoder(dict[bytes, bytes])


class HeapState:
    def __init__(self, name: str, key_groups: KeyGroupRange) -> None:
        self._name = name
        self._key_groups = key_groups
        self._groups: dict[int, dict[bytes, bytes]] = {}
        self._group_bytes: dict[int, int] = {}
        self._shared: set[int] = set()
        self._size_bytes = 0

    def get(self, key_group: int, key: bytes) -> bytes | None:
        group = self._groups.get(key_group)
        return None if group is None else group.get(key)

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        group = self._writable(key_group)
        old = group.get(key)
        group[key] = value
        self._resize(key_group, len(key) + len(value) if old is None else len(value) - len(old))

    def delete(self, key_group: int, key: bytes) -> None:
        if self.get(key_group, key) is not None:
            old = self._writable(key_group).pop(key)
            self._resize(key_group, -len(key) - len(old))

    def scan(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        # A list of its own lets the caller write while it scans.
        return iter(list(self._groups.get(key_group, {}).items()))

    def get_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key_group, key) for key_group, key in zip(key_groups, keys, strict=True)]

    def put_many(self, key_groups: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for key_group, key, value in zip(key_groups, keys, values, strict=True):
            self.put(key_group, key, value)

    def delete_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> None:
        for key_group, key in zip(key_groups, keys, strict=True):
            self.delete(key_group, key)

    def entries_from(
        self, key_group: int, start: bytes, most: int, *, end: bytes | None = None, most_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        entries = self._groups.get(key_group, {}).items()
        found = sorted(entry for entry in entries if entry[0] >= start and (end is None or entry[0] < end))
        return first_entries(found, most, most_bytes)

    def size_bytes(self) -> int:
        return self._size_bytes

    def frozen(self) -> dict[int, Mapping[bytes, bytes]]:
        """The entries of this moment by key group, in order, of those that have any."""
        self._shared.update(self._groups)
        return {group: self._groups[group] for group in sorted(self._groups) if self._groups[group]}

    def group_bytes(self, key_group: int) -> int:
        return self._group_bytes.get(key_group, 0)

    def snapshot(self) -> list[Section]:
        sections: list[Section] = []
        taken: dict[int, Mapping[bytes, bytes]] = {}
        taken_bytes = 0
        for key_group, entries in self.frozen().items():
            taken[key_group] = entries
            taken_bytes += self._group_bytes[key_group]
            if taken_bytes >= SECTION_TARGET_BYTES:
                sections.append(self._section(taken))
                taken, taken_bytes = {}, 0
        if taken:
            sections.append(self._section(taken))
        return sections

    def clear(self) -> None:
        self._groups, self._group_bytes, self._shared, self._size_bytes = {}, {}, set(), 0

    def _section(self, groups: Mapping[int, Mapping[bytes, bytes]]) -> Section:
        covered = KeyGroupRange(min(groups), max(groups) + 1)
        return Section(section_name(self._name), covered, partial(encode_groups, groups))

    def _writable(self, key_group: int) -> dict[bytes, bytes]:
        group = self._groups.get(key_group)
        if group is None:
            if key_group not in self._key_groups:
                raise ProtocolViolation(
                    f"State {self._name!r} got a key of key group {key_group}, but this subtask owns "
                    f"{self._key_groups.first} to {self._key_groups.last - 1}."
                )
            group = self._groups[key_group] = {}
            self._group_bytes[key_group] = 0
        elif key_group in self._shared:
            group = self._groups[key_group] = group.copy()
            self._shared.discard(key_group)
        return group

    def _resize(self, key_group: int, change_bytes: int) -> None:
        self._group_bytes[key_group] += change_bytes
        self._size_bytes += change_bytes


class HeapBackend:
    """`StateBackend` in this process's memory. `files_in`: where files are that a restore has to read."""

    def __init__(self, key_groups: KeyGroupRange, *, files_in: Path | None = None) -> None:
        self._key_groups = key_groups
        self._files_in = files_in
        self._states: dict[str, HeapState] = {}

    def keyed(self, name: str) -> HeapState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = HeapState(name, self._key_groups)
        return state

    def state_names(self) -> list[str]:
        return list(self._states)

    def snapshot(self) -> list[Section]:
        return [section for state in self._states.values() for section in state.snapshot()]

    def restore(self, sections: Iterable[RestoredSection]) -> None:
        for section in sections:
            if section.name == ENTRIES_SECTION:
                self.apply(changes_in(section, self._key_groups, folder=self._files_in))
                continue
            name, entries = read_section(section, self._key_groups)
            state = self.keyed(name)
            for key_group, key, value in entries:
                state.put(key_group, key, value)

    def apply(self, changes: Iterable[Change]) -> None:
        for name, key_group, key, value in changes:
            if value is None:
                self.keyed(name).delete(key_group, key)
            else:
                self.keyed(name).put(key_group, key, value)

    def size_bytes(self) -> int:
        return sum(state.size_bytes() for state in self._states.values())

    def close(self) -> None:
        for state in self._states.values():
            state.clear()


def section_name(state: str) -> str:
    return f"{_SECTION_PREFIX}{state}"


def is_keyed_section(name: str) -> bool:
    return name.startswith(_SECTION_PREFIX)


def read_section(section: RestoredSection, key_groups: KeyGroupRange) -> tuple[str, Iterator[tuple[int, bytes, bytes]]]:
    """The state's name, and key group, key and value of each entry in these key groups."""
    refuse_files(section)
    if not section.name.startswith(_SECTION_PREFIX):
        raise ProtocolViolation(f"Section {section.name!r} is not keyed state and cannot be restored as such.")
    name = section.name.removeprefix(_SECTION_PREFIX)
    return name, _entries_of(section, name, key_groups)


def refuse_files(section: RestoredSection) -> None:
    if section.name in (ROCKSDB_SECTION, ROW_LOG_SECTION):
        raise IncompatibleCheckpoint(
            "The checkpoint was taken with state.backend=rocksdb, which the heap backend cannot read: set "
            "state.backend to rocksdb."
        )


def _entries_of(section: RestoredSection, name: str, key_groups: KeyGroupRange) -> Iterator[tuple[int, bytes, bytes]]:
    try:
        for key_group, entries in _GROUPS.decode(section.data).items():
            if key_group in key_groups:
                for key, value in _ENTRIES.decode(entries).items():
                    yield key_group, key, value
    except msgspec.DecodeError as error:
        raise Damaged(
            f"State {name!r} cannot be read from its section ({error}): restore from an older checkpoint."
        ) from error


def encode_groups(groups: Mapping[int, Mapping[bytes, bytes]]) -> bytes:
    # Each group is a byte string of its own, so that a restore steps over the groups of others.
    return _encode({key_group: _encode(entries) for key_group, entries in groups.items()})


def first_entries(
    entries: Iterable[tuple[bytes, bytes]], most: int, most_bytes: int | None
) -> list[tuple[bytes, bytes]]:
    """Up to so many of these; the one whose value brings all of them to so many bytes is the last."""
    if most_bytes is None:
        return list(islice(entries, most))
    found: list[tuple[bytes, bytes]] = []
    left_bytes = most_bytes
    for entry in islice(entries, most):
        found.append(entry)
        left_bytes -= len(entry[1])
        if left_bytes <= 0:
            break
    return found
