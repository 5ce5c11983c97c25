"""Entries of keyed state as files that never change: an image of all of them, and what changed since, in order.

Read from the first file to the last, each put and each delete applied, they give the state. Knows files and what is in
them, not when an image is due. Must never remove a file that a snapshot refers to, nor keep one that nobody does.
"""

import secrets
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from tidegate.model.errors import Damaged
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ENTRIES_SECTION, RestoredSection, Section
from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import Pieces, StepwiseFile, fetch, read_description

# Encoding and writing so much keeps the stream waiting for a few ms.
FRAME_BYTES = 1 << 20
# An image is written in files of about this size, so that a restore with other key groups need not read them all.
IMAGE_FILE_BYTES = 32 << 20
# Files of changes at the end of the log that are smaller than this, or than this part of the state or of the log, are
# written anew: so many together, so that there are not too many files, and each change is written again once or twice.
SMALL_FILE_BYTES = 1 << 20
SMALL_PART = 256
MERGED_FILES = 8
# With more than these, some are written anew that are not small, or not at the end.
MOST_FILES = 256
# What encoding an entry costs beside its bytes, as bytes.
_ENTRY_BYTES = 64

_FORMAT = 1
_SUFFIX = ".entries"
_NOUN = "A stored log of entries"
_LENGTH = struct.Struct("<I")

