"""A bounded DataFrame as a feed: Spark writes it into a staging folder once, as one batch.

What was staged is what the query reads from then on, in every generation and by every later driver, whatever becomes of
the tables behind the DataFrame. Must never stage a second batch.
"""

import threading
import uuid
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tidegate.connectors.staged_source import StagingFolder
from tidegate.model.errors import JobFailure
from tidegate.spark.ingest import write_batch

_BATCH = 0


class BoundedFeed:
    """Implements `connectors.staged_source.Feed`."""

    def __init__(self, frame: DataFrame, folder: StagingFolder, *, name: str) -> None:
        self._frame = frame
        self._folder = folder
        self._name = name
        self._group = f"{name}-{uuid.uuid4().hex[:8]}"
        self._changed = threading.Condition()
        self._writing: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_cancelled = False
        self._is_stopping = False
        self._is_covered = False

    def keep_going(self) -> None:
        self._folder.prepare()
        with self._changed:
            failure, self._failure = self._failure, None
            if failure is None and not self._is_stopping and self._writing is None and not self._folder.has(_BATCH):
                self._is_cancelled = False
                self._writing = threading.Thread(target=self._write, name=f"tidegate-{self._name}", daemon=True)
                self._writing.start()
        if failure is not None:
            raise JobFailure(f"Spark's scan {self._name!r} failed: {type(failure).__name__}: {failure}")

    def has_ended(self) -> bool:
        return self._folder.has(_BATCH)

    def on_covered(self, batch: int) -> None:
        with self._changed:
            self._is_covered = True

    def pause(self) -> None:
        """Begun again from the start: nothing of an unfinished batch counts."""
        with self._changed:
            self._is_cancelled = True
            is_writing = self._writing is not None
        if is_writing:
            self._cancel()

    def process_all_available(self) -> None:
        with self._changed:
            while not (self._is_stopping or self._folder.has(_BATCH)):
                self._changed.wait(0.1)

    def is_more_staged(self) -> bool:
        return self._folder.has(_BATCH) and not self._is_covered

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = self._is_cancelled = True
            self._changed.notify_all()
            is_writing = self._writing is not None
        if is_writing:
            self._cancel()

    def _write(self) -> None:
        try:
            context = self._frame.sparkSession.sparkContext
            context.setJobGroup(self._group, f"{self._name}: Spark scans for Tidegate", interruptOnCancel=True)
            write_batch(self._frame, self._folder, _BATCH)
        except Exception as error:  # told by `keep_going`, unless it was wanted
            with self._changed:
                self._failure = None if self._is_cancelled else error
        finally:
            with self._changed:
                self._writing = None
                self._changed.notify_all()

    def _cancel(self) -> None:
        with suppress(Py4JError, OSError, AttributeError):  # the JVM is gone, and its job with it
            self._frame.sparkSession.sparkContext.cancelJobGroup(self._group)
