"""What the protocol costs at size: a checkpoint of a large job at the coordinator, and a barrier through a wide gate.

No Spark, no sockets, no user code: only what must not grow faster than the job. Every figure is the median of several
repetitions with half of its range; sizes take turns within a repetition, so that load on the machine meets all alike.
Microseconds are processor time, so that others on the machine are not counted; the rest is by the clock.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.coordinator_at_size import CoordinatorAtSize, Shape, acknowledgements
from benchmarks.gate_at_size import (
    barrier_machine,
    gate,
    pass_gate,
    pass_machine,
    pass_watermarks,
    pass_window,
    steps_of_one_busy_channel,
)
from tidegate.protocol.kinds import CheckpointKind

# As many vertices at every size: a slot then says as much, and what grows with slots times slots shows.
SHAPES = (Shape(vertices=8, slots=125), Shape(vertices=8, slots=500), Shape(vertices=8, slots=2000))
WIDTHS = (10, 100, 1000)
# A gate of ten channels is done before the clock has ticked: each width is passed until it has had so many channels.
CHANNELS_PER_MEASUREMENT = 2000
EVENTS = 20_000
# Units in which a figure stays the same however large the job: only these are compared.
PER_ONE = ("µs/", "bytes/")
STEPS = 500
TABLE_WIDTH = 110  # also where there is no terminal: a table that is cut short says nothing


class Took(NamedTuple):
    clock_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured at one size, once per repetition."""

    what: str
    size: int
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of every measurement")
    parser.add_argument("--json", action="store_true", help="print numbers instead of tables")
    given = parser.parse_args()
    coordinator_once(SHAPES[0])  # warms up: imports, caches, the disk
    load_before = os.getloadavg()[0]
    coordinator = repeated(given.repeat, measure_coordinator)
    gates = repeated(given.repeat, measure_gates)
    machine = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "repetitions": given.repeat,
    }
    if given.json:
        print(
            json.dumps({"machine": machine, "figures": [as_json(figure) for figure in coordinator + gates]}, indent=1)
        )
        return
    console = Console(width=TABLE_WIDTH)
    shapes = ", ".join(f"{s.tasks:,} = {s.vertices} vertices x {s.slots} slots" for s in SHAPES)
    console.print(table("Coordinator: one unaligned checkpoint, by tasks", coordinator))
    console.print(table("Gate: one checkpoint, by channels", gates))
    console.print(f"Tasks: {shapes}. Medians of {given.repeat}, ± half of the range.")
    console.print(" ".join(f"{name}={value}" for name, value in machine.items()))


# -- measuring


def repeated(times: int, measure: Callable[[], Iterator[Figure]]) -> list[Figure]:
    runs = [list(measure()) for _ in range(times)]
    return [
        Figure(figures[0].what, figures[0].size, figures[0].unit, tuple(v for figure in figures for v in figure.values))
        for figures in zip(*runs, strict=True)
    ]


def measure_coordinator() -> Iterator[Figure]:
    for shape in SHAPES:
        yield from coordinator_once(shape)


def coordinator_once(shape: Shape) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        job = CoordinatorAtSize(shape, Path(folder))
        said = acknowledgements(shape, generation=job.generation)
        with undisturbed():
            trigger = timed(job.trigger)
            heard = timed(partial(hear_all, job, said[:-1]))
            seen = timed(job.checkpointing.in_progress)
            seen_again = timed(job.checkpointing.in_progress)
            last = timed(partial(job.hear, shape.slots - 1, said[-1]))
            (stored, told), (committed, noted), (retired, _) = (next_beside(job) for _ in range(3))
        assert job.outcome.committed, "the checkpoint was not committed"
        manifest_bytes = job.manifest_bytes()
    tasks = shape.tasks

    def per_task(what: str, *took: Took) -> Figure:
        return Figure(what, tasks, "µs/task", (sum(one.cpu_s for one in took) / tasks * 1e6,))

    return [
        Figure("acknowledgements", tasks, "per s", ((shape.slots - 1) / heard.clock_s,)),
        per_task("acknowledgements", heard),
        per_task("view while under way, first", seen),
        per_task("view while under way, again", seen_again),
        Figure("last one to log entry", tasks, "ms", ((last.clock_s + stored.clock_s) * 1000,)),
        per_task("  on the loop: manifest", last),
        per_task("  beside it: store, log", stored),
        per_task("completion told to slots", told),
        per_task("commit and retention", committed, noted, retired),
        Figure("manifest", tasks, "bytes", (manifest_bytes,)),
        Figure("manifest", tasks, "bytes/task", (manifest_bytes / tasks,)),
        per_task("trigger to retention", trigger, heard, last, stored, told, committed, noted, retired),
    ]


