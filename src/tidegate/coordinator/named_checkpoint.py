"""A checkpoint or savepoint that somebody names by its path: where it lies, and its manifest. Reads, never writes."""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.model.errors import IncompatibleCheckpoint, Missing, OptionError, StorageFailure
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, JobLog, uncommitted
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import Store


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """`store` has the folder `location` open; `path` is the manifest's from there."""

    location: str
    path: str
    store: Store
    manifest: Manifest


def open_named(restore_from: str, open_location: Callable[[str], Store]) -> NamedCheckpoint:
    """Raises `IncompatibleCheckpoint` if rows would be lost because nobody has committed what goes with it."""
    location, path = locate(restore_from)
    store = open_location(location)
    try:
        content = store.read(path)
    except Missing:
        raise Missing(
            f"Option 'restore.from' is {restore_from!r}, but there is no checkpoint or savepoint: {location}/{path} is "
            f"missing. Name one in the folder {layout.CHECKPOINTS!r} of a checkpointLocation, or a savepoint."
        ) from None
    named = NamedCheckpoint(location, path, store, decode_manifest(content, name=f"{location}/{path}"))
    if named.manifest.committables and _is_open(named, open_location):
        raise IncompatibleCheckpoint(
            f"Checkpoint {named.manifest.checkpoint} of {location} is complete, but what was written for it is not "
            f"committed yet, and only its own query can do that: start that one once more, where it ran, or name an "
            f"older checkpoint."
        )
    return named


def _is_open(named: NamedCheckpoint, open_location: Callable[[str], Store]) -> bool:
    """By the log of the job that it is of, where there is one."""
    manifest, above = named.manifest, named.location.rpartition("/")[0]
    try:
        if manifest.job is not None and any(
            (completed.checkpoint, completed.generation) == (manifest.checkpoint, manifest.generation)
            for completed in _uncommitted_of(open_location(manifest.job))
        ):
            return True
        if above.endswith(f"/{layout.SAVEPOINTS}"):
            job = open_location(above.removesuffix(f"/{layout.SAVEPOINTS}"))
            return any(completed.location == named.location for completed in _uncommitted_of(job))
        return any(completed.manifest == named.path for completed in _uncommitted_of(named.store))
    except (StorageFailure, OptionError):
        # A log that was copied while its query wrote to it, or that cannot be reached from here: nothing is known then.
        return False


def _uncommitted_of(job: Store) -> list[CheckpointCompleted]:
    return uncommitted(JobLog(job, driver="a reader").read())


def locate(path: str) -> tuple[str, str]:
    """Where a checkpoint or savepoint lies: the folder that its paths are relative to, and its manifest below it."""
    plain = path.rstrip("/").removesuffix("/manifest.json")
    parent, _, name = plain.rpartition("/")
    root, _, kind = parent.rpartition("/")
    if layout.parse_checkpoint(f"{kind}/{name}") is not None:
        return root, f"{kind}/{name}/manifest.json"
    return plain, layout.savepoint_manifest()
