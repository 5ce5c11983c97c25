"""`python -m tidegate.testing.simulation --seeds 3000 --processes 2`, or `--seed 17` for one and its trace."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidegate.testing.simulation import RunFailure, RunReport, run_seed
from tidegate.testing.simulation.many import outcomes_of, prepare_process
from tidegate.testing.simulation.states import StateDice

_INTERRUPTED = 130


@dataclass(slots=True)
class _Totals:
    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    counts: "Counter[str]" = field(default_factory=Counter)
    by_topology: "Counter[str]" = field(default_factory=Counter)

    def add(self, outcome: RunReport | RunFailure) -> None:
        self.seeds += 1
        match outcome:
            case RunFailure(seed=seed, scenario=scenario):
                self.failed.append(seed)
                self.by_topology[scenario.shape.topology.value] += 1
            case RunReport() as report:
                self.by_topology[report.topology] += 1
                self.counts.update(
                    checkpoints=report.checkpoints,
                    starts=report.starts,
                    strikes=report.strikes,
                    rescales=report.rescales,
                    images=report.images,
                )


def main() -> int:
    arguments = _arguments()
    console = Console(highlight=False, soft_wrap=True)
    dice = StateDice(arguments.state)
    if arguments.seed is not None:
        return _replay(arguments.seed, dice, console)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    totals = _Totals()
    started_s = time.monotonic()
    try:
        outcomes = outcomes_of(seeds, processes=arguments.processes, dice=dice)
        with _bar(console, len(seeds)) as bar, outcomes as each:
            for outcome in each:
                totals.add(outcome)
                if isinstance(outcome, RunFailure):
                    console.print(str(outcome), markup=False)
                bar.update(bar.task_ids[0], advance=1)
    except KeyboardInterrupt:
        console.print("interrupted")
        _print_totals(totals, time.monotonic() - started_s, dice, console)
        return _INTERRUPTED
    _print_totals(totals, time.monotonic() - started_s, dice, console)
    return 1 if totals.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidegate.testing.simulation")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many play at the same time")
    parser.add_argument(
        "--state",
        choices=[dice.value for dice in StateDice],
        default=StateDice.MIXED.value,
        help="where state lives: mixed lets the seed choose at each start",
    )
    parser.add_argument("--seed", type=int, help="play this one alone and show what happened")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.processes < 1:
        parser.error("--seeds and --processes must be at least 1")
    return arguments


def _replay(seed: int, dice: StateDice, console: Console) -> int:
    prepare_process()
    outcome = run_seed(seed, dice=dice)
    match outcome:
        case RunFailure():
            console.print(str(outcome), markup=False)
            return 1
        case RunReport() as report:
            console.print("\n".join(report.trace), markup=False)
            console.print(
                f"seed {seed} ({report.topology}) passed: {report.turns} turns, {report.checkpoints} checkpoints, "
                f"{report.starts} starts, {report.strikes} strikes, {report.rescales} at another parallelism, "
                f"{report.images} images"
            )
            return 0


@contextmanager
def _bar(console: Console, seeds: int) -> Iterator[Progress]:
    """On a terminal only."""
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task("seeds", total=seeds)
        yield bar


def _print_totals(totals: _Totals, took_s: float, dice: StateDice, console: Console) -> None:
    for topology, seeds in sorted(totals.by_topology.items()):
        console.print(f"{seeds:7} {topology}")
    counts = totals.counts
    console.print(
        f"{totals.seeds} seeds, {len(totals.failed)} failed; {counts['checkpoints']} checkpoints, "
        f"{counts['starts']} starts, {counts['strikes']} strikes, {counts['rescales']} at another parallelism, "
        f"{counts['images']} images; "
        f"{took_s:.1f} s, {totals.seeds / took_s:.1f} seeds/s"
    )
    if totals.failed:
        shown = ", ".join(map(str, sorted(totals.failed)[:20]))
        console.print(f"failed: {shown}; replay with  make sim SEED={min(totals.failed)} STATE={dice.value}")


if __name__ == "__main__":
    sys.exit(main())
