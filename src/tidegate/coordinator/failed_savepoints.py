"""Savepoints that failed: what slots have written of them goes once no slot can write there any more.

A slot hears of the abort before it hears of any checkpoint that was triggered later, and uploads one after the other.
So whoever has acknowledged a later one has ended its uploads of the failed one. A process that everybody takes for gone
may still write: when the job ends, there is one more look.

Removes only files that bear a savepoint's names, from the folder that was made for this one. If the job log has it
after all, because writing its entry only looked as if it had failed, it is whole and stays.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.coordinator.orphans import remove
from tidegate.model.errors import Missing, StorageFailure
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, Entry
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.store import Store

log = logging.getLogger("tidegate")

# A place that cannot be reached holds up what is stored behind it: it is tried with so many checkpoints.
_MOST_TRIES = 3
# What is removed is looked at again when the job ends: so many, as a query may be asked for savepoints all its life.
_LOOKED_AT_AGAIN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSavepoint:
    """`quiet_from`: every checkpoint from this id on was triggered after the slots were told of the failure."""

    checkpoint: CheckpointId
    generation: Generation
    location: str
    triggered_at_ms: int
    quiet_from: CheckpointId

    @property
    def folder(self) -> layout.CheckpointFolder:
        return layout.CheckpointFolder(self.checkpoint, self.generation)

    @property
    def mark(self) -> tuple[CheckpointId, Generation, int]:
        """What a manifest of it says, and no other one's."""
        return self.checkpoint, self.generation, self.triggered_at_ms


@dataclass(slots=True)
class _Waiting:
    failed: FailedSavepoint
    tries: int = 0


class FailedSavepoints:
    """Blocks. Never raises for what cannot be removed: nothing depends on it."""

    def __init__(self, open_location: Callable[[str], Store]) -> None:
        self._open_location = open_location
        self._waiting: list[_Waiting] = []
        self._removed: deque[FailedSavepoint] = deque(maxlen=_LOOKED_AT_AGAIN)

    def add(self, failed: FailedSavepoint) -> None:
        self._waiting.append(_Waiting(failed))

    def on_acknowledged(self, checkpoint: CheckpointId, entries: Sequence[Entry]) -> None:
        """By all slots. `entries`: with its own entry, behind which no older one can come into the log any more."""
        for waiting in [each for each in self._waiting if each.failed.quiet_from <= checkpoint]:
            failed = waiting.failed
            try:
                # Not what somebody else had put there before.
                if not _is_logged(failed, entries) and self._manifest_there(failed) in (None, failed.mark):
                    self._remove(failed)
            except StorageFailure as error:
                waiting.tries += 1
                if waiting.tries < _MOST_TRIES:
                    _warn(failed, "the next checkpoint tries again", error)
                    continue
                _warn(failed, "that is not tried again before the query ends", error)
            self._waiting.remove(waiting)
            self._removed.append(failed)

    def on_ended(self, entries: Sequence[Entry]) -> None:
        """All slots are gone. With a manifest it stays: its entry may still come into the log, as nothing is behind."""
        left = [*self._removed, *(waiting.failed for waiting in self._waiting)]
        self._waiting.clear()
        self._removed.clear()
        for failed in left:
            try:
                if not _is_logged(failed, entries) and self._manifest_there(failed) is None:
                    self._remove(failed)
            except StorageFailure as error:
                _warn(failed, "remove it by hand", error)

    def _manifest_there(self, failed: FailedSavepoint) -> tuple[CheckpointId, Generation, int] | None:
        """Its mark; None if there is none."""
        place, name = self._place_of(failed)
        path = f"{name}/{layout.savepoint_manifest()}"
        try:
            manifest = decode_manifest(place.read(path), name=path)
        except Missing:
            return None
        return manifest.checkpoint, manifest.generation, manifest.triggered_at_ms

    def _remove(self, failed: FailedSavepoint) -> None:
        place, name = self._place_of(failed)
        below = (path.removeprefix(f"{name}/") for path in place.list(name))
        remove(place, [f"{name}/{path}" for path in below if layout.is_file_of_savepoint(path, failed.folder)])
        # Uploads that were cut short leave empty folders: they go with the last file in them, be it there or not.
        for path in (layout.channel_file(failed.folder, SlotIndex(0)), layout.savepoint_manifest()):
            place.delete(f"{name}/{path}")

    def _place_of(self, failed: FailedSavepoint) -> tuple[Store, str]:
        """The folder above and the name in it: a store leaves its own folder where it is, also if that is empty."""
        above, _, name = failed.location.rpartition("/")
        return self._open_location(above), name


def _is_logged(failed: FailedSavepoint, entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, CheckpointCompleted) and entry.checkpoint == failed.checkpoint for entry in entries)


def _warn(failed: FailedSavepoint, what_follows: str, error: StorageFailure) -> None:
    log.warning(
        "What was written of savepoint %d, which failed, could not be removed from %s, %s: %s",
        failed.checkpoint,
        failed.location,
        what_follows,
        error,
    )
