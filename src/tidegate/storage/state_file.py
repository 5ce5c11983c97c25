"""The format of `<slot>.state`: sections, then an index, then a footer that finds the index.

    section | padding | section | padding | ... | index (msgpack) | footer (fixed length)

Owns these bytes and their checksums. It never reads or writes a store, and never looks inside a section.
"""

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from tidegate.model.errors import Damaged, ProtocolViolation
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.storage.decoding import from_msgpack

# `state` goes by key groups, and `files` too, with shared files beside it; `split`, `union`, `broadcast` as their names
# say; `task` is what a task remembers.
SectionKind: TypeAlias = Literal["state", "files", "split", "union", "broadcast", "source", "task", "channel"]
Buffer: TypeAlias = bytes | bytearray | memoryview

VERSION = 1
_MAGIC = b"TIDEGATE"
# Index length, index checksum, version, magic; the magic stands last so that a truncated file lacks it.
_FOOTER = struct.Struct("<QII8s")
# Arrow reads buffers in place when they start at a multiple of this.
_ALIGNMENT_BYTES = 64


class SectionKey(msgspec.Struct, frozen=True):
    """Whose data it is: an operator of a task, by its position in the chain."""

    task: TaskId
    operator: int
    kind: SectionKind
    name: str
    key_groups: KeyGroupRange | None = None


class _IndexEntry(msgspec.Struct, frozen=True, array_like=True):
    key: SectionKey
    offset: int
    length: int
    crc32: int


@dataclass(frozen=True, slots=True)
class StoredSection:
    """`read`: from the file, checked; it is read anew whenever it is asked for."""

    key: SectionKey
    length_bytes: int
    read: Callable[[], memoryview]

    @property
    def data(self) -> memoryview:
        return self.read()


@dataclass(frozen=True, slots=True)
class FileSum:
    """What the manifest notes of a file."""

    length_bytes: int
    crc32: int


class StateFileWriter:
    """Gathers sections; nothing is copied, so what was added must not change until the file is written."""

    def __init__(self) -> None:
        self._sections: dict[SectionKey, list[memoryview]] = {}

    def add(self, key: SectionKey, *pieces: Buffer) -> None:
        """The pieces of a section, in order."""
        if key in self._sections:
            raise ProtocolViolation(f"Section {_describe(key)} was added twice to one state file.")
        self._sections[key] = [memoryview(piece).cast("B") for piece in pieces if len(piece)]

    def finish(self) -> list[memoryview]:
        """The file's content in order, to be handed to `Store.create` as it is; may be called in any thread."""
        content: list[memoryview] = []
        entries: list[_IndexEntry] = []
        at = 0
        for key, pieces in self._sections.items():
            # Sums are made here, where the loop need not wait for them.
            section = sum_of(pieces)
            entries.append(_IndexEntry(key, at, section.length_bytes, section.crc32))
            padding_bytes = -section.length_bytes % _ALIGNMENT_BYTES
            content += [*pieces, memoryview(bytes(padding_bytes))] if padding_bytes else pieces
            at += section.length_bytes + padding_bytes
        index = msgspec.msgpack.encode(entries)
        footer = _FOOTER.pack(len(index), zlib.crc32(index), VERSION, _MAGIC)
        return [*content, memoryview(index), memoryview(footer)]


# A part of a file: where it starts and how long it is.
ReadRange: TypeAlias = Callable[[int, int], memoryview]


class StateFile:
    """A state file of which sections are read when they are needed, each checked then.

    `index_bytes`: what was read of it to know them.
    """

    def __init__(self, name: str, read: ReadRange, index: list[_IndexEntry], index_bytes: int) -> None:
        self._name = name
        self._read = read
        self._index = index
        self.index_bytes = index_bytes

    @classmethod
    def open(cls, data: Buffer, *, name: str) -> "StateFile":
        """One that is in memory as a whole; sections are views into it."""
        view = memoryview(data).cast("B")
        return cls.open_ranges(lambda start, length: view[start : start + length], length_bytes=len(view), name=name)

    @classmethod
    def open_ranges(cls, read: ReadRange, *, length_bytes: int, name: str) -> "StateFile":
        index, index_bytes = _read_index(read, length_bytes, name)
        return cls(name, read, index, index_bytes)

    def keys(self) -> list[SectionKey]:
        return [entry.key for entry in self._index]

    def sections(
        self,
        *,
        vertex: VertexId | None = None,
        task: TaskId | None = None,
        operator: int | None = None,
        kind: SectionKind | None = None,
        is_wanted: Callable[[SectionKey], bool] = lambda key: True,
    ) -> list[StoredSection]:
        """The sections that fit everything asked for, in the order in which they were added. None is read yet."""
        return [
            StoredSection(entry.key, entry.length, partial(self._checked, entry))
            for entry in self._index
            if (vertex is None or entry.key.task.vertex == vertex)
            and (task is None or entry.key.task == task)
            and (operator is None or entry.key.operator == operator)
            and (kind is None or entry.key.kind == kind)
            and is_wanted(entry.key)
        ]

    def _checked(self, entry: _IndexEntry) -> memoryview:
        data = self._read(entry.offset, entry.length)
        if zlib.crc32(data) != entry.crc32:
            raise damaged(self._name, f"the checksum of section {_describe(entry.key)} is wrong")
        return data


def sum_of(pieces: Iterable[Buffer]) -> FileSum:
    """Length and checksum of a file that consists of these pieces."""
    length_bytes = crc32 = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        length_bytes += len(view)
        crc32 = zlib.crc32(view, crc32)
    return FileSum(length_bytes, crc32)


def check_sum(data: Buffer, expected: FileSum, *, name: str) -> None:
    """Raises `Damaged` if the file is not the one that the manifest speaks of."""
    found = sum_of([data])
    if found.length_bytes != expected.length_bytes:
        raise damaged(name, f"it has {found.length_bytes} bytes where the manifest says {expected.length_bytes}")
    if found.crc32 != expected.crc32:
        raise damaged(name, "its checksum is not the one in the manifest")


def _read_index(read: ReadRange, length_bytes: int, name: str) -> tuple[list[_IndexEntry], int]:
    """Also how many bytes it takes with the footer."""
    if length_bytes < _FOOTER.size:
        raise damaged(name, f"it has only {length_bytes} bytes")
    index_length, index_crc32, version, magic = _FOOTER.unpack(read(length_bytes - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC:
        raise damaged(name, "its end is missing")
    if version != VERSION:
        raise damaged(name, f"it has format version {version} and this Tidegate reads version {VERSION}")
    sections_end = length_bytes - _FOOTER.size - index_length
    if sections_end < 0:
        raise damaged(name, "its index is cut off")
    raw = read(sections_end, index_length)
    if zlib.crc32(raw) != index_crc32:
        raise damaged(name, "the checksum of its index is wrong")
    try:
        index = from_msgpack(raw, list[_IndexEntry])
    except msgspec.MsgspecError as error:
        raise damaged(name, f"its index cannot be read ({error})") from error
    for entry in index:
        if entry.offset + entry.length > sections_end:
            raise damaged(name, f"section {_describe(entry.key)} reaches beyond its end")
    return index, length_bytes - sections_end


def damaged(name: str, reason: str) -> Damaged:
    return Damaged(
        f"State file {name} is damaged: {reason}; restore it from a backup, or start from another checkpoint."
    )


def _describe(key: SectionKey) -> str:
    return f"{key.kind} {key.name!r} of task {key.task}, operator {key.operator}"
