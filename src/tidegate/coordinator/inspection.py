"""What lies at a path: a checkpoint, a savepoint or a whole location, its operators and files, and whether they are
intact. For people who look from outside: reads storage only, changes and makes nothing.
"""

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.coordinator.checkpoint_files import files_of
from tidegate.coordinator.named_checkpoint import locate
from tidegate.model.errors import Damaged, UserError
from tidegate.plan.parts import Part, read_parts
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, Committed, Entry, JobLog, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.state_file import FileSum, damaged
from tidegate.storage.store import Store, local_path, open_existing, open_place

# What is in memory of a file while it is checked: a table file may be larger than memory.
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One that can be restored from. Paths in its manifest are below `root`."""

    root: str
    store: Store
    path: str
    manifest: Manifest

    def files(self) -> dict[str, FileSum]:
        return files_of(self.manifest)

    def size_bytes(self) -> int:
        return sum(file.length_bytes for file in self.files().values())

    def parts(self) -> tuple[Part, ...]:
        found = read_parts(self.manifest.plan_fingerprint, self.manifest.operator_names)
        return () if found is None else found.parts

    def checked_pieces(self, path: str, expected: FileSum) -> Iterator[bytes]:
        """What is in a file; raises `Damaged` before the last piece if it is not the one in the manifest."""
        name, length_bytes, crc32 = f"{self.root}/{path}", expected.length_bytes, 0
        if (found_bytes := self.store.size(path)) != length_bytes:
            raise damaged(name, f"it has {found_bytes} bytes where the manifest says {length_bytes}")
        # An empty file is one empty piece, so that it is checked as well.
        for start in range(0, max(length_bytes, 1), _PIECE_BYTES):
            piece = self.store.read_range(path, start=start, length=min(_PIECE_BYTES, length_bytes - start))
            crc32 = zlib.crc32(piece, crc32)
            if start + len(piece) == length_bytes and crc32 != expected.crc32:
                raise damaged(name, "its checksum is not the one in the manifest")
            yield piece


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpointLocation."""

    root: str
    store: Store
    entries: tuple[Entry, ...]

    def retained(self) -> list[CheckpointCompleted]:
        return retained_checkpoints(self.entries)

    def is_committed(self, completed: CheckpointCompleted) -> bool:
        return any(isinstance(one, Committed) and one.checkpoint == completed.checkpoint for one in self.entries)

    def open(self, completed: CheckpointCompleted) -> StoredCheckpoint:
        """Raises `Damaged` if its manifest cannot be used."""
        root = self.root if completed.location is None else completed.location
        store = self.store if completed.location is None else open_place(root)
        name = f"{root.rstrip('/')}/{completed.manifest}"
        return StoredCheckpoint(
            root, store, completed.manifest, decode_manifest(store.read(completed.manifest), name=name)
        )


Found: TypeAlias = StoredCheckpoint | Location


def open_path(path: str) -> Found:
    """Raises `UserError` if nothing of the kind is there, `Damaged` if it cannot be used."""
    given = local_path(path)
    plain = path.rstrip("/") if given is None else str(given)
    if given is not None and not given.exists():
        raise UserError(f"There is nothing at {plain!r}: name a checkpointLocation, a checkpoint or a savepoint.")
    if given is None or given.is_dir():
        store = open_existing(plain)
        if store.list(layout.LOG):
            return Location(plain, store, tuple(JobLog(store, driver="a reader").read()))
    return open_checkpoint(plain)


def open_checkpoint(path: str) -> StoredCheckpoint:
    root, manifest = locate(path)
    folder = local_path(root)
    if folder is not None and not (folder / manifest).is_file():
        raise UserError(
            f"{str(folder / manifest)!r} is not there: name a savepoint, a checkpoint such as chk/checkpoints/7-g1, "
            f"or a checkpointLocation."
        )
    store = open_existing(root)
    return StoredCheckpoint(root, store, manifest, decode_manifest(store.read(manifest), name=f"{root}/{manifest}"))


@dataclass(frozen=True, slots=True)
class Verified:
    """`damage`: one sentence for each file that is missing, or not the one that the manifest speaks of."""

    files: int
    size_bytes: int
    damage: tuple[str, ...]


def verify(found: Found) -> Verified:
    """Reads all of every file; one that several checkpoints refer to once."""
    seen: set[tuple[str, str, FileSum]] = set()
    damage: list[str] = []
    files = size_bytes = 0
    for checkpoint in _checkpoints(found, damage):
        files, size_bytes = files + 1, size_bytes + checkpoint.store.size(checkpoint.path)
        for path, expected in checkpoint.files().items():
            if (checkpoint.root, path, expected) in seen:
                continue
            seen.add((checkpoint.root, path, expected))
            files, size_bytes = files + 1, size_bytes + expected.length_bytes
            try:
                deque(checkpoint.checked_pieces(path, expected), maxlen=0)
            except Damaged as error:
                damage.append(str(error))
    return Verified(files, size_bytes, tuple(damage))


def _checkpoints(found: Found, damage: list[str]) -> Iterator[StoredCheckpoint]:
    match found:
        case StoredCheckpoint():
            yield found
        case Location():
            for completed in found.retained():
                try:
                    yield found.open(completed)
                except Damaged as error:
                    damage.append(str(error))
