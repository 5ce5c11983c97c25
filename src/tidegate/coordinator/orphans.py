"""Finds and removes what crashed generations left below a location; `protocol.orphans` decides what that is.

Only files whose names say who wrote them are looked at: whatever else lies there is not Tidegate's to remove.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId
from tidegate.protocol.orphans import Belongs, Needed, WrittenFile, orphans
from tidegate.storage import layout
from tidegate.storage.job_log import (
    Entry,
    GenerationStarted,
    retained_checkpoints,
    running_generation,
    runs_of,
    skipped_checkpoints,
)
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.store import Store, delete_all


def find_orphans(store: Store, entries: Sequence[Entry], *, before_ms: int) -> list[str]:
    """Of generations that were over at `before_ms`, by the job log's own times."""
    starts = {entry.generation: entry.at_ms for entry in entries if isinstance(entry, GenerationStarted)}
    found = orphans(
        _written_files(store), _needed(store, entries), starts=starts, runs=runs_of(entries), before_ms=before_ms
    )
    return [file.path for file in found]


def remove(store: Store, paths: Iterable[str]) -> None:
    """Manifests first: what is left of a checkpoint meanwhile must not look like a whole one."""
    found = list(paths)
    for are_manifests in (True, False):
        delete_all(store, [path for path in found if path.endswith(layout.MANIFEST) is are_manifests])


def _written_files(store: Store) -> list[WrittenFile]:
    own = {path: layout.parse_checkpoint(path) for path in store.list(layout.CHECKPOINTS)}
    shared = {path: layout.parse_shared_file(path) for path in store.list(layout.SHARED)}
    return [
        *_written(own, Belongs.TO_ONE_CHECKPOINT),
        *_written(shared, Belongs.TO_WHOEVER_NAMES_IT),
        *_unfinished_savepoints(store),
    ]


def _written(files: Mapping[str, layout.CheckpointFolder | None], belongs: Belongs) -> Iterator[WrittenFile]:
    for path, folder in files.items():
        if folder is not None:
            id, generation = folder.checkpoint, folder.generation
            yield WrittenFile(path=path, checkpoint=id, generation=generation, belongs=belongs)


def _unfinished_savepoints(store: Store) -> Iterator[WrittenFile]:
    found = {path: layout.parse_savepoint(path) for path in store.list(layout.SAVEPOINTS)}
    # With a manifest it is the user's, whether the log came to know of it or not.
    whole = {folder for path, folder in found.items() if path.endswith(f"/{layout.MANIFEST}")}
    for path, folder in found.items():
        if folder is not None and folder not in whole:
            yield WrittenFile(
                path=path,
                checkpoint=folder.checkpoint,
                generation=folder.generation,
                belongs=Belongs.TO_ONE_CHECKPOINT,
                run=folder.run,
            )


def _needed(store: Store, entries: Sequence[Entry]) -> Needed:
    staying = [*retained_checkpoints(entries), *skipped_checkpoints(entries)]
    named: set[str] = set()
    unknown_up_to = _may_be_needed_up_to(entries)
    for completed in staying:
        if completed.location is not None:
            continue  # a savepoint refers to nothing but itself
        try:
            manifest = decode_manifest(store.read(completed.manifest), name=completed.manifest)
        except Damaged:
            unknown_up_to = max(unknown_up_to, completed.checkpoint)
            continue
        named |= {file.path for slot in manifest.slots for file in slot.shared}
    return Needed(
        checkpoints=frozenset((completed.checkpoint, completed.generation) for completed in staying),
        named=frozenset(named),
        unknown_up_to=unknown_up_to,
    )


def _may_be_needed_up_to(entries: Sequence[Entry]) -> CheckpointId:
    """A checkpoint under way may refer to what no other one names any more: one that did has retired since its trigger.

    Only in a generation that has completed one of its own: until then what it was restored from is retained.
    """
    newest = running_generation(entries)
    completed = [each for each in retained_checkpoints(entries) if newest and each.generation == newest.generation]
    return max((each.checkpoint for each in completed), default=CheckpointId(0))
