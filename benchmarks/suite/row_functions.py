"""A Python function per row, and a Python function with keyed state."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Bars, Scale
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    at_least,
    checkpoint_ms,
    median_of,
    ratio,
    rows_per_cpu_s,
    rows_per_s,
)

_KINDS = {"function": "a function per row", "state": "keyed state per row"}
_SYSTEMS = {
    "tidegate": ("Tidegate", System.TIDEGATE, "tidegate_totals", {}),
    "pyflink": ("PyFlink", System.PYFLINK, "pyflink_rows", {}),
    "spark": ("Spark", System.SPARK, "spark_totals", {"rows_per_batch": 100_000}),
}


def variants(size: Size) -> list[Variant]:
    times = {"warm_up_s": 8, "measure_s": 20} if size is Size.FULL else {"warm_up_s": 2, "measure_s": 4}
    return [
        Variant(
            name=f"{name}-{kind}",
            title=f"{title}, {what}",
            system=system,
            program=program,
            work={"slots": 2, "interval_ms": 1000, "keys": 10_000, "kind": kind, **times, **more},
        )
        for kind, what in _KINDS.items()
        if size is Size.FULL or kind == "state"
        for name, (title, system, program, more) in _SYSTEMS.items()
    ]


def section(measured: Measurements) -> Section:
    columns = [
        Column("rows/s", rows_per_s),
        Column("rows per CPU second", rows_per_cpu_s),
        Column("checkpoint p50, ms", checkpoint_ms(50)),
    ]
    lines = by_variant(measured, columns)
    targets, values = [], {}
    for kind, what in _KINDS.items():
        ours = measured.get(f"tidegate-{kind}")
        for name, (title, *_) in _SYSTEMS.items():
            one = measured.get(f"{name}-{kind}")
            if one is None:
                continue
            values.setdefault(what, {})[title] = median_of(one.runs, rows_per_s)
            if ours is not None and name != "tidegate":
                aim, is_reached = (", at least 20", at_least(20)) if name == "pyflink" else ("", None)
                targets.append(
                    Target(f"{what}: rows/s over {title}{aim}", ratio(ours.runs, one.runs, rows_per_s), is_reached)
                )
    plots = [Bars(title="Rows per second", unit="rows/s", values=values, scale=Scale.LOGARITHMIC)] if values else []
    return Section([*lines, *below_table(targets)], plots)


ABOUT: Sequence[str] = (
    "10,000 long keys, two slots, a checkpoint every second. A function per row: `F.udf` on a long, then a "
    "shuffle, count and "
    "sum (PyFlink: a `MapFunction`, then a count per key by a `KeyedProcessFunction`, since there are no "
    "built-in ones). Keyed "
    "state: `transformWithState` that counts and gives a row for each row (PyFlink: a `KeyedProcessFunction`). "
    "PyFlink runs "
    "its Python workers as processes with its default bundles. Spark takes batches of 100,000 rows.",
)
BENCHMARK = Benchmark(name="row-functions", title="Row functions", about=ABOUT, variants=variants, section=section)
