"""Ten times the load for a while: whether the job works at its capacity meanwhile, and how soon it has caught up."""

from collections.abc import Sequence
from itertools import pairwise

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Lines
from benchmarks.processes import Observation
from benchmarks.suite.both import of_flink, of_tidegate
from benchmarks.suite.checkpoint_modes import ALIGNED, DEFAULTS, FLINK_AS_RUN, UNALIGNED
from benchmarks.tables import (
    Column,
    Section,
    Target,
    Value,
    at_least,
    at_most,
    checkpoint_ms,
    failed_checkpoints,
    figures_table,
    ratio,
    rows_per_s,
    shown,
    spread,
)

_SLOTS = 2
_DELAY_US = 1000
# What two slots take at a millisecond a row, if sleeping cost nothing.
_NOMINAL_ROWS_PER_S = _SLOTS * 1_000_000 // _DELAY_US
_QUIET = 0.3
_TIMES = 10
_PEAK_ROWS_PER_S = round(_NOMINAL_ROWS_PER_S * _QUIET * _TIMES)
# Whoever is less than so far behind has caught up.
_CAUGHT_UP_S = 1.0
_FEW_SAMPLES = 20
_FULL_ONLY = ("tidegate-aligned-peak", "tidegate-unaligned-peak", "flink-unaligned-peak", "spark-peak")


def variants(size: Size) -> list[Variant]:
    peak_from_s, peak_s, after_s = (15, 60, 200) if size is Size.FULL else (4, 3, 17)
    work: dict[str, object] = {
        "slots": _SLOTS,
        "keys": 1000,
        "row_bytes": 200,
        "delay_us": _DELAY_US,
        "interval_ms": 2000,
        "warm_up_s": 0,
    }
    peak = work | {
        "rows_per_second": _PEAK_ROWS_PER_S,
        "quiet_share": 1 / _TIMES,
        "peak_from_s": peak_from_s,
        "peak_to_s": peak_from_s + peak_s,
        "measure_s": peak_from_s + peak_s + after_s,
    }
    full = work | {"warm_up_s": 2, "measure_s": 30 if size is Size.FULL else 5}
    found = [
        of_tidegate(DEFAULTS, full, what="capacity", title="all the time overloaded"),
        of_flink(ALIGNED, full, what="capacity", title="all the time overloaded"),
        of_tidegate(DEFAULTS, peak, what="peak", title="peak"),
        of_tidegate(ALIGNED, peak, what="peak", title="peak"),
        of_tidegate(UNALIGNED, peak, what="peak", title="peak"),
        of_flink(ALIGNED, peak, what="peak", title="peak"),
        of_flink(UNALIGNED, peak, what="peak", title="peak"),
        Variant(
            name="spark-peak",
            title="Spark, micro-batches, peak",
            system=System.SPARK,
            program="spark_pipeline",
            work=peak | {"interval_ms": 0},
        ),
    ]
    return found if size is Size.FULL else [one for one in found if one.name not in _FULL_ONLY]


def in_peak(variant: Variant) -> Value:
    """Rows per second from the second second of the peak to its end."""
    first_s, last_s = (float(str(variant.work.get(name, 0))) for name in ("peak_from_s", "peak_to_s"))

    def value(run: Observation) -> float | None:
        within = [sample for sample in run.samples if first_s + 1 <= sample["at_s"] <= last_s]
        if len(within) < 2:
            return None
        first, last = within[0], within[-1]
        return (last["rows"] - first["rows"]) / (last["at_s"] - first["at_s"])

    return value


def drained_after(variant: Variant) -> Value:
    """Seconds from the end of the peak until what was due is processed."""
    first_s, last_s = (float(str(variant.work.get(name, 0))) for name in ("peak_from_s", "peak_to_s"))
    quiet = _PEAK_ROWS_PER_S / _TIMES

    def value(run: Observation) -> float | None:
        for sample in run.samples:
            at_s = sample["at_s"]
            due = quiet * first_s + _PEAK_ROWS_PER_S * (last_s - first_s) + quiet * (at_s - last_s)
            if at_s > last_s and sample["rows"] >= due - _NOMINAL_ROWS_PER_S * _CAUGHT_UP_S:
                return at_s - last_s
        return None

    return value


def section(measured: Measurements) -> Section:
    capacity = {
        system: one.runs
        for system, name in (("tidegate", "tidegate-defaults-capacity"), ("flink", "flink-aligned-capacity"))
        if (one := measured.get(name)) is not None
    }
    targets: list[Target] = []
    series: dict[str, list[tuple[float, float]]] = {}
    head: list[str] = []
    rows = []
    for name, one in measured.items():
        if "capacity" in name:
            continue
        theirs = capacity.get(one.variant.system.value, ())
        of_capacity = ratio(one.runs, theirs, in_peak(one.variant), their_value=rows_per_s)
        columns = [
            Column("rows/s in the peak", in_peak(one.variant)),
            Column("drained after, s", drained_after(one.variant), digits=1),
            Column("checkpoint p50, ms", checkpoint_ms(50)),
            Column("longest, ms", checkpoint_ms(100)),
            Column("failed", failed_checkpoints),
        ]
        table = figures_table("variant", [(one.variant.title, one.runs)], columns)
        rows.append(table[2] + f" {shown(of_capacity)} |")
        head = [table[0] + " of its capacity |", table[1] + " --- |"]
        if name.startswith("tidegate"):
            targets.append(
                Target(f"{one.variant.title}: at least 95 % of capacity in the peak", of_capacity, at_least(0.95))
            )
            targets.append(
                Target(
                    f"{one.variant.title}: no failed checkpoint",
                    spread(one.runs, failed_checkpoints),
                    at_most(0),
                    digits=0,
                )
            )
        if one.seen():
            series[one.variant.title] = _rates(one.seen()[0])
    shown_capacity = ", ".join(f"{name} {shown(spread(runs, rows_per_s), digits=0)}" for name, runs in capacity.items())
    lines = [
        *head,
        *rows,
        "",
        f"Capacity, overloaded all the time: {shown_capacity} rows/s.",
        "",
        *(target.line() for target in targets),
    ]
    return Section(lines, [Lines(title="Rows processed", across="s", unit="rows/s", series=series)])


def _rates(run: Observation) -> list[tuple[float, float]]:
    # Spark tells at the end of each batch only.
    every = [{"at_s": 0.0, "rows": 0.0}, *run.samples][:: 2 if len(run.samples) > _FEW_SAMPLES else 1]
    return [(b["at_s"], (b["rows"] - a["rows"]) / (b["at_s"] - a["at_s"])) for a, b in pairwise(every)]


ABOUT: Sequence[str] = (
    f"The slow operator with 1 ms per row and a load of {_QUIET:.0%} of {_NOMINAL_ROWS_PER_S:,} rows/s, ten times "
    f"as much for "
    "60 s (quick: 3 s), then as before; a checkpoint every 2 s. What the source could not give in the peak stays "
    "due. "
    "Drained: processed is what is due, but for a second's work. " + FLINK_AS_RUN,
)
BENCHMARK = Benchmark(
    name="peak",
    title="Peak",
    about=ABOUT,
    variants=variants,
    section=section,
)
