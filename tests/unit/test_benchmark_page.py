"""What the benchmarks' page says of their runs: no time is measured here."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.benchmark import Benchmark, Measured, Measurements, Size, System, Variant
from benchmarks.machine import Machine
from benchmarks.page import replaced, write_section
from benchmarks.processes import Checkpoint, Memory, Observation
from benchmarks.suite import BENCHMARKS
from benchmarks.tables import (
    Column,
    Section,
    Target,
    at_least,
    at_most,
    checkpoint_ms,
    completed_ms,
    figures_table,
    ratio,
    rows_per_cpu_s,
    rows_per_s,
    spread_of,
)

MACHINE = Machine("2026-01-01", "a processor", 4, 2, "Linux", "Python 3.11")


def checkpoint(ms: float, *, status: str = "completed", at_s: float = 1.0) -> Checkpoint:
    return Checkpoint(1, status, "aligned", at_s, ms, 1000, 500, 10)


def run(
    rows: float, *, seconds: float = 1.0, cpu_s: float | None = 1.0, lasted: Sequence[float] = (10, 30)
) -> Observation:
    samples = tuple(
        {"at_s": at / 2, "rows": at * 10.0, "pulled": at * 10.0, "queued_bytes": 5.0} for at in range(1, 80)
    )
    memory = tuple(Memory(float(at), 1000, 2000, 3000) for at in range(8))
    figures = {
        "arrow_bytes": 5.0,
        "gc_ms": 2.0,
        "gc_objects": 1.0,
        "paused_ms": 0.0,
        "failed_at_s": 1.0,
        "first_row_at_s": 2.0,
    }
    return Observation(rows, seconds, cpu_s, 0.5, tuple(checkpoint(ms) for ms in lasted), samples, memory, figures)


def test_a_spread_is_the_median_between_the_extremes() -> None:
    spread = spread_of([3.0, 1.0, None, 8.0])

    assert spread is not None
    assert (spread.median, spread.least, spread.most, spread.count) == (3.0, 1.0, 8.0, 3)
    assert spread_of([None]) is None


def test_ratios_compare_runs_of_the_same_repetition() -> None:
    """A machine that is twice as slow in one repetition slows both systems, and no ratio."""
    seen = ratio([run(800), run(400), run(800)], [run(200), run(100), run(200)], rows_per_s)

    assert seen is not None
    assert (seen.least, seen.median, seen.most) == (4.0, 4.0, 4.0)


def test_a_ratio_per_processor_second_does_not_count_waiting() -> None:
    ours, theirs = [run(800, seconds=4.0)], [run(200)]

    by_time, by_cpu = ratio(ours, theirs, rows_per_s), ratio(ours, theirs, rows_per_cpu_s)

    assert by_time is not None and by_time.median == 1.0
    assert by_cpu is not None and by_cpu.median == 4.0


def test_a_failed_run_takes_its_repetition_out_of_the_ratio() -> None:
    seen = ratio([run(800), "it ended with 1", run(1000)], [run(200), run(1), run(100)], rows_per_s)

    assert seen is not None
    assert (seen.count, seen.least, seen.most) == (2, 4.0, 10.0)


def test_a_ratio_is_of_the_repetitions_that_both_ran_in() -> None:
    seen = ratio([run(800), run(1), run(1000), run(1)], [run(200), None, run(100)], rows_per_s)

    assert seen is not None
    assert (seen.count, seen.least, seen.most) == (2, 4.0, 10.0)


def test_without_processor_times_there_is_no_ratio_of_them() -> None:
    assert ratio([run(8, cpu_s=None)], [run(4)], rows_per_cpu_s) is None


def test_a_checkpoint_that_never_ends_counts_with_what_it_has_lasted() -> None:
    """Otherwise the slowest mode, which completes nothing, would have no time at all, or the best one."""
    seen = Observation(
        1, 1.0, None, 0.0, (checkpoint(5), checkpoint(9000, status="in_progress"), checkpoint(7, status="failed"))
    )

    assert checkpoint_ms(50)(seen) == 5
    assert checkpoint_ms(100)(seen) == 9000


def test_a_goal_is_not_reached_by_a_checkpoint_that_never_ended() -> None:
    ours = Observation(1, 1.0, None, 0.0, (checkpoint(2000, status="in_progress"),))

    assert ratio([ours], [run(1, lasted=[3000])], completed_ms(50)) is None


def test_one_that_had_just_begun_when_the_run_ended_does_not_count() -> None:
    seen = Observation(1, 1.0, None, 0.0, (checkpoint(50), checkpoint(3, status="in_progress")))

    assert checkpoint_ms(50)(seen) == checkpoint_ms(100)(seen) == 50


def test_a_table_shows_every_variant_with_its_spread() -> None:
    lines = figures_table(
        "variant", [("Ours", [run(6), run(8)]), ("None", ["it ended with 1"])], [Column("rows/s", rows_per_s)]
    )

    assert lines[2:] == ["| Ours | 7 (6 to 8) |", "| None | – |"]


def test_a_target_says_whether_it_was_reached() -> None:
    assert Target("fast", spread_of([4.0]), at_least(4)).line() == "- reached: fast; seen 4.00"
    assert Target("fast", spread_of([3.9]), at_least(4)).line() == "- **not reached**: fast; seen 3.90"
    assert Target("fast", None, at_least(4)).line() == "- not measured: fast"


def test_a_target_that_not_every_repetition_reached_says_so() -> None:
    assert Target("fast", spread_of([3.9, 4, 5]), at_least(4)).line().startswith("- reached by the median: fast")
    assert Target("short", spread_of([1, 2, 9]), at_most(4)).line().startswith("- reached by the median: short")


def test_a_comparison_without_a_goal_is_not_called_reached() -> None:
    assert Target("beside", spread_of([0.5]), None).line() == "- for comparison: beside; seen 0.50"


def test_a_section_replaces_its_own_and_leaves_the_others() -> None:
    page = replaced(replaced("# Results\n", "one", "first\n"), "two", "second\n")

    again = replaced(page, "one", "anew\n")

    assert "first" not in again
    assert again.index("anew") < again.index("second")
    assert again.count("<!-- benchmark: one -->") == 1


def _section(measured: Measurements) -> Section:
    return Section(
        figures_table("variant", [(name, one.runs) for name, one in measured.items()], [Column("rows/s", rows_per_s)])
    )


def test_a_written_section_has_numbers_beside_it_and_names_failed_runs(tmp_path: Path) -> None:
    variant = Variant(name="ours", title="Ours", system=System.TIDEGATE, program="none", work={"measure_s": 1})
    benchmark = Benchmark(
        name="one", title="The one", about=["What it is."], variants=lambda _: [variant], section=_section
    )
    page = tmp_path / "RESULTS.md"

    write_section(
        benchmark,
        [Measured(variant, (run(5), "it ended with 1: out of memory"))],
        size=Size.QUICK,
        machines=[MACHINE],
        write=True,
        page=page,
    )

    text = page.read_text()
    assert "| ours | 5 |" in text
    assert "- Ours: it ended with 1: out of memory" in text
    assert "a processor, 4 cores of which 2 were used" in text
    assert '"rows": 5' in (tmp_path / "results" / "one.json").read_text()


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("size", Size)
def test_every_benchmark_reports_its_variants(name: str, size: Size) -> None:
    """Also where each run failed or told only its rows, a system was left out, or some ran more often than others."""
    benchmark = BENCHMARKS[name]
    variants = benchmark.variants(size)
    assert len({variant.name for variant in variants}) == len(variants)

    whole = benchmark.section({one.name: Measured(one, (run(100), run(200))) for one in variants})
    bare = benchmark.section({one.name: Measured(one, (Observation(1, 1.0, None, 0.0),)) for one in variants})
    failed = benchmark.section({one.name: Measured(one, ("it ended with 1",)) for one in variants})
    alone = benchmark.section(
        {one.name: Measured(one, (run(100),)) for one in variants if one.system is System.TIDEGATE}
    )

    uneven = benchmark.section({
        one.name: Measured(one, (None,) * (number % 2) + (run(100),) * (number % 3 + 1))
        for number, one in enumerate(variants)
    })  # fmt: skip

    text = "\n".join(whole.lines)
    assert all(
        any(part in text for part in (one.title, one.title.removesuffix(", all the time overloaded")))
        for one in variants
    )
    assert bare.lines and failed.lines and alone.lines and uneven.lines
