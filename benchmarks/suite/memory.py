"""Memory while a job is hopelessly behind for ten minutes."""

import statistics
from collections.abc import Callable, Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.plots import Lines
from benchmarks.processes import Memory, Observation
from benchmarks.suite.both import SLOW_OPERATOR, of_tidegate
from benchmarks.suite.checkpoint_modes import DEFAULTS, UNALIGNED
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import Column, Section, Target, Value, at_most, checkpoint_ms, rows_per_s, spread

_PARTS: dict[str, Callable[[Memory], int]] = {
    "driver": lambda memory: memory.driver_bytes,
    "workers": lambda memory: memory.workers_bytes,
    "JVM": lambda memory: memory.jvm_bytes,
}
_FLAT = 1.05


def variants(size: Size) -> list[Variant]:
    work = {
        **SLOW_OPERATOR,
        "interval_ms": 1000,
        "warm_up_s": 30 if size is Size.FULL else 5,
        "measure_s": 600 if size is Size.FULL else 12,
    }
    modes = (DEFAULTS, UNALIGNED) if size is Size.FULL else (DEFAULTS,)
    return [of_tidegate(mode, work) for mode in modes]


def held(part: str, quarter: int) -> Value:
    """In the middle of the first quarter of the run, or of the last (3)."""

    def value(run: Observation) -> float | None:
        share = run.memory[len(run.memory) * quarter // 4 : len(run.memory) * (quarter + 1) // 4]
        return statistics.median(_PARTS[part](one) for one in share) if share else None

    return value


def growth(part: str) -> Value:
    def value(run: Observation) -> float | None:
        first, last = held(part, 0)(run), held(part, 3)(run)
        return last / first if first and last is not None else None

    return value


def section(measured: Measurements) -> Section:
    columns: list[Column] = []
    for part in _PARTS:
        columns += [
            Column(f"{part}, MB at first", held(part, 0), scale=1e-6),
            Column("in the end", held(part, 3), scale=1e-6),
        ]
    columns += [Column("rows/s", rows_per_s), Column("checkpoint p50, ms", checkpoint_ms(50))]
    lines = by_variant(measured, columns)
    targets = [
        Target(
            f"{one.variant.title}: {part} flat (last quarter over first at most {_FLAT})",
            spread(one.runs, growth(part)),
            at_most(_FLAT),
            digits=3,
        )
        for one in measured.values()
        for part in ("driver", "workers")
    ]
    series = {
        f"{part}, {one.variant.title.removeprefix('Tidegate, ')}": [
            (memory.at_s, of(memory) / 1e6) for memory in one.seen()[0].memory
        ]
        for one in measured.values()
        if one.seen()
        for part, of in _PARTS.items()
    }
    plot = Lines(title="Memory during an overload", across="s", unit="MB", series=series)
    return Section([*lines, *below_table(targets)], [plot])


ABOUT: Sequence[str] = (
    "The slow operator with 1 ms per row and far more rows than it can take, for 10 minutes (quick: 12 s), a "
    "checkpoint "
    "every second, Tidegate alone. What the driver's Python process, the workers and the JVM hold, pages that "
    "are shared "
    "counted once; the JVM separately, whose collector decides for itself when to give back.",
)
BENCHMARK = Benchmark(
    name="memory",
    title="Memory",
    about=ABOUT,
    variants=variants,
    section=section,
)
