"""Keyed state in RocksDB: larger than memory, and snapshots that store only what changed.

One instance for all states of one operator in one subtask, with a column family for each state that has had an entry.
Keys start with their key group, so that those of a range lie together. Must never write to the folder of a snapshot.
"""

import secrets
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from rocksdict import Checkpoint, Options, Rdict, RdictIter, ReadOptions, WriteBatch

from tidegate.model.errors import Damaged, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state import sst_files
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.heap import read_section
from tidegate.state.rocksdb_options import RocksMemory, without_log

_GROUP = struct.Struct(">H")
_GROUP_BYTES = _GROUP.size
_FAMILY_PREFIX = "keyed/"
# Entries of another instance are taken over in pieces of this size.
_BATCH_ENTRIES = 4096
_SIZES = ("rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables")


class RocksState:
    def __init__(self, name: str, instance: "_Instance") -> None:
        self._name = name
        self._instance = instance
        self._family = instance.families.get(_family_name(name))

    def get(self, key_group: int, key: bytes) -> bytes | None:
        family = self._family
        if family is None:
            return None
        value: bytes | None = family.get(_GROUP.pack(key_group) + key)
        return value

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        if key_group not in self._instance.key_groups:
            raise ProtocolViolation(
                f"State {self._name!r} got a key of key group {key_group}, but this subtask owns "
                f"{self._instance.key_groups.first} to {self._instance.key_groups.last - 1}."
            )
        if self._family is None:
            self._family = self._instance.family(_family_name(self._name))
        self._family[_GROUP.pack(key_group) + key] = value

    def delete(self, key_group: int, key: bytes) -> None:
        if self._family is not None:
            del self._family[_GROUP.pack(key_group) + key]

    def scan(self, key_group: int) -> Iterator[tuple[bytes, bytes]]:
        if self._family is None:
            return iter(())
        return ((key[_GROUP_BYTES:], value) for key, value in _entries(self._family, key_group, key_group + 1))

    def forget_family(self) -> None:
        self._family = None


class RocksBackend:
    """`StateBackend` on this machine's disk. What it makes in the slot's `folder` goes with it, or with a snapshot."""

    def __init__(self, key_groups: KeyGroupRange, *, folder: sst_files.Folder, memory: RocksMemory) -> None:
        self._instance = _Instance(key_groups, folder, memory)
        self._states: dict[str, RocksState] = {}

    def keyed(self, name: str) -> RocksState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = RocksState(name, self._instance)
        return state

    def snapshot(self) -> list[Section]:
        return self._instance.snapshot()

    def restore(self, sections: Iterable[RestoredSection]) -> None:
        """Before any state is asked for. Also takes what the heap backend stored."""
        given = list(sections)
        self._instance.restore([section for section in given if section.name == sst_files.SECTION])
        for section in given:
            if section.name != sst_files.SECTION:
                name, entries = read_section(section, self._instance.key_groups)
                state = self.keyed(name)
                for key_group, key, value in entries:
                    state.put(key_group, key, value)

    def size_bytes(self) -> int:
        return self._instance.size_bytes()

    def close(self) -> None:
        for state in self._states.values():
            state.forget_family()
        self._instance.close()


