"""How throughput and checkpoint time change with slots, with keys and with state."""

from collections.abc import Sequence

from benchmarks.benchmark import Benchmark, Measurements, Size, System, Variant
from benchmarks.plots import Bars
from benchmarks.processes import Observation
from benchmarks.suite.figures import CHECKPOINT_TIMES, RATES, by_variant
from benchmarks.tables import Column, Section, checkpoint_ms, completed, median_of, most_workers_bytes, rows_per_s

_SLOTS = {Size.FULL: (1, 2, 4, 8), Size.QUICK: (4,)}
_KEYS = {Size.FULL: (1_000, 10_000, 100_000, 1_000_000), Size.QUICK: ()}
# What a group of a count and a sum takes in a checkpoint, about.
_BYTES_PER_KEY = 32
_STATE_MB = {Size.FULL: (10, 100, 1000), Size.QUICK: ()}


def variants(size: Size) -> list[Variant]:
    times: dict[str, object] = (
        {"warm_up_s": 6, "measure_s": 12} if size is Size.FULL else {"warm_up_s": 3, "measure_s": 4}
    )
    by_slots = [
        _variant(f"slots-{slots}", f"{slots} slots", {**times, "slots": slots, "keys": 10_000})
        for slots in _SLOTS[size]
    ]
    by_keys = [_variant(f"keys-{keys}", f"{keys:,} keys", {**times, "slots": 2, "keys": keys}) for keys in _KEYS[size]]
    by_state = [
        _variant(
            f"state-{megabytes}",
            f"{megabytes:,} MB of state",
            {
                **times,
                "slots": 2,
                "keys": megabytes * 1_000_000 // _BYTES_PER_KEY,
                # All groups are there when it begins.
                "warm_up_s": float(str(times["warm_up_s"])) + megabytes / 25,
            },
        )
        for megabytes in _STATE_MB[size]
    ]
    return by_slots + by_keys + by_state


def _variant(name: str, title: str, work: dict[str, object]) -> Variant:
    work = {"key_type": "long", "interval_ms": 1000, **work}
    return Variant(name=name, title=title, system=System.TIDEGATE, program="tidegate_totals", work=work)


def state_bytes(run: Observation) -> float | None:
    return completed(run)[-1].state_bytes if completed(run) else None


def section(measured: Measurements) -> Section:
    columns = [
        *RATES,
        *CHECKPOINT_TIMES,
        Column("state, MB", state_bytes, digits=1, scale=1e-6),
        Column("workers' memory, MB", most_workers_bytes, scale=1e-6),
    ]
    lines = by_variant(measured, columns)
    rates, times = (
        {
            one.variant.title.replace(" ", "\n", 1): {"Tidegate": median_of(one.runs, value, scale=scale)}
            for one in measured.values()
        }
        for value, scale in ((rows_per_s, 1e-6), (checkpoint_ms(50), 1.0))
    )
    return Section(lines, [
        Bars(title="Throughput", unit="M rows/s", values=rates),
        Bars(title="Checkpoint time, p50", unit="ms", values=times),
    ])  # fmt: skip


ABOUT: Sequence[str] = (
    "The aggregation of the throughput benchmark, Tidegate alone, a checkpoint every second: with 1, 2, 4 and 8 "
    "slots (10,000 "
    "keys; more slots than cores share them), with 1,000 to 1,000,000 keys, and with 10 MB to 1 GB of state "
    "(quick: fewer).",
)
BENCHMARK = Benchmark(
    name="growth",
    title="Growth",
    about=ABOUT,
    variants=variants,
    section=section,
)
