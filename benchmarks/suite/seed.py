"""Aligned checkpoints with far too much in flight: what sources that wait are worth."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Lines
from benchmarks.processes import Observation
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    at_least,
    at_most,
    checkpoint_ms,
    completed,
    completed_checkpoints,
    completed_ms,
    failed_checkpoints,
    figure,
    most_workers_bytes,
    ratio,
    rows_per_s,
)

_SLOTS = 2
_ROW_BYTES = 2000
_DELAY_US = 1000
# In front of the operator: twelve intervals and more, as much as the timeout nearly is without active backpressure.
_INTERVALS_IN_FLIGHT = 12
# Sources wait an interval after their barrier: what they can pull in it is what active backpressure lets through.
# A half more than the operator takes.
_SOURCE_ROWS_PER_S = 3_000
_MODES = {"false": "without active backpressure", "true": "with active backpressure", "strict": "strict"}


def variants(size: Size) -> list[Variant]:
    """The quick form has every time a twentieth as long."""
    interval_ms = 10_000 if size is Size.FULL else 500
    per_channel_bytes = _ROW_BYTES * 1_000_000 // _DELAY_US * interval_ms // 1000 * _INTERVALS_IN_FLIGHT // _SLOTS
    work: dict[str, object] = {
        "slots": _SLOTS,
        "keys": 1000,
        "row_bytes": _ROW_BYTES,
        "delay_us": _DELAY_US,
        "interval_ms": interval_ms,
        # Windows are full after 24 intervals.
        "warm_up_s": interval_ms * 26 / 1000,
        "measure_s": interval_ms * (24 if size is Size.FULL else 30) / 1000,
        "tidegate.checkpoint.timeout": f"{interval_ms * 30}ms",
        "tidegate.checkpoint.maxConcurrent": 2,
        "tidegate.checkpoint.tolerableFailures": 0,
        "tidegate.checkpoint.unaligned": "false",
        "tidegate.network.debloat": "false",
        "tidegate.network.window": per_channel_bytes,
        "tidegate.network.memory": 2 * _SLOTS * per_channel_bytes,
        "tidegate.maxRowsPerSecond": _SOURCE_ROWS_PER_S,
    }
    found = [_variant(active, work, title=title) for active, title in _MODES.items()]
    return found if size is Size.FULL else found[:2]


def _variant(active: str, work: dict[str, object], *, title: str) -> Variant:
    return Variant(
        name=f"active-{active}",
        title=title,
        system=System.TIDEGATE,
        program="tidegate_pipeline",
        work={**work, "tidegate.source.activeBackpressure": active},
    )


def queued_bytes(run: Observation) -> float | None:
    """In the middle of what was seen."""
    return statistics.median(sample["queued_bytes"] for sample in run.samples) if run.samples else None


def pulled_variation(run: Observation) -> float | None:
    """The coefficient of variation of the rows pulled per second: 0 is perfectly even."""
    by_second: dict[int, float] = {}
    for sample in run.samples:
        by_second[int(sample["at_s"])] = sample["pulled"]
    totals = [by_second[second] for second in sorted(by_second)]
    pulled = [later - earlier for earlier, later in pairwise(totals)]
    mean = statistics.fmean(pulled) if pulled else 0
    return statistics.pstdev(pulled) / mean if mean else None


def section(measured: Measurements) -> Section:
    columns = [
        Column("checkpoint p50, s", checkpoint_ms(50), digits=2, scale=1e-3),
        Column("longest, s", checkpoint_ms(100), digits=2, scale=1e-3),
        Column("completed", completed_checkpoints),
        Column("failed", failed_checkpoints),
        Column("workers' memory, MB", most_workers_bytes, scale=1e-6),
        Column("queued, MB", queued_bytes, digits=1, scale=1e-6),
        Column("allocated by Arrow, MB", figure("arrow_bytes"), scale=1e-6),
        Column("collector, ms", figure("gc_ms"), digits=1),
        Column("objects collected", figure("gc_objects")),
        Column("variation of pulling", pulled_variation, digits=2),
        Column("rows/s", rows_per_s),
        Column("paused, s", figure("paused_ms"), digits=1, scale=1e-3),
    ]
    lines = by_variant(measured, columns)
    if "active-false" in measured and "active-true" in measured:
        without, with_it = measured["active-false"].runs, measured["active-true"].runs
        targets = [
            Target(
                "checkpoints at least 6 times shorter with it", ratio(without, with_it, completed_ms(50)), at_least(6)
            ),
            Target("a third of the bytes queued with it", ratio(with_it, without, queued_bytes), at_most(0.34)),
            Target("allocation at a third with it", ratio(with_it, without, figure("arrow_bytes")), at_most(0.34)),
            Target("time of the collector at a third with it", ratio(with_it, without, figure("gc_ms")), at_most(0.34)),
            Target(
                "most memory of the workers, with it over without",
                ratio(with_it, without, most_workers_bytes),
                at_most(1),
            ),
            Target(
                "pulling smoother with it (ratio of variation below 1)",
                ratio(with_it, without, pulled_variation),
                lambda value: value < 1,
            ),
            Target("throughput not lower with it (at least 0.98)", ratio(with_it, without, rows_per_s), at_least(0.98)),
        ]
        lines += below_table(targets)
    return Section(lines, _plots(measured))


def _plots(measured: Measurements) -> list[Lines]:
    firsts = {one.variant.title: one.seen()[0] for one in measured.values() if one.seen()}
    return [
        Lines(
            title="Rows pulled by the sources",
            across="s",
            unit="rows/s",
            series={name: _pulled(run) for name, run in firsts.items()},
        ),
        Lines(
            title="Checkpoint time by when it was triggered",
            across="s",
            unit="s",
            series={name: [(one.at_s, one.ms / 1000) for one in completed(run)] for name, run in firsts.items()},
        ),
        Lines(
            title="Memory of the workers",
            across="s",
            unit="MB",
            series={name: [(one.at_s, one.workers_bytes / 1e6) for one in run.memory] for name, run in firsts.items()},
        ),
    ]


def _pulled(run: Observation) -> list[tuple[float, float]]:
    return [(b["at_s"], (b["pulled"] - a["pulled"]) / (b["at_s"] - a["at_s"])) for a, b in pairwise(run.samples)]


ABOUT: Sequence[str] = (
    "Tidegate alone, aligned: exactly once, at most 2 checkpoints at a time, an interval of 10 s, a timeout of 5 "
    "min, "
    "no failed checkpoint tolerated (a failed one ends the run), an operator that takes 1 ms per row of 2,000 "
    "bytes on "
    "two slots, a source that can give a half more than that (`maxRowsPerSecond=3000`), debloating off and "
    "windows "
    "worth twelve intervals of 2,000 rows/s; measured once they are full. The quick form has all times at a "
    "twentieth: "
    "0.5 s, 15 s, windows worth 6 s. Allocation is "
    "what Arrow allocated in the workers while measured; the collector is Python's, by `gc.callbacks` in the "
    "workers. "
    "Variation of pulling is the coefficient of variation of rows pulled per second.",
)

BENCHMARK = Benchmark(
    name="seed",
    title="The seed experiment",
    about=ABOUT,
    variants=variants,
    section=section,
)
