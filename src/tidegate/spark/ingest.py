"""Spark ingests a part of a plan: Structured Streaming runs it, micro-batch by micro-batch, into a staging folder.

A batch is staged once by its id, and before one is written the query waits until enough of what was staged before is
in a checkpoint, and while a checkpoint is late that the sources in the slots would wait for: so backpressure reaches
Spark's source. Must never let Spark count a batch as done that is not staged.
"""

import logging
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.connectors.staged_source import StagedBatch, StagingFolder, column_name
from tidegate.model.clock import Clock
from tidegate.model.errors import JobFailure
from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import SourceAdmission

log = logging.getLogger("tidegate")

_WRITE_SETTINGS = {
    # The old form of timestamps holds fewer years, and files are read by another reader than Spark's.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}


def write_batch(batch: DataFrame, folder: StagingFolder, batch_id: int) -> StagedBatch:
    """The frame's session must be one that nobody else uses."""
    for setting, value in _WRITE_SETTINGS.items():
        batch.sparkSession.conf.set(setting, value)
    data = folder.new_data_folder(batch_id)
    names = [column_name(at) for at in range(len(batch.columns))]
    batch.toDF(*names).write.parquet(data.as_uri())
    staged = folder.publish(batch_id, data, batch.columns)
    if not staged.parts:
        shutil.rmtree(data, ignore_errors=True)
    return staged


class Unstaged(Exception):
    """Raised into Spark's query, so that the batch in work does not count as done."""


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """`staged_bytes`: no checkpoint covers them. `paused_ms`: by active backpressure, in all."""

    name: str
    staged_bytes: int
    paused_ms: float


class QueryFeed:
    """A stream, staged by a Structured Streaming query. Implements `connectors.staged_source.Feed`."""

    def __init__(
        self,
        frame: DataFrame,
        folder: StagingFolder,
        *,
        name: str,
        available_now: bool,
        most_staged_bytes: int,
        admission: SourceAdmission,
        clock: Clock,
    ) -> None:
        self._frame = frame
        self._folder = folder
        self._name = name
        self._available_now = available_now
        self._most_staged_bytes = most_staged_bytes
        self._admission = admission
        self._clock = clock
        self._query: StreamingQuery | None = None
        # The looking thread tells what is covered, the coordinator's how far checkpoints are; Spark's callback waits.
        self._changed = threading.Condition()
        self._staged_bytes: dict[int, int] = {}
        self._covered = -1
        self._is_paused = False
        self._is_stopping = False
        self._failure: Exception | None = None

    def _start(self) -> None:
        self._folder.prepare()
        self._folder.remove_unpublished()
        with self._changed:
            self._staged_bytes = {batch: self._folder.batch(batch).size_bytes for batch in self._folder.batches()}
        writer = self._frame.writeStream.queryName(self._name).foreachBatch(self._stage)
        writer = writer.option("checkpointLocation", str(self._folder.spark_checkpoint))
        started = (writer.trigger(availableNow=True) if self._available_now else writer).start()
        with self._changed:
            self._query = started
            self._changed.notify_all()
            is_stopping = self._is_stopping
        if is_stopping:  # while it started
            started.stop()

    def keep_going(self) -> None:
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()
        if self._is_stopping:
            return
        if self._query is None:
            self._start()
            return
        if self._query.isActive:
            return
        failure = self._query.exception()
        if failure is not None:
            reason, self._failure = self._failure or failure, None
            self._query = None  # started again by the next generation, if there is one
            raise JobFailure(f"Spark's ingest {self._name!r} failed: {type(reason).__name__}: {reason}")
        if not self._available_now:
            self._query = None
            raise JobFailure(f"Spark's ingest {self._name!r} was stopped by somebody else.")

    def has_ended(self) -> bool:
        return self._query is not None and not self._query.isActive and self._query.exception() is None

    def on_covered(self, batch: int) -> None:
        with self._changed:
            self._covered = max(self._covered, batch)
            self._staged_bytes = {number: size for number, size in self._staged_bytes.items() if number > self._covered}
            self._changed.notify_all()

    def pause(self) -> None:
        with self._changed:
            self._is_paused = True

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        with self._changed:
            self._admission.on_triggered(checkpoint, self._clock.monotonic_ms())

    def on_reached_all(self, checkpoint: CheckpointId) -> None:
        with self._changed:
            self._admission.on_reached_all(checkpoint)
            self._changed.notify_all()

    def on_settled(self, checkpoint: CheckpointId) -> None:
        with self._changed:
            self._admission.on_settled(checkpoint)
            self._changed.notify_all()

    def progress(self) -> IngestProgress:
        with self._changed:
            paused_ms = self._admission.paused_ms(self._clock.monotonic_ms())
            return IngestProgress(self._name, sum(self._staged_bytes.values()), paused_ms)

    def process_all_available(self) -> None:
        """Until Spark has staged what is there now; a query that fails meanwhile says so elsewhere."""
        with self._changed:
            while self._query is None and not self._is_stopping:
                self._changed.wait()
        query = self._query
        if query is not None and query.isActive:
            with suppress(PySparkException, Py4JError, OSError):
                query.processAllAvailable()

    def is_more_staged(self) -> bool:
        with self._changed:
            return bool(self._staged_bytes)

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._query is not None:
            with suppress(Py4JError, OSError):  # the JVM is gone, and the query with it
                self._query.stop()

    def _stage(self, batch: DataFrame, batch_id: int) -> None:
        """Spark calls it once per batch, and again for one that it does not know to be done."""
        try:
            self._stage_once(batch, batch_id)
        except Exception as error:
            # A few words only: Spark searches what is raised here with patterns that a long text overflows.
            self._failure = error
            raise Unstaged(f"batch {batch_id} was not staged ({type(error).__name__})") from None

    def _stage_once(self, batch: DataFrame, batch_id: int) -> None:
        if self._folder.has(batch_id):
            return
        self._wait_for_room()
        staged = write_batch(batch, self._folder, batch_id)
        with self._changed:
            if batch_id > self._covered:  # else it was read and committed already
                self._staged_bytes[batch_id] = staged.size_bytes

    def _wait_for_room(self) -> None:
        with self._changed:
            while self._must_wait() and not self._is_stopping:
                self._changed.wait()
        if self._is_stopping:
            raise Unstaged("the query stops")

    def _must_wait(self) -> bool:
        may_pull = self._admission.may_pull(self._clock.monotonic_ms())
        return not may_pull or self._is_paused or sum(self._staged_bytes.values()) > self._most_staged_bytes
