"""`make bench`: Tidegate's throughput beside Flink's DataStream and Spark's micro-batches, on the same work, in turns.

Generated rows, a shuffle by key, count and sum per key, no output; a checkpoint every second, exactly once. Before
anything is measured, every system gives its results of the same rows, which must be equal.
"""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.flink.environment import FLINK_VERSION, ROOT, CannotPrepare, Flink, prepare
from benchmarks.results import Failure, Measured, page
from benchmarks.runs import FOLDER, Results, Run, RunFailed, check, measure

SLOTS = 2
CHECK_ROWS = 1_500_007
RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
OURS = "tidegate"
# Of others, before the first run: about what this benchmark itself leaves behind for a minute.
BUSY_LOAD = 3.0
# What a process may take beyond its warm-up and measurement: to start, to stop, on a machine that others use as well.
LEEWAY_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    key_type: str
    keys: int
    title: str


@dataclass(frozen=True, slots=True)
class Length:
    warm_up_s: float
    measure_s: float
    repetitions: int


CASES = {
    "long-10k": Case("long", 10_000, "10,000 long keys"),
    "long-1m": Case("long", 1_000_000, "1,000,000 long keys"),
    "string-10k": Case("string", 10_000, "10,000 string keys"),
    "string-1m": Case("string", 1_000_000, "1,000,000 string keys"),
}
FULL = Length(warm_up_s=6.0, measure_s=12.0, repetitions=3)
QUICK = Length(warm_up_s=4.0, measure_s=5.0, repetitions=3)
SYSTEMS = {
    OURS: "Tidegate",
    "flink": "Flink DataStream, heap state",
    "spark-2m": "Spark, 2 M rows per batch",
    "spark-10m": "Spark, 10 M rows per batch",
}
QUICK_SYSTEMS = (OURS, "flink")
ROWS_PER_BATCH = {"spark-2m": 2_000_000, "spark-10m": 10_000_000}


@dataclass(frozen=True, slots=True)
class Work:
    """What a command is to do: measure so long, or give the results of so many rows."""

    case: Case
    length: Length
    check_rows: int | None


Command = Callable[[Work], list[str]]


def main() -> None:
    given = _arguments()
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    length = QUICK if given.quick else FULL
    chosen = given.systems or (QUICK_SYSTEMS if given.quick else tuple(SYSTEMS))
    cases = given.only or tuple(CASES)
    try:
        flink = prepare() if "flink" in chosen else None
    except CannotPrepare as problem:
        raise SystemExit(str(problem)) from None
    commands = {system: _command(system, flink) for system in SYSTEMS if system in chosen}
    for name in cases:
        if not given.unchecked:
            _check(name, commands, length)
    if os.getloadavg()[0] > BUSY_LOAD:
        print(
            f"The machine is busy (load {os.getloadavg()[0]:.1f}): compare ratios only, and run again when it is quiet."
        )
    measured = [one for name in cases for one in _measure(name, commands, length)]
    facts = _facts(length, flink)
    shown_systems = {system: SYSTEMS[system] for system in commands}
    shown_cases = {name: CASES[name].title for name in cases}
    text = page(measured, ours=OURS, cases=shown_cases, systems=shown_systems, facts=facts)
    print("\n" + text)
    if set(cases) == set(CASES) and set(QUICK_SYSTEMS) <= set(commands):
        RESULTS.write_text(text, encoding="utf-8")
        print(f"written: {RESULTS.relative_to(ROOT)}")
    if any(one.failures() for one in measured):
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, without Spark's micro-batches")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="this work only; RESULTS.md is left as it is")
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), help="these systems only")
    parser.add_argument("--unchecked", action="store_true", help="measure without comparing results first")
    return parser.parse_args()


