"""Checkpoint time with the changelog: little state and much of it, with as many changes."""

from collections.abc import Mapping, Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.suite.large_state import COLUMNS, ROCKSDB, TOTALS, USER, of_large_state, plots
from benchmarks.tables import Section, Target, at_most, completed_ms, ratio

_SMALL_MB, _LARGE_MB = 10, 1000
_CHANGED_MB = 1
# All groups in memory: those that are not are stored by RocksDB's own files.
_GROUPS_ON_ROCKSDB = {**TOTALS, **ROCKSDB, "tidegate.state.rocksdb.rowMemory": "4GiB"}
_FORMS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "heap": ("heap", USER),
    "rocksdb": ("RocksDB", {**USER, **ROCKSDB}),
    "groups-heap": ("groups on the heap", TOTALS),
    "groups-rocksdb": ("groups on RocksDB", _GROUPS_ON_ROCKSDB),
}


def variants(size: Size) -> list[Variant]:
    """The quick form leaves it out."""
    if size is Size.QUICK:
        return []
    return [
        of_large_state(
            f"{name}-{state_mb}",
            f"{title} with changelog, {state_mb:,} MB",
            state_mb=state_mb,
            work={**work, **_steady(state_mb)},
        )
        for name, (title, work) in _FORMS.items()
        for state_mb in (_SMALL_MB, _LARGE_MB)
    ]


def _steady(state_mb: int) -> Mapping[str, object]:
    return {
        "tidegate.state.changelog": "true",
        # Twice within a run.
        "tidegate.state.changelog.materializeInterval": "15s",
        "changed_percent": 100.0 * _CHANGED_MB / state_mb,
        "files_per_interval": 8,
    }


def section(measured: Measurements) -> Section:
    targets = []
    for name, (title, _) in _FORMS.items():
        small, large = measured.get(f"{name}-{_SMALL_MB}"), measured.get(f"{name}-{_LARGE_MB}")
        if small is not None and large is not None:
            seen = ratio(large.runs, small.runs, completed_ms(50))
            targets.append(Target(f"{title}: p50 with 1 GB over p50 with 10 MB, at most 2", seen, at_most(2.0)))
    lines = [*by_variant(measured, COLUMNS), *below_table(targets)]
    return Section(lines, plots(measured, "Checkpoint time with the changelog, p50"))


ABOUT: Sequence[str] = (
    "Tidegate alone, `state.changelog=true`, two slots, a checkpoint every 2 s: 10 MB and 1 GB of values of a "
    "function, 1,000 bytes each that do not compress, and as much of groups of a count and a sum; of all of them 1 MB "
    "changes per interval, a file of it every 250 ms, other keys each time. A materialisation of values every 15 s. A "
    "savepoint stores all of it.",
)
BENCHMARK = Benchmark(
    name="changelog",
    title="Changelog",
    about=ABOUT,
    variants=variants,
    section=section,
    repetitions={Size.FULL: 1, Size.QUICK: 1},
)
