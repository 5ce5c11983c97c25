"""Keyed state in RocksDB: larger than memory, and snapshots that store only what changed.

One instance for all states of one operator in one subtask, with a column family for each state that has had an entry.
While the files of a snapshot are being made, writes wait in memory, and are seen by readers there: they must never get
into the snapshot.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge, nsmallest
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NoReturn, cast
from urllib.parse import quote, unquote

from tidegate.model.errors import DidNotHappen, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state import sst_files
from tidegate.state.contract import ENTRIES_SECTION, ROCKSDB_SECTION, RestoredSection, Section
from tidegate.state.entry_files import changes_in
from tidegate.state.heap import first_entries, read_section
from tidegate.state.rocksdb_instance import (
    FAMILY_PREFIX,
    CheckpointInTheMaking,
    RocksInstance,
    entries_of,
    keys_from,
    last_key_from,
    prefix_of,
)
from tidegate.state.rocksdb_options import RocksMemory

# Who writes more than this while the files of a snapshot are being made waits for them.
MOST_HELD_BYTES = 8 << 20
_PREFIX_BYTES = len(prefix_of(0))


class RocksState:
    """`held`: writes since a snapshot whose files are being made, by whole keys; None deletes."""

    def __init__(self, name: str, instance: RocksInstance, backend: "RocksBackend") -> None:
        self._name = name
        self._instance = instance
        self._backend = backend
        self._family_name = _family_name(name)
        self._family = instance.families.get(self._family_name)
        self.held: dict[bytes, bytes | None] | None = None
        self.scan = _Scan(self, backend)

    def get(self, key_group: int, key: bytes) -> bytes | None:
        stored_key = prefix_of(key_group) + key
        if self.held is not None:
            self._backend.let_go()
            if self.held is not None and stored_key in self.held:
                return self.held[stored_key]
        if self._family is None:
            return None
        try:
            value: bytes | None = self._family.get(stored_key)
        except Exception as error:
            self._fail("read", error)
        return value

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        self._check_own(key_group)
        stored_key = prefix_of(key_group) + key
        if self._holds(stored_key, value):
            return
        try:
            if self._family is None:
                self._family = self._instance.family(self._family_name)
            self._family[stored_key] = value
        except Exception as error:
            self._fail("written", error)

    def delete(self, key_group: int, key: bytes) -> None:
        stored_key = prefix_of(key_group) + key
        if self._holds(stored_key, None) or self._family is None:
            return
        try:
            del self._family[stored_key]
        except Exception as error:
            self._fail("written", error)

    def get_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]:
        stored_keys = _stored_keys(key_groups, keys)
        if self.held is not None:
            self._backend.let_go()
        found: list[bytes | None] = [None] * len(keys)
        if self._family is not None and keys:
            try:
                found = cast(list[bytes | None], self._family.get(cast(Any, stored_keys)))
            except Exception as error:
                self._fail("read", error)
        if not self.held:
            return found
        held = self.held
        return [held.get(key, value) for key, value in zip(stored_keys, found, strict=True)]

    def put_many(self, key_groups: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for key_group in {min(key_groups), max(key_groups)} if keys else ():
            self._check_own(key_group)
        self._write(list(zip(_stored_keys(key_groups, keys), values, strict=True)))

    def delete_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> None:
        if self._family is not None or self.held is not None:
            self._write([(key, None) for key in _stored_keys(key_groups, keys)])

    def entries_from(
        self, key_group: int, start: bytes, most: int, *, end: bytes | None = None, most_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        if self.held is not None:
            self._backend.settle()
        if self._family is None:
            return []
        entries = entries_of(self._family, key_group, key_group + 1, start, end)
        return first_entries(self._walk(entries), most, most_bytes)

    def entries_of_group(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        if self.held is not None:
            self._backend.settle()
        if self._family is None:
            return iter(())
        return self._walk(entries_of(self._family, key_group, key_group + 1))

    def keys_from(self, key_group: int, beginning: bytes) -> list[bytes]:
        if self.held is not None:
            self._backend.let_go()
        stored_beginning = prefix_of(key_group) + beginning
        found = [] if self._family is None else self._all_from(stored_beginning)
        if self.held is not None:
            # Few, and for a short time: there is no index of them either.
            held = {key: value for key, value in self.held.items() if key.startswith(stored_beginning)}
            alive = {key for key in found if key not in held} | {
                key for key, value in held.items() if value is not None
            }
            found = sorted(alive)
        return [key[_PREFIX_BYTES:] for key in found]

    def last_key_from(self, key_group: int, beginning: bytes) -> bytes | None:
        if self.held is not None:
            self._backend.let_go()
        if self.held is not None:
            return next(reversed(self.keys_from(key_group, beginning)), None)
        if self._family is None:
            return None
        try:
            last = last_key_from(self._family, prefix_of(key_group) + beginning)
        except Exception as error:
            self._fail("read", error)
        return None if last is None else last[_PREFIX_BYTES:]

    def first_keys(self, key_group: int, start: bytes, most: int) -> list[bytes]:
        if self.held is not None:
            self._backend.let_go()
        held, prefix = self.held or {}, prefix_of(key_group)
        first = prefix + start
        new = (key for key, value in held.items() if value is not None and key >= first and key.startswith(prefix))
        found = [key[_PREFIX_BYTES:] for key in nsmallest(most, new)]
        if self._family is not None:
            entries = self._walk(entries_of(self._family, key_group, key_group + 1, start))
            stored = (key for key, _ in entries if prefix + key not in held)
            found = list(islice(merge(stored, found), most))
        return found

    def write_held(self) -> None:
        """Once the files of the snapshot are made."""
        if self.held:
            try:
                self._instance.write(self._family_name, self.held.items())
            except Exception as error:
                self._fail("written", error)
            self._family = self._instance.families[self._family_name]
        self.held = None

    def forget_family(self) -> None:
        self._family = self.held = None

    def _all_from(self, stored_beginning: bytes) -> list[bytes]:
        assert self._family is not None
        try:
            return list(keys_from(self._family, stored_beginning))
        except Exception as error:
            self._fail("read", error)

    def _holds(self, stored_key: bytes, value: bytes | None) -> bool:
        if self.held is None:
            return False
        self._backend.let_go()
        if self.held is None:
            return False
        self.held[stored_key] = value
        self._backend.held_bytes += len(stored_key) + (0 if value is None else len(value))
        return True

    def _write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        if self.held is not None:
            self._backend.let_go()
        if self.held is not None:
            self.held.update(changes)
            self._backend.held_bytes += sum(len(key) + (0 if value is None else len(value)) for key, value in changes)
            return
        try:
            self._instance.write(self._family_name, changes)
        except Exception as error:
            self._fail("written", error)
        if changes:
            self._family = self._instance.families[self._family_name]

    def _check_own(self, key_group: int) -> None:
        if key_group not in self._instance.key_groups:
            raise ProtocolViolation(
                f"State {self._name!r} got a key of key group {key_group}, but this subtask owns "
                f"{self._instance.key_groups.first} to {self._instance.key_groups.last - 1}."
            )

    def _walk(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            for key, value in entries:
                yield key[_PREFIX_BYTES:], value
        except Exception as error:
            self._fail("read", error)

    def _fail(self, done: str, error: Exception) -> NoReturn:
        # The package raises nothing more precise; and it must not be taken for an error of the user's code.
        raise DidNotHappen(f"State {self._name!r} in RocksDB could not be {done}: {error}.") from error


class _Scan:
    """Of a state: whoever it is handed on to can ask first whether it waits for the files of a snapshot."""

    def __init__(self, state: RocksState, backend: "RocksBackend") -> None:
        self._state = state
        self._backend = backend

    def __call__(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        return self._state.entries_of_group(key_group)

    def waits(self) -> bool:
        return self._state.held is not None and self._backend.is_making_files()


class RocksBackend:
    """`StateBackend` on this machine's disk. What it makes in the slot's `folder` goes with it, or with a snapshot."""

    def __init__(self, key_groups: KeyGroupRange, *, folder: sst_files.Folder, memory: RocksMemory) -> None:
        self._instance = RocksInstance(key_groups, folder, memory)
        self._files_in = folder.path
        self._states: dict[str, RocksState] = {}
        self._making: CheckpointInTheMaking | None = None
        self.held_bytes = 0

    def keyed(self, name: str) -> RocksState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = RocksState(name, self._instance, self)
            state.held = None if self._making is None else {}
        return state

    def state_names(self) -> list[str]:
        """Of the states that have had an entry, opened or not."""
        return [unquote(family.removeprefix(FAMILY_PREFIX)) for family in self._instance.families]

    def snapshot(self) -> list[Section]:
        self.settle()
        begun = self._instance.begin_checkpoint()
        if begun is None:
            return []
        self._making, folder = begun
        for state in self._states.values():
            state.held = {}
        return [sst_files.section_of(folder, self._making, self._instance.key_groups, self._instance.content_names())]

    def restore(self, sections: Iterable[RestoredSection]) -> None:
        """Before any state is asked for. Also takes what the heap backends stored, and changes since."""
        given = list(sections)
        self._instance.restore([section for section in given if section.name == ROCKSDB_SECTION])
        for section in given:
            if section.name not in (ROCKSDB_SECTION, ENTRIES_SECTION):
                name, entries = read_section(section, self._instance.key_groups)
                self._instance.write(
                    _family_name(name), ((prefix_of(key_group) + key, value) for key_group, key, value in entries)
                )
        # Last: what changed since the files of the instance were made counts more.
        for section in given:
            if section.name == ENTRIES_SECTION:
                self._replay(section)

    def _replay(self, section: RestoredSection) -> None:
        self._files_in.mkdir(parents=True, exist_ok=True)
        changes = changes_in(section, self._instance.key_groups, folder=self._files_in)
        for name, of_state in groupby(changes, key=itemgetter(0)):
            self._instance.write(
                _family_name(name), ((prefix_of(key_group) + key, value) for _, key_group, key, value in of_state)
            )

    def size_bytes(self) -> int:
        return self._instance.size_bytes() + self.held_bytes

    def close(self) -> None:
        if self._making is not None:
            self._making.wait()
            self._making = None
        for state in self._states.values():
            state.forget_family()
        self._instance.close()

    def __del__(self) -> None:
        # In order: RocksDB would wait for a folder that is gone.
        self.close()

    def is_making_files(self) -> bool:
        """Those of a snapshot."""
        return self._making is not None and not self._making.is_made

    def let_go(self) -> None:
        """Writes what is held if it may be written by now, or if there is too much of it to wait on."""
        if not self.is_making_files() or self.held_bytes >= MOST_HELD_BYTES:
            self.settle()

    def settle(self) -> None:
        """Writes what is held, once it may be written."""
        if self._making is not None:
            self._making.wait()
            self._making = None
        for state in self._states.values():
            state.write_held()
        self.held_bytes = 0


def _stored_keys(key_groups: Sequence[int], keys: Sequence[bytes]) -> list[bytes]:
    prefixes = {key_group: prefix_of(key_group) for key_group in set(key_groups)}
    return [prefixes[key_group] + key for key_group, key in zip(key_groups, keys, strict=True)]


def _family_name(state: str) -> str:
    # A name of RocksDB's ends at a zero byte, and `default` is taken.
    return FAMILY_PREFIX + quote(state, safe="/?")
