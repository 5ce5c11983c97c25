"""The statistics of checkpoints as they are stored: in the manifests of completed ones, and in one file of the last
that failed. For people and tools that look at a location from outside; a job never reads them.
"""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from tidegate.model.errors import Damaged, UserError
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.storage import layout
from tidegate.storage.decoding import from_json
from tidegate.storage.job_log import CheckpointCompleted, Entry, JobLog, known_durations_ms, retained_checkpoints
from tidegate.storage.manifests import decode_manifest, seal, unseal
from tidegate.storage.store import Store, local_path, open_existing, open_place

# Enough to see how a bad night went on; the file stays small.
FAILED_KEPT = 20


def put_failed(store: Store, newest: Iterable[CheckpointFacts]) -> None:
    """Adds to those that are there, of earlier runs too, and keeps the newest."""
    known = {(facts.generation, facts.checkpoint): facts for facts in [*read_failed(store), *newest]}
    kept = sorted(known.values(), key=lambda facts: (facts.triggered_at_ms, facts.checkpoint))[-FAILED_KEPT:]
    store.put(layout.failed_statistics(), seal(msgspec.json.encode(kept)))


def read_failed(store: Store) -> list[CheckpointFacts]:
    """Nothing if none has failed, and if the file is of another version: it is only for looking at."""
    path = layout.failed_statistics()
    try:
        return from_json(unseal(store.read(path), name=path), list[CheckpointFacts])
    except (Damaged, msgspec.MsgspecError):
        return []


def open_location(location: str) -> Store:
    """The store of a job that was started there; nothing is made. Raises `UserError` if there is none."""
    folder = local_path(location)
    if folder is not None and not folder.is_dir():
        raise UserError(f"There is no folder {str(folder)!r}: name the checkpointLocation of a query.")
    store = open_existing(location)
    if not store.list(layout.LOG):
        raise UserError(f"{location!r} holds no job log: name the checkpointLocation of a query.")
    return store


def read_statistics(store: Store) -> list[CheckpointFacts]:
    """Of the retained checkpoints and savepoints and of the last failed ones, newest first."""
    entries = _entries(store)
    known_ms = known_durations_ms(entries)
    found = [
        facts
        for completed in retained_checkpoints(entries)
        if (facts := _of_completed(store, completed, known_ms.get(completed.checkpoint)))
    ]
    return sorted([*found, *read_failed(store)], key=lambda facts: (facts.generation, facts.checkpoint), reverse=True)


def _entries(store: Store) -> list[Entry]:
    return JobLog(store, driver="a reader").read()


def _of_completed(store: Store, completed: CheckpointCompleted, known_ms: float | None) -> CheckpointFacts | None:
    """None if its files are gone or cannot be read: it may be retired while this looks."""
    try:
        place = store if completed.location is None else open_place(completed.location)
        facts = decode_manifest(place.read(completed.manifest), name=completed.manifest).statistics
    except Damaged:
        return None
    if facts is None:
        return None
    duration_ms = stored_duration_ms(completed, facts.triggered_at_ms, facts.duration_ms, known_ms)
    return replace(facts, duration_ms=duration_ms, completing_ms=facts.duration_ms)


def stored_duration_ms(
    completed: CheckpointCompleted, triggered_at_ms: int, acknowledged_ms: float, known_ms: float | None
) -> float:
    """Until it was complete, which its manifest cannot say: that was written before the log entry.

    Where nobody has noted it, until that entry was begun, by the wall clock.
    """
    if known_ms is None:
        known_ms = float(completed.completed_at_ms - triggered_at_ms)
    return max(known_ms, acknowledged_ms)
