"""The machine of checkpoints with plain numbers, and its actions in a word each."""

from collections.abc import Iterable

from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.protocol.checkpoints import (
    Abort,
    CheckpointAction,
    Checkpoints,
    CheckpointSettings,
    Complete,
    FailureReason,
    Trigger,
)
from tidegate.protocol.requests import Afterwards, CheckpointRequest, SavepointAlignment, SavepointRequest

EXPIRED, DECLINED, SUBSUMED = FailureReason.EXPIRED, FailureReason.DECLINED, FailureReason.SUBSUMED
NOT_RUNNING, TOO_MANY_REQUESTS = FailureReason.NOT_RUNNING, FailureReason.TOO_MANY_REQUESTS
SLOTS = (SlotIndex(0), SlotIndex(1))
ONE_MORE = CheckpointRequest()


def checkpoints(
    *,
    interval_ms: float = 100.0,
    timeout_ms: float = 1000.0,
    min_pause_ms: float = 0.0,
    max_concurrent: int = 1,
    tolerable_failures: int = 0,
    next_id: int = 1,
) -> Checkpoints:
    settings = CheckpointSettings(
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        min_pause_ms=min_pause_ms,
        max_concurrent=max_concurrent,
        tolerable_failures=tolerable_failures,
    )
    return Checkpoints(settings, slots=SLOTS, next_id=CheckpointId(next_id), now_ms=0.0)


def savepoint(token: int = 1, *, afterwards: Afterwards = Afterwards.GO_ON) -> SavepointRequest:
    return SavepointRequest(token, f"savepoints/{token}", SavepointAlignment.ALIGNED, afterwards)


def stop_with_savepoint(token: int = 1) -> SavepointRequest:
    return savepoint(token, afterwards=Afterwards.SUSPEND)


def trigger(checkpoint: int, asked: SavepointRequest | None = None) -> Trigger:
    return Trigger(CheckpointId(checkpoint), asked)


def complete(checkpoint: int) -> Complete:
    return Complete(CheckpointId(checkpoint))


def abort(checkpoint: int, reason: FailureReason, asked: SavepointRequest | None = None) -> Abort:
    return Abort(CheckpointId(checkpoint), reason, asked)


def acknowledge(machine: Checkpoints, checkpoint: int) -> list[CheckpointAction]:
    """By every slot; what the last one sets off."""
    actions = [machine.on_acknowledged(CheckpointId(checkpoint), slot) for slot in SLOTS]
    assert actions[:-1] == [[]]
    return actions[-1]


def store(machine: Checkpoints, checkpoint: int, now_ms: float) -> list[CheckpointAction]:
    return machine.on_stored(CheckpointId(checkpoint), now_ms)


def commit(machine: Checkpoints, checkpoint: int, now_ms: float) -> list[CheckpointAction]:
    return machine.on_committed(CheckpointId(checkpoint), now_ms)


def fail(machine: Checkpoints, checkpoint: int, reason: FailureReason = DECLINED) -> list[CheckpointAction]:
    return machine.on_failed(CheckpointId(checkpoint), reason)


def triggered(actions: Iterable[CheckpointAction]) -> list[CheckpointId]:
    return [action.checkpoint for action in actions if isinstance(action, Trigger)]
