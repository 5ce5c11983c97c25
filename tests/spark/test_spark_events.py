"""Spark's own listeners, and with them Spark's page, hear of a query as they hear of Structured Streaming's."""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import tidegate as tg
from tidegate.coordinator.views import CheckpointView, JobView
from tidegate.model.errors import UserCodeFailure
from tidegate.spark.events import QueryIdentity, SparkEvents

pytestmark = pytest.mark.spark

ROWS = 5_000
PATIENCE_S = 60.0


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", event))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", event.progress))

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(("idle", event))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", event))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def of(self, kind: str) -> list[Any]:
        return [event for heard, event in self.events if heard == kind]


@pytest.fixture
def heard(spark: SparkSession) -> Iterator[Heard]:
    listener = Heard()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


def until(condition: Callable[[], bool]) -> None:
    """Spark hands events to listeners on a thread of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def writer(spark: SparkSession, folder: Path) -> tg.DataStreamWriter:
    (folder / "in").mkdir()
    pq.write_table(pa.table({"v": list(range(ROWS))}), folder / "in" / "0.parquet")
    stream = spark.readStream.schema("v long").parquet(str(folder / "in"))
    doubled = tg.writeStream(stream.selectExpr("v * 2 AS v")).format("noop")
    return doubled.option("checkpointLocation", folder / "chk").option("parallelism", 2)


def test_a_listener_hears_the_start_the_rows_and_the_end(spark: SparkSession, heard: Heard, tmp_path: Path) -> None:
    query = writer(spark, tmp_path).queryName("orders").option("checkpoint.interval", "100ms").start()
    (started,) = heard.of("started")  # before start() returned
    assert (started.name, str(started.id), str(started.runId)) == ("orders", query.id, query.runId)
    query.processAllAvailable()
    until(lambda: sum(progress.numInputRows for progress in heard.of("progress")) == ROWS)
    query.stop()
    until(lambda: "terminated" in heard.kinds())
    assert heard.of("terminated")[0].exception is None
    batches = [progress.batchId for progress in heard.of("progress")]
    assert batches == sorted(set(batches))
    progress = heard.of("progress")[-1]
    assert (progress.name, str(progress.runId), progress.sink.description) == ("orders", query.runId, "noop")
    assert json.loads(progress.json)["batchId"] == progress.batchId
    assert "checkpoint" in progress.durationMs


def test_a_listener_hears_why_a_query_failed(spark: SparkSession, heard: Heard, tmp_path: Path) -> None:
    def fails(batch: Any, batch_id: int) -> None:
        raise ValueError("the shop is closed")

    query = writer(spark, tmp_path).foreachBatch(fails).option("restart.strategy", "none").start()
    with pytest.raises(UserCodeFailure, match="the shop is closed"):
        query.processAllAvailable()
    until(lambda: "terminated" in heard.kinds())
    assert "the shop is closed" in heard.of("terminated")[0].exception


def test_the_job_bears_the_name_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    query = writer(spark, tmp_path).queryName("orders").start()
    query.processAllAvailable()
    groups = [group for group in job_groups(spark) if group.startswith("orders-")]
    query.stop()
    assert len(groups) == 1


def job_groups(spark: SparkSession) -> list[str]:
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    shown = [jobs.apply(at) for at in range(jobs.size())]
    active = [job for job in shown if job.status().toString() == "RUNNING"]
    assert all(job.description().get().startswith("orders: slots of Tidegate") for job in active)
    return [job.jobGroup().get() for job in active]


class Over:
    """A query that has ended."""

    def __init__(self, *checkpoints: CheckpointView) -> None:
        self._checkpoints = checkpoints

    def wait(self, timeout_s: float | None) -> bool:
        return True

    def view(self) -> JobView:
        return JobView(state="stopped", generation=1, checkpoints=self._checkpoints)

    def failure(self) -> None:
        return None


def identity(name: str | None) -> QueryIdentity:
    return QueryIdentity(id=str(uuid.uuid4()), run_id=str(uuid.uuid4()), name=name, sink="noop")


def test_a_query_without_a_name_has_none_in_any_event(spark: SparkSession, heard: Heard) -> None:
    checkpoint = CheckpointView(
        id=7,
        status="completed",
        kind="aligned",
        triggered_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        duration_ms=12.5,
    )
    events = SparkEvents(spark, Over(checkpoint), identity(None))
    events.start()
    events.await_last()
    until(lambda: "terminated" in heard.kinds())
    assert heard.kinds() == ["started", "progress", "terminated"]
    (progress,) = heard.of("progress")
    assert (heard.of("started")[0].name, progress.name) == (None, None)
    assert (progress.batchId, progress.timestamp) == (7, "2026-01-02T03:04:05.000Z")


class WithoutEvents:
    """A session of a Spark whose insides differ."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = spark._jvm
        self._jsparkSession = spark._jvm.java.lang.Object()


def test_a_spark_without_such_events_is_named_once_and_harms_nothing(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tidegate")  # which simulations before this test may have silenced
    events = SparkEvents(WithoutEvents(spark), Over(), identity("orders"))  # type: ignore[arg-type]
    events.start()
    events.await_last()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Spark's page and listeners will not hear of query 'orders'"
    ]
