"""What a job is, as the coordinator is given it. Everything has been checked before one of these is made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tidegate.coordinator.compatibility import NotRestored
from tidegate.model.ids import CheckpointId
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.restart import RestartStrategy
from tidegate.protocol.retention import KeepFor, KeepNumber, OnCancel, RestoreMode
from tidegate.worker.settings import SlotSettings


class CheckpointFollower(Protocol):
    """Hears, on the coordinator's thread, how far each checkpoint is. Must return at once."""

    def on_triggered(self, checkpoint: CheckpointId) -> None: ...
    def on_reached_all(self, checkpoint: CheckpointId) -> None: ...
    def on_settled(self, checkpoint: CheckpointId) -> None: ...
    def paused_ms(self) -> Mapping[str, float]:
        """For how long each source of its own, by name, has waited for late checkpoints in all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """`switch_after_ms`: None keeps checkpoints aligned, 0 is unaligned at once, more switches after that time."""

    name: str
    job_id: str
    slot_settings: SlotSettings
    fingerprint: tuple[str, ...]
    checkpoints: CheckpointSettings
    switch_after_ms: float | None
    keep: KeepNumber | KeepFor
    restart: RestartStrategy
    available_now: bool
    restore_from: str | None = None
    rollback: SinkRollback = SinkRollback.NONE
    not_restored: NotRestored = NotRestored.REFUSED
    restore_mode: RestoreMode = RestoreMode.NO_CLAIM
    on_cancel: OnCancel = OnCancel.RETAIN
    without_captured_rows: CheckpointId | None = None
    driver_host: str
    bind_host: str
    slot_bind_host: str
    advertised_host: str | None
    ports: str
    followers: tuple[CheckpointFollower, ...] = ()
    run: str = ""
    """Part of the names of savepoints: the folder that a user gives may have those of other queries and runs."""

    @property
    def slots(self) -> int:
        return self.slot_settings.plan.parallelism

    def with_slots(self, slots: int) -> "JobSpec":
        """The same job at another parallelism; state and rows in flight are distributed anew when it is restored."""
        plan = replace(self.slot_settings.plan, parallelism=slots)
        return replace(self, slot_settings=replace(self.slot_settings, plan=plan))
