"""The shared files of a job's own location: which of them the checkpoints that stay may still need, and which go.

`protocol.shared_files` decides what checkpoints under way may still refer to; what a damaged manifest names is decided
here. Deletes nothing that a newer generation has written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId, Generation
from tidegate.protocol.shared_files import SharedFiles
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import Store, delete_all


@dataclass(frozen=True, slots=True)
class UsedFiles:
    """`unknown_up_to`: a damaged checkpoint may need any file that was written up to it."""

    files: frozenset[str]
    unknown_up_to: CheckpointId

    @classmethod
    def of(
        cls,
        staying: Sequence[CheckpointCompleted],
        shared_files_of: Callable[[CheckpointCompleted], frozenset[str] | None],
    ) -> "UsedFiles":
        found = {completed.checkpoint: shared_files_of(completed) for completed in staying}
        unknown = [checkpoint for checkpoint, files in found.items() if files is None]
        known = frozenset(path for files in found.values() if files is not None for path in files)
        return cls(known, max(unknown, default=CheckpointId(0)))

    def may_need(self, path: str, writer: CheckpointId) -> bool:
        return path in self.files or writer <= self.unknown_up_to


class KeptFiles:
    """What one driver knows of them. `manifest_of` raises `Damaged` if it cannot be read."""

    def __init__(self, store: Store, *, manifest_of: Callable[[CheckpointCompleted], Manifest]) -> None:
        self._store = store
        self._manifest_of = manifest_of
        self._shared = SharedFiles()
        self._registered: set[CheckpointId] = set()
        self._files: dict[CheckpointId, frozenset[str]] = {}
        self._pending: frozenset[CheckpointId] = frozenset()

    def on_completed(self, checkpoint: CheckpointId, files: frozenset[str]) -> None:
        self._files[checkpoint] = files
        self._register(checkpoint, files)

    def on_found(self, retained: Sequence[CheckpointCompleted]) -> None:
        """Those of drivers before this one, too."""
        for completed in retained:
            if completed.checkpoint not in self._registered:
                self._register(completed.checkpoint, self._shared_files_of(completed) or frozenset())

    def on_pending(self, said: frozenset[CheckpointId]) -> None:
        # What was pending when that was said may be complete by now, and nothing older than it can become so.
        newest = max(self._registered, default=CheckpointId(0))
        pending = frozenset(checkpoint for checkpoint in said if checkpoint > newest)
        for checkpoint in sorted(self._pending - pending):
            self._shared.on_settled(checkpoint)
        for checkpoint in sorted(pending - self._pending):
            self._shared.on_triggered(checkpoint)
        self._pending = pending

    def on_retired(self, checkpoint: CheckpointId) -> None:
        self._shared.on_retired(checkpoint)
        self._registered.discard(checkpoint)
        self._files.pop(checkpoint, None)

    def delete_unused(self, staying: Sequence[CheckpointCompleted], *, up_to: Generation) -> None:
        """What neither those that stay nor those under way may need."""
        listed = self._listed(up_to)
        if not listed:
            return
        used = UsedFiles.of(staying, self._shared_files_of)
        needed = {path for path, writer in listed if used.may_need(path, writer)}
        delete_all(self._store, [path for path in self._shared.deletable(listed) if path not in needed])

    def delete_all_but(self, staying: Sequence[CheckpointCompleted], *, up_to: Generation) -> None:
        """Once nothing is under way any more."""
        used = UsedFiles.of(staying, self._shared_files_of)
        listed = self._listed(up_to)
        delete_all(self._store, [path for path, writer in listed if not used.may_need(path, writer)])

    def _register(self, checkpoint: CheckpointId, files: frozenset[str]) -> None:
        self._shared.on_completed(checkpoint, files)
        self._pending -= {checkpoint}
        self._registered.add(checkpoint)

    def _listed(self, up_to: Generation) -> list[tuple[str, CheckpointId]]:
        """Each with the checkpoint that wrote it."""
        found = [(path, layout.parse_shared_file(path)) for path in self._store.list(layout.SHARED)]
        return [(path, by.checkpoint) for path, by in found if by is not None and by.generation <= up_to]

    def _shared_files_of(self, completed: CheckpointCompleted) -> frozenset[str] | None:
        """None if that cannot be told any more, because its manifest is damaged."""
        if completed.is_savepoint:
            return frozenset()  # it refers to nothing, and its owner may have taken it away
        if completed.checkpoint not in self._files:
            try:
                self._files[completed.checkpoint] = shared_files(self._manifest_of(completed))
            except Damaged:
                return None
        return self._files[completed.checkpoint]


def shared_files(manifest: Manifest) -> frozenset[str]:
    return frozenset(file.path for slot in manifest.slots for file in slot.shared)
