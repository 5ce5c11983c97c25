"""`make bench`: Tidegate beside Flink and Spark, each benchmark by name, each system on the same work, in turns.

One repetition runs every variant once, each in a process of its own. Writes RESULTS.md section by section as soon as a
benchmark is done, its raw numbers and its plots below `results/`; with `--add` together with what is there already.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.benchmark import Benchmark, Failure, Measured, Size, System, Variant
from benchmarks.flink.environment import CannotPrepare
from benchmarks.machine import Machine
from benchmarks.page import RESULTS, write_section
from benchmarks.processes import Observation, RunFailed, observe
from benchmarks.programs import Programs
from benchmarks.stored import CannotAdd, Stored, added, check_alike, read, stored_at
from benchmarks.suite import BENCHMARKS
from benchmarks.tables import completed_checkpoints, rows_per_s

CORES = 2
# Of others, before the first run: about what this benchmark itself leaves behind for a minute.
BUSY_LOAD = 3.0
# What a process may take beyond its warm-up and measurement: to start, to stop, on a machine that others use as well.
LEEWAY_S = 240.0


def main() -> None:
    given = _arguments()
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    size = Size.QUICK if given.quick else Size.FULL
    chosen = [BENCHMARKS[name] for name in given.only or BENCHMARKS]
    if given.rewrite:
        _rewrite(chosen)
        return
    if os.getloadavg()[0] > BUSY_LOAD:
        print(
            f"The machine is busy (load {os.getloadavg()[0]:.1f}): compare ratios only, and run again when it is quiet."
        )
    programs = Programs()
    has_failed = False
    try:
        stored = _stored(chosen, programs, size, given) if given.add else {}
        for number, benchmark in enumerate(chosen, 1):
            print(f"\n[{number}/{len(chosen)}] {benchmark.title}", flush=True)
            if not benchmark.variants(size):
                print("  only in the full form", flush=True)
                continue
            measured = _measure(benchmark, programs, size, given)
            has_failed |= any(one.failures() for one in measured)
            _report(benchmark, measured, stored.get(benchmark.name), programs, size, given)
    except (CannotPrepare, CannotAdd) as problem:
        raise SystemExit(str(problem)) from None
    if has_failed:
        sys.exit(1)


def _rewrite(benchmarks: Sequence[Benchmark]) -> None:
    for benchmark in benchmarks:
        stored = read(stored_at(RESULTS, benchmark.name))
        if stored is None:
            continue
        every = benchmark.variants(stored.size)
        try:
            check_alike(stored, every, size=stored.size, machine=stored.machines[0])
        except CannotAdd as problem:
            raise SystemExit(str(problem)) from None
        measured, machines = added(stored, every, [], stored.machines[0])
        ran = {one.variant.name for one in measured}
        left_out = [one for one in every if one.name not in ran]
        write_section(
            benchmark, measured, size=stored.size, machines=machines, write=True, left_out=left_out, page=RESULTS
        )
        print(f"written: {RESULTS.name}, section {benchmark.name!r}", flush=True)


def _chosen(benchmark: Benchmark, size: Size, given: argparse.Namespace) -> list[Variant]:
    systems = {System(name) for name in given.systems} if given.systems else set(System)
    variants = [one for one in benchmark.variants(size) if one.system in systems]
    variants = [one for one in variants if not given.variants or any(part in one.name for part in given.variants)]
    if given.measure_s:
        variants = [replace(one, work={**one.work, "measure_s": given.measure_s}) for one in variants]
    return variants


def _stored(
    benchmarks: Sequence[Benchmark], programs: Programs, size: Size, given: argparse.Namespace
) -> dict[str, Stored]:
    """Of all of them, before anything is measured: a run of hours must not end in a refusal."""
    programs.prepare({variant.system for one in benchmarks for variant in _chosen(one, size, given)})
    found = {}
    for benchmark in benchmarks:
        every = benchmark.variants(size)
        if every and (stored := read(stored_at(RESULTS, benchmark.name))) is not None:
            check_alike(stored, every, size=size, machine=_machine(programs))
            found[benchmark.name] = stored
    return found


def _measure(benchmark: Benchmark, programs: Programs, size: Size, given: argparse.Namespace) -> list[Measured]:
    variants = _chosen(benchmark, size, given)
    programs.prepare({variant.system for variant in variants})
    if benchmark.check is not None and not given.unchecked:
        benchmark.check(variants, programs.command)
    repetitions = given.repetitions or (1 if given.add else benchmark.repetitions[size])
    return _in_turns(benchmark, variants, programs, repetitions)


def _report(
    benchmark: Benchmark,
    measured: Sequence[Measured],
    stored: Stored | None,
    programs: Programs,
    size: Size,
    given: argparse.Namespace,
) -> None:
    every, machine = benchmark.variants(size), _machine(programs)
    machines = [machine] * max((one.repetitions for one in measured), default=1)
    if stored is not None:
        measured, machines = added(stored, every, measured, machine)
    ran = {one.variant.name for one in measured}
    left_out = [one for one in every if one.name not in ran]
    is_written = not given.measure_s and (given.add or given.write_part or not left_out)
    text = write_section(
        benchmark, measured, size=size, machines=machines, write=is_written, left_out=left_out, page=RESULTS
    )
    print("\n" + text, flush=True)
    if is_written:
        print(f"written: {RESULTS.name}, section {benchmark.name!r}", flush=True)


def _machine(programs: Programs) -> Machine:
    return Machine.now(cores=CORES, java_version=programs.java_version)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, once each: all of it below 15 minutes")
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), help="these benchmarks only, by name")
    parser.add_argument(
        "--systems", nargs="*", choices=[one.value for one in System], help="these systems only; RESULTS.md stays"
    )
    parser.add_argument(
        "--variants", nargs="*", help="only variants whose name contains one of these; RESULTS.md stays"
    )
    parser.add_argument(
        "--write-part", action="store_true", help="with --systems or --variants: RESULTS.md all the same, which says so"
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="add one repetition, or --repetitions, to what is stored in results/, and write RESULTS.md of all of them",
    )
    parser.add_argument(
        "--rewrite", action="store_true", help="measure nothing: write RESULTS.md anew from what is stored in results/"
    )
    parser.add_argument("--repetitions", type=int, help="so many instead of the benchmark's own number")
    parser.add_argument("--measure-s", type=float, help="so long instead of the variant's own time; RESULTS.md stays")
    parser.add_argument("--unchecked", action="store_true", help="measure without comparing results first")
    given = parser.parse_args()
    if given.add and given.measure_s:
        parser.error("--add needs the variants' own time: leave out --measure-s")
    return given


def _in_turns(
    benchmark: Benchmark, variants: Sequence[Variant], programs: Programs, repetitions: int
) -> list[Measured]:
    runs: dict[str, list[Observation | Failure]] = {variant.name: [] for variant in variants}
    left_s = repetitions * sum(variant.expected_s for variant in variants)
    for repetition in range(repetitions):
        for variant in variants:
            began_s = time.monotonic()
            seen = _run(variant, programs)
            runs[variant.name].append(seen)
            left_s -= variant.expected_s
            print(
                f"  {benchmark.name} {repetition + 1}/{repetitions} {variant.name:32} {_said(seen)}"
                f" ({time.monotonic() - began_s:.0f} s; about {left_s / 60:.0f} min left)",
                flush=True,
            )
    return [Measured(variant, tuple(runs[variant.name])) for variant in variants]


def _run(variant: Variant, programs: Programs) -> Observation | Failure:
    try:
        return observe(
            programs.command(variant),
            cores=CORES,
            timeout_s=variant.expected_s + LEEWAY_S,
            extra_environment=variant.environment,
            files_in=variant.files_in,
        )
    except RunFailed as failure:
        return str(failure)


def _said(seen: Observation | Failure) -> str:
    if not isinstance(seen, Observation):
        return f"failed: {seen}"
    lasted = sorted(one.ms for one in seen.checkpoints if one.status == "completed")
    middle = f", middle {lasted[len(lasted) // 2]:,.0f} ms" if lasted else ""
    count = completed_checkpoints(seen)
    return f"{rows_per_s(seen):,.0f} rows/s, {count:.0f} checkpoints{middle}, load {seen.load_before:.1f}"


if __name__ == "__main__":
    main()
