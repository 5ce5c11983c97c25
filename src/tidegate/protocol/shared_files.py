"""Which shared files may be deleted: those that no checkpoint uses, or may still come to use.

Users are the completed checkpoints that are retained, and the pending ones, whose choice is not known before they
complete. What keeps this safe is a promise of the snapshots: a checkpoint refers only to files that it wrote itself
or that some checkpoint referred to which was completed and not retired at its trigger or later. So a file that has
lost its last reference waits for the checkpoints that are pending at that moment, and for no later one.

Ids rise from one trigger to the next: "pending at that moment" is all that is pending up to the newest id then.
"""

from collections.abc import Hashable, Iterable
from typing import TypeVar

from tidegate.model.ids import CheckpointId

_Key = TypeVar("_Key", bound=Hashable)


class SharedFiles:
    """Knows retained and pending checkpoints and what still waits for them; a file that is deleted leaves no trace.

    A new driver tells it of every retained checkpoint with `on_completed` before it asks.
    """

    def __init__(self) -> None:
        self._files: dict[CheckpointId, frozenset[str]] = {}
        self._pending: set[CheckpointId] = set()
        self._newest = CheckpointId(0)
        # What waits, and the newest checkpoint it waits for: files of retired checkpoints, writers that are settled.
        self._released: dict[str, CheckpointId] = {}
        self._settled: dict[CheckpointId, CheckpointId] = {}

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        assert all(pending < checkpoint for pending in self._pending), "ids rise from one trigger to the next"
        self._pending.add(checkpoint)
        self._newest = max(self._newest, checkpoint)

    def on_completed(self, checkpoint: CheckpointId, files: frozenset[str]) -> None:
        """It is in the job log, with all the shared files that it needs, its own and older ones. Settles it."""
        self._files[checkpoint] = files
        self._newest = max(self._newest, checkpoint)
        self.on_settled(checkpoint)

    def on_settled(self, checkpoint: CheckpointId) -> None:
        """It completed (say so with `on_completed` first) or was aborted: it will refer to nothing more."""
        if checkpoint not in self._pending:
            return
        self._pending.remove(checkpoint)
        self._settled[checkpoint] = self._newest
        self._forget_what_waits_no_longer()

    def on_retired(self, checkpoint: CheckpointId) -> None:
        released = self._files.pop(checkpoint, frozenset())
        # Also those that others refer to: if this was not the last reference, the last one's end counts anew.
        if self._pending:
            self._released.update(dict.fromkeys(released, self._newest))

    def deletable(self, listed: Iterable[tuple[str, CheckpointId]]) -> list[str]:
        """Of the listed shared files, each with the checkpoint that wrote it, those that nobody uses or may use.

        List only what this generation or an older one has written: a newer driver's files are not known here.
        """
        referenced = self._referenced()
        return [file for file, writer in listed if file not in referenced and not self._may_be_used(file, writer)]

    def _referenced(self) -> set[str]:
        return {file for files in self._files.values() for file in files}

    def _may_be_used(self, file: str, writer: CheckpointId) -> bool:
        # A writer that was never triggered here is not one of ours: it may be pending elsewhere.
        is_unsettled = writer in self._pending or writer > self._newest
        return is_unsettled or file in self._released or writer in self._settled

    def _forget_what_waits_no_longer(self) -> None:
        oldest_pending = min(self._pending, default=None)
        self._released = _still_waiting(self._released, oldest_pending)
        self._settled = _still_waiting(self._settled, oldest_pending)


def _still_waiting(waiting: dict[_Key, CheckpointId], oldest_pending: CheckpointId | None) -> dict[_Key, CheckpointId]:
    if oldest_pending is None:
        return {}
    return {key: waits_for for key, waits_for in waiting.items() if oldest_pending <= waits_for}