# Values by state, key group and key; None for a key that is gone.
Changes: TypeAlias = Mapping[str, Mapping[int, Mapping[bytes, bytes | None]]]
# State, key group, key, and the value, or None for a key that is gone.
Change: TypeAlias = tuple[str, int, bytes, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
_FRAME = msgspec.msgpack.Decoder(tuple[str, dict[int, memoryview]])
_ENTRIES = msgspec.msgpack.Decoder(dict[bytes, bytes | None])


class _StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """`first` and `last`: its key groups, as in a range."""

    name: str
    first: int
    last: int
    level: int


class _Described(msgspec.Struct, frozen=True, array_like=True):
    """`image`: files of the image; `changes`: those since, the oldest first."""

    format: int
    image: list[_StoredFile]
    changes: list[_StoredFile]


class EntryFile(StepwiseFile):
    """`number`: later files have greater ones; one of several files has that of the last of them.

    `level`: how often what is in it was written anew. `noted_bytes`: about what it will have, as far as that is known.
    """

    def __init__(
        self,
        name: str,
        number: int,
        key_groups: KeyGroupRange,
        folder: Folder,
        parts: Iterable[Pieces] | None,
        *,
        level: int,
        noted_bytes: int = 0,
    ) -> None:
        super().__init__(name, folder, parts, noun="Entries of state")
        self.number = number
        self.key_groups = key_groups
        self.level = level
        self._noted_bytes = noted_bytes

    @property
    def size_bytes(self) -> int:
        """About so much, until it is written."""
        return self.written_bytes if self.is_written() else max(self.written_bytes, self._noted_bytes)

    def described(self) -> _StoredFile:
        return _StoredFile(self.name, self.key_groups.first, self.key_groups.last, self.level)


class EntryFiles:
    """`image` and `changes`: what the next snapshot refers to."""

    def __init__(self, key_groups: KeyGroupRange, folder: Folder) -> None:
        self.key_groups = key_groups
        self.image: list[EntryFile] = []
        self.changes: list[EntryFile] = []
        # Names of its files are its own: what another backend calls so is another file.
        self._token = secrets.token_hex(8)
        self._slot_folder: Folder | None = folder
        self._folder: Folder | None = None
        self._next_number = 1

    def new_image(self, parts: Iterable[tuple[KeyGroupRange, Changes]]) -> list[EntryFile]:
        """Files that are still to be written, one for each part; they are nobody's yet."""
        return [self._new(key_groups, _frames_of(entries)) for key_groups, entries in parts]

    def append(self, changes: Changes, noted_bytes: int = 0) -> EntryFile:
        """A file that is still to be written; `noted_bytes`: about its size."""
        file = self._new(self.key_groups, _frames_of(changes), noted_bytes=noted_bytes)
        self.changes.append(file)
        return file

    def append_and_join(self, changes: Changes) -> EntryFile:
        """The same; if there are too many files before it, some of them are to be written anew as one."""
        if run := self.run_to_join(self.image_bytes()):
            self.put_in_place(run, self.joined(run))
        return self.append(changes)

    def newest_number(self) -> int:
        """Of its files so far."""
        return self._next_number - 1

    # -- joining

    def run_to_join(self, state_bytes: int) -> Sequence[EntryFile]:
        """Files of changes, one behind the other, that should be one; none, if there are not too many."""
        files, small_bytes = self.changes, self._small_bytes(state_bytes)
        small = _last_of(files, lambda file: file.size_bytes < small_bytes)
        for level in sorted({file.level for file in small}):
            # Those of lower levels in between are taken along.
            run = _last_of(small, lambda file, level=level: file.level <= level)  # type: ignore[misc]
            places = [at for at, file in enumerate(run) if file.level == level]
            if len(places) >= MERGED_FILES:
                return run[: places[MERGED_FILES - 1] + 1]
        if len(files) <= MOST_FILES:
            return ()
        # By the largest of each: a large one that is joined with its small neighbours would be again with the next.
        runs = [files[at : at + MERGED_FILES] for at in range(max(1, len(files) - MERGED_FILES + 1))]
        return min(runs, key=lambda run: (max(file.size_bytes for file in run), sum(file.size_bytes for file in run)))

    def joined(self, run: Sequence[EntryFile]) -> EntryFile:
        """What is in all of these, in a file that is still to be written; it is nobody's yet."""
        level = 1 + max(file.level for file in run)
        return self._new(self.key_groups, _copied(run), level=level, number=run[-1].number)

    def put_in_place(self, run: Sequence[EntryFile], joined: EntryFile) -> None:
        """Of those of them that still count. The first ones may not: then it says again what an image holds."""
        if run[-1] not in self.changes:
            return
        at = next(at for at, file in enumerate(self.changes) if file in run)
        kept = [file for file in self.changes if file not in run]
        self.changes = [*kept[:at], joined, *kept[at:]]

    def _small_bytes(self, state_bytes: int) -> int:
        return max(SMALL_FILE_BYTES, max(state_bytes, self.changes_bytes()) // SMALL_PART)

    # -- what there is

    def image_bytes(self) -> int:
        return sum(file.written_bytes for file in self.image)

    def changes_bytes(self) -> int:
        return sum(file.size_bytes for file in self.changes)

    def is_written(self) -> bool:
        return all(file.is_written() for file in (*self.image, *self.changes))

    def has_failed(self) -> bool:
        """Whether one could not be written: then no snapshot that refers to it can be stored."""
        return any(file.has_failed() for file in (*self.image, *self.changes))

    def section(self) -> Section:
        """Of the files that it has now."""
        image, changes = tuple(self.image), tuple(self.changes)

        def steps() -> Iterator[None]:
            for file in (*image, *changes):
                yield from file.steps()

        def description() -> bytes:
            return _encode(_Described(_FORMAT, [f.described() for f in image], [f.described() for f in changes]))

        return Section(
            ENTRIES_SECTION,
            self.key_groups,
            description,
            files=lambda: [file.local() for file in (*image, *changes)],
            steps=steps,
        )

    def adopt(self, section: RestoredSection) -> Iterator[Change]:
        """Goes on with the files of the same key groups, by their names, once all that is in them is taken."""
        assert not self.image and not self.changes, "before anything is written"
        described = _described(section)
        for stored in (*described.image, *described.changes):
            own = KeyGroupRange(stored.first, stored.last)
            file = EntryFile(stored.name, self._next_number, own, self._home(), None, level=stored.level)
            self._next_number += 1
            fetch(section, stored.name, file.path, noun=_NOUN)
            file.written_bytes = file.path.stat().st_size
            yield from _read(file.path, self.key_groups)
            (self.image if len(self.image) < len(described.image) else self.changes).append(file)

    def clear(self) -> None:
        self.image, self.changes = [], []

    def close(self) -> None:
        self.clear()
        self._folder = self._slot_folder = None

    def _new(
        self,
        key_groups: KeyGroupRange,
        parts: Iterable[Pieces],
        *,
        level: int = 0,
        number: int | None = None,
        noted_bytes: int = 0,
    ) -> EntryFile:
        own = self._next_number
        self._next_number += 1
        name = f"{self._token}-{own}{_SUFFIX}"
        of_file = own if number is None else number
        return EntryFile(name, of_file, key_groups, self._home(), parts, level=level, noted_bytes=noted_bytes)

    def _home(self) -> Folder:
        if self._folder is None:
            assert self._slot_folder is not None, "not closed"
            self._slot_folder.path.mkdir(mode=0o700, exist_ok=True)
            path = self._slot_folder.path / f"{self._token}-entries"
            path.mkdir()
            self._folder = Folder(path, inside=self._slot_folder)
        return self._folder


def changes_in(section: RestoredSection, key_groups: KeyGroupRange, *, folder: Path | None) -> Iterator[Change]:
    """What a stored section holds of these key groups; each file is below `folder` while it is read.

    None: where the system keeps its temporary files.
    """
    described = _described(section)
    for stored in (*described.image, *described.changes):
        if max(stored.first, key_groups.first) < min(stored.last, key_groups.last):
            with tempfile.TemporaryDirectory(prefix="tidegate-entries-", dir=folder) as own:
                path = Path(own) / stored.name
                fetch(section, stored.name, path, noun=_NOUN)
                yield from _read(path, key_groups)


def _last_of(files: Sequence[EntryFile], belongs: Callable[[EntryFile], bool]) -> Sequence[EntryFile]:
    """As many as belong together at the end."""
    first = len(files)
    while first and belongs(files[first - 1]):
        first -= 1
    return files[first:]


def _copied(files: Sequence[EntryFile]) -> Iterator[Pieces]:
    pieces: list[bytes] = []
    left_bytes = FRAME_BYTES
    for each in files:
        # It may have been begun for a checkpoint that was aborted.
        for _ in each.steps():
            yield ()
        with open(each.path, "rb") as file:
            while piece := file.read(left_bytes):
                pieces.append(piece)
                left_bytes -= len(piece)
                if left_bytes == 0:
                    yield pieces
                    pieces, left_bytes = [], FRAME_BYTES
    if pieces:
        yield pieces


def _frames_of(entries: Changes) -> Iterator[Pieces]:
    for state, groups in entries.items():
        for frame in _frames(state, groups):
            yield _LENGTH.pack(len(frame)), frame


def _frames(state: str, groups: Mapping[int, Mapping[bytes, bytes | None]]) -> Iterator[bytes]:
    frame: dict[int, bytes] = {}
    frame_bytes = 0
    for key_group, entries in groups.items():
        part: dict[bytes, bytes | None] = {}
        for key, value in entries.items():
            part[key] = value
            frame_bytes += _ENTRY_BYTES + len(key) + (0 if value is None else len(value))
            if frame_bytes >= FRAME_BYTES:
                frame[key_group] = _encode(part)
                yield _encode((state, frame))
                frame, part, frame_bytes = {}, {}, 0
        if part:
            # Each group is a byte string of its own, so that a restore steps over the groups of others.
            frame[key_group] = _encode(part)
    if frame:
        yield _encode((state, frame))


def _read(path: Path, key_groups: KeyGroupRange) -> Iterator[Change]:
    try:
        with open(path, "rb") as file:
            while header := file.read(_LENGTH.size):
                frame = file.read(_LENGTH.unpack(header)[0])
                state, groups = _FRAME.decode(frame)
                for key_group, entries in groups.items():
                    if key_group in key_groups:
                        for key, value in _ENTRIES.decode(entries).items():
                            yield state, key_group, key, value
    except (msgspec.MsgspecError, struct.error) as error:
        raise Damaged(f"{_NOUN} cannot be read ({error}): restore from an older checkpoint.") from error


def _described(section: RestoredSection) -> _Described:
    return read_description(section, _Described, noun=_NOUN, holds="a log of entries", own_format=_FORMAT)
