"""What a job is, as the coordinator is given it. Everything has been checked before one of these is made."""

from dataclasses import dataclass

from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.restart import RestartStrategy
from tidegate.worker.settings import SlotSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    name: str
    job_id: str
    slot_settings: SlotSettings
    fingerprint: tuple[str, ...]
    checkpoints: CheckpointSettings
    retained: int
    restart: RestartStrategy
    available_now: bool
    driver_host: str
    bind_host: str
    slot_bind_host: str
    advertised_host: str | None
    ports: str
