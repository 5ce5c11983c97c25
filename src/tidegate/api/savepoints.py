"""Savepoints as users ask for them: where one goes, how its barriers pass, and the wait until it is there.

Decides nothing about the job: what cannot be asked for is refused here, what fails is told as the job tells it.
"""

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from os import PathLike, fspath

from tidegate.api.places import missing_folders, remove_empty
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import JobFailure, OptionError, TidegateError
from tidegate.protocol.job import JobState
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.storage import layout
from tidegate.storage.reachable import check_writable
from tidegate.storage.store import local_path, open_store

# Short, so that Ctrl-C is noticed at once on every platform.
_STEP_S = 0.2
_COMING_UP = (JobState.STARTING.value, JobState.RESTARTING.value)
_GOING_ON = (JobState.RUNNING.value, JobState.FINISHING.value, JobState.SUSPENDING.value)


@dataclass(frozen=True, slots=True)
class SavepointPlace:
    """`location`: the query's checkpointLocation, None if its folder goes with the query."""

    location: str | None
    guarantee: Guarantee

    def folder(self, path: "str | PathLike[str] | None") -> str:
        if path is None:
            if self.location is None:
                raise OptionError(
                    "This query has no checkpointLocation, so a savepoint there would go with it: "
                    "name a folder, as in query.savepoint('a/folder')."
                )
            return f"{self.location.rstrip('/')}/{layout.SAVEPOINTS}"
        if not isinstance(path, str | PathLike) or not (given := fspath(path)).strip():
            raise OptionError(f"The savepoint's folder is {path!r}: write a path, or leave it out.")
        local = local_path(given)
        return given.rstrip("/") if local is None else str(local)

    def alignment(self, *, unaligned: bool) -> SavepointAlignment:
        if not unaligned:
            return SavepointAlignment.ALIGNED
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            raise OptionError(
                "A query whose checkpoint.mode is at_least_once has no unaligned savepoints: leave out unaligned=True."
            )
        return SavepointAlignment.UNALIGNED


def take_savepoint(
    coordinator: Coordinator, folder: str, *, alignment: SavepointAlignment, afterwards: Afterwards
) -> str:
    """Its path, once it is committed. One that fails leaves no folder behind that was not there before."""
    _await_running(coordinator)
    absent = missing_folders([folder])
    try:
        # Said here and not by a slot: an unknown scheme, a file in the way, no permission, a bucket that is not there.
        open_store(folder, coordinator.access)
        check_writable(folder, coordinator.access)
        return _await(coordinator, coordinator.savepoint(folder, alignment=alignment, afterwards=afterwards))
    except JobFailure as failure:
        remove_empty(absent)
        if afterwards is Afterwards.SUSPEND:
            raise _not_stopped(coordinator, failure) from failure
        raise
    except BaseException:
        remove_empty(absent)
        raise


def _await_running(coordinator: Coordinator) -> None:
    """A query that comes up, or comes back, is asked once it runs."""
    while not coordinator.wait(0):
        if coordinator.view().state not in _COMING_UP:
            return
        coordinator.wait(_STEP_S)
    raise _ended(coordinator)


def _await(coordinator: Coordinator, answer: "Future[str]") -> str:
    while True:
        try:
            return answer.result(_STEP_S)
        except NotYet:
            if coordinator.wait(0) and not answer.done():
                raise _ended(coordinator) from None


def _ended(coordinator: Coordinator) -> TidegateError:
    failure = coordinator.failure()
    state = coordinator.view().state
    why = f"the query is {state}" if failure is None else f"the query has failed: {failure}"
    return JobFailure(f"No savepoint was taken, because {why}".rstrip(".") + ".")


def _not_stopped(coordinator: Coordinator, failure: JobFailure) -> JobFailure:
    """Says what the query does instead."""
    told = threading.Event()
    coordinator.post(told.set)  # behind it the view shows what the failed savepoint led to
    while not told.wait(_STEP_S) and not coordinator.wait(0):
        continue
    state = coordinator.view().state
    if state not in _GOING_ON:
        return failure
    reason = str(failure)
    return JobFailure(f"The query was not stopped and goes on running: {reason[:1].lower()}{reason[1:]}")
