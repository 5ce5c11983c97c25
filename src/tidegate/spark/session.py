"""Whether a SparkSession can carry a query, and which of its slots our queries hold.

Owns the slot ledger: Spark tells how many tasks could run, never how many are free, so what Tidegate holds is counted
here. Must not submit a query's jobs, nor change the settings of a user's session.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

from tidegate.model.errors import EnvironmentProblem, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_TESTED_SPARK = "4.3."
# Executors register within seconds of a session's start.
_YOUNG_SESSION_S = 30.0
_AWAIT_CORES_S = 15.0
_SETTLED_S = 1.0
_LOOK_S = 0.1
_SPARE_CORES = 1  # for Spark's own jobs beside a query: ingest, foreachBatch, a user's spark.read


@dataclass(frozen=True, slots=True)
class SessionFacts:
    application_id: str
    master: str
    cores: int
    spark_version: str
    python_version: str

    @property
    def is_local(self) -> bool:
        """Whether the slots run on the driver's machine, under its interpreter."""
        return self.master.startswith("local")


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The right to occupy `slots` cores of a session, until it is released.

    `spare`: cores that nobody may occupy meanwhile, because the query runs Spark jobs beside its slots.
    """

    application_id: str
    query: str
    slots: int
    serial: int
    spare: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How long a session took to come up, and one barrier stage on it."""

    session_start_ms: float
    barrier_stage_ms: float
    slots: int


class SlotLedger:
    """Counts the slots that queries of this process hold, per Spark application. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[int, SlotClaim] = {}
        self._next_serial = 1

    def claim(self, session: SessionFacts, *, query: str, wanted: int | None, spare: int = 0) -> SlotClaim:
        """`wanted` slots, or with None all free ones but a spare; refused at once if there are too few."""
        with self._lock:
            held = self._held_by(session.application_id)
            # Queries share their spare core: Spark jobs beside slots wait for one another, not for a slot.
            spared = max([spare, *(claim.spare for claim in held)])
            free = session.cores - sum(claim.slots for claim in held) - spared
            slots = max(1, free - max(0, _SPARE_CORES - spared)) if wanted is None else wanted
            if slots < 1:
                raise OptionError(f"Option 'parallelism' is {slots}, but a query needs at least one slot.")
            if slots > free:
                raise EnvironmentProblem(_too_few(session, held=held, slots=slots, free=free, spared=spared))
            claim = SlotClaim(session.application_id, query, slots, self._next_serial, spare)
            self._next_serial += 1
            self._claims[claim.serial] = claim
            return claim

    def release(self, claim: SlotClaim) -> None:
        """Releasing twice is harmless: a query may end by itself while it is being stopped."""
        with self._lock:
            self._claims.pop(claim.serial, None)

    def left_for(self, claim: SlotClaim, *, cores: int) -> int:
        """How many of these cores the claim's query may occupy: what others leave, but a fair share at least.

        Without the share, two queries that have lost an executor would wait for each other's cores.
        """
        others = [other for other in self.held(claim.application_id) if other.serial != claim.serial]
        held = sum(other.slots for other in others)
        usable = max(0, cores - max([claim.spare, *(other.spare for other in others)]))
        return max(usable - held, usable * claim.slots // (claim.slots + held))

    def occupy(self, claim: SlotClaim, *, slots: int) -> None:
        """The claim's query starts with so many slots; the others may have what it leaves."""
        with self._lock:
            if claim.serial in self._claims:
                self._claims[claim.serial] = replace(claim, slots=slots)

    def held(self, application_id: str) -> tuple[SlotClaim, ...]:
        with self._lock:
            return self._held_by(application_id)

    def _held_by(self, application_id: str) -> tuple[SlotClaim, ...]:
        return tuple(claim for claim in self._claims.values() if claim.application_id == application_id)


LEDGER = SlotLedger()


def claim_slots(spark: SparkSession, *, query: str, wanted: int | None, spare: int = 0) -> SlotClaim:
    return LEDGER.claim(check_session(spark), query=query, wanted=wanted, spare=spare)


def await_executors(spark: SparkSession, *, wanted: int | None) -> None:
    """Those of a new session come one by one: a query that began at once would see only the first, or none."""
    context: Any = spark.sparkContext
    is_young = time.time() - context.startTime / 1000 < _YOUNG_SESSION_S
    if is_young and re.fullmatch(r"local(\[.*\])?", context.master) is None:
        await_cores(lambda: _concurrent_tasks(context), wanted=wanted)


