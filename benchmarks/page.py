"""RESULTS.md, section by section: a benchmark that ran again replaces its own and leaves the others as they are.

Beside it, per benchmark: the raw numbers as JSON and the plots as PNG, below `results/`.
"""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.benchmark import Benchmark, Measured, Size, Variant
from benchmarks.machine import Machine
from benchmarks.plots import draw
from benchmarks.stored import stored_at, written

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_HEAD = (
    "# Results\n\n"
    "Written by `make bench`, one section per benchmark, each with the day, machine and versions of its run. What is "
    "measured, and how, is in [README.md](README.md); raw numbers are in [results](results).\n"
)
_SECTION = re.compile(r"^<!-- benchmark: (\S+) -->\n.*?^<!-- end: \1 -->\n", re.MULTILINE | re.DOTALL)


def write_section(
    benchmark: Benchmark,
    measured: Sequence[Measured],
    *,
    size: Size,
    machines: Sequence[Machine],
    write: bool,
    left_out: Sequence[Variant] = (),
    page: Path = RESULTS,
) -> str:
    """The section's text; with `write` it is also put into the page, its numbers and plots beside it."""
    section = benchmark.section({one.variant.name: one for one in measured})
    raw = stored_at(page, benchmark.name)
    lines = [f"## {benchmark.title}", "", *benchmark.about, "", *_facts(measured, size, machines), "", *section.lines]
    if section.plots:
        lines += ["", f"![{benchmark.title}](results/{benchmark.name}.png)"]
    if left_out:
        lines += ["", f"Not run this time: {'; '.join(variant.title for variant in left_out)}."]
    failures = [f"- {one.variant.title}: {failure}" for one in measured for failure in one.failures()]
    if failures:
        lines += ["", "Failed runs:", "", *failures]
    text = "\n".join(lines) + "\n"
    if write:
        raw.parent.mkdir(exist_ok=True)
        raw.write_text(written(measured, size, machines), encoding="utf-8")
        if section.plots:
            draw(section.plots, raw.with_suffix(".png"))
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


def _facts(measured: Sequence[Measured], size: Size, machines: Sequence[Machine]) -> list[str]:
    machine = Machine.together(machines)
    seen = [run for one in measured for run in one.seen()]
    loads = [run.load_before for run in seen]
    counts = [one.repetitions for one in measured] or [0]
    least, most = min(counts), max(counts)
    lines = [
        f"{machine.day}, {machine.processor}, {machine.cores} cores of which {machine.used_cores} were used, "
        f"{machine.system}; {machine.versions}. {'Quick form' if size is Size.QUICK else 'Full form'}, "
        f"{most if least == most else f'{least} to {most}'} {'repetition' if most == 1 else 'repetitions'}"
    ]
    if loads:
        lines[0] += (
            f", load average when a run began {statistics.median(loads):.1f} ({min(loads):.1f} to {max(loads):.1f})."
        )
    if len({one.processor for one in machines}) > 1:
        lines += ["", "Each repetition ran on one processor, so that ratios do not mix them; times and rates do."]
    return lines
