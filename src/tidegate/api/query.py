"""A running query, shaped like PySpark's `StreamingQuery`, with its checkpoints to look at and savepoints to take."""

import threading
import uuid
from collections.abc import Callable
from os import PathLike
from typing import Any

from pyspark.sql import SparkSession

from tidegate.api.explain_checkpoint import explain_checkpoint
from tidegate.api.progress import progress_of
from tidegate.api.savepoints import SavepointPlace, take_savepoint
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.views import CheckpointView, JobView
from tidegate.model.errors import TidegateError, UserError
from tidegate.protocol.requests import Afterwards
from tidegate.protocol.why import WhyReport
from tidegate.spark.ingest import IngestProgress

_active: dict[str, "StreamingQuery"] = {}
_active_lock = threading.Lock()


def active_queries(spark: SparkSession | None = None) -> "list[StreamingQuery]":
    with _active_lock:
        return [query for query in _active.values() if spark is None or query._spark is spark]


class StreamingQuery:
    def __init__(
        self,
        spark: SparkSession,
        coordinator: Coordinator,
        *,
        id: str,
        name: str | None,
        explanation: str,
        savepoints: SavepointPlace,
    ) -> None:
        self._spark = spark
        self._coordinator = coordinator
        self._savepoints = savepoints
        self._id = id
        self._run_id = str(uuid.uuid4())
        self._name = name
        self._explanation = explanation
        self._refresh: Callable[[], None] = lambda: None
        # What stands before the sources: Spark's own queries, if they ingest for this one.
        self._feed_all_available: Callable[[], None] = lambda: None
        self._is_more_fed: Callable[[], bool] = lambda: False
        self._url: str | None = None
        self._ingest_progress: Callable[[], list[IngestProgress]] = list
        # Spark's listeners have heard of the end before those who wait for it.
        self._await_last_events: Callable[[], None] = lambda: None
        with _active_lock:
            _active[self._run_id] = self
        coordinator.on_finish(self._forget)

    @property
    def id(self) -> str:
        """The same for every run on one checkpointLocation."""
        return self._id

    @property
    def runId(self) -> str:
        return self._run_id

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def url(self) -> str | None:
        """Where the driver serves `/metrics` while it runs; None without `ui.enabled`, or if it cannot listen."""
        return self._url

    @property
    def isActive(self) -> bool:
        return not self._coordinator.wait(0)

    @property
    def status(self) -> dict[str, Any]:
        view = self._coordinator.view()
        explains = view.last_failure is not None and view.state in ("restarting", "starting", "failed")
        message = f"{view.state}: {view.last_failure}" if explains else view.state
        return {
            "message": message,
            "isDataAvailable": view.state in ("running", "finishing"),
            "isTriggerActive": any(c.status == "in_progress" for c in view.checkpoints),
        }

    @property
    def checkpoints(self) -> list[CheckpointView]:
        """Newest first."""
        return list(self._coordinator.view().checkpoints)

    def why(self, checkpoint_id: int | None = None) -> WhyReport:
        """Why a checkpoint took as long as it did, or failed: `print(query.why())`.

        By default the newest one that was slow or failed, else the newest. Of the last 50 and those under way.
        """
        return explain_checkpoint(self._coordinator.checkpoint_facts(), checkpoint_id)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The newest completed checkpoint with the counts of this moment; None before the first row."""
        view = self._coordinator.view()
        if not view.tasks:
            return None
        newest = next((c for c in view.checkpoints if c.status == "completed"), None)
        return self._progress_of(newest, view)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """One entry per completed checkpoint, oldest first."""
        view = self._coordinator.view()
        completed = [c for c in reversed(view.checkpoints) if c.status == "completed"]
        return [self._progress_of(checkpoint, view) for checkpoint in completed]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Waits for the end; raises what the query failed with. With a timeout (seconds): whether it has ended."""
        self._refuse_from_inside("awaitTermination()")
        has_ended = self._wait(timeout)
        if has_ended:
            self._await_last_events()
            self._refresh()
            if (failure := self.exception()) is not None:
                raise failure
        return None if timeout is None else has_ended

    def processAllAvailable(self) -> None:
        """Waits until all data that is there now is processed and committed.

        As in Spark it does not return while data keeps coming: here, as fast as a source's limit lets it through.
        """
        self._refuse_from_inside("processAllAvailable()")
        self._feed_all_available()
        self._drain()
        while self._is_more_fed() and not self._coordinator.wait(0):
            self._drain()
        self._refresh()
        if (failure := self.exception()) is not None:
            raise failure

    def _drain(self) -> None:
        done = self._coordinator.process_all_available()
        try:
            while not done.wait(0.2):
                if self._coordinator.wait(0):
                    break
        finally:
            self._coordinator.withdraw(done)

    def savepoint(self, path: "str | PathLike[str] | None" = None, *, unaligned: bool = False) -> str:
        """Takes a checkpoint that is yours: it is whole in its own folder, and only you delete it.

        It gets a folder below `path`, by default `<checkpointLocation>/savepoints`. Waits until it is committed, then
        gives its path, for `.option("restore.from", ...)`. Raises why, if it cannot be taken.
        """
        self._refuse_from_inside("savepoint()")
        folder = self._savepoints.folder(path)
        alignment = self._savepoints.alignment(unaligned=unaligned)
        return take_savepoint(self._coordinator, folder, alignment=alignment, afterwards=Afterwards.GO_ON)

    def stop(self, savepoint: "str | PathLike[str] | bool | None" = None, *, unaligned: bool = False) -> str | None:
        """Ends the query. What was read after the last checkpoint is read again when it is started again.

        With `savepoint` (a folder, or True for `<checkpointLocation>/savepoints`) the sources stop, a savepoint is
        taken of all they gave, and the query ends with it: gives its path. If that fails, the query goes on running.

        Inside of foreachBatch it does not wait: the query ends once the function has returned and its epoch is
        committed.
        """
        if savepoint is None or savepoint is False:
            self._coordinator.stop()
            if self._coordinator.is_calling():
                return None
            path = None
        else:
            self._refuse_from_inside("stop() with a savepoint")
            folder = self._savepoints.folder(None if savepoint is True else savepoint)
            alignment = self._savepoints.alignment(unaligned=unaligned)
            path = take_savepoint(self._coordinator, folder, alignment=alignment, afterwards=Afterwards.SUSPEND)
        self._wait(None)
        self._await_last_events()
        self._refresh()
        return path

    def exception(self) -> TidegateError | None:
        return self._coordinator.failure()

    def explain(self, extended: bool = False) -> None:
        warnings = [f"Warning: {sentence}" for sentence in self._coordinator.view().warnings]
        print("\n".join([self._explanation, *warnings]))  # noqa: T201 - as PySpark's explain does

    def __repr__(self) -> str:
        return f"StreamingQuery(name={self._name!r}, id={self._id!r}, state={self._coordinator.view().state!r})"

    def _refuse_from_inside(self, call: str) -> None:
        if self._coordinator.is_calling():
            raise UserError(
                f"{call} was called by a function that the query itself calls, and would wait for that function: "
                f"call it from another thread."
            )

    def _wait(self, timeout_s: float | None) -> bool:
        """In short waits, so that Ctrl-C is noticed at once on every platform."""
        remaining_s = float("inf") if timeout_s is None else timeout_s
        while remaining_s > 0:
            step_s = min(0.2, remaining_s)
            if self._coordinator.wait(step_s):
                return True
            remaining_s -= step_s
        return self._coordinator.wait(0)

    def _progress_of(self, checkpoint: CheckpointView | None, view: JobView) -> dict[str, Any]:
        return {
            "id": self._id,
            "runId": self._run_id,
            "name": self._name,
            **progress_of(checkpoint, view, self._ingest_progress()),
        }

    def _forget(self) -> None:
        with _active_lock:
            _active.pop(self._run_id, None)
