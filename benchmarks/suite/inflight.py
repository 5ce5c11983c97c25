"""What a checkpoint writes of the rows in flight, under steady backpressure: at first, and the tenth time."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, Variant
from benchmarks.plots import Bars
from benchmarks.processes import Observation
from benchmarks.suite.both import SLOW_OPERATOR, of_both
from benchmarks.suite.checkpoint_modes import FLINK_AS_RUN, UNALIGNED, UNALIGNED_DEBLOAT, Mode
from benchmarks.suite.figures import below_table, by_variant
from benchmarks.tables import (
    Column,
    Section,
    Target,
    Value,
    at_most,
    checkpoint_ms,
    completed,
    completed_checkpoints,
    median_of,
    ratio,
    spread,
)

_TENTH = 10


def variants(size: Size) -> list[Variant]:
    interval_ms = 2000 if size is Size.FULL else 500
    work = {
        **SLOW_OPERATOR,
        "delay_us": 10_000,
        "interval_ms": interval_ms,
        # The first checkpoint is the first of the job.
        "warm_up_s": 0,
        "measure_s": interval_ms / 1000 * (_TENTH + 2) + 1,
    }
    modes = (UNALIGNED, UNALIGNED_DEBLOAT) if size is Size.FULL else (UNALIGNED,)
    return [variant for mode in modes for variant in of_both(mode, work)]


def written(number: int) -> Value:
    return lambda run: completed(run)[number - 1].new_inflight_bytes if len(completed(run)) >= number else None


def captured(number: int) -> Value:
    return lambda run: completed(run)[number - 1].inflight_bytes if len(completed(run)) >= number else None


def written_share(run: Observation) -> float | None:
    """Of the tenth checkpoint: what it wrote over what a restore would read."""
    whole, new = captured(_TENTH)(run), written(_TENTH)(run)
    return new / whole if whole and new is not None else None


def written_share_since(run: Observation) -> float | None:
    """Of the second to the tenth together: senders fill up in lumps, which one checkpoint writes and others do not."""
    later = completed(run)[1:_TENTH]
    whole = sum(one.inflight_bytes for one in later)
    return sum(one.new_inflight_bytes for one in later) / whole if whole else None


def section(measured: Measurements) -> Section:
    columns = [
        Column("first, KB written", written(1), digits=1, scale=1e-3),
        Column("tenth, KB written", written(_TENTH), digits=1, scale=1e-3),
        Column("tenth, KB captured", captured(_TENTH), digits=1, scale=1e-3),
        Column("written / captured", written_share, digits=2),
        Column("the same, second to tenth", written_share_since, digits=2),
        Column("checkpoint p50, ms", checkpoint_ms(50)),
        Column("completed", completed_checkpoints),
    ]
    lines = by_variant(measured, columns)
    targets = _targets(measured)
    values = {
        one.variant.title.replace(", ", ",\n"): {
            which: median_of(one.runs, value, scale=1e-3)
            for which, value in (("first", written(1)), ("tenth", written(_TENTH)))
        }
        for one in measured.values()
    }
    return Section(
        [*lines, *below_table(targets)],
        [Bars(title="Written in flight", unit="KB", values=values)],
    )


def _targets(measured: Measurements) -> list[Target]:
    """With debloating nothing is in flight for as long as an interval: all of it is new, and little."""
    found: list[Target] = []
    whole = measured.get(_name(UNALIGNED))
    if whole is not None:
        found = [
            Target(
                f"{whole.variant.title}: {which} at most a quarter of a full capture",
                spread(whole.runs, share),
                at_most(0.25),
            )
            for which, share in (
                ("the tenth writes", written_share),
                ("the second to the tenth write", written_share_since),
            )
        ]
    debloated = measured.get(_name(UNALIGNED_DEBLOAT))
    if whole is not None and debloated is not None:
        seen = ratio(debloated.runs, whole.runs, written(_TENTH), their_value=captured(_TENTH))
        found.append(
            Target(
                f"{debloated.variant.title}: the tenth writes at most a quarter of a full capture without debloating",
                seen,
                at_most(0.25),
            )
        )
    return found


def _name(mode: Mode) -> str:
    return f"tidegate-{mode.name}"


ABOUT: Sequence[str] = (
    "The slow operator with 10 ms per row, unaligned, a checkpoint every 2 s (quick: 0.5 s). Captured is what a "
    "restore "
    "would read; written is what this checkpoint had to add to the store. " + FLINK_AS_RUN,
)
BENCHMARK = Benchmark(name="in-flight", title="In-flight size", about=ABOUT, variants=variants, section=section)