def await_cores(
    count: Callable[[], int],
    *,
    wanted: int | None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until there are as many as are wanted; without a number, until no more come for a while. Too few are no error."""
    deadline_s = now_s() + _AWAIT_CORES_S
    seen, since_s = 0, now_s()
    while now_s() < deadline_s:
        cores = count()
        if cores != seen:
            seen, since_s = cores, now_s()
        is_settled = seen > 0 and now_s() - since_s >= _SETTLED_S
        if is_settled if wanted is None else seen >= wanted:
            return
        sleep(_LOOK_S)


def slots_left_for(claim: SlotClaim, spark: SparkSession) -> int:
    """How many slots a query could have now: executors may have gone since it made its claim."""
    return LEDGER.left_for(claim, cores=_concurrent_tasks(spark.sparkContext))


def occupy_slots(claim: SlotClaim, *, slots: int) -> None:
    LEDGER.occupy(claim, slots=slots)


def spare_cores(spark: SparkSession) -> int:
    """Cores that no query of this process holds."""
    held = sum(claim.slots for claim in LEDGER.held(spark.sparkContext.applicationId))
    return max(0, _concurrent_tasks(spark.sparkContext) - held)


def release_slots(claim: SlotClaim) -> None:
    LEDGER.release(claim)


def check_session(spark: SparkSession, *, slots_wanted: int | None = None) -> SessionFacts:
    """What the session offers; raises EnvironmentProblem if no query of ours can run on it."""
    context = _live_classic_context(spark)
    _refuse_dynamic_allocation(context)
    facts = SessionFacts(
        application_id=context.applicationId,
        master=context.master,
        cores=_concurrent_tasks(context),
        spark_version=context.version,
        python_version=context.pythonVer,
    )
    if not facts.spark_version.startswith(_TESTED_SPARK):
        raise EnvironmentProblem(
            f"The session runs Spark {facts.spark_version}, but Tidegate reads the plans of Spark {_TESTED_SPARK}x: "
            f"connect to a cluster of that version (the driver's PySpark is {pyspark.__version__})."
        )
    if facts.cores < 1:
        raise EnvironmentProblem(
            f"The session on {facts.master} has no executors: wait until they registered, or ask the cluster for some."
        )
    if slots_wanted is not None and slots_wanted > facts.cores:
        raise EnvironmentProblem(_too_few(facts, held=(), slots=slots_wanted, free=facts.cores))
    return facts


def use_driver_interpreter(spark: SparkSession) -> None:
    """In local mode, run slots under the driver's own interpreter: Spark's default is whatever `python3` is on PATH."""
    context: Any = spark.sparkContext
    if context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def probe(*, slots: int) -> ProbeResult:
    """Start a local session, run one barrier stage through it, stop it. Refuses to touch a session that is running."""
    if SparkSession.getActiveSession() is not None:
        raise EnvironmentProblem(
            "A Spark session is running in this process: run `tidegate doctor --spark` from a shell."
        )
    started = time.monotonic()
    builder = SparkSession.builder.master(f"local[{slots}]").appName("tidegate-doctor")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        session_start_ms = (time.monotonic() - started) * 1000
        use_driver_interpreter(spark)
        check_session(spark, slots_wanted=slots)
        started = time.monotonic()
        rows = spark.range(0, slots, 1, slots).mapInArrow(_pass_through, "id long", barrier=True).count()
        if rows != slots:
            raise EnvironmentProblem(f"A barrier stage of {slots} tasks gave {rows} rows: reinstall PySpark.")
        return ProbeResult(session_start_ms, (time.monotonic() - started) * 1000, slots)
    finally:
        spark.stop()


def _pass_through(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    yield from batches


def _live_classic_context(spark: SparkSession) -> Any:
    # A Connect session is a class of its own that has no SparkContext, hence no plan to read and no stage to submit.
    if not isinstance(spark, SparkSession) or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise EnvironmentProblem(
            f"Tidegate needs a classic SparkSession, not {type(spark).__module__}.{type(spark).__name__}: "
            "create it with SparkSession.builder.master(...) instead of .remote(...)."
        )
    context = spark.sparkContext
    if context._jsc is None or context._jsc.sc().isStopped():
        raise EnvironmentProblem(
            "The SparkSession is stopped: make one with SparkSession.builder.getOrCreate() and read the stream from it."
        )
    return context


def _refuse_dynamic_allocation(context: Any) -> None:
    if context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise EnvironmentProblem(
            "Dynamic allocation is on, with which Spark runs no barrier stage: start the session with "
            '.config("spark.dynamicAllocation.enabled", "false") and a fixed spark.executor.instances.'
        )


def _concurrent_tasks(context: Any) -> int:
    scala_context = context._jsc.sc()
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return int(scala_context.maxNumConcurrentTasks(profile))


def _too_few(session: SessionFacts, *, held: tuple[SlotClaim, ...], slots: int, free: int, spared: int = 0) -> str:
    taken = sum(claim.slots for claim in held)
    shares = " and ".join(f"{claim.slots} by query {claim.query!r}" for claim in held)
    holding = f", of which {taken} {'is' if taken == 1 else 'are'} held: {shares}" if held else ""
    enough = taken + slots + _SPARE_CORES
    larger = f"a larger master such as local[{enough}]" if session.is_local else f"{enough} executor cores"
    stop = "stop a query, or use " if held else "use "
    fewer = f"use .option('parallelism', {free}) or " if free > 0 else stop
    beside = f" and {_count(spared, 'core')} for Spark's jobs beside its slots" if spared else ""
    return (
        f"This query needs {_count(slots, 'slot')}{beside}, but the session has "
        f"{_count(session.cores, 'core')}{holding}: {fewer}{larger}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
