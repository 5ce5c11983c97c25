"""Loads Tidegate into the executors that carry no slot, so that one of them can take a lost executor's place at once.

An executor that has never run a Python task starts with the slowest part of a recovery: its JVM loads Spark's classes,
its Python daemon starts. One small Spark job does that beforehand, on cores that nobody holds. It is never waited for,
its failure means nothing, and it is cancelled when the launch it belongs to is over.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.spark.daemon import load_slot_code
from tidegate.spark.session import spare_cores

log = logging.getLogger("tidegate")

# Slots have their cores by the first look or the second; what comes after them must not take those.
_LOOK_EVERY_S = 0.5


class SpareExecutors:
    """Warms them once `have_slots_begun`; in local mode there are none."""

    def __init__(self, spark: SparkSession, *, group: str, have_slots_begun: Callable[[], bool]) -> None:
        self._spark = spark
        self._group = f"{group}-spares"
        self._have_slots_begun = have_slots_begun
        self._is_over = threading.Event()
        self._is_running = threading.Event()
        if re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is None:
            # A daemon, as the launch's own thread: both sit in calls to the JVM.
            threading.Thread(target=self._warm, name="tidegate-spares", daemon=True).start()

    def close(self) -> None:
        """The cores are needed for something better, or nothing any more."""
        self._is_over.set()
        if not self._is_running.is_set():
            return  # Spark warns of a group without jobs
        try:
            # Also one that is about to be submitted.
            context: Any = self._spark.sparkContext._jsc.sc()
            context.cancelJobGroupAndFutureJobs(self._group)
        except (Py4JError, OSError, AttributeError):
            return  # the session is stopped, and the job with it

    def _warm(self) -> None:
        try:
            while not self._have_slots_begun():
                if self._is_over.wait(_LOOK_EVERY_S):
                    return
            # Before it is asked whether this is over: so either `close` cancels the group, or nothing is submitted.
            self._is_running.set()
            tasks = min(_executors(self._spark), spare_cores(self._spark))
            if tasks < 1 or self._is_over.is_set():
                return
            context = self._spark.sparkContext
            context.setJobGroup(self._group, "Tidegate loads its code into spare executors", interruptOnCancel=True)
            # As many tasks as executors: Spark deals them out one by one, each executor in turn.
            self._spark.range(0, tasks, 1, tasks).mapInArrow(_load, "id long").collect()
        except (PySparkException, Py4JError, OSError, AttributeError) as error:
            log.debug("Spare executors were not warmed: %s", error)
        finally:
            self._is_running.clear()


def _executors(spark: SparkSession) -> int:
    status: Any = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return int(status.size()) - 1  # without the driver


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the executor's Python worker."""
    load_slot_code()
    for _ in batches:
        pass
    yield from ()
