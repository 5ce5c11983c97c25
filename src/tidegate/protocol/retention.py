"""Which checkpoints may go, by number or by time. Which shared files go with them is decided in `shared_files`.

Never the newest, never one whose commit is not recorded, never a savepoint: that one belongs to the user. One that was
passed over because it was damaged goes as if it had been used, and takes no other one's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from tidegate.model.ids import CheckpointId


@dataclass(frozen=True, slots=True)
class KeepNumber:
    """The newest so many."""

    checkpoints: int

    def __post_init__(self) -> None:
        assert self.checkpoints >= 1, "the newest checkpoint is always kept"


@dataclass(frozen=True, slots=True)
class KeepFor:
    """Those completed in the last `duration_ms`, and always the newest."""

    duration_ms: int

    def __post_init__(self) -> None:
        assert self.duration_ms >= 0, "a checkpoint is kept for some time after its completion"


class RestoreMode(Enum):
    """Whose the checkpoint is that a query was started from."""

    NO_CLAIM = "no_claim"  # somebody else's: nothing refers to its files, and they stay
    CLAIM = "claim"  # the query's own from now on: it goes when it would go by its age


class OnCancel(Enum):
    """What becomes of the checkpoints of a query that is stopped. Savepoints always stay."""

    RETAIN = "retain"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    checkpoint: CheckpointId
    completed_at_ms: int
    is_committed: bool
    is_savepoint: bool


def to_retire(completed: Sequence[Completed], *, keep: KeepNumber | KeepFor, now_ms: int) -> list[CheckpointId]:
    """Of `completed` (retained ones, oldest first) those that are no longer kept, oldest first."""
    # Savepoints do not count: the user may remove one at any time, and must not take the last way back with it.
    own = [candidate for candidate in completed if not candidate.is_savepoint]
    match keep:
        case KeepNumber(checkpoints):
            leaving = own[:-checkpoints]
        case KeepFor(duration_ms):
            leaving = [candidate for candidate in own[:-1] if now_ms - candidate.completed_at_ms > duration_ms]
        case _:
            assert_never(keep)
    return [candidate.checkpoint for candidate in leaving if candidate.is_committed]


def skipped_to_retire(
    skipped: Sequence[Completed], completed: Sequence[Completed], *, keep: KeepNumber | KeepFor, now_ms: int
) -> list[CheckpointId]:
    """Of `skipped` (passed over for an older one) those that go, now that so many newer ones are committed."""
    committed = [each for each in completed if each.is_committed]

    def goes(one: Completed) -> bool:
        newer = [each for each in committed if each.checkpoint > one.checkpoint]
        # What it had to commit was taken back, or comes out of newer ones: nothing of it is open any more.
        return one.checkpoint in to_retire([replace(one, is_committed=True), *newer], keep=keep, now_ms=now_ms)

    return [one.checkpoint for one in skipped if goes(one)]
