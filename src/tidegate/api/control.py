"""A running query as its server may use it, and the note by which others find that server."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.api.options import PageOptions
from tidegate.api.savepoints import SavepointPlace, take_savepoint
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import StorageFailure
from tidegate.protocol.requests import Afterwards
from tidegate.server.control import control_routes
from tidegate.server.page import QueryPage
from tidegate.storage.running_query import RunningQuery, forget_running, note_running
from tidegate.storage.store import Patience, Store, open_store

if TYPE_CHECKING:
    from tidegate.server.metrics import Ingested

log = logging.getLogger("tidegate")


@dataclass(frozen=True, slots=True)
class CoordinatorControl:
    """`server.control.QueryControl` over a coordinator."""

    coordinator: Coordinator
    place: SavepointPlace

    def savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        return self._taken(folder, unaligned, Afterwards.GO_ON)

    def stop(self) -> None:
        self.coordinator.stop()

    def stop_with_savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        return self._taken(folder, unaligned, Afterwards.SUSPEND)

    def _taken(self, folder: str | None, unaligned: bool, afterwards: Afterwards) -> str:
        alignment = self.place.alignment(unaligned=unaligned)
        return take_savepoint(self.coordinator, self.place.folder(folder), alignment=alignment, afterwards=afterwards)


def serve(
    coordinator: Coordinator,
    place: SavepointPlace,
    page: PageOptions,
    *,
    query: str,
    location: str,
    ingested: "Callable[[], Sequence[Ingested]]",
) -> str | None:
    """Serves a query until it ends, and notes where for those who know its location; its url, if it could listen."""
    found = FoundByLocation(query)
    served = QueryPage(
        query,
        coordinator.view,
        host=page.host,
        port=page.port,
        ingested=ingested,
        routes=lambda: control_routes(
            query=query,
            location=location,
            token=found.token,
            view=coordinator.view,
            control=CoordinatorControl(coordinator, place),
        ),
    )
    if place.location is not None:
        found.note(open_store(place.location, coordinator.access, patience=Patience.SHORT), served.url)
    coordinator.on_finish(found.forget)
    coordinator.on_finish(served.close)
    return served.url


@dataclass(slots=True)
class FoundByLocation:
    """Notes where a query is reached, for as long as it runs."""

    name: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _noted: tuple[Store, RunningQuery] | None = None

    def note(self, store: Store, url: str | None) -> None:
        if url is None:
            return
        query = RunningQuery(name=self.name, url=url, token=self.token)
        try:
            note_running(store, query)
        except StorageFailure as error:
            log.warning("Query %r cannot be found by its location: %s", self.name, error)
            return
        self._noted = store, query

    def forget(self) -> None:
        if self._noted is None:
            return
        try:
            forget_running(*self._noted)
        except StorageFailure as error:
            log.warning("The note of where query %r ran is left behind: %s", self.name, error)
