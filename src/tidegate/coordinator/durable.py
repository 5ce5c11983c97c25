"""The job's durable side: the log, manifests, commits, retention. Blocking; runs beside the coordinator's loop.

Every method may raise StorageFailure, Superseded or what a sink raises; the coordinator decides what follows.
"""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.connectors.contract import SinkCommitter
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.protocol.commit import permit_logged
from tidegate.protocol.retention import to_retire
from tidegate.storage import layout
from tidegate.storage.job_log import (
    CheckpointCompleted,
    CheckpointRetired,
    Committed,
    JobLog,
    newest_completed,
    next_checkpoint_id,
    retained_checkpoints,
    uncommitted,
)
from tidegate.storage.manifests import Manifest, decode_manifest, encode_manifest
from tidegate.storage.store import Store
from tidegate.worker.restoring import read_source_states

# A committable rides with later checkpoints until its slot knows that it is committed: a few checkpoints at the most.
_REMEMBERED_COMMITTABLES = 100_000


@dataclass(frozen=True, slots=True)
class GenerationBasis:
    """What a new generation stands on."""

    generation: Generation
    restore_manifest: str | None
    restored_checkpoint: CheckpointId | None
    next_checkpoint: CheckpointId
    source_states: dict[TaskId, bytes]


class DurableJob:
    def __init__(
        self,
        store: Store,
        committer: SinkCommitter,
        *,
        fingerprint: Sequence[str],
        parallelism: int,
        max_parallelism: int,
        retained: int,
    ) -> None:
        self._store = store
        self._committer = committer
        self._fingerprint = list(fingerprint)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._retained = retained
        self._committed: dict[bytes, None] = {}
        self._log = JobLog(store, driver=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def check_compatible(self) -> None:
        """Before anything starts: whether the newest checkpoint fits this query. Changes nothing."""
        newest = newest_completed(self._log.read())
        if newest is not None:
            self._check_fits(self._manifest(newest))

    def start_generation(self, *, at_ms: int) -> GenerationBasis:
        """Own the job from now on, settle what the generation before left open, and choose what to restore."""
        generation = self._log.start_generation(parallelism=self._parallelism, at_ms=at_ms)
        entries = self._log.read()
        still_open = uncommitted(entries)
        settled = [c for c in retained_checkpoints(entries) if c not in still_open]
        if still_open and settled:
            self._remember(self._manifest(settled[-1]))
        for completed in still_open:
            self.commit(completed.checkpoint, self._manifest(completed))
        self._committer.discard_uncommitted([], generation)
        newest = newest_completed(entries)
        manifest = None if newest is None else self._manifest(newest)
        if manifest is not None:
            self._check_fits(manifest)
        return GenerationBasis(
            generation=generation,
            restore_manifest=None if newest is None else newest.manifest,
            restored_checkpoint=None if newest is None else newest.checkpoint,
            next_checkpoint=next_checkpoint_id(entries, self._store.list(layout.CHECKPOINTS)),
            source_states={} if manifest is None else read_source_states(self._store, manifest),
        )

    def complete(self, manifest: Manifest) -> str:
        """Write the manifest, then the log entry: from that moment the checkpoint exists."""
        folder = layout.CheckpointFolder(manifest.checkpoint, manifest.generation)
        path = layout.manifest(folder)
        self._store.put(path, encode_manifest(manifest))
        self._log.append(
            CheckpointCompleted(checkpoint=manifest.checkpoint, generation=manifest.generation, manifest=path)
        )
        return path

    def commit(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        """Commit it, and before it whatever an earlier commit that failed has left: the log's order is kept."""
        for completed in uncommitted(self._log.read()):
            if completed.checkpoint < checkpoint:
                self._commit_one(completed.checkpoint, self._manifest(completed))
        self._commit_one(checkpoint, manifest)

    def _commit_one(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        # What an earlier checkpoint has committed already is left out: a reader may have taken it away since.
        committables = [c for c in _committables(manifest) if c not in self._committed]
        self._committer.commit(committables, permit_logged(checkpoint))
        self._log.append(Committed(checkpoint=checkpoint))
        self._remember(manifest)

    def retire(self) -> None:
        """Remove what retention no longer keeps, and what failed checkpoints before it left behind."""
        entries = self._log.read()
        retained = retained_checkpoints(entries)
        committed = frozenset(entry.checkpoint for entry in entries if isinstance(entry, Committed))
        leaving = set(to_retire([c.checkpoint for c in retained], committed=committed, keep=self._retained))
        for checkpoint in sorted(leaving):
            self._log.append(CheckpointRetired(checkpoint=checkpoint))
        staying = [c.checkpoint for c in retained if c.checkpoint not in leaving]
        kept = {str(layout.CheckpointFolder(c.checkpoint, c.generation)) for c in retained if c.checkpoint in staying}
        for path in self._store.list(layout.CHECKPOINTS):
            folder = layout.parse_checkpoint(path)
            # Newer than the oldest kept one may still be in the making.
            if folder is not None and folder.checkpoint < min(staying, default=CheckpointId(0)):
                assert str(folder) not in kept
                self._store.delete(path)

    def clean_up(self, generation: Generation) -> None:
        """Once all slots of `generation` are gone: remove what they left and no completed checkpoint holds."""
        entries = self._log.read()
        held = [self._manifest(completed) for completed in uncommitted(entries)]
        keep = [committable for manifest in held for committable in _committables(manifest)]
        self._committer.discard_uncommitted(keep, Generation(generation + 1))
        retained = {layout.CheckpointFolder(c.checkpoint, c.generation) for c in retained_checkpoints(entries)}
        for path in self._store.list(layout.CHECKPOINTS):
            folder = layout.parse_checkpoint(path)
            if folder is not None and folder not in retained and folder.generation <= generation:
                self._store.delete(path)

    def _remember(self, manifest: Manifest) -> None:
        self._committed.update(dict.fromkeys(_committables(manifest)))
        while len(self._committed) > _REMEMBERED_COMMITTABLES:
            del self._committed[next(iter(self._committed))]

    def _manifest(self, completed: CheckpointCompleted) -> Manifest:
        return decode_manifest(self._store.read(completed.manifest), name=completed.manifest)

    def _check_fits(self, manifest: Manifest) -> None:
        where = f"Checkpoint {manifest.checkpoint} in this checkpointLocation"
        if manifest.max_parallelism != self._max_parallelism:
            raise IncompatibleCheckpoint(
                f"{where} has maxParallelism {manifest.max_parallelism} and the query {self._max_parallelism}: "
                f"set .option('maxParallelism', {manifest.max_parallelism}) or use a new checkpointLocation."
            )
        if manifest.parallelism != self._parallelism:
            raise IncompatibleCheckpoint(
                f"{where} was taken with parallelism {manifest.parallelism} and the query has {self._parallelism}: "
                f"set .option('parallelism', {manifest.parallelism})."
            )
        for stored, now in zip(manifest.plan_fingerprint, self._fingerprint, strict=False):
            if stored != now:
                raise IncompatibleCheckpoint(
                    f"{where} does not fit this query: it has {stored!r} where the query has {now!r}; "
                    f"go back to the old query or use a new checkpointLocation."
                )
        if len(manifest.plan_fingerprint) != len(self._fingerprint):
            raise IncompatibleCheckpoint(
                f"{where} belongs to a query with {len(manifest.plan_fingerprint)} parts and this one has "
                f"{len(self._fingerprint)}: go back to the old query or use a new checkpointLocation."
            )


def _committables(manifest: Manifest) -> list[bytes]:
    return [committable for part in manifest.committables for committable in part.committables]
