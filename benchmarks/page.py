"""RESULTS.md, section by section: a benchmark that ran again replaces its own and leaves the others as they are.

Beside it, per benchmark: the raw numbers as JSON and the plots as PNG, below `results/`.
"""

import dataclasses
import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.benchmark import Benchmark, Measured, Size, Variant
from benchmarks.flink.environment import FLINK_VERSION
from benchmarks.plots import draw
from benchmarks.processes import Observation

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_HEAD = (
    "# Results\n\n"
    "Written by `make bench`, one section per benchmark, each with the day, machine and versions of its run. What is "
    "measured, and how, is in [README.md](README.md); raw numbers are in [results](results).\n"
)
_SECTION = re.compile(r"^<!-- benchmark: (\S+) -->\n.*?^<!-- end: \1 -->\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Machine:
    """Of the machine what matters, nothing that tells whose it is."""

    day: str
    processor: str
    cores: int
    used_cores: int
    system: str
    versions: str

    @classmethod
    def now(cls, *, cores: int, java_version: str | None) -> "Machine":
        packages = ", ".join(f"{name} {version(name)}" for name in ("tidegate", "pyspark", "pyarrow", "numpy"))
        java = "" if java_version is None else f", Flink {FLINK_VERSION}, Java {java_version}"
        return cls(
            day=f"{datetime.now(UTC):%Y-%m-%d}",
            processor=_processor(),
            cores=os.cpu_count() or 1,
            used_cores=cores,
            system=f"{platform.system()} {platform.machine()}",
            versions=f"Python {platform.python_version()}, {packages}{java}",
        )


def write_section(
    benchmark: Benchmark,
    measured: Sequence[Measured],
    *,
    size: Size,
    machine: Machine,
    write: bool,
    left_out: Sequence[Variant] = (),
    page: Path = RESULTS,
) -> str:
    """The section's text; with `write` it is also put into the page, its numbers and plots beside it."""
    section = benchmark.section({one.variant.name: one for one in measured})
    folder = page.parent / "results"
    lines = [f"## {benchmark.title}", "", *benchmark.about, "", *_facts(measured, size, machine), "", *section.lines]
    if section.plots:
        lines += ["", f"![{benchmark.title}](results/{benchmark.name}.png)"]
    if left_out:
        lines += ["", f"Not run this time: {'; '.join(variant.title for variant in left_out)}."]
    failures = [f"- {one.variant.title}: {failure}" for one in measured for failure in one.failures()]
    if failures:
        lines += ["", "Failed runs:", "", *failures]
    text = "\n".join(lines) + "\n"
    if write:
        folder.mkdir(exist_ok=True)
        (folder / f"{benchmark.name}.json").write_text(_raw(measured, size, machine), encoding="utf-8")
        if section.plots:
            draw(section.plots, folder / f"{benchmark.name}.png")
        before = page.read_text(encoding="utf-8") if page.exists() else _HEAD
        page.write_text(replaced(before, benchmark.name, text), encoding="utf-8")
    return text


def replaced(page: str, name: str, text: str) -> str:
    """The page with this section in place of the one before, or at its end."""
    section = f"<!-- benchmark: {name} -->\n{text}<!-- end: {name} -->\n"
    for found in _SECTION.finditer(page):
        if found[1] == name:
            return page[: found.start()] + section + page[found.end() :]
    return page.rstrip("\n") + "\n\n" + section


def _facts(measured: Sequence[Measured], size: Size, machine: Machine) -> list[str]:
    seen = [run for one in measured for run in one.seen()]
    loads = [run.load_before for run in seen]
    most = max((len(one.runs) for one in measured), default=0)
    lines = [
        f"{machine.day}, {machine.processor}, {machine.cores} cores of which {machine.used_cores} were used, "
        f"{machine.system}; {machine.versions}. {'Quick form' if size is Size.QUICK else 'Full form'}, "
        f"{most} {'repetition' if most == 1 else 'repetitions'}"
    ]
    if loads:
        lines[0] += (
            f", load average when a run began {statistics.median(loads):.1f} ({min(loads):.1f} to {max(loads):.1f})."
        )
    return lines


def _raw(measured: Sequence[Measured], size: Size, machine: Machine) -> str:
    variants = [
        {
            "name": one.variant.name,
            "system": one.variant.system.value,
            "work": {name: str(value) for name, value in one.variant.work.items()},
            "runs": [dataclasses.asdict(run) if isinstance(run, Observation) else {"failed": run} for run in one.runs],
        }
        for one in measured
    ]
    content = {"size": size.value, "machine": dataclasses.asdict(machine), "variants": variants}
    # One line for each run: to be read by programs, and small enough to keep.
    return re.sub(r'"runs": \[|\}, (?=\{"rows")', lambda found: found[0] + "\n", json.dumps(_rounded(content))) + "\n"


def _rounded(value: object) -> object:
    """Three digits behind the point are more than any figure deserves."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
