"""Commit in log order. Only this module makes a permit, so nothing is committed that the log does not hold."""

from dataclasses import dataclass, field

from tidegate.model.ids import CheckpointId

_KEY = object()


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to commit one checkpoint's committables: its entry is in the job log."""

    checkpoint: CheckpointId
    key: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.key is not _KEY:
            raise TypeError("A CommitPermit is made by protocol.commit alone, from the job log.")


def permit_logged(checkpoint: CheckpointId) -> CommitPermit:
    """For a checkpoint whose `CheckpointCompleted` entry is known to be in the job log."""
    return CommitPermit(checkpoint, _KEY)
