"""A state three times as large as what the workers may take of memory."""

from collections.abc import Mapping, Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.processes import Observation
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.suite.large_state import (
    COLUMNS,
    FILLING_GROUPS_S_PER_MB,
    ROCKSDB,
    TOTALS,
    USER,
    of_large_state,
    plots,
)
from benchmarks.tables import Section, Target, at_most, most_workers_bytes, spread

# Of both workers, each of which takes some 150 MB before it has any state.
_LIMIT_MB = 1000
_STATE_MB = 3 * _LIMIT_MB
_CHANGING: Mapping[str, object] = {**ROCKSDB, "changed_percent": 0.1}


def variants(size: Size) -> list[Variant]:
    """The quick form leaves it out."""
    if size is Size.QUICK:
        return []
    memory = {"tidegate.state.rocksdb.memory": "96MiB", "tidegate.state.rocksdb.rowMemory": "96MiB"}
    groups = {**_CHANGING, **TOTALS, **memory}
    return [
        of_large_state("user", "values of a function, 3 GB", state_mb=_STATE_MB, work={**_CHANGING, **USER}),
        of_large_state(
            "totals",
            "aggregation, 3 GB",
            state_mb=_STATE_MB,
            work=groups,
            filling_s_per_mb=FILLING_GROUPS_S_PER_MB,
        ),
    ]


def share_of_limit(run: Observation) -> float | None:
    most_bytes = most_workers_bytes(run)
    return None if most_bytes is None else most_bytes / (_LIMIT_MB * 1_000_000)


def section(measured: Measurements) -> Section:
    targets = [
        Target(
            f"{one.variant.title}: most memory of the workers over 1 GB, at most 1",
            spread(one.runs, share_of_limit),
            at_most(1.0),
        )
        for one in measured.values()
    ]
    lines = [*by_variant(measured, COLUMNS), *below_table(targets)]
    return Section(lines, plots(measured, "Checkpoint time, 3 GB of state in 1 GB of memory, p50"))


ABOUT: Sequence[str] = (
    "Tidegate alone, `state.backend=rocksdb`, two slots, a checkpoint every 2 s: 3 GB of state, of which one in a "
    "thousand changes per interval, and workers that shall take 1 GB of memory together, Python and Arrow included. "
    "Values of a function with `state.rocksdb.memory` as it is (128 MiB per slot), groups with 96 MiB of it and as "
    "much `state.rocksdb.rowMemory`. The most memory is that of the whole run, the filling of the state included.",
)
BENCHMARK = Benchmark(
    name="beyond-memory",
    title="Beyond memory",
    about=ABOUT,
    variants=variants,
    section=section,
    repetitions={Size.FULL: 1, Size.QUICK: 1},
)
