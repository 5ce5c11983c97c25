"""A checkpoint or savepoint that somebody names by its path: where it lies, and its manifest. Reads, never writes."""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.model.errors import Missing
from tidegate.storage import layout
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
    location, path = locate(restore_from)
    store = open_location(location)
    try:
        content = store.read(path)
    except Missing:
        raise Missing(
            f"Option 'restore.from' is {restore_from!r}, but there is no checkpoint or savepoint: {location}/{path} is "
            f"missing. Name one in the folder {layout.CHECKPOINTS!r} of a checkpointLocation, or a savepoint."
        ) from None
    return NamedCheckpoint(location, path, store, decode_manifest(content, name=f"{location}/{path}"))


def locate(path: str) -> tuple[str, str]:
    """Where a checkpoint or savepoint lies: the folder that its paths are relative to, and its manifest below it."""
    plain = path.rstrip("/").removesuffix("/manifest.json")
    parent, _, name = plain.rpartition("/")
    root, _, kind = parent.rpartition("/")
    if layout.parse_checkpoint(f"{kind}/{name}") is not None:
        return root, f"{kind}/{name}/manifest.json"
    return plain, layout.savepoint_manifest()
