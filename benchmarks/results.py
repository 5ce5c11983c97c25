"""What runs say together: rates with their spread, ratios within a repetition, and the page that shows them.

Computes and formats only: knows neither processes nor clocks.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.runs import Run

Failure = str


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several repetitions and its extremes."""

    median: float
    least: float
    most: float
    count: int

    def scaled(self, by: float) -> "Spread":
        return Spread(self.median * by, self.least * by, self.most * by, self.count)


def spread_of(values: Sequence[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of one system on one piece of work, by repetition: a run, or why there is none."""

    case: str
    system: str
    runs: tuple[Run | Failure, ...]

    def rates(self) -> Spread | None:
        return spread_of([run.rows / run.seconds for run in self.runs if isinstance(run, Run)])

    def rates_per_cpu(self) -> Spread | None:
        """Rows per second of processor time, which others on the machine do not take away."""
        return spread_of([run.rows / run.cpu_s for run in self.runs if isinstance(run, Run) and run.cpu_s])

    def checkpoints(self) -> Spread | None:
        return spread_of([ms for run in self.runs if isinstance(run, Run) for ms in run.checkpoints_ms])

    def failures(self) -> list[Failure]:
        return [run for run in self.runs if not isinstance(run, Run)]


@dataclass(frozen=True, slots=True)
class Ratios:
    """How many times as fast as the peer, of runs that took turns in the same repetition."""

    by_time: Spread | None
    by_cpu: Spread | None


def ratios(ours: Measured, peer: Measured) -> Ratios:
    both = [
        (our, theirs)
        for our, theirs in zip(ours.runs, peer.runs, strict=True)
        if isinstance(our, Run) and isinstance(theirs, Run)
    ]
    by_time = [_ratio(our.rows / our.seconds, their.rows / their.seconds) for our, their in both]
    by_cpu = [
        _ratio(our.rows / our.cpu_s, their.rows / their.cpu_s) for our, their in both if our.cpu_s and their.cpu_s
    ]
    return Ratios(spread_of(by_time), spread_of(by_cpu))


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else float("inf")


def page(
    measured: Sequence[Measured],
    *,
    ours: str,
    cases: Mapping[str, str],
    systems: Mapping[str, str],
    facts: Sequence[str],
) -> str:
    """RESULTS.md: `cases` and `systems` name what was measured, in the order in which it is shown."""
    loads = [run.load_before for one in measured for run in one.runs if isinstance(run, Run)]
    lines = ["# Results", "", "Written by `make bench`; what is measured, and how, is in [README.md](README.md).", ""]
    lines += [f"- {fact}" for fact in facts]
    if loads:
        lines.append(f"- load average when a run began: median {statistics.median(loads):.1f}, "
                     f"from {min(loads):.1f} to {max(loads):.1f}")  # fmt: skip
    lines += [
        "",
        "## Throughput",
        "",
        "Median of the repetitions (least to most). Ratios are taken within a repetition.",
        "",
    ]
    lines += _table(
        [
            "work",
            "system",
            "M rows/s",
            "M rows per CPU second",
            "checkpoint, ms",
            f"{ours} / it",
            f"{ours} / it, per CPU",
        ],
        [row for case in cases for row in _rows(measured, case, ours, cases, systems)],
    )
    failures = [(one, failure) for one in measured for failure in one.failures()]
    if failures:
        lines += ["", "Failed runs:", ""]
        lines += [f"- {cases[one.case]}, {systems[one.system]}: {failure}" for one, failure in failures]
    return "\n".join(lines) + "\n"


def _rows(
    measured: Sequence[Measured], case: str, ours: str, cases: Mapping[str, str], systems: Mapping[str, str]
) -> list[list[str]]:
    of_case = {one.system: one for one in measured if one.case == case}
    rows = []
    for system in systems:
        if (one := of_case.get(system)) is None:
            continue
        our = of_case.get(ours)
        compared = None if our is None or system == ours else ratios(our, one)
        rows.append([
            cases[case],
            systems[system],
            _shown(one.rates(), scale=1e-6),
            _shown(one.rates_per_cpu(), scale=1e-6),
            _shown(one.checkpoints(), digits=0),
            "" if compared is None else _shown(compared.by_time),
            "" if compared is None else _shown(compared.by_cpu),
        ])  # fmt: skip
    return rows


def _shown(spread: Spread | None, *, scale: float = 1.0, digits: int = 2) -> str:
    if spread is None:
        return "–"
    shown = spread.scaled(scale)
    return f"{shown.median:.{digits}f} ({shown.least:.{digits}f} to {shown.most:.{digits}f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
