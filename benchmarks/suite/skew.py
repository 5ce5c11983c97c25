"""One key has half of the rows: what a checkpoint costs, and what waits on the blocked side."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.plots import Bars, Scale
from benchmarks.processes import Observation
from benchmarks.suite.both import SLOW_OPERATOR, of_both
from benchmarks.suite.checkpoint_modes import ACTIVE, ALIGNED, FLINK_AS_RUN, UNALIGNED
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    at_most,
    checkpoint_ms,
    completed_ms,
    inflight_bytes,
    median_of,
    most_workers_bytes,
    ratio,
    rows_per_s,
)


def variants(size: Size) -> list[Variant]:
    work = {
        **SLOW_OPERATOR,
        "hot_share": 0.5,
        "interval_ms": 2000,
        "warm_up_s": 2,
        "measure_s": 60 if size is Size.FULL else 7,
    }
    modes = (ALIGNED, UNALIGNED, ACTIVE) if size is Size.FULL else (UNALIGNED,)
    return [variant for mode in modes for variant in of_both(mode, work)]


def most_queued_bytes(run: Observation) -> float | None:
    """Between all tasks: Tidegate's at the receiving gates, Flink's where the receiver takes them, at the sender."""
    return max((sample["queued_bytes"] for sample in run.samples if "queued_bytes" in sample), default=None)


def section(measured: Measurements) -> Section:
    columns = [
        Column("checkpoint p50, ms", checkpoint_ms(50)),
        Column("p95, ms", checkpoint_ms(95)),
        Column("written in flight, KB", inflight_bytes, digits=1, scale=1e-3),
        Column("most queued, KB", most_queued_bytes, digits=0, scale=1e-3),
        Column("workers' memory, MB", most_workers_bytes, scale=1e-6),
        Column("rows/s", rows_per_s),
    ]
    lines = by_variant(measured, columns)
    targets = []
    values: dict[str, dict[str, float | None]] = {}
    for mode in (ALIGNED, UNALIGNED):
        ours, theirs = measured.get(f"tidegate-{mode.name}"), measured.get(f"flink-{mode.name}")
        if ours is not None and theirs is not None:
            seen = ratio(ours.runs, theirs.runs, completed_ms(50))
            targets.append(Target(f"{mode.title}: p50 no longer than Flink's (ratio at most 1)", seen, at_most(1)))
            for name, one in (("Tidegate", ours), ("Flink", theirs)):
                values.setdefault(mode.title, {})[name] = median_of(one.runs, checkpoint_ms(50))
    plots = [
        Bars(
            title="Checkpoint time, one key with half of the rows, p50",
            unit="ms",
            values=values,
            scale=Scale.LOGARITHMIC,
        )
    ]
    return Section([*lines, *below_table(targets)], plots if values else [])


ABOUT: Sequence[str] = (
    "The slow operator with 1 ms per row; half of the rows have the same key, so that one slot is far behind the "
    "other; a "
    "checkpoint every 2 s. Most queued is what waits between tasks, nearly all of it in front of the blocked side, by "
    "each system's own gauges. Flink's JVM has its heap from the start, so its memory tells nothing. " + FLINK_AS_RUN,
)
BENCHMARK = Benchmark(name="skew", title="Skew", about=ABOUT, variants=variants, section=section)