def _check(name: str, commands: dict[str, Command], length: Length) -> None:
    """All systems must find the same in the same rows, or their speeds say nothing."""
    found: dict[str, Results] = {}
    for system, command in commands.items():
        if ROWS_PER_BATCH.get(system, 0) > min(ROWS_PER_BATCH.values()):
            continue  # the same program as with smaller batches
        try:
            found[system] = check(
                command(Work(CASES[name], length, CHECK_ROWS)), cores=SLOTS, timeout_s=LEEWAY_S
            )  # fmt: skip
        except RunFailed as failure:
            raise SystemExit(f"{name}: {system} gave no results: {failure}") from None
        print(f"{name:11} {system:10} {found[system].rows:,} rows in {found[system].groups:,} groups", flush=True)
    if len(set(found.values())) > 1 or any(results.rows != CHECK_ROWS for results in found.values()):
        raise SystemExit(f"{name}: the results differ, so nothing was measured: {found}")


def _measure(name: str, commands: dict[str, Command], length: Length) -> list[Measured]:
    runs: dict[str, list[Run | Failure]] = {system: [] for system in commands}
    for repetition in range(length.repetitions):
        for system, command in commands.items():
            runs[system].append(_run(command(Work(CASES[name], length, None)), length))
            print(f"{name:11} {system:10} {repetition + 1}/{length.repetitions}  {_said(runs[system][-1])}", flush=True)
    return [Measured(name, system, tuple(of_system)) for system, of_system in runs.items()]


def _run(command: Sequence[str], length: Length) -> Run | Failure:
    timeout_s = length.warm_up_s + length.measure_s + LEEWAY_S
    try:
        return measure(command, cores=SLOTS, timeout_s=timeout_s)
    except RunFailed as failure:
        return str(failure)


def _said(run: Run | Failure) -> str:
    if not isinstance(run, Run):
        return f"failed: {run}"
    per_cpu = "" if run.cpu_s is None else f", {run.rows / run.cpu_s / 1e6:.2f} M per CPU second"
    return f"{run.rows / run.seconds / 1e6:.2f} M rows/s{per_cpu}, load {run.load_before:.1f}"


def _command(system: str, flink: Flink | None) -> Command:
    if flink is not None and system == "flink":
        return partial(_flink_command, flink)
    if system == OURS:
        return partial(_python_command, "tidegate_totals", 0)
    return partial(_python_command, "spark_totals", ROWS_PER_BATCH[system])


def _flink_command(flink: Flink, work: Work) -> list[str]:
    case, length = work.case, work.length
    job = [case.key_type, str(case.keys), str(SLOTS), FOLDER]
    if work.check_rows is not None:
        return flink.command(*job, "check", str(work.check_rows), folder=FOLDER)
    return flink.command(*job, "measure", str(length.warm_up_s), str(length.measure_s), folder=FOLDER)


def _python_command(module: str, rows_per_batch: int, work: Work) -> list[str]:
    case, length = work.case, work.length
    command = [sys.executable, "-m", f"benchmarks.systems.{module}", "--folder", FOLDER, "--slots", str(SLOTS)]
    command += ["--key-type", case.key_type, "--keys", str(case.keys), "--rows-per-batch", str(rows_per_batch)]
    if work.check_rows is not None:
        return [*command, "--check-rows", str(work.check_rows)]
    return [*command, "--warm-up-s", str(length.warm_up_s), "--measure-s", str(length.measure_s)]


def _facts(length: Length, flink: Flink | None) -> list[str]:
    """Of the machine what matters, nothing that tells whose it is."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("tidegate", "pyspark", "pyarrow", "numpy"))
    java = "" if flink is None else f", Flink {FLINK_VERSION}, Java {flink.java_version}"
    return [
        f"{datetime.now(UTC):%Y-%m-%d}, {_processor()}, {os.cpu_count()} cores of which {SLOTS} were used, "
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}, {packages}{java}",
        f"{length.repetitions} repetitions in turns, each {length.warm_up_s:.0f} s of warm-up and "
        f"{length.measure_s:.0f} s of measurement in a process of its own",
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
