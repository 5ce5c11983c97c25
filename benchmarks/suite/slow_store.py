"""A store that takes 1 MB/s: which mode helps, and what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.plots import Bars, Scale
from benchmarks.processes import Observation
from benchmarks.suite.both import SLOW_OPERATOR, of_tidegate
from benchmarks.suite.checkpoint_modes import ALIGNED, DEFAULTS, UNALIGNED, Mode
from benchmarks.suite.figures import CHECKPOINT_TIMES, below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    Value,
    at_least,
    checkpoint_ms,
    completed,
    failed_checkpoints,
    figure,
    inflight_bytes,
    median_of,
    ratio,
    rows_per_s,
)

_BYTES_PER_S = 1_000_000
_FOLDER = Path(__file__).resolve().parents[1] / "slow_store"
_AUTO = Mode("auto", "switching by itself", {**ALIGNED.tidegate, "tidegate.checkpoint.unaligned": "auto"}, None)


def variants(size: Size) -> list[Variant]:
    work = {
        **SLOW_OPERATOR,
        # Two megabytes in flight: more than the store takes in an interval.
        "row_bytes": 1000,
        "interval_ms": 2000,
        "warm_up_s": 2,
        "measure_s": 60 if size is Size.FULL else 9,
        "tidegate.network.window": "512KiB",
    }
    modes = (ALIGNED, UNALIGNED, _AUTO, DEFAULTS) if size is Size.FULL else (ALIGNED, UNALIGNED)
    plain = [of_tidegate(mode, work, what="fast", title="local files") for mode in modes if size is Size.FULL]
    return plain + [_slowed(of_tidegate(mode, work, what="slow", title="1 MB/s")) for mode in modes]


def _slowed(variant: Variant) -> Variant:
    return replace(variant, environment={"PYTHONPATH": str(_FOLDER), "BENCH_STORE_BYTES_PER_S": str(_BYTES_PER_S)})


def share_of(kind: str) -> Value:
    def value(run: Observation) -> float | None:
        ended = completed(run)
        return sum(one.kind == kind for one in ended) / len(ended) if ended else None

    return value


def section(measured: Measurements) -> Section:
    columns = [
        *CHECKPOINT_TIMES,
        Column("aligned, %", share_of("aligned"), scale=100),
        Column("switched, %", share_of("switched"), scale=100),
        Column("written in flight, KB", inflight_bytes, digits=0, scale=1e-3),
        Column("rows/s", rows_per_s),
        Column("paused, s", figure("paused_ms"), digits=1, scale=1e-3),
        Column("failed", failed_checkpoints),
    ]
    lines = by_variant(measured, columns)
    targets = []
    fast = measured.get("tidegate-aligned-fast")
    for name, one in measured.items():
        if fast is not None and name.endswith("-slow"):
            seen = ratio(one.runs, fast.runs, rows_per_s)
            what = f"{one.variant.title}: rows/s at least 0.95 of what they are with a fast store"
            targets.append(Target(what, seen, at_least(0.95)))
    values = {
        one.variant.title.replace(", ", ",\n"): {"p50": median_of(one.runs, checkpoint_ms(50))}
        for one in measured.values()
    }
    plot = Bars(title="Checkpoint time, p50", unit="ms", values=values, scale=Scale.LOGARITHMIC)
    return Section([*lines, *below_table(targets)], [plot])


ABOUT: Sequence[str] = (
    "The slow operator with 1 ms per row of 1,000 bytes and windows of 512 KiB, Tidegate alone; each process "
    "writes at most "
    "1 MB/s to the store (`slow_store/sitecustomize.py` on the path of the run: nothing in the product knows of "
    "it). A "
    "checkpoint every 2 s.",
)
BENCHMARK = Benchmark(name="slow-store", title="Slow store", about=ABOUT, variants=variants, section=section)
