"""A checkpoint of another job that this one has taken over: whether it may be, and how it goes.

Neither taken over nor removed while a query runs on its location, whose next checkpoints may refer to its files. A note
beside the job log says where that query is reached. It stays when a driver is killed, so only a query that answers
counts: nobody is refused for what may be dead. One with `ui.enabled` false is not found.
"""

import json
import logging
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException

from tidegate.model.errors import Damaged, OptionError, StorageFailure
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointClaimed
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.running_query import RunningQuery, read_running
from tidegate.storage.store import Store, local_path

log = logging.getLogger("tidegate")

JOB = "/api/v1/job"
# Somebody waits for the start. Who runs answers at once; on a machine that is gone nobody does.
_LOOK_S = 3.0
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# A place that cannot be reached holds up what is stored behind it: one driver tries it with so many checkpoints.
_MOST_TRIES = 3


def refuse_if_running(store: Store, location: str) -> None:
    """Raises `OptionError` if a query runs on the location that `store` has open. A savepoint's folder has none."""
    query = read_running(store)
    if query is not None and _is_out_of_reach(query):
        log.warning(
            "Whether query %r still runs on %s can only be seen on the machine %r: it must not, if its checkpoint is "
            "claimed.", query.name, location, query.host,
        )  # fmt: skip
    elif query is not None and _runs_on(query, location):
        raise OptionError(
            f"Option 'restore.mode' is 'claim', but query {query.name!r} runs on {location!r}, whose next checkpoints "
            f"may refer to files of the claimed one: stop it first, or use no_claim."
        )


@dataclass(slots=True)
class ClaimRemoval:
    """Says when it is removed, and may be logged as retired: without that entry, what was cut short is tried again."""

    open_location: Callable[[str], Store]
    _tries: int = field(default=0, init=False)

    def is_done(self, claimed: CheckpointClaimed) -> bool:
        """Raises `StorageFailure` if it was not, and the next checkpoint is to try again."""
        if self._tries == _MOST_TRIES:
            return False
        self._tries += 1
        if self._tries == _MOST_TRIES:
            return self.is_done_now(claimed)
        return self._is_removed(claimed)

    def is_done_now(self, claimed: CheckpointClaimed) -> bool:
        """For the last time: if not, it is the next start's."""
        try:
            return self._is_removed(claimed)
        except StorageFailure as error:
            log.warning("The claimed checkpoint in %s is left to the next start: %s", claimed.location, error)
            return False

    def _is_removed(self, claimed: CheckpointClaimed) -> bool:
        """Not while a query runs there: it was started again since the claim."""
        store = self.open_location(claimed.location)
        query = read_running(store)
        if query is not None and not _is_out_of_reach(query) and _runs_on(query, claimed.location):
            log.warning(
                "The claimed checkpoint in %s is not removed as long as query %r runs there, whose checkpoints may "
                "refer to its files.", claimed.location, query.name,
            )  # fmt: skip
            return False
        remove_claimed(store, claimed)
        return True


def remove_claimed(store: Store, claimed: CheckpointClaimed) -> None:
    """A checkpoint of another job that this one has taken over; not what other checkpoints beside it name.

    May be called again when it was cut short.
    """
    try:
        manifest = decode_manifest(store.read(claimed.manifest), name=claimed.manifest)
    except Damaged:
        return  # gone already, or nobody can say what belongs to it
    own = [slot.path for slot in manifest.slots if slot.content is None]
    own += [file.path for staged in manifest.staged for file in staged.files]
    shared = {file.path for slot in manifest.slots for file in slot.shared}
    for path in [*own, *(shared - _named_beside(store, claimed.manifest) if shared else ())]:
        store.delete(path)
    # Last: it alone says what else is to go. Whoever names it meanwhile looks for its files before anything starts.
    store.delete(claimed.manifest)


def _named_beside(store: Store, claimed: str) -> set[str]:
    """All shared files that any other manifest of that location names; every file there if one cannot be read."""
    named: set[str] = set()
    for path in store.list(layout.CHECKPOINTS):
        if path == claimed or not path.endswith(f"/{layout.MANIFEST}"):
            continue
        try:
            manifest = decode_manifest(store.read(path), name=path)
        except Damaged:
            return set(store.list(layout.SHARED))
        named |= {file.path for slot in manifest.slots for file in slot.shared}
    return named


def _is_out_of_reach(query: RunningQuery) -> bool:
    host = query.url.removeprefix("http://").rpartition(":")[0]
    return host in _LOOPBACK and query.host != socket.gethostname()


def _runs_on(query: RunningQuery, location: str) -> bool:
    """Another query may listen there by now."""
    try:
        with urllib.request.urlopen(query.url + JOB, timeout=_LOOK_S) as answer:
            job = json.load(answer)
    except (OSError, ValueError, HTTPException):
        return False
    found = job.get("location") if isinstance(job, dict) else None
    return isinstance(found, str) and _place(found) == _place(location)


def _place(location: str) -> str:
    """Without the scheme: s3 and s3a are one bucket, and who answers is in the note that lies there anyway."""
    path = local_path(location)
    return location.partition(":")[2].rstrip("/") if path is None else str(path.resolve())
