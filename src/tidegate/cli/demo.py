"""`tidegate demo`: one overloaded job, three times, and what each kind of checkpoint makes of it.

A source that could give far more than the job can take, a shuffle, and a keyed function that needs a millisecond a
row. The queues are full all the time, so an aligned barrier has to wait until they have drained.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.api.demo_job import SLOTS, open_session, start_overloaded
from tidegate.api.query import StreamingQuery
from tidegate.coordinator.views import CheckpointView
from tidegate.model.units import format_bytes, format_ms


@dataclass(slots=True)
class Phase:
    """One run of the job with one kind of checkpoint."""

    name: str
    unaligned: str
    explanation: str
    state: str = "waiting"
    rows_per_s: float = 0.0
    checkpoints: list[CheckpointView] = field(default_factory=list)
    pending_ms: float | None = None
    share_done: float = 0.0

    def durations_ms(self) -> list[float]:
        return [c.duration_ms for c in self.checkpoints if c.status == "completed"]


def run(seconds: float) -> int:
    """Runs the three phases, `seconds` each; gives the exit code."""
    console = Console()
    phases = [
        Phase("aligned", "false", "the barrier waits until every queued row before it is processed"),
        Phase("unaligned", "true", "the barrier overtakes the rows in flight, which are stored with it"),
        Phase("auto", "auto", "aligned, and unaligned after one second of waiting"),
    ]
    console.print(
        f"A source that is far too fast, a shuffle over {SLOTS} slots, a keyed Python function that takes 1 ms a row."
        f"\nThe same job runs three times for {seconds:.0f} s, with a checkpoint due every 2 s:"
    )
    for phase in phases:
        console.print(f"  {phase.name:<10} {phase.explanation}", highlight=False)
    with console.status("Starting Spark ..."), _quiet_stderr():
        spark = open_session()
    try:
        with Live(_screen(phases), console=console, refresh_per_second=4) as live:
            for phase in phases:
                query = start_overloaded(spark, name=f"demo-{phase.name}", unaligned=phase.unaligned)
                try:
                    _watch(query, phase, seconds, lambda: live.update(_screen(phases)))
                finally:
                    phase.state = "stopping"
                    query.stop()
                phase.state = "done"
            live.update(_screen(phases))
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    finally:
        with _quiet_stderr():
            spark.stop()
    console.print()
    console.print(_summary(phases))
    return 0


def _watch(query: StreamingQuery, phase: Phase, seconds: float, refresh: Any) -> None:
    phase.state = "starting"
    running_since: float | None = None
    while query.isActive:
        view = query._coordinator.view()
        rows = sum(task.rows_in for task in view.tasks if task.task.vertex == 1)
        if rows and running_since is None:
            running_since = time.monotonic()
        if running_since is not None:
            phase.state = "running"
            elapsed_s = time.monotonic() - running_since
            phase.rows_per_s = rows / max(elapsed_s, 0.1)
            phase.share_done = min(1.0, elapsed_s / seconds)
            if elapsed_s >= seconds:
                return
        phase.checkpoints = [c for c in view.checkpoints if c.status != "in_progress"]
        phase.pending_ms = next((c.duration_ms for c in view.checkpoints if c.status == "in_progress"), None)
        refresh()
        time.sleep(0.2)
    query.awaitTermination()  # says why it ended by itself


def _screen(phases: list[Phase]) -> Group:
    done = sum(phase.share_done for phase in phases)
    table = Table(title="Checkpoints under backpressure", title_justify="left")
    for heading in ("mode", "state", "rows/s", "done", "median", "longest", "in flight"):
        table.add_column(heading, justify="left" if heading in ("mode", "state") else "right", no_wrap=True)
    for phase in phases:
        durations_ms = phase.durations_ms()
        state = phase.state
        if phase.state == "running" and phase.pending_ms is not None:
            state = f"pending {format_ms(phase.pending_ms)}"
        table.add_row(
            phase.name,
            state,
            f"{phase.rows_per_s:,.0f}" if phase.rows_per_s else "",
            str(len(durations_ms)) if phase.state != "waiting" else "",
            format_ms(statistics.median(durations_ms)) if durations_ms else "",
            format_ms(max(durations_ms)) if durations_ms else "",
            _inflight(phase),
        )
    return Group(table, ProgressBar(total=len(phases), completed=done, width=60))


def _inflight(phase: Phase) -> str:
    stored = [c.inflight_bytes for c in phase.checkpoints if c.status == "completed"]
    return format_bytes(statistics.median(stored)) if stored else ""


def _summary(phases: list[Phase]) -> Text:
    aligned, unaligned = phases[0].durations_ms(), phases[1].durations_ms()
    if not unaligned:
        return Text("No unaligned checkpoint completed: run it again with --seconds 40.", style="yellow")
    median_ms = statistics.median(unaligned)
    if not aligned:
        return Text(
            f"No aligned checkpoint completed at all; unaligned ones took {format_ms(median_ms)} each.", style="bold"
        )
    times = statistics.median(aligned) / median_ms
    return Text(
        f"Under the same load an aligned checkpoint took {format_ms(statistics.median(aligned))}, an unaligned one "
        f"{format_ms(median_ms)}: {times:,.0f} times shorter.",
        style="bold",
    )


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The JVM writes its greetings to the inherited descriptor, past sys.stderr."""
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)