class _Instance:
    """Opened with the first entry: states that stay empty cost nothing."""

    def __init__(self, key_groups: KeyGroupRange, folder: sst_files.Folder, memory: RocksMemory) -> None:
        self.key_groups = key_groups
        self.families: dict[str, Rdict] = {}
        self._folder: sst_files.Folder | None = folder
        self._memory = memory
        # Names of an instance's table files are its own: another one's file of the same number is another file.
        self._token = secrets.token_hex(8)
        self._adopted: dict[str, str] = {}
        self._snapshots = 0
        self._home: sst_files.Folder | None = None
        self._db: Rdict | None = None

    def family(self, name: str) -> Rdict:
        """Made empty if it is not there yet."""
        family = self.families.get(name)
        if family is None:
            if self._db is None:
                self._home = self._new_folder("db")
                self._db = _open(self._home.path, self._memory, {})
            family = self.families[name] = _writable(self._db.create_column_family(name, self._memory.options()))
        return family

    def snapshot(self) -> list[Section]:
        if self._db is None:
            return []
        # First, because it lets other threads run meanwhile; making the checkpoint has nothing left to write then.
        for family in self.families.values():
            family.flush()
        self._snapshots += 1
        folder = self._new_folder(f"snapshot-{self._snapshots}")
        Checkpoint(self._db).create_checkpoint(str(folder.path))
        return [sst_files.section_of(folder, self.key_groups, self._content_name)]

    def restore(self, sections: list[RestoredSection]) -> None:
        if not sections:
            return
        base = max(sections, key=lambda section: _length(_overlap(self._range_of(section), self.key_groups)))
        self._adopt(base)
        for section in sections:
            if section is not base:
                self._take_over(section)

    def size_bytes(self) -> int:
        return sum(family.property_int_value(name) or 0 for family in self.families.values() for name in _SIZES)

    def close(self) -> None:
        _close(self._db, self.families)
        self._db = None
        if self._home is not None:
            self._home.remove()
        self._home = self._folder = None

    def __del__(self) -> None:
        # In order: RocksDB would wait for a folder that is gone.
        self.close()

    def _adopt(self, section: RestoredSection) -> None:
        """Goes on with another instance's files, without the key groups of others."""
        assert self._db is None, "restored before anything is written"
        self._home = self._new_folder("db")
        self._adopted = sst_files.lay_out(section, self._home.path)
        self._db, self.families = _reopen(self._home.path, self._memory)
        stored, own = self._range_of(section), self.key_groups
        for family in self.families.values():
            for first, last in (
                (stored.first, min(own.first, stored.last)),
                (max(own.last, stored.first), stored.last),
            ):
                if first < last:
                    family.delete_range(_GROUP.pack(first), _GROUP.pack(last))

    def _take_over(self, section: RestoredSection) -> None:
        """Copies the entries of the key groups that are now in this subtask."""
        wanted = _overlap(self._range_of(section), self.key_groups)
        if not _length(wanted):
            return
        folder = self._new_folder("other")
        sst_files.lay_out(section, folder.path)
        db, families = _reopen(folder.path, self._memory)
        try:
            for name, family in families.items():
                self._copy(_entries(family, wanted.first, wanted.last), name)
        finally:
            _close(db, families)
            folder.remove()

    def _copy(self, entries: Iterator[tuple[bytes, bytes]], name: str) -> None:
        # A few at a time: what is in one batch is in memory, and counted nowhere.
        while piece := list(islice(entries, _BATCH_ENTRIES)):
            self.family(name)
            assert self._db is not None, "opened with its first family"
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._db.get_column_family_handle(name))
            for key, value in piece:
                batch.put(key, value)
            self._db.write(batch, without_log())

    def _content_name(self, table: str) -> str:
        return self._adopted.get(table) or f"{self._token}-{table}"

    def _range_of(self, section: RestoredSection) -> KeyGroupRange:
        if section.key_groups is None:
            raise Damaged("Stored RocksDB state does not say its key groups: restore from an older checkpoint.")
        return section.key_groups

    def _new_folder(self, purpose: str) -> sst_files.Folder:
        assert self._folder is not None, "not closed"
        name = f"{self._token}-{purpose}-{secrets.token_hex(4)}"
        return sst_files.Folder(self._folder.path / name, inside=self._folder)


def _open(folder: Path, memory: RocksMemory, families: dict[str, Options]) -> Rdict:
    try:
        return Rdict(str(folder), memory.options(), column_families=families or None)
    except Exception as error:
        # The package raises nothing more precise.
        raise Damaged(f"RocksDB cannot open the state in {folder} ({error}).") from error


def _reopen(folder: Path, memory: RocksMemory) -> tuple[Rdict, dict[str, Rdict]]:
    try:
        names = Rdict.list_cf(str(folder), memory.options())
    except Exception as error:
        raise Damaged(f"RocksDB cannot read the restored state in {folder} ({error}).") from error
    db = _open(folder, memory, {name: memory.options() for name in names})
    return db, {name: _writable(db.get_column_family(name)) for name in names if name.startswith(_FAMILY_PREFIX)}


def _close(db: Rdict | None, families: dict[str, Rdict]) -> None:
    """What is not written out yet is written out first, for nobody: if that fails, it is closed all the same."""
    for family in families.values():
        with suppress(Exception):
            family.close()
    families.clear()
    if db is not None:
        with suppress(Exception):
            db.close()


def _writable(family: Rdict) -> Rdict:
    family.set_write_options(without_log())
    return family


def _entries(family: Rdict, first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    """Of these key groups, as they are at the moment of the call, with their whole keys."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(_GROUP.pack(last))
    iterator = family.iter(bounds)
    iterator.seek(_GROUP.pack(first))
    return _walk(iterator, bounds)


def _walk(iterator: RdictIter, bounds: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
    """`bounds` must live as long as the iterator, which points into it."""
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    # One that cannot read on ends like one that is through: only this tells them apart.
    iterator.status()
    del bounds


def _family_name(state: str) -> str:
    # A name of RocksDB's ends at a zero byte, and `default` is taken.
    return _FAMILY_PREFIX + quote(state, safe="/?")


def _overlap(one: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange:
    return KeyGroupRange(max(one.first, other.first), min(one.last, other.last))


def _length(groups: KeyGroupRange) -> int:
    return max(0, groups.last - groups.first)
