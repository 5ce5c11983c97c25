"""A query in Spark's page and before Spark's listeners: posts the events that Structured Streaming posts.

Owns what a checkpoint looks like as one of Spark's progress reports. It must never fail or hold up the query: if this
Spark takes no such events, it says so once and is silent from then on.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, assert_never

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from tidegate.coordinator.views import CheckpointView, JobView
from tidegate.model.ids import VertexId

log = logging.getLogger("tidegate")

# Checkpoints may be far more frequent: listeners hear of the newest.
_LOOK_S = 0.5
# For the last events of a query, which its end waits for.
_LAST_EVENTS_S = 5.0
# What Spark's own progress says where a sink does not count.
_NOT_COUNTED = -1
_LAST_INSTANT_MS = datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000


class Watched(Protocol):
    """A coordinator, as far as it is looked at here."""

    def wait(self, timeout_s: float | None) -> bool: ...

    def view(self) -> JobView: ...

    def failure(self) -> Exception | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryIdentity:
    id: str
    run_id: str
    name: str | None
    sink: str


@dataclass(frozen=True, slots=True)
class _Started:
    at: datetime


@dataclass(frozen=True, slots=True)
class _Progressed:
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Terminated:
    exception: str | None


_Event: TypeAlias = _Started | _Progressed | _Terminated


class SparkEvents:
    def __init__(self, spark: SparkSession, query: Watched, identity: QueryIdentity) -> None:
        self._query = query
        self._identity = identity
        self._bus: _Bus | None = _Bus(spark, identity)
        self._counted = _Counted()
        name = f"tidegate-events-{identity.name or identity.run_id}"
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Listeners have heard of the query when this returns, as with Structured Streaming."""
        self._post(_Started(datetime.now(UTC)))
        self._thread.start()

    def await_last(self) -> None:
        """Once the query has ended: until Spark has its last events."""
        if threading.current_thread() is not self._thread:  # a listener may call awaitTermination
            self._thread.join(_LAST_EVENTS_S)

    def _follow(self) -> None:
        while not self._query.wait(_LOOK_S):
            self._report_progress()
        self._report_progress()
        failure = self._query.failure()
        self._post(_Terminated(None if failure is None else str(failure)))

    def _report_progress(self) -> None:
        view = self._query.view()
        newest = next((c for c in view.checkpoints if c.status == "completed"), None)
        if newest is not None and newest.id > self._counted.checkpoint:
            sources, self._counted = self._counted.since(view, newest)
            self._post(_Progressed(_progress(newest, view, sources, self._identity)))

    def _post(self, event: _Event) -> None:
        if self._bus is None:
            return
        try:
            self._bus.post(event)
        except (Py4JNetworkError, OSError):
            self._bus = None  # the JVM is gone, and its page and listeners with it
        except (Py4JError, AttributeError, TypeError) as error:
            self._bus = None
            reason = str(error).splitlines()[0]
            log.warning("Spark's page and listeners will not hear of query %r: %s", self._identity.name, reason)


class _Bus:
    """Spark's own way for events, which is not part of its public interface."""

    def __init__(self, spark: SparkSession, identity: QueryIdentity) -> None:
        self._session: Any = spark._jsparkSession
        self._jvm: Any = spark._jvm
        self._identity = identity

    def post(self, event: _Event) -> None:
        self._session.streams().postListenerEvent(self._made(event))

    def _made(self, event: _Event) -> Any:
        match event:
            case _Started(at):
                return self._listener_class("QueryStartedEvent")(*self._ids(), self._identity.name, _written(at))
            case _Progressed(report):
                parser = getattr(
                    getattr(self._jvm.org.apache.spark.sql.streaming, "StreamingQueryProgress$"), "MODULE$"
                )
                return self._listener_class("QueryProgressEvent")(parser.fromJson(json.dumps(report)))
            case _Terminated(exception):
                reason = self._jvm.scala.Option.apply(exception)
                return self._listener_class("QueryTerminatedEvent")(*self._ids(), reason)
            case _:
                assert_never(event)

    def _ids(self) -> tuple[Any, Any]:
        parse = self._jvm.java.util.UUID.fromString
        return parse(self._identity.id), parse(self._identity.run_id)

    def _listener_class(self, name: str) -> Any:
        return getattr(self._jvm.org.apache.spark.sql.streaming, f"StreamingQueryListener${name}")


@dataclass(frozen=True, slots=True)
class _SourceRows:
    description: str
    rows: int
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class _Counted:
    """What was told last. Counts of tasks begin anew with each generation."""

    checkpoint: int = 0
    generation: int = 0
    rows: Mapping[VertexId, int] = field(default_factory=dict)  # by the vertex of the source
    at_s: float = field(default_factory=time.monotonic)

    def since(self, view: JobView, checkpoint: CheckpointView) -> "tuple[list[_SourceRows], _Counted]":
        now = _Counted(checkpoint.id, view.generation, _rows_read(view))
        before = self.rows if self.generation == now.generation else {}
        elapsed_s = max(now.at_s - self.at_s, 1e-3)
        names = {task.task.vertex: task.name for task in view.tasks}
        new = {vertex: max(0, rows - before.get(vertex, 0)) for vertex, rows in sorted(now.rows.items())}
        return [_SourceRows(names[vertex], rows, rows / elapsed_s) for vertex, rows in new.items()], now


def _rows_read(view: JobView) -> dict[VertexId, int]:
    rows: dict[VertexId, int] = {}
    for task in view.tasks:
        if task.is_source:
            rows[task.task.vertex] = rows.get(task.task.vertex, 0) + task.rows_in
    return rows


def _progress(
    checkpoint: CheckpointView, view: JobView, sources: list[_SourceRows], query: QueryIdentity
) -> dict[str, Any]:
    """No state operators: Spark's have numbers of rows, which nobody counts here, and zeros would be wrong."""
    duration_ms = round(checkpoint.duration_ms)
    watermarks_ms = [task.watermark_ms for task in view.tasks if task.watermark_ms is not None]
    is_shown = bool(watermarks_ms) and 0 <= min(watermarks_ms) < _LAST_INSTANT_MS
    return {
        "id": query.id,
        "runId": query.run_id,
        "name": query.name,
        "timestamp": _written(checkpoint.triggered_at),
        "batchId": checkpoint.id,
        "batchDuration": duration_ms,
        "durationMs": {"checkpoint": duration_ms},
        "eventTime": {"watermark": _written(_instant(min(watermarks_ms)))} if is_shown else {},
        "stateOperators": [],
        "sources": [
            {
                "description": source.description,
                "startOffset": None,
                "endOffset": None,
                "latestOffset": None,
                "numInputRows": source.rows,
                "inputRowsPerSecond": source.rows_per_s,
                "processedRowsPerSecond": source.rows_per_s,
                "metrics": {},
            }
            for source in sources
        ],
        "sink": {"description": query.sink, "numOutputRows": _NOT_COUNTED, "metrics": {}},
        "observedMetrics": {},
    }


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _written(at: datetime) -> str:
    """As Spark reads it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
