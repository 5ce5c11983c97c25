"""A snapshot of a RocksDB instance: table files that never change, and the few small files that say what they make up.

Table files get names that stand for their content, so that a later snapshot can refer to one that is stored already.
Must never keep a file on disk that nobody refers to, and never remove one that somebody does.
"""

import os
import shutil
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, overload

import msgspec

from tidegate.model.errors import Damaged, DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ROCKSDB_SECTION, LocalFile, RestoredSection, Section
from tidegate.storage.decoding import from_msgpack
from tidegate.storage.manifests import SharedFile
from tidegate.storage.store import Buffer, ReadableStore, Store

_TABLE_SUFFIX = ".sst"
# RocksDB's list of its table files, and which list counts; the last one tells that keys are plain bytes.
_SMALL_FILES = ("CURRENT", "MANIFEST-", "rocksdict-config.json")
# What is in memory of a file while it is stored or fetched.
_CHUNK_BYTES = 4 << 20


class _Described(msgspec.Struct, frozen=True, array_like=True):
    """`tables`: the names that stand for their content, by those that RocksDB calls them."""

    tables: dict[str, str]
    small_files: dict[str, bytes]


class Folder:
    """A folder that goes with this object, and not before those inside it."""

    def __init__(self, path: Path, *, inside: "Folder | None" = None) -> None:
        self.path = path
        self._inside = inside
        self.remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ContentNames:
    """Of the table files of an instance, by the numbers that RocksDB gives them: its own, and those it took over."""

    token: str
    adopted: Mapping[str, str]

    def of(self, table: str) -> str:
        return self.adopted.get(table) or f"{self.token}-{table}"


class BeingMade(Protocol):
    """A checkpoint of an instance."""

    def has_failed(self) -> bool: ...
    def result(self) -> None:
        """Waits for it, and raises what went wrong."""
        ...


def section_of(folder: Folder, made: BeingMade, key_groups: KeyGroupRange, names: ContentNames) -> Section:
    """Of a folder that holds a checkpoint of an instance, once that is made."""

    def files() -> tuple[LocalFile, ...]:
        made.result()
        tables = sorted(folder.path.glob(f"*{_TABLE_SUFFIX}"))
        return tuple(LocalFile(names.of(table.name), table, table.stat().st_size, folder) for table in tables)

    def description() -> bytes:
        made.result()
        return _describe(folder, names)

    return Section(ROCKSDB_SECTION, key_groups, description, files=files, has_failed=made.has_failed)


def _describe(folder: Folder, names: ContentNames) -> bytes:
    present = {file.name: file for file in folder.path.iterdir()}
    tables = {name: names.of(name) for name in sorted(present) if name.endswith(_TABLE_SUFFIX)}
    small = {name: file.read_bytes() for name, file in present.items() if name.startswith(_SMALL_FILES)}
    return msgspec.msgpack.encode(_Described(tables, small))


def lay_out(section: RestoredSection, folder: Path) -> dict[str, str]:
    """Makes in `folder` what the instance had; gives the names of table files, by what RocksDB calls them."""
    try:
        described = from_msgpack(section.data, _Described)
    except msgspec.MsgspecError as error:
        raise Damaged(f"Stored RocksDB state cannot be read ({error}): restore from an older checkpoint.") from error
    folder.mkdir(parents=True)
    for table, name in described.tables.items():
        if name not in section.files:
            raise Damaged(f"Stored RocksDB state lacks its file {name}: restore from an older checkpoint.")
        section.files[name](folder / table)
    for name, content in described.small_files.items():
        (folder / name).write_bytes(content)
    return described.tables


# -- between this machine and a store


class Chunks(Sequence[Buffer]):
    """A file as pieces, each read when it is asked for: one that is mapped would be in memory whole in the end."""

    def __init__(self, file: LocalFile) -> None:
        self._file = file
        self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * _CHUNK_BYTES
        chunk = os.pread(self._descriptor, _CHUNK_BYTES, start)
        if len(chunk) != min(_CHUNK_BYTES, self._file.length_bytes - start):
            raise DidNotHappen(f"{self._file.path} is shorter than when it was written.")
        return chunk

    def __len__(self) -> int:
        return -(-self._file.length_bytes // _CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a checkpoint; calling it fetches it."""

    store: ReadableStore
    file: SharedFile

    def __call__(self, target: Path) -> None:
        with open(target, "wb") as written:
            written.writelines(self.chunks())

    def copy_to(self, store: Store) -> None:
        """Under the same path."""
        store.put(self.file.path, self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """Raises `Damaged` before the last one if it is not the file."""
        crc32 = 0
        for at in range(0, self.file.length, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, self.file.length - at)
            chunk = self.store.read_range(self.file.path, start=at, length=length)
            crc32 = zlib.crc32(chunk, crc32)
            if at + length == self.file.length:
                self._check(crc32)
            yield chunk
        if self.file.length == 0:
            self._check(crc32)

    def _check(self, crc32: int) -> None:
        if crc32 != self.file.crc32 or self.store.size(self.file.path) != self.file.length:
            raise Damaged(
                f"{self.file.path} is not the file that the manifest speaks of: restore it from a backup, or start "
                "from another checkpoint."
            )
