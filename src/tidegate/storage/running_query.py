"""Where a running query can be reached: a note beside its job log, from its start to its end.

A note of a driver that was killed stays until the next start. Nothing of the job depends on it.
"""

import socket

import msgspec

from tidegate.model.errors import Damaged
from tidegate.storage import layout
from tidegate.storage.decoding import from_json
from tidegate.storage.manifests import seal, unseal
from tidegate.storage.store import Store


class RunningQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`token`: by which its server knows who may read the location."""

    name: str
    url: str
    token: str
    host: str = msgspec.field(default_factory=socket.gethostname)


def note_running(store: Store, query: RunningQuery) -> None:
    store.put(layout.running_query(), seal(msgspec.json.encode(query)))


def forget_running(store: Store, query: RunningQuery) -> None:
    """Not if another driver has written its own since."""
    if read_running(store) == query:
        store.delete(layout.running_query())


def read_running(store: Store) -> RunningQuery | None:
    path = layout.running_query()
    try:
        return from_json(unseal(store.read(path), name=path), RunningQuery)
    except (Damaged, msgspec.MsgspecError):
        return None
