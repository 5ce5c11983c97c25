"""What runs say together: medians with their spread, ratios within a repetition, tables and targets as Markdown.

Computes and formats only: knows neither processes nor clocks.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.plots import Plot
from benchmarks.processes import Checkpoint, Observation

Value: TypeAlias = Callable[[Observation], float | None]
# Of one variant in one repetition: what was seen, why there is nothing, or None where it did not run.
Run: TypeAlias = Observation | str | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several repetitions and its extremes."""

    median: float
    least: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    value: Value
    digits: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Section:
    """What a benchmark adds to the page: lines of Markdown, and plots."""

    lines: Sequence[str]
    plots: Sequence[Plot] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What is aimed at. `seen` is None where it was not measured; without `is_reached` it is shown for comparison."""

    what: str
    seen: Spread | None
    is_reached: Callable[[float], bool] | None
    digits: int = 2

    def line(self) -> str:
        if self.seen is None:
            return f"- not measured: {self.what}"
        return f"- {self._verdict(self.seen)}: {self.what}; seen {shown(self.seen, digits=self.digits)}"

    def _verdict(self, seen: Spread) -> str:
        if self.is_reached is None:
            return "for comparison"
        if not self.is_reached(seen.median):
            return "**not reached**"
        return "reached" if self.is_reached(seen.least) and self.is_reached(seen.most) else "reached by the median"


def at_least(goal: float) -> Callable[[float], bool]:
    return lambda seen: seen >= goal


def at_most(goal: float) -> Callable[[float], bool]:
    return lambda seen: seen <= goal


def spread_of(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known), len(known)) if known else None


def spread(runs: Sequence[Run], value: Value) -> Spread | None:
    return spread_of([value(run) for run in runs if isinstance(run, Observation)])


def median_of(runs: Sequence[Run], value: Value, *, scale: float = 1.0) -> float | None:
    seen = spread(runs, value)
    return None if seen is None else seen.median * scale


def ratio(
    ours: Sequence[Run],
    theirs: Sequence[Run],
    value: Value,
    *,
    their_value: Value | None = None,
) -> Spread | None:
    """Ours over theirs, of runs that took turns in the same repetition, as many as both have."""
    ratios = []
    for our, their in zip(ours, theirs, strict=False):
        if not isinstance(our, Observation) or not isinstance(their, Observation):
            continue
        above, below = value(our), (their_value or value)(their)
        # Of nothing and nothing there is no ratio.
        if above is not None and below is not None and (above or below):
            ratios.append(above / below if below else float("inf"))
    return spread_of(ratios)


def shown(spread: Spread | None, *, digits: int = 2, scale: float = 1.0) -> str:
    if spread is None:
        return "–"
    median, least, most = (f"{value * scale:,.{digits}f}" for value in (spread.median, spread.least, spread.most))
    return median if spread.count == 1 else f"{median} ({least} to {most})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]


def figures_table(first: str, rows: Sequence[tuple[str, Sequence[Run]]], columns: Sequence[Column]) -> list[str]:
    """One row for each variant, one column for each figure."""
    head = [first, *(column.title for column in columns)]
    return table(head, [[title, *_cells(runs, columns)] for title, runs in rows])


def _cells(runs: Sequence[Run], columns: Sequence[Column]) -> list[str]:
    return [shown(spread(runs, column.value), digits=column.digits, scale=column.scale) for column in columns]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- figures of one run


def rows_per_s(run: Observation) -> float:
    return run.rows / run.seconds


def rows_per_cpu_s(run: Observation) -> float | None:
    return run.rows / run.cpu_s if run.cpu_s else None


def completed(run: Observation) -> list[Checkpoint]:
    return [checkpoint for checkpoint in run.checkpoints if checkpoint.status == "completed"]


def completed_checkpoints(run: Observation) -> float:
    return len(completed(run))


def failed_checkpoints(run: Observation) -> float:
    return sum(checkpoint.status == "failed" for checkpoint in run.checkpoints)


def checkpoint_ms(percent: float) -> Value:
    """By nearest rank. One that is not over counts with what it has lasted so far: it would be longer."""

    def value(run: Observation) -> float | None:
        lasted = sorted(one.ms for one in completed(run))
        # One that was under way when the run ended counts only if it has lasted longer than any other.
        lasted += [one.ms for one in run.checkpoints if one.status == "in_progress" and one.ms > max(lasted, default=0)]
        return lasted[max(0, -(-len(lasted) * int(percent) // 100) - 1)] if lasted else None

    return value


def completed_ms(percent: int) -> Value:
    """Of completed ones only: what goals are judged by, since one that is not over may take any time still."""

    def value(run: Observation) -> float | None:
        lasted = sorted(one.ms for one in completed(run))
        return lasted[max(0, -(-len(lasted) * percent // 100) - 1)] if lasted else None

    return value


def inflight_bytes(run: Observation) -> float | None:
    """Written per checkpoint, in the middle."""
    written = [one.new_inflight_bytes for one in completed(run)]
    return statistics.median(written) if written else None


def most_workers_bytes(run: Observation) -> float | None:
    return max((one.workers_bytes for one in run.memory), default=None)


def most_jvm_bytes(run: Observation) -> float | None:
    return max((one.jvm_bytes for one in run.memory), default=None)


def figure(name: str) -> Value:
    """A figure of the system's own."""
    return lambda run: run.figures.get(name)
