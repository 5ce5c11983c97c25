"""Files that sections of state consist of: which are stored already, which a checkpoint has to store, and where.

A checkpoint refers to files of the newest completed one and to its own; a savepoint to its own alone. Which files may
be deleted is decided elsewhere, from what the manifests say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from tidegate.model.errors import Damaged
from tidegate.model.ids import SlotIndex
from tidegate.state.contract import FetchFile, LocalFile, RestoredSection, Section
from tidegate.state.sst_files import StoredFile
from tidegate.storage import layout
from tidegate.storage.decoding import from_msgpack
from tidegate.storage.manifests import SharedFile
from tidegate.storage.store import ReadableStore


class StoredFileSection(msgspec.Struct, frozen=True, array_like=True):
    """`paths`: of its files, by their names; their sums are in the manifest. `inline`: the content of small ones."""

    data: bytes
    paths: dict[str, str]
    inline: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class NewFile:
    file: LocalFile
    path: str


@dataclass(slots=True)
class CheckpointFiles:
    """The files of all sections of one slot in one checkpoint. `known` is what it may refer to.

    `inline_bytes`: so much of what is new lies in the state file itself, where no later checkpoint can refer to it.
    """

    folder: layout.CheckpointFolder
    slot: SlotIndex
    known: Mapping[str, SharedFile]
    inline_bytes: int
    reused: dict[str, SharedFile] = field(default_factory=dict)
    new: dict[str, NewFile] = field(default_factory=dict)
    # Where those that are not inline lie on this machine, by where they are stored.
    here: dict[str, LocalFile] = field(default_factory=dict)

    def add(self, section: Section, files: Sequence[LocalFile]) -> bytes:
        """The section as it is stored."""
        paths: dict[str, str] = {}
        inline: dict[str, bytes] = {}
        for file in sorted(files, key=lambda file: file.length_bytes):
            stored = self.known.get(file.name)
            if stored is not None:
                self.reused[file.name] = stored
                paths[file.name] = stored.path
                self.here[stored.path] = file
            elif file.length_bytes <= self.inline_bytes:
                self.inline_bytes -= file.length_bytes
                inline[file.name] = file.path.read_bytes()
            else:
                new = NewFile(file, layout.state_table_file(self.folder, self.slot, file.name))
                self.new[file.name] = new
                paths[file.name] = new.path
                self.here[new.path] = file
        return msgspec.msgpack.encode(StoredFileSection(bytes(section.encode()), paths, inline))


def restored_section(
    section: RestoredSection, shared: Mapping[str, SharedFile], store: ReadableStore
) -> tuple[RestoredSection, dict[str, SharedFile]]:
    """A section from its stored form; and its files by name, for checkpoints that come to refer to them."""
    try:
        stored = from_msgpack(section.data, StoredFileSection)
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"Section {section.name!r} of state cannot be read ({error}): start from another checkpoint."
        ) from error
    files = dict(_files_of(stored, shared))
    fetch: dict[str, FetchFile] = {name: StoredFile(store, file) for name, file in files.items()}
    fetch.update({name: partial(_write, content) for name, content in stored.inline.items()})
    return RestoredSection(section.name, section.key_groups, memoryview(stored.data), fetch), files


def _write(content: bytes, target: Path) -> None:
    target.write_bytes(content)


def _files_of(stored: StoredFileSection, shared: Mapping[str, SharedFile]) -> Iterator[tuple[str, SharedFile]]:
    for name, path in stored.paths.items():
        if path not in shared:
            raise Damaged(f"{path} belongs to the state, but the manifest lacks it: start from another checkpoint.")
        yield name, shared[path]
