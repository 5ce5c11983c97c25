"""Rows per second of the aggregation with state that may outgrow memory, in each system's RocksDB."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Bars
from benchmarks.suite.figures import CHECKPOINT_TIMES, RATES, below_table, by_variant
from benchmarks.suite.throughput import CASES, check_results
from benchmarks.tables import Column, Section, Target, at_least, most_workers_bytes, ratio, rows_per_s, spread

_SLOTS = 2
_FLINK = {
    "flink.state.backend.type": "rocksdb",
    "flink.execution.checkpointing.incremental": "true",
    # Four times its default, so that what is written and read has room.
    "flink.taskmanager.memory.managed.size": "512m",
}
_CONTENDERS: dict[str, tuple[str, System, str, dict[str, object]]] = {
    "tidegate": ("Tidegate", System.TIDEGATE, "tidegate_totals", {"tidegate.state.backend": "rocksdb"}),
    "tidegate-heap": ("Tidegate, heap", System.TIDEGATE, "tidegate_totals", {}),
    "flink": ("Flink, incremental", System.FLINK, "KeyedTotals", dict(_FLINK)),
    "spark-2m": (
        "Spark with changelog, 2 M rows per batch",
        System.SPARK,
        "spark_totals",
        {"store": "rocksdb", "rows_per_batch": 2_000_000},
    ),
    "spark-10m": (
        "Spark with changelog, 10 M rows per batch",
        System.SPARK,
        "spark_totals",
        {"store": "rocksdb", "rows_per_batch": 10_000_000},
    ),
}
_CASES: dict[Size, tuple[str, ...]] = {Size.FULL: ("long-10k", "long-1m"), Size.QUICK: ()}
_GOALS = {"flink": 5.0, "spark-2m": 1.0, "spark-10m": 1.0}


def variants(size: Size) -> list[Variant]:
    """The quick form leaves it out."""
    return [
        Variant(
            name=f"{name}/{case}",
            title=f"{title}, {CASES[case].title}",
            system=system,
            program=program,
            work={
                "slots": _SLOTS,
                "interval_ms": 1000,
                "key_type": CASES[case].key_type,
                "keys": CASES[case].keys,
                "warm_up_s": 6,
                "measure_s": 12,
                **work,
            },
        )
        for case in _CASES[size]
        for name, (title, system, program, work) in _CONTENDERS.items()
    ]


def section(measured: Measurements) -> Section:
    columns = [*RATES, *CHECKPOINT_TIMES, Column("workers' memory, MB", most_workers_bytes, scale=1e-6)]
    lines = by_variant(measured, columns)
    targets = []
    for case in _CASES[Size.FULL]:
        ours = measured.get(f"tidegate/{case}")
        for name, goal in _GOALS.items():
            theirs = measured.get(f"{name}/{case}")
            if ours is not None and theirs is not None:
                what = f"{CASES[case].title}: rows per second over {_CONTENDERS[name][0]}, at least {goal:g}"
                targets.append(Target(what, ratio(ours.runs, theirs.runs, rows_per_s), at_least(goal)))
    return Section([*lines, *below_table(targets)], _plots(measured))


def _plots(measured: Measurements) -> list[Bars]:
    values: dict[str, dict[str, float | None]] = {}
    for case in _CASES[Size.FULL]:
        for name, (title, *_) in _CONTENDERS.items():
            one = measured.get(f"{name}/{case}")
            if one is not None and (seen := spread(one.runs, rows_per_s)) is not None:
                values.setdefault(CASES[case].title, {})[title] = seen.median / 1e6
    return [Bars(title="Throughput with state on disk", unit="M rows/s", values=values)] if values else []


ABOUT: Sequence[str] = (
    "The aggregation of the throughput benchmark with `state.backend=rocksdb`, a checkpoint every second. Flink's "
    "RocksDB with incremental checkpoints and 512 MB of managed memory; Spark's RocksDB store with changelog "
    "checkpoints, whose checkpoint is a batch. Tidegate keeps the groups that are in use in memory "
    "(`state.rocksdb.rowMemory`, 512 MiB per slot) and stores those that changed.",
)

BENCHMARK = Benchmark(
    name="state-on-disk",
    title="State on disk",
    about=ABOUT,
    variants=variants,
    section=section,
    check=check_results,
)
