"""Rows of state as files that never change, in the order in which they were written: a log that snapshots refer to.

A snapshot adds what changed since the last one, and refers to the files before. Knows files and how many rows are in
them, and nothing of rows. Must never remove a file that a snapshot refers to, nor keep one that nobody does.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import StepwiseFile, fetch, read_description, remove

log = logging.getLogger("tidegate")

_FORMAT = 1
_SUFFIX = ".rows"
_NOUN = "A stored log of rows"

# Gives a part of a file, of rows as they were when the file was begun.
Part: TypeAlias = Callable[[], Sequence[memoryview]]


class _StoredFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    row_count: int


class _Described(msgspec.Struct, frozen=True, array_like=True):
    """`files`: the oldest first."""

    format: int
    files: list[_StoredFile]


class LogFile(StepwiseFile):
    """`number`: later files have greater ones. `row_count`: of all that it holds, rows that are gone included."""

    def __init__(
        self, name: str, number: int, row_count: int, folder: Folder, parts: Sequence[Part] | None = None
    ) -> None:
        super().__init__(name, folder, None if parts is None else (part() for part in parts), noun="Rows of state")
        self.number = number
        self.row_count = row_count


class FilesBeingMade(Protocol):
    def steps(self) -> Iterator[None]:
        """After these, which are of a few ms each, it is known which files they are and what is in them."""
        ...

    @property
    def files(self) -> Sequence[LogFile]: ...


@dataclass(frozen=True, slots=True)
class _Files:
    files: tuple[LogFile, ...]

    def steps(self) -> Iterator[None]:
        return iter(())


class RowLog:
    """`files`: the oldest first; the owner of the rows says which are needed. `snapshots`: how many there were of them.

    `whole_up_to_bytes`: None if the log must have them. Else their owner has all of them in memory, and stores them
    whole up to that size, and whenever no file can be written.
    """

    def __init__(self, key_groups: KeyGroupRange, folder: Folder, *, whole_up_to_bytes: float | None = None) -> None:
        self.key_groups = key_groups
        self._whole_up_to_bytes = whole_up_to_bytes
        self.files: list[LogFile] = []
        self.snapshots = 0
        # Names of its files are its own: what another log calls so is another file.
        self._token = secrets.token_hex(8)
        self._slot_folder: Folder | None = folder
        self._folder: Folder | None = None
        self._next_number = 1

    def is_wanted(self, size_bytes: int) -> bool:
        """Whether rows of that size are stored by it; once they are, they are until it fails."""
        if self._whole_up_to_bytes is None:
            return True
        if self._whole_up_to_bytes == inf or (not self.files and size_bytes <= self._whole_up_to_bytes):
            return False
        try:
            self._home()
            if any(file.has_failed() for file in self.files):
                raise DidNotHappen("one could not be written.")
        except (OSError, DidNotHappen) as error:
            # State in memory must not depend on this machine's disk.
            log.warning("State is stored whole from now on, because files of what changed cannot be: %s", error)
            self._whole_up_to_bytes = inf
            return False
        return True

    @property
    def next_number(self) -> int:
        """Of the file that is begun next."""
        return self._next_number

    def append(self, parts: Sequence[Part], row_count: int) -> LogFile:
        """A file that is still to be written."""
        number = self._next_number
        self._next_number += 1
        file = LogFile(f"{self._token}-{number}{_SUFFIX}", number, row_count, self._home(), parts)
        self.files.append(file)
        return file

    def adopt(self, section: RestoredSection) -> None:
        """Goes on with the files of a log of the same key groups, by their names."""
        assert not self.files, "before anything is written"
        for stored in _described(section).files:
            file = LogFile(stored.name, self._next_number, stored.row_count, self._home())
            self._next_number += 1
            fetch(section, stored.name, file.path, noun=_NOUN)
            file.written_bytes = file.path.stat().st_size
            self.files.append(file)

    def section(self, made: FilesBeingMade | None = None) -> Section:
        """Of these files, or of those that it has now."""
        self.snapshots += 1
        of = _Files(tuple(self.files)) if made is None else made

        def steps() -> Iterator[None]:
            yield from of.steps()
            for file in of.files:
                yield from file.steps()

        def description() -> bytes:
            return msgspec.msgpack.encode(_Described(_FORMAT, [_StoredFile(f.name, f.row_count) for f in of.files]))

        return Section(
            ROW_LOG_SECTION,
            self.key_groups,
            description,
            files=lambda: [file.local() for file in of.files],
            steps=steps,
        )

    def fetched(self, section: RestoredSection) -> Iterator[Path]:
        """Another log's files, the newest first, each for as long as it is looked at."""
        for stored in reversed(_described(section).files):
            path = self._home().path / f"{secrets.token_hex(8)}.other"
            try:
                fetch(section, stored.name, path, noun=_NOUN)
                yield path
            finally:
                remove(path)

    def close(self) -> None:
        self.files = []
        self._folder = self._slot_folder = None

    def _home(self) -> Folder:
        if self._folder is None:
            assert self._slot_folder is not None, "not closed"
            self._slot_folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._slot_folder.path / f"{self._token}-rows"
            path.mkdir()
            self._folder = Folder(path, inside=self._slot_folder)
        return self._folder


def _described(section: RestoredSection) -> _Described:
    return read_description(section, _Described, noun=_NOUN, holds="a log of rows", own_format=_FORMAT)
