"""What can be to blame for a slow or failed checkpoint: a closed list."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Cause(Enum):
    SLOW_OPERATOR = "slow operator behind queued data"
    LONG_CALL = "one long call"
    SLOW_STORE = "slow store"
    SILENT_SLOT = "a slot or source that took no part"
    SKEW = "skewed subtask"
    BIG_SYNC = "big synchronous part"
    BIG_STATE = "much state to encode"
    LATE_CHANNEL = "one late channel"
    LATE_SLOT = "a slot that was late"
    BEHIND_SAVEPOINT = "an older savepoint"
    SLOW_COMMIT = "slow commit of the sink"
    EXPIRED = "expired"
    DECLINED = "declined"
    UPLOAD_FAILED = "upload failed"
    NOT_WRITTEN = "manifest or log entry not written"
    GAVE_WAY = "gave way"
    NOTHING = "nothing wrong"


@dataclass(frozen=True, slots=True)
class Where:
    """A task, channel, slot or store; `name` says what a task does."""

    what: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.name})" if self.name else self.what


_NOWHERE = Where("")
# What the driver itself stores: no slot and no kind of checkpoint makes a difference there.
JOB_LOG = "the job log"
DRIVERS_STORE = "checkpointLocation, where the driver was still writing or removing for earlier checkpoints"


@dataclass(frozen=True, slots=True)
class SlowOperator:
    where: Where
    queued_bytes: int
    bytes_per_s: float | None
    cause: Cause = Cause.SLOW_OPERATOR


@dataclass(frozen=True, slots=True)
class LongCall:
    where: Where
    duration_ms: float
    rows: int
    cause: Cause = Cause.LONG_CALL


@dataclass(frozen=True, slots=True)
class SlowStore:
    where: Where
    duration_ms: float
    stored_bytes: int
    cause: Cause = Cause.SLOW_STORE


@dataclass(frozen=True, slots=True)
class SilentSlot:
    """It has not been heard of: a call of one of these tasks does not return, or its process hangs."""

    where: Where
    silent_ms: float
    tasks: tuple[str, ...]
    cause: Cause = Cause.SILENT_SLOT


@dataclass(frozen=True, slots=True)
class SkewedSubtask:
    """`share` of what all `subtasks` of its vertex were given since the checkpoint before."""

    where: Where
    share: float
    subtasks: int
    rows: int
    cause: Cause = Cause.SKEW


@dataclass(frozen=True, slots=True)
class BigSynchronousPart:
    where: Where
    duration_ms: float
    state_bytes: int
    cause: Cause = Cause.BIG_SYNC


@dataclass(frozen=True, slots=True)
class BigState:
    where: Where
    duration_ms: float
    stored_bytes: int
    cause: Cause = Cause.BIG_STATE


@dataclass(frozen=True, slots=True)
class LateChannel:
    """The sender had taken its snapshot; its barrier took so long to be heard."""

    where: Where
    late_ms: float
    sender: str
    cause: Cause = Cause.LATE_CHANNEL


@dataclass(frozen=True, slots=True)
class LateSlot:
    """It reacted late, and no step of a task explains it."""

    where: Where
    late_ms: float
    cause: Cause = Cause.LATE_SLOT


@dataclass(frozen=True, slots=True)
class BehindSavepoint:
    waited_ms: float
    where: Where = _NOWHERE
    cause: Cause = Cause.BEHIND_SAVEPOINT


@dataclass(frozen=True, slots=True)
class SlowCommit:
    """It was ready, and waited for `waited_ms` of the `commit_ms` that an earlier `checkpoint`'s commit took."""

    where: Where
    checkpoint: int
    waited_ms: float
    commit_ms: float
    cause: Cause = Cause.SLOW_COMMIT


@dataclass(frozen=True, slots=True)
class Declined:
    """A slot could not take its part, or its sink could not make its files durable."""

    slot: int | None
    error: str
    where: Where = _NOWHERE
    cause: Cause = Cause.DECLINED


@dataclass(frozen=True, slots=True)
class UploadFailed:
    slot: int | None
    error: str
    where: Where = _NOWHERE
    cause: Cause = Cause.UPLOAD_FAILED


@dataclass(frozen=True, slots=True)
class NotWritten:
    reason: str
    error: str
    where: Where = _NOWHERE
    cause: Cause = Cause.NOT_WRITTEN


@dataclass(frozen=True, slots=True)
class GaveWay:
    """To the end of its generation, or to a newer one: it did nothing wrong itself."""

    reason: str
    detail: str
    where: Where = _NOWHERE
    cause: Cause = Cause.GAVE_WAY


@dataclass(frozen=True, slots=True)
class NothingWrong:
    duration_ms: float
    where: Where = _NOWHERE
    cause: Cause = Cause.NOTHING


WaitedFor: TypeAlias = (
    SlowOperator
    | LongCall
    | SlowStore
    | SilentSlot
    | SkewedSubtask
    | BigSynchronousPart
    | BigState
    | LateChannel
    | LateSlot
    | BehindSavepoint
    | SlowCommit
    | Declined
    | UploadFailed
    | NotWritten
    | GaveWay
    | NothingWrong
)


@dataclass(frozen=True, slots=True)
class Expired:
    waiting_for: WaitedFor
    timeout_ms: float
    cause: Cause = Cause.EXPIRED

    @property
    def where(self) -> Where:
        return self.waiting_for.where


Culprit: TypeAlias = WaitedFor | Expired


def root_of(culprit: Culprit) -> WaitedFor:
    """Of an expired one: what it waited for."""
    return culprit.waiting_for if isinstance(culprit, Expired) else culprit
