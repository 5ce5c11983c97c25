"""Whether a checkpoint fits a query: the same plan and the same key groups, at whatever parallelism."""

import logging
from collections.abc import Sequence

from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.model.ids import CheckpointId
from tidegate.plan.physical import JobPlan
from tidegate.storage.manifests import Manifest

log = logging.getLogger("tidegate")


def check_fits(manifest: Manifest, plan: JobPlan, fingerprint: Sequence[str]) -> None:
    """Raises `IncompatibleCheckpoint` with what differs and what to do about it."""
    kind = "Savepoint" if manifest.is_savepoint else "Checkpoint"
    where = f"{kind} {manifest.checkpoint}"
    if manifest.max_parallelism != plan.max_parallelism:
        raise IncompatibleCheckpoint(
            f"{where} has maxParallelism {manifest.max_parallelism} and the query {plan.max_parallelism}: "
            f"set .option('maxParallelism', {manifest.max_parallelism}) or use a new checkpointLocation."
        )
    for stored, now in zip(manifest.plan_fingerprint, fingerprint, strict=False):
        if stored != now:
            raise IncompatibleCheckpoint(
                f"{where} does not fit this query: it has {stored!r} where the query has {now!r}; "
                f"go back to the old query or use a new checkpointLocation."
            )
    if len(manifest.plan_fingerprint) != len(fingerprint):
        raise IncompatibleCheckpoint(
            f"{where} belongs to a query with {len(manifest.plan_fingerprint)} parts and this one has "
            f"{len(fingerprint)}: go back to the old query or use a new checkpointLocation."
        )


def check_is_restored(without_captured_rows: CheckpointId | None, restored: CheckpointId | None) -> None:
    """Whether the checkpoint whose rows in flight are given up is the one that a query starts from.

    One that is past is only warned of: a query that is started again with the same options has newer ones by then.
    """
    if without_captured_rows is None or without_captured_rows == restored:
        return
    option = f"Option 'checkpoint.recoverWithoutChannelState' names checkpoint {without_captured_rows}"
    if restored is None:
        raise OptionError(f"{option}, but there is no checkpoint to restore: leave the option out.")
    if restored < without_captured_rows:
        raise OptionError(
            f"{option}, but the query starts from checkpoint {restored}: write that number to lose its rows in flight, "
            f"or leave the option out."
        )
    log.warning("%s, but the query starts from checkpoint %d: all of it is restored.", option, restored)
