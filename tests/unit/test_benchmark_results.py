"""What the benchmark's page says of its runs: no time is measured here."""

from benchmarks.results import Measured, page, ratios, spread_of
from benchmarks.runs import Run


def run(rows: int, *, seconds: float = 1.0, cpu_s: float | None = 1.0, load: float = 0.0) -> Run:
    return Run(rows, seconds, cpu_s, (10.0, 30.0), load)


def measured(system: str, *runs: Run | str) -> Measured:
    return Measured("long", system, tuple(runs))


def test_a_spread_is_the_median_between_the_extremes() -> None:
    spread = spread_of([3.0, 1.0, 8.0])

    assert spread is not None
    assert (spread.median, spread.least, spread.most, spread.count) == (3.0, 1.0, 8.0, 3)
    assert spread_of([]) is None


def test_ratios_compare_runs_of_the_same_repetition() -> None:
    """A machine that is twice as slow in one repetition slows both systems, and no ratio."""
    ours = measured("ours", run(800), run(400), run(800))
    peer = measured("peer", run(200), run(100), run(200))

    by_time = ratios(ours, peer).by_time

    assert by_time is not None
    assert (by_time.least, by_time.median, by_time.most) == (4.0, 4.0, 4.0)


def test_a_ratio_per_processor_second_does_not_count_waiting() -> None:
    ours = measured("ours", run(800, seconds=4.0, cpu_s=1.0))
    peer = measured("peer", run(200, seconds=1.0, cpu_s=1.0))

    compared = ratios(ours, peer)

    assert compared.by_time is not None and compared.by_time.median == 1.0
    assert compared.by_cpu is not None and compared.by_cpu.median == 4.0


def test_a_failed_run_takes_its_repetition_out_of_the_ratio() -> None:
    ours = measured("ours", run(800), "it ended with 1", run(1000))
    peer = measured("peer", run(200), run(1), run(100))

    by_time = ratios(ours, peer).by_time

    assert by_time is not None
    assert (by_time.count, by_time.least, by_time.most) == (2, 4.0, 10.0)


def test_without_processor_times_there_is_no_ratio_of_them() -> None:
    assert ratios(measured("ours", run(8, cpu_s=None)), measured("peer", run(4))).by_cpu is None


def test_the_page_shows_every_system_with_its_spread_and_our_ratio() -> None:
    ours = measured("ours", run(6_000_000, load=1.0), run(8_000_000, load=3.0))
    peer = measured("peer", run(2_000_000, load=1.0), "it ended with 1: out of memory")

    text = page(
        [ours, peer],
        ours="ours",
        cases={"long": "10 long keys"},
        systems={"ours": "Ours", "peer": "The peer"},
        facts=["two cores"],
    )

    rows = [line for line in text.splitlines() if line.startswith("| 10 long keys")]
    assert rows == [
        "| 10 long keys | Ours | 7.00 (6.00 to 8.00) | 7.00 (6.00 to 8.00) | 20 (10 to 30) |  |  |",
        "| 10 long keys | The peer | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) | 20 (10 to 30) "
        "| 3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) |",
    ]
    assert "- two cores" in text
    assert "median 1.0, from 1.0 to 3.0" in text
    assert "- 10 long keys, The peer: it ended with 1: out of memory" in text


def test_a_system_without_any_run_is_shown_as_such() -> None:
    text = page(
        [measured("ours", "it ended with 1")], ours="ours", cases={"long": "keys"}, systems={"ours": "Ours"}, facts=[]
    )

    assert "| keys | Ours | – | – | – |  |  |" in text
