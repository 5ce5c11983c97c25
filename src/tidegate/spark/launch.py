"""Carries the slots of a job on Spark: one job with one barrier stage, one task per slot."""

import dataclasses
import platform
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.coordinator.launch import Broken, Cancelled, Ended, Impossible, LaunchExit
from tidegate.model.errors import UserError
from tidegate.model.ids import SlotIndex
from tidegate.model.version import VERSION
from tidegate.spark.session import SlotClaim, occupy_slots, slots_left_for
from tidegate.spark.spares import SpareExecutors
from tidegate.worker.main import SlotOrder, run_slot

_CANCELLED = "SPARK_JOB_CANCELLED"
# What asking Spark for something raises when its JVM or its session has ended.
_NO_JVM = (Py4JError, OSError, EOFError, AttributeError)
# What Java says of a program that is missing or may not be run.
_CANNOT_RUN = "Cannot run program "
# Slots listen where Spark says that their executor lives.
HOST_OF_EXECUTOR = ""
_USER_ERRORS = frozenset({UserError.__name__, *(kind.__name__ for kind in UserError.__subclasses__())})


def package_versions() -> dict[str, str]:
    """What driver and workers must have in common: the code, and what reads and writes its data."""
    # From the modules themselves: asking for installed metadata reads through every archive on a worker's path.
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "tidegate": VERSION,
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }


class SparkLauncher:
    def __init__(self, spark: SparkSession, claim: SlotClaim) -> None:
        # A session of its own: the user's SQL settings do not reach the slots, and ours do not reach the user.
        self._spark = spark.newSession()
        self._claim = claim

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> "SparkLaunch":
        occupy_slots(self._claim, slots=slots)
        return SparkLaunch(self._spark, order, slots=slots, query_name=self._claim.query, on_exit=on_exit)

    def room(self) -> int | None:
        if self._spark.sparkContext._jsc is None:  # the session was stopped
            return None
        try:
            return slots_left_for(self._claim, self._spark)
        except _NO_JVM:
            return None  # which the launch will report


class SparkLaunch:
    def __init__(
        self,
        spark: SparkSession,
        order: SlotOrder,
        *,
        slots: int,
        query_name: str,
        on_exit: Callable[[LaunchExit], None],
    ) -> None:
        self._spark = spark
        self._order = order
        self._slots = slots
        self._query_name = query_name
        self._on_exit = on_exit
        # Spark's page shows it beside the job's number.
        self._group = f"{query_name}-{order.launch}-{uuid.uuid4().hex[:8]}"
        self._was_cancelled_by_us = False
        self._spares = SpareExecutors(spark, group=self._group, have_slots_begun=lambda: self.running_slots() == slots)
        # A daemon: it sits in a call to the JVM, which ends when the job does or the JVM goes.
        self._thread = threading.Thread(target=self._carry, name=f"tidegate-launch-{order.launch}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._was_cancelled_by_us = True
        try:
            self._spark.sparkContext.cancelJobGroup(self._group)
        except _NO_JVM:
            return  # the job is gone with it

    def running_slots(self) -> int | None:
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [
                tracker.getStageInfo(stage)
                for job in tracker.getJobIdsForGroup(self._group)
                if (info := tracker.getJobInfo(job)) is not None
                for stage in info.stageIds
            ]
        except _NO_JVM:
            return None  # which the launch will report
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def _carry(self) -> None:
        try:
            self._run_job()
        except Exception as error:  # whatever Spark raises is the launch's exit
            self._on_exit(self._exit_of(error))
        else:
            self._on_exit(Ended())

    def _run_job(self) -> None:
        try:
            description = f"{self._query_name}: slots of Tidegate, launch {self._order.launch}"
            self._spark.sparkContext.setJobGroup(self._group, description, interruptOnCancel=False)
            # An idle timeout would end slots that wait for data.
            self._spark.conf.set("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", "0")
            slots = self._spark.range(0, self._slots, 1, self._slots)
            slots.mapInArrow(_slot_function(self._order), "slot long", barrier=True).collect()
        finally:
            self._spares.close()

    def _exit_of(self, error: Exception) -> LaunchExit:
        if self._was_cancelled_by_us:
            return Ended()
        if _is_stopped(self._spark) or _condition_of(error) == _CANCELLED:
            return Cancelled()
        if not _answers(self._spark):
            return Impossible(
                "Spark's JVM has ended, and the session with it: look into its output (out of memory?), "
                "then start the query again in a new process."
            )
        return exit_for(reason_in(str(error)) or type(error).__name__)


def reason_in(text: str) -> str:
    """What went wrong, out of Spark's many lines: the last word before Java's stack begins, without the package."""
    lines = [line.strip() for line in text.split("\n\tat ", 1)[0].splitlines()]
    said = [line for line in lines if line and not line.startswith("SQLSTATE:")]
    return re.sub(r"^(?:: )?(?:[\w$]+\.)+(\w+: )", r"\1", said[-1]) if said else ""


def exit_for(reason: str) -> LaunchExit:
    """What a slot raises before it can speak to the coordinator is known by Spark's text only."""
    name, _, message = reason.partition(": ")
    if name == "ModuleNotFoundError":
        return Impossible(
            f"The workers cannot load Tidegate ({message}): install it for the Python that runs on the executors, "
            f"or set PYSPARK_PYTHON to one that has it."
        )
    if message.startswith(_CANNOT_RUN):
        return Impossible(
            f"The executors cannot start the slots' Python ({message}): set spark.pyspark.python to one that is there "
            f"on every machine, or comes with the job by --archives."
        )
    if name in _USER_ERRORS:
        return Impossible(message)
    return Broken(reason)


def _condition_of(error: Exception) -> str | None:
    """Spark's name for the error, also when it sits under a wrapper of Java's."""
    if isinstance(error, PySparkException):
        condition: str | None = error.getCondition()
        if condition is not None:
            return condition
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        while java is not None:
            if hasattr(java, "getCondition") and (name := java.getCondition()) is not None:
                return str(name)
            java = java.getCause()
    except (*_NO_JVM, TypeError):
        return None  # the JVM cannot be asked any more
    return None


def _is_stopped(spark: SparkSession) -> bool:
    """By `stop()`, which is a wish, unlike the death of the JVM."""
    return spark.sparkContext._jsc is None


def _answers(spark: SparkSession) -> bool:
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.java.lang.System.nanoTime()
    except _NO_JVM:
        return False
    return True


def _slot_function(order: SlotOrder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def slot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _serve(order, batches)

    return slot


def _serve(order: SlotOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the executor's Python worker, for the whole life of the launch."""
    from pyspark import BarrierTaskContext

    from tidegate.spark.user_code import PySparkUserCode

    context = BarrierTaskContext.get()
    if context.attemptNumber() > 0:
        return  # Spark repeats a failed stage by itself; starting again is the coordinator's decision
    for _ in batches:
        pass
    own = context.getTaskInfos()[context.partitionId()].address
    bind_host = order.bind_host or own.rsplit(":", 1)[0]
    run_slot(
        dataclasses.replace(order, bind_host=bind_host, versions=package_versions()),
        SlotIndex(context.partitionId()),
        PySparkUserCode(),
    )
    yield from ()