def hear_all(job: CoordinatorAtSize, said: list[bytes]) -> None:
    for slot, message in enumerate(said):
        job.hear(slot, message)


def next_beside(job: CoordinatorAtSize) -> tuple[Took, Took]:
    """The next thing that blocks, and what the loop does once it is done."""
    taken = job.beside.take()
    assert taken is not None, "the coordinator did not ask for anything to be stored"
    work, then = taken
    return timed(work), timed(partial(then, None))


def measure_gates() -> Iterator[Figure]:
    for width in WIDTHS:
        times = max(1, CHANNELS_PER_MEASUREMENT // width)
        for kind in CheckpointKind:
            machines = [barrier_machine(width) for _ in range(times)]
            passed = [partial(pass_machine, machine, width, kind) for machine in machines]
            yield per_channel(f"barrier machine, {kind.value}", width, passed)
        for kind in CheckpointKind:
            gates = [gate(width) for _ in range(times)]
            yield per_channel(
                f"gate with rows, {kind.value}", width, [partial(pass_gate, g, width, kind) for g in gates]
            )
        busy = partial(steps_of_one_busy_channel, gate(width), width, steps=STEPS)
        yield per_event("a step, one busy channel", width, "µs/step", busy)
        watermarks = partial(pass_watermarks, width, rounds=EVENTS // width)
        yield per_event("watermarks, all channels in turn", width, "µs/event", watermarks)
        yield per_event(
            "send window, so many in flight", width, "µs/event", partial(pass_window, EVENTS, in_flight=width)
        )


def per_channel(what: str, width: int, passed: Sequence[Callable[[], int]]) -> Figure:
    with undisturbed():
        took = timed(lambda: [one() for one in passed])
    return Figure(what, width, "µs/channel", (took.cpu_s / (width * len(passed)) * 1e6,))


def per_event(what: str, width: int, unit: str, run: Callable[[], int]) -> Figure:
    events = 0

    def counted() -> None:
        nonlocal events
        events = run()

    with undisturbed():
        took = timed(counted)
    return Figure(what, width, unit, (took.cpu_s / events * 1e6,))


def timed(run: Callable[[], object]) -> Took:
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    run()
    return Took(time.perf_counter() - started_s, time.thread_time() - started_cpu_s)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Garbage is collected as in production, but only of what is measured: one sweep over all else would decide."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# -- printing


def table(title: str, figures: list[Figure]) -> Table:
    sizes = sorted({figure.size for figure in figures})
    rows: dict[tuple[str, str], dict[int, Figure]] = {}
    for figure in figures:
        rows.setdefault((figure.what, figure.unit), {})[figure.size] = figure
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    shown.add_column("", no_wrap=True)
    shown.add_column("unit")
    for size in sizes:
        shown.add_column(f"{size:,}", justify="right", no_wrap=True)
    shown.add_column(f"{sizes[-1]:,} / {sizes[0]:,}", justify="right")
    for (what, unit), by_size in rows.items():
        ratio = by_size[sizes[-1]].median / by_size[sizes[0]].median
        shown.add_row(
            what, unit, *(text(by_size[size]) for size in sizes), f"{ratio:.2f}" if unit.startswith(PER_ONE) else ""
        )
    return shown


def text(figure: Figure) -> str:
    spread = (max(figure.values) - min(figure.values)) / 2 / figure.median
    return number(figure.median) if spread < 0.005 else f"{number(figure.median)} ±{spread:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def as_json(figure: Figure) -> dict[str, object]:
    return {
        "what": figure.what.strip(),
        "size": figure.size,
        "unit": figure.unit,
        "median": figure.median,
        "least": min(figure.values),
        "most": max(figure.values),
    }


if __name__ == "__main__":
    main()
