"""One RocksDB instance on disk: its column families, its checkpoints, and how it takes over the files of others.

Knows key groups as prefixes of keys, and nothing else of what it holds. Opened with the first column family, so that
what stays empty costs nothing.
"""

import secrets
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rocksdict import Checkpoint, Options, Rdict, RdictIter, ReadOptions, WriteBatch

from tidegate.model.errors import Damaged, DidNotHappen, StorageFailure
from tidegate.model.ids import KeyGroupRange
from tidegate.state import sst_files
from tidegate.state.contract import RestoredSection
from tidegate.state.rocksdb_options import RocksMemory, without_log

FAMILY_PREFIX = "keyed/"
# What is written in one go: so many entries, or fewer if they have so many bytes.
_BATCH_ENTRIES = 4096
_BATCH_BYTES = 4 << 20
_SIZES = ("rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables")
_GROUP = struct.Struct(">H")
# What RocksDB's messages begin with when the content of its files is wrong, and not this machine.
_CORRUPTION = "Corruption"


class CheckpointInTheMaking:
    """Made by a thread of its own, which lets others run: nothing may be written to the instance until it is."""

    def __init__(self, db: Rdict, families: Iterable[Rdict], folder: sst_files.Folder) -> None:
        self.is_made = False
        self._error: DidNotHappen | None = None
        arguments = (db, list(families), folder)
        self._thread = threading.Thread(target=self._make, args=arguments, name="tidegate-snapshot", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def has_failed(self) -> bool:
        """As far as that is known by now."""
        return self._error is not None

    def result(self) -> None:
        """Waits for it, and raises what went wrong."""
        self.wait()
        if self._error is not None:
            raise self._error

    def _make(self, db: Rdict, families: list[Rdict], folder: sst_files.Folder) -> None:
        try:
            # First, without the interpreter's lock; making the checkpoint, which holds it, has nothing to write then.
            for family in families:
                family.flush()
            Checkpoint(db).create_checkpoint(str(folder.path))
        except BaseException as error:
            # For whoever asks for the result. A panic in the package is no Exception, and must not look like success.
            self._error = DidNotHappen(f"RocksDB could not make a checkpoint in {folder.path}: {error}.")
        self.is_made = True


class RocksInstance:
    def __init__(self, key_groups: KeyGroupRange, folder: sst_files.Folder, memory: RocksMemory) -> None:
        self.key_groups = key_groups
        self.families: dict[str, Rdict] = {}
        self._folder: sst_files.Folder | None = folder
        self._memory = memory
        # Names of an instance's table files are its own: another one's file of the same number is another file.
        self._token = secrets.token_hex(8)
        self._adopted: Mapping[str, str] = {}
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

    def write(self, name: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Keys and values of one column family; None deletes."""
        batch: WriteBatch | None = None
        for key, value in changes:
            batch = self._batch_for(name) if batch is None else batch
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
            # A few at a time: what is in one batch is in memory, and counted nowhere.
            if len(batch) >= _BATCH_ENTRIES or batch.size_in_bytes() >= _BATCH_BYTES:
                self._write(batch)
                batch = None
        if batch is not None:
            self._write(batch)

    def _batch_for(self, name: str) -> WriteBatch:
        self.family(name)
        assert self._db is not None, "opened with its first family"
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._db.get_column_family_handle(name))
        return batch

    def _write(self, batch: WriteBatch) -> None:
        assert self._db is not None, "it has a batch"
        self._db.write(batch, without_log())

    def begin_checkpoint(self) -> tuple[CheckpointInTheMaking, sst_files.Folder] | None:
        """None if it holds nothing."""
        if self._db is None:
            return None
        folder = self._new_folder("snapshot")
        return CheckpointInTheMaking(self._db, self.families.values(), folder), folder

    def content_names(self) -> sst_files.ContentNames:
        return sst_files.ContentNames(self._token, self._adopted)

    def restore(self, sections: list[RestoredSection]) -> None:
        if not sections:
            return
        base = max(sections, key=lambda section: _length(_overlap(_range_of(section), self.key_groups)))
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

    def _adopt(self, section: RestoredSection) -> None:
        """Goes on with another instance's files, without the key groups of others."""
        assert self._db is None, "restored before anything is written"
        self._home = self._new_folder("db")
        self._adopted = sst_files.lay_out(section, self._home.path)
        self._db, self.families = _reopen(self._home.path, self._memory)
        stored, own = _range_of(section), self.key_groups
        for family in self.families.values():
            for first, last in (
                (stored.first, min(own.first, stored.last)),
                (max(own.last, stored.first), stored.last),
            ):
                if first < last:
                    family.delete_range(prefix_of(first), prefix_of(last))

    def _take_over(self, section: RestoredSection) -> None:
        """Copies the entries of the key groups that are now in this subtask."""
        wanted = _overlap(_range_of(section), self.key_groups)
        if not _length(wanted):
            return
        folder = self._new_folder("other")
        sst_files.lay_out(section, folder.path)
        db, families = _reopen(folder.path, self._memory)
        try:
            for name, family in families.items():
                self.write(name, entries_of(family, wanted.first, wanted.last))
        finally:
            _close(db, families)
            folder.remove()

    def _new_folder(self, purpose: str) -> sst_files.Folder:
        assert self._folder is not None, "not closed"
        name = f"{self._token}-{purpose}-{secrets.token_hex(4)}"
        return sst_files.Folder(self._folder.path / name, inside=self._folder)


def prefix_of(key_group: int) -> bytes:
    """Of the keys in a key group; big-endian, so that those of a range lie together."""
    return _GROUP.pack(key_group)


def entries_of(
    family: Rdict, first: int, last: int, start: bytes = b"", end: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Of these key groups, as they are at the moment of the call, with their whole keys.

    Of the first from `start`; and only those of it below `end`, if that is given.
    """
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(prefix_of(last) if end is None else prefix_of(first) + end)
    iterator = family.iter(bounds)
    iterator.seek(prefix_of(first) + start)
    return _walk(iterator, bounds)


def keys_from(family: Rdict, beginning: bytes) -> Iterator[bytes]:
    """Whole keys that begin so, in order."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(_behind(beginning))
    iterator = family.iter(bounds)
    iterator.seek(beginning)
    while iterator.valid():
        yield iterator.key()
        iterator.next()
    iterator.status()
    del bounds


def last_key_from(family: Rdict, beginning: bytes) -> bytes | None:
    iterator, behind = family.iter(), _behind(beginning)
    iterator.seek_for_prev(behind)
    if iterator.valid() and iterator.key() == behind:
        iterator.prev()
    iterator.status()
    key: bytes | None = iterator.key() if iterator.valid() else None
    return key if key is not None and key.startswith(beginning) else None


def _behind(beginning: bytes) -> bytes:
    """What comes after all that begins so. There is such a thing: a key group is below 0xffff."""
    shorter = beginning.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1])


def _walk(iterator: RdictIter, bounds: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
    """`bounds` must live as long as the iterator, which points into it."""
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    # One that cannot read on ends like one that is through: only this tells them apart.
    iterator.status()
    del bounds


def _open(folder: Path, memory: RocksMemory, families: dict[str, Options]) -> Rdict:
    try:
        return Rdict(str(folder), memory.options(), column_families=families or None)
    except Exception as error:
        raise _cannot_open(folder, error) from error


def _reopen(folder: Path, memory: RocksMemory) -> tuple[Rdict, dict[str, Rdict]]:
    try:
        names = Rdict.list_cf(str(folder), memory.options())
    except Exception as error:
        raise _cannot_open(folder, error) from error
    db = _open(folder, memory, {name: memory.options() for name in names})
    return db, {name: _writable(db.get_column_family(name)) for name in names if name.startswith(FAMILY_PREFIX)}


def _cannot_open(folder: Path, error: Exception) -> StorageFailure:
    """A checkpoint that is damaged is never tried again: only what its content says may be called so."""
    # The package raises nothing more precise than a text.
    if str(error).startswith(_CORRUPTION):
        return Damaged(f"RocksDB cannot read the state in {folder} ({error}).")
    return DidNotHappen(
        f"RocksDB could not open the state in {folder} ({error}): see to room, permissions and the limit of open files "
        "there."
    )


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


def _range_of(section: RestoredSection) -> KeyGroupRange:
    if section.key_groups is None:
        raise Damaged("Stored RocksDB state does not say its key groups: restore from an older checkpoint.")
    return section.key_groups


def _overlap(one: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange:
    return KeyGroupRange(max(one.first, other.first), min(one.last, other.last))


def _length(groups: KeyGroupRange) -> int:
    return max(0, groups.last - groups.first)
