"""A job as the coordinator is given it, on this machine only. For tests and measurements without Spark."""

from tidegate.coordinator.job import JobSpec
from tidegate.plan.lower import fingerprint
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.restart import NoRestart, RestartStrategy
from tidegate.protocol.retention import KeepNumber
from tidegate.worker.settings import SlotSettings

_HERE = "127.0.0.1"


def local_job(
    name: str,
    slot_settings: SlotSettings,
    *,
    interval_ms: float,
    timeout_ms: float = 60_000.0,
    max_concurrent: int = 1,
    tolerable_failures: int = 0,
    switch_after_ms: float | None,
    keep: int = 3,
    restart: RestartStrategy | None = None,
    available_now: bool = False,
) -> JobSpec:
    """`switch_after_ms` as in `JobSpec`. Without `restart` the first failure ends it."""
    return JobSpec(
        name=name,
        job_id=name,
        slot_settings=slot_settings,
        fingerprint=tuple(fingerprint(slot_settings.plan)),
        checkpoints=CheckpointSettings(
            interval_ms=interval_ms,
            timeout_ms=timeout_ms,
            min_pause_ms=0,
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable_failures,
        ),
        switch_after_ms=switch_after_ms,
        keep=KeepNumber(keep),
        restart=NoRestart() if restart is None else restart,
        available_now=available_now,
        driver_host=_HERE,
        bind_host=_HERE,
        slot_bind_host=_HERE,
        advertised_host=None,
        ports="any",
    )
