"""Whether a checkpoint fits a query: the same plan and the same key groups, at whatever parallelism."""

from collections.abc import Sequence

from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.plan.physical import JobPlan
from tidegate.storage.manifests import Manifest


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
