"""What a job goes on from: log and stored facts in, one decision out.

A checkpoint can be restored if it is undamaged and if no output is lost with it: output that is not committed yet is
in the manifests up to it, so each unrecorded one of those must be readable. The newest such checkpoint is chosen.

Whatever is newer is skipped, and its epochs are replayed. Rows come out twice if a skipped checkpoint had committed
some, so that needs sinks that can roll back, or a user who accepts duplicates. Nobody can accept lost rows here:
that is why a damaged checkpoint with uncommitted output makes the job go back to before it, never past it.

This module deletes nothing and writes nothing; a refusal leaves everything as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidegate.model.ids import CheckpointId, Generation


class SinkRollback(Enum):
    """What may be done about rows that are out and will be written again."""

    NONE = "none"  # no sink takes rows back: a committed epoch must not be replayed
    TO_ANY_CHECKPOINT = "to_any_checkpoint"  # every sink can take back what it committed after a retained checkpoint
    DUPLICATES_ALLOWED = "duplicates_allowed"  # the user's restore.allowDuplicates: rows may come out twice


class CapturedRows(Enum):
    """What becomes of the rows that a checkpoint holds in flight when it is restored."""

    DELIVER = "deliver"
    DROP = "drop"  # the user's checkpoint.recoverWithoutChannelState: they are lost, and counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A completed, retained checkpoint as it was found in storage.

    `has_committables`: true as well if that is unknown, since the manifest cannot be read.
    `is_committed`: its commit is recorded in the job log.
    `damage`: one sentence that names the file, if the manifest or a file it needs cannot be used.
    """

    checkpoint: CheckpointId
    generation: Generation
    has_committables: bool
    is_committed: bool
    damage: str | None


@dataclass(frozen=True, slots=True)
class StartFresh:
    """The job has no checkpoint yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Commit `commit_first` in this order, then take back or discard what is newer, then restore `checkpoint`.

    The epochs of `skipped` are replayed, so those checkpoints must never be committed or restored any more, even if
    their files come back: that has to be on record before the new generation takes its first checkpoint.
    """

    checkpoint: CheckpointId
    commit_first: tuple[CheckpointId, ...]
    skipped: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    message: str


Decision: TypeAlias = StartFresh | Restore | Refuse


def decide(stored: Sequence[StoredCheckpoint], *, rollback: SinkRollback) -> Decision:
    """`stored`: every checkpoint that the log has as completed, and not as retired or skipped, in its order."""
    if not stored:
        return StartFresh()
    position = _newest_restorable(stored)
    if position is None:
        return Refuse(_nothing_to_restore(stored))
    if rollback is SinkRollback.NONE:
        for later in range(position + 1, len(stored)):
            if _may_be_committed(stored, later):
                return Refuse(_rows_twice(stored, restored=position, repeated=later))
    return Restore(
        checkpoint=stored[position].checkpoint,
        commit_first=tuple(c.checkpoint for c in stored[: position + 1] if not c.is_committed),
        skipped=tuple(c.checkpoint for c in stored[position + 1 :]),
    )


def _newest_restorable(stored: Sequence[StoredCheckpoint]) -> int | None:
    newest = None
    for position, candidate in enumerate(stored):
        if _has_unreadable_output(candidate):
            break
        if candidate.damage is None:
            newest = position
    return newest


def _has_unreadable_output(candidate: StoredCheckpoint) -> bool:
    """Rows that are neither surely out nor replayed by any later checkpoint."""
    return candidate.damage is not None and candidate.has_committables and not candidate.is_committed


def _may_be_committed(stored: Sequence[StoredCheckpoint], position: int) -> bool:
    """Whether rows of its epoch may be out. Commits go in log order, each recorded before the next one begins."""
    skipped = stored[position]
    has_begun = skipped.is_committed or all(older.is_committed for older in stored[:position])
    return skipped.has_committables and has_begun


def _nothing_to_restore(stored: Sequence[StoredCheckpoint]) -> str:
    usable = [candidate for candidate in stored if candidate.damage is None]
    if not usable:
        problem = f"None of the {len(stored)} retained checkpoints can be restored, the newest is {_named(stored[-1])}"
    else:
        lost = next(candidate for candidate in stored if _has_unreadable_output(candidate))
        problem = (
            f"Going on from checkpoint {usable[-1].checkpoint} would lose rows that are not committed yet, they are "
            f"in {_named(lost)}, and no usable checkpoint is older"
        )
    return (
        f"{problem}: restore the file from a backup, or start from the beginning with a new checkpointLocation "
        f"(nothing was changed or deleted)."
    )


def _rows_twice(stored: Sequence[StoredCheckpoint], *, restored: int, repeated: int) -> str:
    # An undamaged one is only skipped together with the damaged one right behind the restored one.
    culprit = stored[repeated] if stored[repeated].damage is not None else stored[restored + 1]
    return (
        f"Going back to checkpoint {stored[restored].checkpoint} would write rows again that checkpoint "
        f"{stored[repeated].checkpoint} may have committed, but it is the newest that can be used because of "
        f"{_named(culprit)}: restore the file from a backup, or accept duplicates with "
        f".option('restore.allowDuplicates', 'true') (nothing was changed or deleted)."
    )


def _named(candidate: StoredCheckpoint) -> str:
    assert candidate.damage is not None, "only a damaged checkpoint is to blame"
    damage = candidate.damage.rstrip(".")
    return f"the damaged checkpoint {candidate.checkpoint} of generation {candidate.generation} [{damage}]"
