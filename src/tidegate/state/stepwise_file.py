"""Files of state that are written between steps of the stream, a part in each, and never change afterwards.

Must never be stored before they are whole, and never stay on disk once nobody refers to them.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from tidegate.model.errors import Damaged, DidNotHappen, IncompatibleCheckpoint
from tidegate.state.contract import LocalFile, RestoredSection
from tidegate.state.sst_files import Folder
from tidegate.storage.decoding import from_msgpack

# Of a file: writing it takes a few ms.
Pieces: TypeAlias = Sequence[memoryview | bytes]


class StepwiseFile:
    """`parts` are of the moment the file was begun, whenever they are asked for; None if it is there already.

    `noun`: what they are, for messages.
    """

    def __init__(self, name: str, folder: Folder, parts: Iterable[Pieces] | None, *, noun: str) -> None:
        self.name = name
        self.path = folder.path / name
        self.written_bytes = 0
        self._folder = folder
        self._noun = noun
        self._unwritten: Iterator[Pieces] | None = None if parts is None else iter(parts)
        # The one that is being written; what stands behind the last one is None.
        self._part: list[Pieces | None] = []
        self._error: DidNotHappen | None = None
        weakref.finalize(self, remove, self.path)

    def is_written(self) -> bool:
        return self._unwritten is None and self._error is None

    def has_failed(self) -> bool:
        return self._error is not None

    def steps(self) -> Iterator[None]:
        """Writes it, a part in each step; several may do so in turns, each then finds less to do.

        A part that could not be written is tried again by whoever asks next: the disk may have room again.
        """
        while not self.is_written():
            assert self._unwritten is not None
            if self._error is not None and not self._part:
                raise self._error  # there is nothing to try again: making the part has failed
            try:
                if not self._part:
                    self._part = [next(self._unwritten, None)]
                self._write(*self._part)
            except Exception as error:
                self._error = DidNotHappen(f"{self._noun} could not be written to {self.path}: {error}.")
                raise self._error from error
            self._part, self._error = [], None
            if self._unwritten is not None:
                yield

    def local(self) -> LocalFile:
        assert self.is_written(), "written before it is stored"
        return LocalFile(self.name, self.path, self.path.stat().st_size, self)

    def _write(self, pieces: Pieces | None) -> None:
        if pieces is None:
            self._unwritten = None
            return
        with open(self.path, "ab") as file:
            # An earlier attempt may have left half of it.
            file.truncate(self.written_bytes)
            file.writelines(pieces)
            file.flush()
            self.written_bytes = file.tell()


class Described(Protocol):
    @property
    def format(self) -> int: ...


DescribedType = TypeVar("DescribedType", bound=Described)


def read_description(
    section: RestoredSection, kind: type[DescribedType], *, noun: str, holds: str, own_format: int
) -> DescribedType:
    """What a stored section says of its files. `holds`: what they are, for messages."""
    try:
        described = from_msgpack(section.data, kind)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{noun} cannot be read ({error}): restore from an older checkpoint.") from error
    if described.format != own_format:
        raise IncompatibleCheckpoint(
            f"The checkpoint holds {holds} in format {described.format}, this version reads {own_format}: start with "
            "the version that wrote it, or with a new checkpointLocation."
        )
    return described


def fetch(section: RestoredSection, name: str, path: Path, *, noun: str) -> None:
    """A file of a stored section, by its name."""
    if name not in section.files:
        raise Damaged(f"{noun} lacks its file {name}: restore from an older checkpoint.")
    section.files[name](path)


def remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
