"""Repetitions of a benchmark that are measured piece by piece: what stands together, and what is refused."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks.benchmark import Benchmark, Measured, Measurements, Size, System, Variant
from benchmarks.machine import Machine
from benchmarks.processes import Checkpoint, Memory, Observation, RunFailed
from benchmarks.stored import Stored, added, read, written
from benchmarks.tables import Column, Section, Target, at_least, figures_table, ratio, rows_per_s

MACHINE = Machine("2026-11-17", "a processor", 4, 2, "Linux x86_64", "Python 3.11.7, tidegate 0.1.0")
OURS = Variant(name="ours", title="Ours", system=System.TIDEGATE, program="none", work={"measure_s": 1})
THEIRS = Variant(name="theirs", title="Theirs", system=System.SPARK, program="none", work={"measure_s": 1})


def run(rows: float) -> Observation:
    return Observation(rows, 1.0, None, 0.5)


def section(measured: Measurements) -> Section:
    rows = [(one.variant.title, one.runs) for one in measured.values()]
    lines = figures_table("variant", rows, [Column("rows/s", rows_per_s)])
    if len(measured) == 2:
        seen = ratio(measured["ours"].runs, measured["theirs"].runs, rows_per_s)
        lines.append(Target("faster", seen, at_least(1)).line())
    return Section(lines)


class Bench:
    """`python -m benchmarks` with one benchmark, whose runs give what they are told, on any machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = folder / "RESULTS.md"
        self.variants: Sequence[Variant] = [OURS, THEIRS]
        self.machine = MACHINE
        self.measured = 0
        self._coming: Iterator[float] = iter(())
        self._monkeypatch = monkeypatch
        benchmark = Benchmark(
            name="one", title="The one", about=["What it is."], variants=lambda _: self.variants, section=section
        )
        monkeypatch.setattr(bench, "RESULTS", self.page)
        monkeypatch.setattr(bench, "BENCHMARKS", {"one": benchmark})
        monkeypatch.setattr(bench, "observe", self._observe)
        monkeypatch.setattr(bench, "_machine", lambda _: self.machine)
        # The real one belongs to the process that runs the tests.
        monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(self, *arguments: str, rows: Sequence[float]) -> str:
        """`rows` of the runs in the order in which they take turns; a negative one fails. Gives the page."""
        self._coming = iter(rows)
        self._monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        bench.main()
        assert next(self._coming, None) is None
        return self.page.read_text()

    @property
    def stored(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.page.parent / "results" / "one.json").read_text())
        return found

    def _observe(self, *_: object, **__: object) -> Observation:
        self.measured += 1
        if (rows := next(self._coming)) < 0:
            raise RunFailed("it ended with 1")
        return run(rows)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_repetitions_of_two_runs_stand_together(one: Bench) -> None:
    one.run("--repetitions", "2", rows=[400, 100, 800, 200])

    text = one.run("--add", rows=[900, 100])

    assert "| Ours | 800 (400 to 900) |" in text
    assert "seen 4.00 (4.00 to 9.00)" in text
    assert "Full form, 3 repetitions," in text
    assert [len(variant["runs"]) for variant in one.stored["variants"]] == [3, 3]


def test_without_it_a_run_replaces_what_was_there(one: Bench) -> None:
    one.run("--repetitions", "1", rows=[400, 100])

    assert "| Ours | 5 |" in one.run("--repetitions", "1", rows=[5, 1])


def test_the_first_repetition_needs_nothing_to_add_to(one: Bench) -> None:
    text = one.run("--add", rows=[400, 100])

    assert "| Ours | 400 |" in text
    assert "Full form, 1 repetition," in text


def test_a_variant_that_did_not_run_keeps_its_runs_and_a_new_one_appears(one: Bench) -> None:
    text = one.run("--add", "--variants", "ours", "--repetitions", "2", rows=[400, 800])
    assert "Not run this time: Theirs." in text

    text = one.run("--add", "--variants", "theirs", rows=[100])

    assert "Not run" not in text
    assert "| Ours | 600 (400 to 800) |" in text and "| Theirs | 100 |" in text
    assert "seen 4.00\n" in text
    assert "1 to 2 repetitions," in text


def test_ratios_stay_within_a_repetition_where_one_ran_more_often() -> None:
    """Ours ran alone at first: the turns that both took later are compared with each other, and with nothing else."""
    before = [Measured(OURS, (run(1),))]

    later = _with(before, [Measured(OURS, (run(400),)), Measured(THEIRS, (run(100),))])
    filled = _with(later, [Measured(THEIRS, (run(2),))])

    assert [one.runs for one in later] == [(run(1), run(400)), (None, run(100))]
    assert [(one.repetitions, one.failures()) for one in later] == [(2, []), (1, [])]
    assert [one.runs for one in filled] == [(run(1), run(400)), (run(2), run(100))]


def test_a_failed_run_is_kept_and_named(one: Bench) -> None:
    with pytest.raises(SystemExit):
        one.run("--add", rows=[-1, 100])

    text = one.run("--add", rows=[400, 100])

    assert "- Ours: it ended with 1" in text
    assert "seen 4.00\n" in text


def test_all_days_are_named(one: Bench) -> None:
    one.run("--add", rows=[400, 100])
    one.machine = replace(MACHINE, day="2026-11-18")
    assert "\n2026-11-17 and 2026-11-18, a processor" in one.run("--add", rows=[400, 100])

    one.machine = replace(MACHINE, day="2026-11-20")
    assert "\n2026-11-17, 2026-11-18 and 2026-11-20, a processor" in one.run("--add", rows=[400, 100])
    assert [each["day"] for each in one.stored["machines"]] == ["2026-11-17", "2026-11-18", "2026-11-20"]


