"""Checkpoints while an operator is far too slow for what arrives, in every mode of both systems."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Bars, Scale
from benchmarks.suite.both import SLOW_OPERATOR, of_both
from benchmarks.suite.checkpoint_modes import (
    ACTIVE,
    ALIGNED,
    ALIGNED_DEBLOAT,
    DEFAULTS,
    FLINK_AS_RUN,
    MODES,
    SWITCHING,
    UNALIGNED,
)
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    at_most,
    checkpoint_ms,
    completed_checkpoints,
    completed_ms,
    failed_checkpoints,
    inflight_bytes,
    ratio,
    rows_per_s,
    spread,
)

INTERVAL_MS = 2000
_DELAYS_US = (1_000, 10_000)
# Files in memory, where the system has a folder for that: nobody waits for a disk there.
_MEMORY = Path("/dev/shm")
_IN_MEMORY = "in-memory"
_QUICK_MODES = (ALIGNED, ALIGNED_DEBLOAT, UNALIGNED, SWITCHING)


def variants(size: Size) -> list[Variant]:
    """The quick form leaves out the longer delay, whose aligned checkpoint of 16 s needs its time, and Spark."""
    chosen = [(delay_us, mode) for delay_us in _DELAYS_US for mode in (*MODES, ACTIVE, DEFAULTS)]
    if size is Size.QUICK:
        chosen = [(_DELAYS_US[0], mode) for mode in _QUICK_MODES]
    both = [
        variant
        for delay_us, mode in chosen
        for variant in of_both(mode, _work(delay_us, size), what=_delay(delay_us), title=f"{delay_us // 1000} ms")
    ]
    if size is Size.QUICK:
        return both
    return both + _with_files_in_memory(both) + [_of_spark(delay_us, size) for delay_us in _DELAYS_US]


def _with_files_in_memory(variants: Sequence[Variant]) -> list[Variant]:
    """The unaligned ones once more: what is left when neither system waits for a disk, as Flink never does."""
    chosen = [one for one in variants if one.name.endswith(f"-{UNALIGNED.name}-{_delay(_DELAYS_US[0])}")]
    return [
        replace(one, name=f"{one.name}-{_IN_MEMORY}", title=f"{one.title}, files in memory", files_in=_MEMORY)
        for one in chosen
        if _MEMORY.is_dir()
    ]


def _of_spark(delay_us: int, size: Size) -> Variant:
    """Batches of as many rows as the operator takes in an interval: larger ones take longer still."""
    rows_per_batch = INTERVAL_MS * 1000 * SLOW_OPERATOR["slots"] // delay_us
    return Variant(
        name=_name("spark", "batches", delay_us),
        title=f"Spark, micro-batches of {rows_per_batch:,} rows, {delay_us // 1000} ms",
        system=System.SPARK,
        program="spark_pipeline",
        work={**_work(delay_us, size), "rows_per_batch": rows_per_batch, "interval_ms": 0},
    )


def _work(delay_us: int, size: Size) -> dict[str, object]:
    return {
        **SLOW_OPERATOR,
        "delay_us": delay_us,
        "interval_ms": INTERVAL_MS,
        # Queues are full when the first checkpoint that counts begins.
        "warm_up_s": 5 if size is Size.FULL else 2,
        "measure_s": 90 if size is Size.FULL else 9,
    }


def _name(system: str, mode: str, delay_us: int) -> str:
    return f"{system}-{mode}-{_delay(delay_us)}"


def _delay(delay_us: int) -> str:
    return f"{delay_us // 1000}ms"


def section(measured: Measurements) -> Section:
    columns = [
        Column("checkpoint p50, ms", checkpoint_ms(50)),
        Column("p95, ms", checkpoint_ms(95)),
        Column("longest, ms", checkpoint_ms(100)),
        Column("written in flight, KB", inflight_bytes, digits=1, scale=1e-3),
        Column("rows/s", rows_per_s),
        Column("completed", completed_checkpoints),
        Column("failed", failed_checkpoints),
    ]
    lines = by_variant(measured, columns)
    lines += below_table(_targets(measured))
    return Section(lines, _plots(measured))


def _targets(measured: Measurements) -> list[Target]:
    found: list[Target] = []
    for delay_us in _DELAYS_US:
        delay = f"{delay_us // 1000} ms"
        for mode, where, percent in (
            ("unaligned", "", 50),
            ("unaligned", "", 95),
            ("unaligned", f"-{_IN_MEMORY}", 50),
            ("unaligned", f"-{_IN_MEMORY}", 95),
            ("aligned", "", 50),
        ):
            ours, theirs = (measured.get(_name(system, mode, delay_us) + where) for system in ("tidegate", "flink"))
            if ours is not None and theirs is not None:
                seen = ratio(ours.runs, theirs.runs, completed_ms(percent))
                files = ", files in memory" if where else ""
                what = f"{mode}, {delay}{files}: p{percent} no longer than Flink's (ratio to Flink's at most 1)"
                found.append(Target(what, seen, at_most(1.0)))
        for mode, most_ms, what in (
            ("aligned-debloat", 950.0, "aligned with debloating not above 950 ms"),
            ("switching", 1000.0, "switching does not wait the full second (Flink: always 1.04 s)"),
        ):
            one = measured.get(_name("tidegate", mode, delay_us))
            if one is not None:
                seen = spread(one.runs, completed_ms(50))
                found.append(Target(f"{delay}: {what}, p50 in ms", seen, at_most(most_ms), digits=0))
    return found


def _plots(measured: Measurements) -> list[Bars]:
    plots = []
    for percent in (50, 95):
        for delay_us in _DELAYS_US:
            values: dict[str, dict[str, float | None]] = {}
            for mode in (*MODES, ACTIVE, DEFAULTS):
                for system in ("tidegate", "flink"):
                    one = measured.get(_name(system, mode.name, delay_us))
                    if one is not None and (seen := spread(one.runs, checkpoint_ms(percent))) is not None:
                        values.setdefault(mode.title.replace(", ", ",\n").replace(" (", "\n("), {})[
                            system.capitalize()
                        ] = seen.median
            if values:
                title = f"Checkpoint time, {delay_us // 1000} ms per row, p{percent}"
                plots.append(Bars(title=title, unit="ms", values=values, scale=Scale.LOGARITHMIC))
    return plots


ABOUT: Sequence[str] = (
    "Generated rows of 200 bytes, a map, a shuffle, a keyed operator that sleeps 1 or 10 ms at each row "
    "(`time.sleep` in "
    "Python, `LockSupport.parkNanos` in Java), a shuffle, a count, no output; a checkpoint every 2 s, exactly "
    "once, two slots. " + FLINK_AS_RUN,
    "",
    "Tidegate's checkpoints survive a power cut (`fsync` of each file and its folder), Flink's local files do not: it "
    "leaves them to the system's cache. So the unaligned mode is shown with files in memory as well, where both are "
    "the same.",
    "",
    "Tidegate without active backpressure except where it is named. Spark takes batches of as many rows as the "
    "operator "
    "can take in 2 s and no second stateful operator, which it refuses behind one that updates: its checkpoint "
    "is a batch.",
)

BENCHMARK = Benchmark(
    name="slow-operator",
    title="Slow operator",
    about=ABOUT,
    variants=variants,
    section=section,
)
