"""How often checkpoints can be taken before the stream notices."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Lines
from benchmarks.processes import Observation
from benchmarks.suite.figures import RATES, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Spread,
    Target,
    at_most,
    checkpoint_ms,
    completed_checkpoints,
    ratio,
    rows_per_s,
    spread_of,
)

_NEVER_MS = 3_600_000
_INTERVALS_MS = {Size.FULL: (1000, 300, 100, 50, 20, 10), Size.QUICK: (100,)}
_SYSTEMS = {"tidegate": (System.TIDEGATE, "tidegate_totals"), "flink": (System.FLINK, "KeyedTotals")}
_MOST_LOSS = 0.10


def variants(size: Size) -> list[Variant]:
    times = {"warm_up_s": 5, "measure_s": 10} if size is Size.FULL else {"warm_up_s": 2, "measure_s": 4}
    return [
        Variant(
            name=f"{name}-{interval_ms}",
            title=f"{name.capitalize()}, "
            + ("no checkpoint" if interval_ms == _NEVER_MS else f"every {interval_ms} ms"),
            system=system,
            program=program,
            work={"slots": 2, "key_type": "long", "keys": 10_000, "interval_ms": interval_ms, **times},
        )
        for interval_ms in (_NEVER_MS, *_INTERVALS_MS[size])
        for name, (system, program) in _SYSTEMS.items()
    ]


def checkpoints_per_s(run: Observation) -> float:
    return completed_checkpoints(run) / run.seconds


def section(measured: Measurements) -> Section:
    columns = [
        *RATES,
        Column("checkpoints per s", checkpoints_per_s, digits=1),
        Column("p50, ms", checkpoint_ms(50)),
        Column("p95, ms", checkpoint_ms(95)),
    ]
    lines = by_variant(measured, columns)
    said, targets, series = [], [], {}
    for name in _SYSTEMS:
        losses = _losses(measured, name)
        series[name.capitalize()] = [(interval_ms, 100 * loss.median) for interval_ms, loss in sorted(losses.items())]
        held = [interval_ms for interval_ms, loss in losses.items() if loss.median < _MOST_LOSS]
        shortest = f"{min(held)} ms" if held else "none of these"
        said.append(f"- {name.capitalize()}: the shortest interval with less than 10 % loss of throughput: {shortest}")
        if name == "tidegate" and 1000 in losses:
            targets.append(
                Target(
                    "a checkpoint every second costs below 3 % of throughput (share lost)", losses[1000], at_most(0.03)
                )
            )
    plot = Lines(title="Loss of throughput by interval", across="interval, ms", unit="%", series=series)
    return Section([*lines, "", *said, *(target.line() for target in targets)], [plot])


def _losses(measured: Measurements, name: str) -> dict[int, Spread]:
    never = measured.get(f"{name}-{_NEVER_MS}")
    found = {}
    for one in measured.values():
        system, _, interval = one.variant.name.rpartition("-")
        if never is None or system != name or int(interval) == _NEVER_MS:
            continue
        kept = ratio(one.runs, never.runs, rows_per_s)
        if kept is not None and (lost := spread_of([1 - kept.median, 1 - kept.least, 1 - kept.most])) is not None:
            found[int(interval)] = lost
    return found


ABOUT: Sequence[str] = (
    "The aggregation of the throughput benchmark (10,000 long keys) without checkpoints and with one every 1000 "
    "ms down to "
    "10 ms (quick: 100); the loss is against the same repetition's run without.",
)
BENCHMARK = Benchmark(
    name="shortest-interval", title="Shortest interval", about=ABOUT, variants=variants, section=section
)
