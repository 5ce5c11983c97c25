"""Files that sections of state consist of: which are stored already, which a checkpoint has to store, and where.

A checkpoint refers to files of the newest completed one and to its own; a savepoint to its own alone. Which files may
be deleted is decided elsewhere, from what the manifests say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidegate.model.errors import Damaged
from tidegate.model.ids import SlotIndex
from tidegate.state.contract import LocalFile, RestoredSection, Section
from tidegate.state.sst_files import StoredFile
from tidegate.storage import layout
from tidegate.storage.manifests import SharedFile
from tidegate.storage.store import Store


class StoredFileSection(msgspec.Struct, frozen=True, array_like=True):
    """`paths`: of its files, by their names; their sums are in the manifest."""

    data: bytes
    paths: dict[str, str]


@dataclass(frozen=True, slots=True)
class NewFile:
    file: LocalFile
    path: str


@dataclass(slots=True)
class CheckpointFiles:
    """The files of all sections of one slot in one checkpoint. `known` is what it may refer to."""

    folder: layout.CheckpointFolder
    slot: SlotIndex
    known: Mapping[str, SharedFile]
    reused: dict[str, SharedFile] = field(default_factory=dict)
    new: dict[str, NewFile] = field(default_factory=dict)

    def add(self, section: Section, files: Sequence[LocalFile]) -> bytes:
        """The section as it is stored."""
        for file in files:
            stored = self.known.get(file.name)
            if stored is None:
                self.new[file.name] = NewFile(file, layout.state_table_file(self.folder, self.slot, file.name))
            else:
                self.reused[file.name] = stored
        paths = {file.name: self._path_of(file.name) for file in files}
        return msgspec.msgpack.encode(StoredFileSection(bytes(section.encode()), paths))

    def _path_of(self, name: str) -> str:
        return self.new[name].path if name in self.new else self.reused[name].path


def restored_section(
    section: RestoredSection, shared: Mapping[str, SharedFile], store: Store
) -> tuple[RestoredSection, dict[str, SharedFile]]:
    """A section from its stored form; and its files by name, for checkpoints that come to refer to them."""
    try:
        stored = msgspec.msgpack.decode(section.data, type=StoredFileSection)
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"Section {section.name!r} of state cannot be read ({error}): start from another checkpoint."
        ) from error
    files = dict(_files_of(stored, shared))
    fetch = {name: StoredFile(store, file) for name, file in files.items()}
    return RestoredSection(section.name, section.key_groups, memoryview(stored.data), fetch), files


def _files_of(stored: StoredFileSection, shared: Mapping[str, SharedFile]) -> Iterator[tuple[str, SharedFile]]:
    for name, path in stored.paths.items():
        if path not in shared:
            raise Damaged(f"{path} belongs to the state, but the manifest lacks it: start from another checkpoint.")
        yield name, shared[path]
