"""What operators ask of state, and what a snapshot of it is made of."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from tidegate.model.ids import KeyGroupRange


class Redistribution(Enum):
    """Who gets a section when the job is restored at another parallelism."""

    KEYED = "keyed"  # whoever owns its key groups now
    SPLIT = "split"  # a msgpack list of byte strings; the items of all subtasks are dealt out anew
    UNION = "union"  # every subtask gets the sections of all old subtasks
    BROADCAST = "broadcast"  # every subtask gets the section of the old subtask that had applied most


# The name of a section that is a whole instance of RocksDB, of one that is a log of rows, and of one that is files of
# entries.
HEAP = "heap"  # the backend, as the option names it
ROCKSDB_SECTION = "sst"
ROW_LOG_SECTION = "rows"
ENTRIES_SECTION = "entries"

# Whole, or as a list of pieces that belong together, which need not be copied into one.
Encoded: TypeAlias = bytes | memoryview | Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine that never changes, there for as long as anybody refers to `keeper`.

    `name` stands for its content: no backend, of this run or another, gives it to any other content.
    """

    name: str
    path: Path
    length_bytes: int
    keeper: object


@dataclass(frozen=True, slots=True)
class Section:
    """A named part of a snapshot.

    Taking it is the synchronous part and must be quick; `encoder` runs afterwards, between steps of the stream,
    and must give the bytes of the moment the section was taken whatever was written since. What it gave must not
    change either, until nobody refers to it.

    `files`: those that belong to it and need not be stored again if they are. Asking for them may take its time, and
    so may the encoder of such a section: both are called beside the loop. `steps`: what is to be done before, between
    steps of the stream; each takes a few ms. `has_failed`: whether it is known by now that its files could not be made,
    so that nothing that refers to it can ever be stored.
    """

    name: str
    key_groups: KeyGroupRange | None
    encoder: Callable[[], Encoded]
    redistribution: Redistribution = Redistribution.KEYED
    files: Callable[[], Sequence[LocalFile]] | None = None
    steps: Callable[[], Iterator[None]] | None = None
    has_failed: Callable[[], bool] = lambda: False

    def pieces(self) -> Sequence[memoryview]:
        """One after the other they are the section."""
        encoded = self.encoder()
        return [memoryview(encoded)] if isinstance(encoded, (bytes, memoryview)) else encoded

    def encode(self) -> bytes | memoryview:
        """In one piece."""
        pieces = self.pieces()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# Writes a stored file, checked, to a path on this machine.
FetchFile: TypeAlias = Callable[[Path], None]


# Reads what was stored, and raises `Damaged` if it is not that any more.
ReadStored: TypeAlias = Callable[[], memoryview]


@dataclass(frozen=True, slots=True)
class RestoredSection:
    """`content`: as it is, or how it is read. `files`: by the names that the section gave them."""

    name: str
    key_groups: KeyGroupRange | None
    content: memoryview | ReadStored
    files: Mapping[str, FetchFile] = field(default_factory=dict)

    @property
    def data(self) -> memoryview:
        """Read whenever it is asked for and kept by nobody else: all sections of a state may not fit into memory."""
        return self.content if isinstance(self.content, memoryview) else self.content()


class KeyedState(Protocol):
    """One named state; keys and values are encoded by the caller, so every backend sees the same bytes."""

    def get(self, key_group: int, key: bytes) -> bytes | None: ...
    def put(self, key_group: int, key: bytes, value: bytes) -> None: ...
    def delete(self, key_group: int, key: bytes) -> None: ...
    def scan(self, key_group: int) -> Iterator[tuple[bytes, bytes]]: ...


class BulkState(KeyedState, Protocol):
    """For vectorised operators: many keys at once, each with its key group, none of them twice."""

    def get_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> list[bytes | None]: ...
    def put_many(self, key_groups: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...
    def delete_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> None: ...
    def entries_from(
        self, key_group: int, start: bytes, most: int, *, end: bytes | None = None, most_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """In the order of their keys, up to so many, the first of them not below `start`, all below `end`.

        The one whose value brings all of them to `most_bytes` is the last.
        """
        ...


@runtime_checkable
class OrderedState(KeyedState, Protocol):
    """One whose entries lie in the order of their keys: those that begin alike are found without an index of them."""

    def keys_from(self, key_group: int, beginning: bytes) -> list[bytes]:
        """All keys that begin so, in order."""
        ...

    def last_key_from(self, key_group: int, beginning: bytes) -> bytes | None: ...

    def first_keys(self, key_group: int, start: bytes, most: int) -> list[bytes]:
        """In order, up to so many, the first of them not below `start`."""
        ...


class StateBackend(Protocol):
    """All keyed state of one operator in one subtask."""

    def keyed(self, name: str) -> BulkState:
        """The state of that name, made empty if it is not there yet."""
        ...

    def state_names(self) -> list[str]:
        """Of the states that are there; some may be empty."""
        ...

    def snapshot(self) -> list[Section]: ...
    def restore(self, sections: Iterable[RestoredSection]) -> None: ...
    def size_bytes(self) -> int: ...
    def close(self) -> None: ...
