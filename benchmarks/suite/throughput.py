"""Rows per second of a built-in aggregation, with a checkpoint every second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.flink.environment import CannotPrepare
from benchmarks.plots import Bars
from benchmarks.processes import Results, RunFailed, check
from benchmarks.suite.figures import CHECKPOINT_TIMES, RATES, below_table, by_variant
from benchmarks.tables import Run, Section, Target, at_least, checkpoint_ms, ratio, rows_per_cpu_s, rows_per_s, spread

CHECK_ROWS = 1_500_007
_CHECK_TIMEOUT_S = 300.0
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Case:
    key_type: str
    keys: int
    title: str


CASES = {
    "long-10k": Case("long", 10_000, "10,000 long keys"),
    "long-1m": Case("long", 1_000_000, "1,000,000 long keys"),
    "string-10k": Case("string", 10_000, "10,000 string keys"),
    "string-1m": Case("string", 1_000_000, "1,000,000 string keys"),
}
_MINI_BATCH = {
    "flink.table.exec.mini-batch.enabled": "true",
    "flink.table.exec.mini-batch.allow-latency": "100 ms",
    "flink.table.exec.mini-batch.size": "5000",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """`goal` is how many times as fast Tidegate should be."""

    name: str
    title: str
    system: System
    program: str
    work: dict[str, object]
    goal: float | None = None


CONTENDERS = (
    Contender("tidegate", "Tidegate", System.TIDEGATE, "tidegate_totals", {}),
    Contender("flink", "Flink DataStream", System.FLINK, "KeyedTotals", {}, 4.0),
    Contender("flink-sql", "Flink SQL", System.FLINK, "SqlTotals", {}, 8.0),
    Contender("flink-sql-mini", "Flink SQL, mini-batches", System.FLINK, "SqlTotals", dict(_MINI_BATCH), None),
    Contender("spark-2m", "Spark, 2 M rows per batch", System.SPARK, "spark_totals", {"rows_per_batch": 2_000_000}),
    Contender("spark-5m", "Spark, 5 M rows per batch", System.SPARK, "spark_totals", {"rows_per_batch": 5_000_000}),
    Contender("spark-10m", "Spark, 10 M rows per batch", System.SPARK, "spark_totals", {"rows_per_batch": 10_000_000}),
)
_QUICK_CASES = ("long-10k",)
_QUICK_CONTENDERS = ("tidegate", "flink", "flink-sql", "spark-10m")
# Batches that take longer are no longer a checkpoint every second.
_LONGEST_BATCH_MS = 1000
_SPARK_GOAL = 1.5


def variants(size: Size) -> list[Variant]:
    is_quick = size is Size.QUICK
    times = {"warm_up_s": 4 if is_quick else 6, "measure_s": 5 if is_quick else 12}
    return [
        Variant(
            name=f"{contender.name}/{name}",
            title=f"{contender.title}, {case.title}",
            system=contender.system,
            program=contender.program,
            work={
                "slots": _SLOTS,
                "interval_ms": 1000,
                "key_type": case.key_type,
                "keys": case.keys,
                **times,
                **contender.work,
            },
        )
        for name, case in CASES.items()
        if not is_quick or name in _QUICK_CASES
        for contender in CONTENDERS
        if not is_quick or contender.name in _QUICK_CONTENDERS
    ]


def check_results(chosen: Sequence[Variant], command: Callable[[Variant], list[str]]) -> None:
    """All systems must find the same in the same rows, or their speeds say nothing."""
    found: dict[tuple[object, object], dict[str, Results]] = {}
    for variant in chosen:
        case = (variant.work["key_type"], variant.work["keys"])
        if variant.program == "SqlTotals" or variant.program in found.get(case, {}):
            continue  # the same program with other batches; SQL's result is a changelog, which nothing here reads
        try:
            results = check(
                command(replace(variant, work={**variant.work, "check_rows": CHECK_ROWS})),
                cores=_SLOTS,
                timeout_s=_CHECK_TIMEOUT_S,
            )
        except RunFailed as failure:
            raise CannotPrepare(f"{variant.title} gave no results: {failure}") from None
        found.setdefault(case, {})[variant.program] = results
        print(f"  checked {variant.name:24} {results.rows:,} rows in {results.groups:,} groups", flush=True)
    for case, by_program in found.items():
        if len(set(by_program.values())) > 1 or any(one.rows != CHECK_ROWS for one in by_program.values()):
            raise CannotPrepare(f"The results of {case} differ, so nothing was measured: {by_program}")


def section(measured: Measurements) -> Section:
    lines = by_variant(measured, [*RATES, *CHECKPOINT_TIMES])
    lines += below_table(_targets(measured))
    return Section(lines, _plots(measured))


def _targets(measured: Measurements) -> list[Target]:
    found = []
    for name, case in CASES.items():
        ours = measured.get(f"tidegate/{name}")
        if ours is None:
            continue
        for contender in CONTENDERS[1:]:
            theirs = measured.get(f"{contender.name}/{name}")
            if theirs is None:
                continue
            goal = _goal(contender, theirs.runs)
            for value, per in ((rows_per_s, "second"), (rows_per_cpu_s, "CPU second")):
                what = f"{case.title}: rows per {per} over {contender.title}"
                seen = ratio(ours.runs, theirs.runs, value)
                if goal is None:
                    found.append(Target(what, seen, None))
                else:
                    found.append(Target(f"{what}, at least {goal}", seen, at_least(goal)))
    return found


def _goal(contender: Contender, runs: Sequence[Run]) -> float | None:
    if contender.system is not System.SPARK:
        return contender.goal
    longest = spread(runs, checkpoint_ms(50))
    return _SPARK_GOAL if longest is not None and longest.median <= _LONGEST_BATCH_MS else None


def _plots(measured: Measurements) -> list[Bars]:
    values: dict[str, dict[str, float | None]] = {}
    for name, case in CASES.items():
        for contender in CONTENDERS:
            one = measured.get(f"{contender.name}/{name}")
            if one is not None and (seen := spread(one.runs, rows_per_s)) is not None:
                values.setdefault(case.title, {})[contender.title] = seen.median / 1e6
    return [Bars(title="Throughput", unit="M rows/s", values=values)] if values else []


ABOUT: Sequence[str] = (
    "Generated values 0, 1, 2, …; key = value modulo 10,000 or 1,000,000, as a long or as the string "
    "`key-<number>`; a "
    "shuffle by key; count and sum per key; no output; two slots, exactly once, a checkpoint every second to "
    "local files. "
    "Flink's heap state is changed in place, with object reuse and aligned checkpoints, in one JVM; SQL's "
    "mini-batches wait "
    "up to 100 ms for 5,000 rows. Spark's checkpoint is a batch; its goal counts only while a batch stays within "
    "1 s.",
)

BENCHMARK = Benchmark(
    name="throughput", title="Throughput", about=ABOUT, variants=variants, section=section, check=check_results
)
