"""One percent of 1 GB of state changes with each checkpoint: what is stored, beside all of it."""

from collections.abc import Mapping, Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.processes import Observation
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.suite.large_state import COLUMNS, ROCKSDB, TOTALS, USER, of_large_state, plots, stored_bytes, sync_ms
from benchmarks.tables import Section, Target, Value, at_most, completed_ms, spread

_STATE_MB = 1000
_CHANGED_PERCENT = 1.0
_KINDS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "user-random": ("values of a function, other keys each time", {**USER, "changed": "random"}),
    "user-same": ("values of a function, always the same keys", {**USER, "changed": "same"}),
    # All groups in memory: this is about what is stored, not about what leaves memory.
    "totals-random": (
        "aggregation, other keys each time",
        {**TOTALS, "changed": "random", "tidegate.state.rocksdb.rowMemory": "4GiB"},
    ),
    "totals-heap": (
        "aggregation on the heap, other keys each time",
        {**TOTALS, "changed": "random", "tidegate.state.backend": "heap"},
    ),
}


def variants(size: Size) -> list[Variant]:
    """The quick form leaves it out."""
    if size is Size.QUICK:
        return []
    changing = {**ROCKSDB, "changed_percent": _CHANGED_PERCENT}
    return [
        of_large_state(name, title, state_mb=_STATE_MB, work={**changing, **work})
        for name, (title, work) in _KINDS.items()
    ]


def stored_share(run: Observation) -> float | None:
    full_bytes, stored = run.figures.get("full_bytes"), stored_bytes(run)
    return stored / full_bytes if full_bytes and stored is not None else None


def time_share(run: Observation) -> float | None:
    full_ms, own_ms = run.figures.get("full_ms"), completed_ms(50)(run)
    return own_ms / full_ms if full_ms and own_ms is not None else None


_GOALS: Sequence[tuple[str, Value, float, int]] = (
    ("bytes stored per checkpoint, at most 0.05 of a savepoint's", stored_share, 0.05, 3),
    ("checkpoint time p50, at most 0.1 of a savepoint's", time_share, 0.1, 3),
    ("synchronous part p95, at most 20 ms", sync_ms(95), 20.0, 1),
)


def section(measured: Measurements) -> Section:
    targets = [
        Target(f"{one.variant.title}: {what}", spread(one.runs, value), at_most(most), digits=digits)
        for one in measured.values()
        for what, value, most, digits in _GOALS
    ]
    lines = [*by_variant(measured, COLUMNS), *below_table(targets)]
    return Section(lines, plots(measured, "Checkpoint time, 1 GB of state, one percent changed, p50"))


ABOUT: Sequence[str] = (
    "Tidegate alone, `state.backend=rocksdb` unless the heap is named, two slots, a checkpoint every 2 s: 1 GB of "
    "state, values of 1,000 bytes that do not compress, or 31 million groups of a count and a sum; then a file per "
    "interval with rows for one percent of the keys. A savepoint stores everything. Bytes per checkpoint are the mean: "
    "RocksDB merges its files now and then, and the next checkpoint stores what came of it.",
)
BENCHMARK = Benchmark(
    name="incremental",
    title="One percent of 1 GB",
    about=ABOUT,
    variants=variants,
    section=section,
    repetitions={Size.FULL: 1, Size.QUICK: 1},
)