def test_a_repetition_on_another_processor_is_added_and_said(one: Bench) -> None:
    """Ratios stay within a repetition, so that one on a machine of another kind says as much as the others."""
    assert "Each repetition ran on one processor" not in one.run("--add", rows=[400, 100])
    one.machine = replace(MACHINE, processor="another")

    text = one.run("--add", rows=[800, 100])

    assert "\n2026-11-17, a processor and another, 4 cores" in text
    assert "Each repetition ran on one processor, so that ratios do not mix them" in text
    assert "seen 6.00 (4.00 to 8.00)" in text
    assert [each["processor"] for each in one.stored["machines"]] == ["a processor", "another"]


def test_a_missed_run_is_not_filled_in_on_another_processor(one: Bench) -> None:
    """It would be compared with what ran on the first one."""
    one.run("--add", "--variants", "ours", rows=[400])
    one.machine = replace(MACHINE, processor="another")
    text = one.run("--add", "--variants", "theirs", rows=[5])
    assert "seen 80" not in text

    one.machine = replace(MACHINE, day="2026-11-19")
    text = one.run("--add", "--variants", "theirs", rows=[100])

    assert "seen 4.00\n" in text
    assert [(each["day"], each["processor"]) for each in one.stored["machines"]] == [
        ("2026-11-17 and 2026-11-19", "a processor"),
        ("2026-11-17", "another"),
    ]
    assert [[run and run["rows"] for run in variant["runs"]] for variant in one.stored["variants"]] == [
        [400],
        [100, 5],
    ]


def test_versions_of_what_only_one_of_the_runs_used_are_all_named(one: Bench) -> None:
    one.run("--add", rows=[400, 100])
    one.machine = replace(MACHINE, versions=MACHINE.versions + ", Flink 2.3.0, Java 17.0.15")
    assert "tidegate 0.1.0, Flink 2.3.0, Java 17.0.15." in one.run("--add", rows=[400, 100])

    one.machine = MACHINE
    assert "tidegate 0.1.0, Flink 2.3.0, Java 17.0.15." in one.run("--add", rows=[400, 100])


def test_another_machine_or_version_is_refused_before_anything_is_measured(one: Bench) -> None:
    one.run("--add", rows=[400, 100])

    for machine, why in (
        (replace(MACHINE, cores=8), "8 cores instead of 4 cores"),
        (replace(MACHINE, versions="Python 3.12.1, tidegate 0.1.0"), "Python 3.12.1 instead of Python 3.11.7"),
    ):
        one.machine = machine
        with pytest.raises(SystemExit, match=f"^Nothing can be added to 'one', since this machine has {why}: run it"):
            one.run("--add", rows=[])
    assert one.measured == 2


def test_another_size_is_refused(one: Bench) -> None:
    one.run("--add", rows=[400, 100])

    with pytest.raises(SystemExit, match="stored runs are of the full form, these of the quick one: run it without"):
        one.run("--add", "--quick", rows=[])


def test_other_work_is_refused_and_its_variant_named(one: Bench) -> None:
    """Also that of a variant which does not run now: it would stand beside the others as if it were today's."""
    one.run("--add", rows=[400, 100])
    one.variants = [OURS, replace(THEIRS, work={"measure_s": 2})]

    with pytest.raises(
        SystemExit, match="the work of the stored variant 'theirs' is not today's: run it without --add"
    ):
        one.run("--add", "--variants", "ours", rows=[])


def test_a_variant_that_is_no_more_is_refused(one: Bench) -> None:
    one.run("--add", rows=[400, 100])
    one.variants = [OURS]

    with pytest.raises(SystemExit, match="the stored variant 'theirs' is none of today's"):
        one.run("--add", rows=[])


def test_a_time_of_ones_own_cannot_be_added(one: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        one.run("--add", "--measure-s", "3", rows=[])

    assert "leave out --measure-s" in capsys.readouterr().err


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    seen = Observation(
        5.0,
        1.5,
        2.25,
        0.5,
        (Checkpoint(1, "completed", "aligned", 1.0, 12.5, 1000, 500, 10, 7, 0.5),),
        ({"at_s": 0.5, "rows": 3.0},),
        (Memory(1.0, 1, 2, 3),),
        {"paused_ms": 7.0},
    )
    text = written([Measured(OURS, (seen, None, "it ended with 1"))], Size.FULL, [MACHINE, MACHINE, MACHINE])
    (tmp_path / "one.json").write_text(text)

    found = read(tmp_path / "one.json")

    assert found is not None
    assert found.runs["ours"] == (seen, None, "it ended with 1")
    assert (found.size, found.machines, found.work["ours"]) == (Size.FULL, (MACHINE,) * 3, {"measure_s": "1"})
    measured, machines = added(found, [OURS], [], MACHINE)
    assert written(measured, Size.FULL, machines) == text


def _with(before: Sequence[Measured], now: Sequence[Measured]) -> list[Measured]:
    work = {one.variant.name: {"measure_s": "1"} for one in before}
    machines = (MACHINE,) * max(len(one.runs) for one in before)
    stored = Stored("one", Size.FULL, machines, work, {one.variant.name: one.runs for one in before})
    measured, _ = added(stored, [OURS, THEIRS], now, MACHINE)
    return measured


def test_a_page_can_be_written_anew_from_what_is_stored(one: Bench) -> None:
    text = one.run("--repetitions", "2", rows=[400, 100, 800, 200])
    one.page.unlink()

    assert one.run("--rewrite", rows=[]) == text
    assert one.measured == 4
