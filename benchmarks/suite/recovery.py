"""From a failure to the first row and to the next checkpoint, with little and with much in flight."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.plots import Bars
from benchmarks.processes import Observation
from benchmarks.suite.both import SLOW_OPERATOR, of_both
from benchmarks.suite.checkpoint_modes import FLINK_AS_RUN, UNALIGNED, UNALIGNED_DEBLOAT
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import Column, Section, Target, at_most, completed, inflight_bytes, median_of, ratio

# Of four channels between two slots; Flink's gates have twelve buffers each. Windows share `network.memory` with those
# behind the operator, and its default would leave them 16 MiB each.
_SIZES = {
    "1mb": ("1 MB in flight", {"tidegate.network.window": "256KiB", "flink.taskmanager.memory.segment-size": "32kb"}),
    "100mb": (
        "100 MB in flight",
        {
            "tidegate.network.window": "25MiB",
            "tidegate.network.memory": "128MiB",
            "flink.taskmanager.memory.segment-size": "4mb",
            "network_mib": 512,
        },
    ),
}
_STRIKES = {"operator": "operator fails", "worker": "worker killed"}

_QUICK = {
    ("operator", "100mb", UNALIGNED.name),
    ("worker", "1mb", UNALIGNED_DEBLOAT.name),
}


def variants(size: Size) -> list[Variant]:
    times = (
        {"warm_up_s": 8, "measure_s": 25, "fail_at_s": 4}
        if size is Size.FULL
        else {"warm_up_s": 3, "measure_s": 7, "fail_at_s": 2.5}
    )
    found = []
    for strike, strike_title in _STRIKES.items():
        for amount, (amount_title, windows) in _SIZES.items():
            for mode in (UNALIGNED, UNALIGNED_DEBLOAT):
                if size is Size.QUICK and (strike, amount, mode.name) not in _QUICK:
                    continue
                work = {
                    **SLOW_OPERATOR,
                    "row_bytes": 2000,
                    "interval_ms": 1000,
                    "restarts": 3,
                    "fail": strike,
                    **times,
                    **windows,
                }
                found += of_both(mode, work, what=f"{strike}-{amount}", title=f"{strike_title}, {amount_title}")
    return found


def to_first_row_s(run: Observation) -> float | None:
    failed, first = run.figures.get("failed_at_s", -1), run.figures.get("first_row_at_s", -1)
    return first - failed if 0 <= failed < first else None


def to_next_checkpoint_s(run: Observation) -> float | None:
    """The first that was triggered after the failure and completed."""
    failed = run.figures.get("failed_at_s", -1)
    ends = [one.at_s + one.ms / 1000 for one in run.checkpoints if one.status == "completed" and one.at_s > failed >= 0]
    return min(ends) - failed if ends else None


def captured_bytes(run: Observation) -> float | None:
    """The most that a checkpoint before the failure had in flight."""
    failed = run.figures.get("failed_at_s", -1)
    return max((one.inflight_bytes for one in completed(run) if one.at_s < failed), default=None)


def section(measured: Measurements) -> Section:
    columns = [
        Column("to the first row, s", to_first_row_s, digits=2),
        Column("to the next checkpoint, s", to_next_checkpoint_s, digits=2),
        Column("captured in flight, MB", captured_bytes, digits=1, scale=1e-6),
        Column("written in flight, MB", inflight_bytes, digits=1, scale=1e-6),
    ]
    lines = by_variant(measured, columns)
    targets, values = [], {}
    for name, one in measured.items():
        theirs = measured.get(name.replace("tidegate", "flink"))
        if not name.startswith("tidegate") or theirs is None:
            continue
        what = one.variant.title.removeprefix("Tidegate, ")
        seen = ratio(one.runs, theirs.runs, to_first_row_s)
        targets.append(Target(f"{what}: to the first row no longer than Flink (ratio at most 1)", seen, at_most(1)))
        values[what.replace(", ", ",\n")] = {
            system: median_of(runs, to_first_row_s) for system, runs in (("Tidegate", one.runs), ("Flink", theirs.runs))
        }
    plots = [Bars(title="From the failure to the first row", unit="s", values=values)] if values else []
    return Section([*lines, *below_table(targets)], plots)


ABOUT: Sequence[str] = (
    "The slow operator with 1 ms per row of 2,000 bytes, unaligned, a checkpoint every second, restart without "
    "delay. The "
    "operator raises once; or a slot's process is killed (Tidegate: `kill -9` of a Python worker), or the task "
    "manager is "
    "ended and started again in the same, warm JVM (Flink: `MiniCluster.terminateTaskManager`). `recovery.py` "
    "measures the "
    "parts of Tidegate's time. In flight: by windows of 256 KiB and 25 MiB; Flink by buffers of 32 KiB and 4 MiB. "
    + FLINK_AS_RUN,
)
BENCHMARK = Benchmark(name="recovery", title="Recovery", about=ABOUT, variants=variants, section=section)
