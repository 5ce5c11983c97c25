"""Tidegate's side of the benchmarks of checkpoints: the pipeline, a second shuffle, a count, no output.

Arguments that begin with "tidegate." are options of the writer. Says in lines of JSON on standard output what the
caller must know; see `benchmarks.processes`.
"""

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

import tidegate as tg
from benchmarks.systems.arguments import Arguments, arguments
from benchmarks.systems.pipeline import rate_source, slowly_counted, stamp, stamps
from benchmarks.systems.session import spark_session, warm_up_workers
from benchmarks.systems.telling import tell
from benchmarks.systems.worker_figures import read_figures
from tidegate.coordinator.views import CheckpointView, JobView

SAMPLE_EVERY_S = 0.5
_GROWING = ("pulled", "rows", "counted", "paused_ms")


def main() -> None:
    given = arguments()
    slots = given.number("slots", 2)
    # The core that stays free for Spark's own jobs is no slot of ours.
    spark = spark_session(cores=slots + 1)
    warm_up_workers(spark, slots)
    counted = slowly_counted(spark, rate_source(spark, given), given).groupBy("k2").count()
    query = start(counted, given)
    try:
        measure(query, given)
    finally:
        query.stop()
    spark.stop()


def start(counted: DataFrame, given: Arguments) -> tg.StreamingQuery:
    writer = tg.writeStream(counted).format("noop").outputMode("update")
    settings = {
        "parallelism": str(given.number("slots", 2)),
        "checkpointLocation": str(Path(given.text("folder")) / "checkpoints"),
        "checkpoint.interval": f"{given.number('interval_ms', 1000)}ms",
        **given.options("tidegate."),
    }
    for name, value in settings.items():
        writer = writer.option(name, value)
    return writer.start()


def measure(query: tg.StreamingQuery, given: Arguments) -> None:
    while counts(query)["rows"] == 0:
        stop_if_over(query)
        time.sleep(0.005)
    time.sleep(given.real("warm_up_s"))
    counting = Counting(query)
    first, figures = counting.now(), read_figures(given.text("folder"))
    began, began_s = datetime.now(UTC), time.monotonic()
    seen: dict[int, CheckpointView] = {}
    tell("measuring")
    ends_s = began_s + given.real("measure_s")
    strike_s = began_s + given.real("fail_at_s") if "fail" in given else float("inf")
    while (now_s := time.monotonic()) < ends_s:
        if now_s >= strike_s:
            strike(query, given)
            strike_s = float("inf")
        time.sleep(min(SAMPLE_EVERY_S, ends_s - now_s))
        stop_if_over(query)
        seen |= {view.id: view for view in query.checkpoints if view.triggered_at >= began}
        now = counting.now()
        changes = {name: now[name] - first[name] for name in ("rows", "pulled", "paused_ms")}
        tell("sample", at_s=time.monotonic() - began_s, queued_bytes=now["queued_bytes"], **changes)
    last, last_figures = counting.now(), read_figures(given.text("folder"))
    tell(
        "measured",
        seconds=time.monotonic() - began_s,
        checkpoints=[checkpoint(view, began) for _, view in sorted(seen.items())],
        **{name: last[name] - first[name] for name in ("rows", "pulled", "counted", "paused_ms")},
        **{name: value - figures.get(name, 0) for name, value in last_figures.items()},
        **recovery(given, began_s),
    )


def strike(query: tg.StreamingQuery, given: Arguments) -> None:
    folder = given.text("folder")
    if given.text("fail") == "operator":
        (Path(folder) / "fail-once").touch()
    else:
        stamp(folder, "failed")
        os.kill(query._coordinator.view().slot_pids[0], signal.SIGKILL)


def recovery(given: Arguments, began_s: float) -> dict[str, float]:
    """When it failed, and when the first row after that was processed; nothing where nothing was to fail."""
    failed = stamps(given.text("folder"), "failed") if "fail" in given else []
    if not failed:
        return {}
    first = [at_s for at_s in stamps(given.text("folder"), "first-row") if at_s > failed[0]]
    return {"failed_at_s": failed[0] - began_s, **({"first_row_at_s": first[0] - began_s} if first else {})}


def stop_if_over(query: tg.StreamingQuery) -> None:
    if not query.isActive:
        raise SystemExit(f"The query ended by itself: {query.exception()}")


class Counting:
    """Counts that go on growing when the job has restarted, whose tasks begin again at 0."""

    def __init__(self, query: tg.StreamingQuery) -> None:
        self._query = query
        self._before: dict[str, float] = {}
        self._newest: dict[str, float] = {}

    def now(self) -> dict[str, float]:
        counted = counts(self._query)
        for name in _GROWING:
            if counted[name] < self._newest.get(name, 0):
                self._before[name] = self._before.get(name, 0) + self._newest[name]
        self._newest = counted
        return {name: value + self._before.get(name, 0) for name, value in counted.items()}


def counts(query: tg.StreamingQuery) -> dict[str, float]:
    """Rows that were read, taken by the slow operator, and counted; vertices are numbered along the stream."""
    view: JobView = query._coordinator.view()
    behind = sorted({task.task.vertex for task in view.tasks if not task.is_source})
    slow, count = (behind[0], behind[-1]) if behind else (None, None)
    return {
        "pulled": sum(task.rows_in for task in view.tasks if task.is_source),
        "rows": sum(task.rows_in for task in view.tasks if task.task.vertex == slow),
        "counted": sum(task.rows_in for task in view.tasks if task.task.vertex == count),
        "queued_bytes": sum(task.queued_bytes for task in view.tasks),
        "paused_ms": sum(task.paused_ms for task in view.tasks),
    }


def checkpoint(view: CheckpointView, began: datetime) -> dict[str, object]:
    return {
        "id": view.id,
        "status": view.status,
        "kind": view.kind,
        "at_s": (view.triggered_at - began).total_seconds(),
        "ms": view.duration_ms,
        "inflight_bytes": view.inflight_bytes,
        "new_inflight_bytes": view.new_inflight_bytes,
        "state_bytes": view.state_bytes,
        "new_state_bytes": view.new_state_bytes,
        "sync_ms": max((task.sync_ms for task in view.tasks), default=0.0),
    }


if __name__ == "__main__":
    main()
