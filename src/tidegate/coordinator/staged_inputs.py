"""What Spark ingests for a query's sources, when the query moves: into a savepoint, and out of it to another location.

Without it the positions of such sources mean nothing anywhere else. Checkpoints have no copy: they are restored where
the staging folder is. Changes nothing but the savepoint that is being written and a staging folder that is new.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from tidegate.connectors.staged_copy import FoundFile, Unread, files_to_copy, is_free, lay_out, tries, unread_by
from tidegate.connectors.staged_source import STAGED, StagingFolder, staged_elsewhere
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import VertexId
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.physical import JobPlan
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest, SharedFile, StagedInput
from tidegate.storage.state_file import damaged
from tidegate.storage.store import ReadableStore, Store
from tidegate.worker.restoring import read_source_states

_PIECE_BYTES = 4 << 20


def _folders(plan: JobPlan) -> Iterator[tuple[VertexId, StagingFolder]]:
    for vertex in plan.vertices:
        if vertex.source is not None and vertex.source.format == STAGED:
            yield vertex.id, StagingFolder(Path(vertex.source.options["path"]))


def _unread(
    plan: JobPlan, match: PlanMatch, manifest: Manifest, store: Store
) -> Iterator[tuple[VertexId, StagingFolder, Unread]]:
    """By the positions in the checkpoint, whose files `store` has. Reads nothing if Spark ingests nothing."""
    if not (folders := dict(_folders(plan))):
        return
    states = read_source_states(store, manifest, plan, match)
    for vertex, folder in folders.items():
        yield vertex, folder, unread_by([state for task, state in states.items() if task.vertex == vertex])


# -- into a savepoint


def with_staged_inputs(manifest: Manifest, plan: JobPlan, store: Store) -> Manifest:
    """With an entry for each such source; `plan` is the one that it was taken of."""
    fingerprint = manifest.plan_fingerprint
    match = match_stored(plan, fingerprint, stored=fingerprint, stored_names=manifest.operator_names)
    assert match is not None, "it is of this plan"
    kept = [_kept(vertex, folder, unread, store) for vertex, folder, unread in _unread(plan, match, manifest, store)]
    return msgspec.structs.replace(manifest, staged=kept) if kept else manifest


def _kept(vertex: VertexId, folder: StagingFolder, unread: Unread, store: Store) -> StagedInput:
    for _ in tries():
        with suppress(FileNotFoundError):
            found = files_to_copy(folder, first_batch=unread.first_batch)
            return StagedInput(vertex, [_stored(store, vertex, file) for file in found])
    raise AssertionError("tries end with an error")


def _stored(store: Store, vertex: VertexId, file: FoundFile) -> SharedFile:
    path = layout.staged_copy(vertex, file.path)
    with file.open() as content:
        pieces = _Counted(iter(lambda: content.read(_PIECE_BYTES), b""))
        store.put(path, pieces)
    return SharedFile(path, pieces.length, pieces.crc32)


class _Counted:
    """Pieces, with what the manifest notes of them once all were asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.length = self.crc32 = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.length, self.crc32 = self.length + len(piece), zlib.crc32(piece, self.crc32)
            yield piece


# -- out of it


def check_staged_inputs(plan: JobPlan, match: PlanMatch, manifest: Manifest, store: Store) -> None:
    """Raises `IncompatibleCheckpoint` if a source of the query could not go on from where the checkpoint stands."""
    for vertex, folder, unread in _unread(plan, match, manifest, store):
        if not unread.given or (folder.is_prepared() and all(map(folder.knows, unread.given))):
            continue
        if _kept_for(vertex, match, manifest) is None:
            raise staged_elsewhere(folder)
        if not is_free(folder):
            raise IncompatibleCheckpoint(
                f"{folder.path} has what Spark has ingested for another start of the query, and the savepoint has its "
                f"own: use a new checkpointLocation."
            )


def lay_out_staged_inputs(plan: JobPlan, match: PlanMatch, manifest: Manifest, store: Store) -> None:
    """Before Spark is asked for more. What is there already, from an earlier generation of this start, goes on."""
    check_staged_inputs(plan, match, manifest, store)
    for vertex, folder in _folders(plan):
        kept = _kept_for(vertex, match, manifest)
        if kept is not None and kept.files and is_free(folder):
            lay_out(folder, ((layout.path_in_staging(file.path), _pieces(store, file)) for file in kept.files))


def _kept_for(vertex: VertexId, match: PlanMatch, manifest: Manifest) -> StagedInput | None:
    before = match.vertices.get(vertex)
    return next((kept for kept in manifest.staged if kept.vertex == before), None)


def _pieces(store: ReadableStore, file: SharedFile) -> Iterator[bytes]:
    """Raises `Damaged` at the end if it is not the file in the manifest."""
    crc32 = 0
    if store.size(file.path) != file.length:
        raise damaged(file.path, f"it has not the {file.length} bytes that the manifest says")
    for start in range(0, file.length, _PIECE_BYTES):
        piece = store.read_range(file.path, start=start, length=min(_PIECE_BYTES, file.length - start))
        crc32 = zlib.crc32(piece, crc32)
        yield piece
    if crc32 != file.crc32:
        raise damaged(file.path, "its checksum is not the one in the manifest")


def copy_staged_inputs(manifest: Manifest, base: ReadableStore, store: Store) -> None:
    """Into a savepoint that is written from another one."""
    for kept in manifest.staged:
        for file in kept.files:
            store.put(file.path, _pieces(base, file))
