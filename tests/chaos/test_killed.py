"""Processes are killed while the job runs; the committed rows must be those of Spark's own batch, each exactly once.

What tests/golden does not play: three slots, two checkpoints at once, several kills, another parallelism, merged files.
"""

import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tests.chaos import job, watching
from tests.chaos.watching import await_checkpoints, await_end, generation, kill_worker, pids, until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROWS = 15_000
DAEMON = "tidegate.spark.daemon"
FILES = 24  # a reader gives out a small file at once: the size of a file is the least that can be in flight
ROW_COST_MS = 0.4
# Narrow: what waits in front of an aligned barrier is then processed within a few tens of milliseconds.
WINDOW = {"network.window": "4kb"}
MODES = [
    pytest.param(2, {"checkpoint.unaligned": "false"}, id="2 slots aligned"),
    pytest.param(3, {"checkpoint.unaligned": "false"}, id="3 slots aligned"),
    pytest.param(2, {"checkpoint.unaligned": "true"}, id="2 slots unaligned"),
    pytest.param(3, {"checkpoint.unaligned": "true"}, id="3 slots unaligned"),
    pytest.param(2, {"checkpoint.unaligned": "auto", "checkpoint.alignedTimeout": "20ms"}, id="2 slots switching"),
]
# The interval is shorter than a checkpoint takes, so that the next one starts beside it.
TWO_AT_ONCE = pytest.param(
    2,
    {"checkpoint.unaligned": "true", "checkpoint.maxConcurrent": "2", "checkpoint.interval": "20ms"},
    id="2 slots, two unaligned at once",
)


@dataclass(frozen=True)
class Rows:
    """The input, and what Spark says about it."""

    folder: Path
    answer: list[tuple[int, ...]]


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("rows")
    job.make_input(spark, folder, rows=ROWS, files=FILES)
    return Rows(folder, job.sparks_answer(spark, folder))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Where and when to strike; the seed is shown with a failure."""
    seed = request.config.getoption("--seed")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    print(f"replay with --seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    return random.Random(seed)


def start(spark: SparkSession, rows: Rows, folder: Path, slots: int, options: dict[str, str]) -> tg.StreamingQuery:
    return job.start(
        spark,
        folder,
        slots=slots,
        unaligned="auto",
        row_cost_s=ROW_COST_MS / 1000,
        input_folder=rows.folder,
        options=WINDOW | options,
    )


def runs_in(query: tg.StreamingQuery, number: int, slots: int) -> bool:
    assert query.isActive, "the job ended before it was struck: make its input longer"
    return generation(query) == number and len(pids(query)) == slots


@pytest.mark.parametrize(("slots", "options"), [MODES[1], MODES[4]])
def test_an_undisturbed_job_commits_every_row_once(
    spark: SparkSession, rows: Rows, tmp_path: Path, slots: int, options: dict[str, str]
) -> None:
    query = start(spark, rows, tmp_path, slots, options)
    await_end(query)
    assert generation(query) == 1
    assert len(watching.completed_ids(query)) >= 3, "the run was too short to say anything"
    assert job.committed_rows(spark, tmp_path) == rows.answer


@pytest.mark.parametrize(("slots", "options"), [MODES[3], TWO_AT_ONCE])
def test_a_killed_worker_costs_a_generation_and_no_row(
    spark: SparkSession, rows: Rows, tmp_path: Path, chance: random.Random, slots: int, options: dict[str, str]
) -> None:
    query = start(spark, rows, tmp_path, slots, options)
    await_checkpoints(query, 2)
    kill_worker(query, chance.randrange(slots))
    await_end(query)
    assert generation(query) == 2
    assert job.committed_rows(spark, tmp_path) == rows.answer


@pytest.mark.parametrize(("slots", "options"), [MODES[1], MODES[2]])
def test_workers_killed_one_after_the_other(
    spark: SparkSession, rows: Rows, tmp_path: Path, chance: random.Random, slots: int, options: dict[str, str]
) -> None:
    query = start(spark, rows, tmp_path, slots, options)
    await_checkpoints(query, 2)
    first = kill_worker(query, chance.randrange(slots))
    until(lambda: runs_in(query, 2, slots), what="the second generation")
    assert first not in pids(query)
    await_checkpoints(query, len(watching.completed_ids(query)) + 2)
    kill_worker(query, chance.randrange(slots))
    await_end(query)
    assert generation(query) == 3
    assert job.committed_rows(spark, tmp_path) == rows.answer


def test_a_killed_worker_comes_back_from_the_daemon_that_has_tidegate_loaded(
    spark: SparkSession, rows: Rows, tmp_path: Path
) -> None:
    arguments = driver_arguments(rows, 2, {"checkpoint.unaligned": "true"})
    arguments += ["--conf", f"spark.python.daemon.module={DAEMON}"]
    with watching.driver(tmp_path, *arguments) as driver:
        driver.read_until("completed", 2)
        slots = newest_slots(driver)
        assert all(DAEMON in watching.command_of_parent(pid) for pid in slots)
        os.kill(slots[0], signal.SIGKILL)
        driver.read_until("ended")
        assert not set(slots[:1]) & set(newest_slots(driver))
    assert_resumed(spark, rows, tmp_path)


def newest_slots(driver: watching.Driver) -> list[int]:
    """The processes of the last state that the driver has told, if it told any."""
    told = [line.split()[3:] for line in driver.lines if line.startswith("state")]
    return [int(pid) for pid in next(pids for pids in reversed(told) if pids)]


def test_a_killed_driver_is_resumed_at_another_parallelism(spark: SparkSession, rows: Rows, tmp_path: Path) -> None:
    options = {"checkpoint.unaligned": "true"}
    kill_driver(spark, rows, tmp_path, driver_arguments(rows, 2, options))
    await_end(start(spark, rows, tmp_path, 3, options))
    assert_resumed(spark, rows, tmp_path)


def test_a_driver_killed_while_it_merges_small_files_shows_every_row_once(
    spark: SparkSession, rows: Rows, tmp_path: Path
) -> None:
    arguments = driver_arguments(rows, 2, {"checkpoint.unaligned": "true", "sink.compact.epochs": "2"})
    with watching.driver(tmp_path, *arguments) as first:
        first.read_until("completed", 4)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    seen = job.committed_rows(spark, tmp_path)
    assert 0 < len(seen) < len(rows.answer), "killed too early or too late to say anything"
    with watching.driver(tmp_path, *arguments) as second:
        second.read_until("ended")
    assert_resumed(spark, rows, tmp_path)
    assert list((tmp_path / "out").glob("part-*-to-*.parquet")), "nothing was merged"


def driver_arguments(rows: Rows, slots: int, options: dict[str, str]) -> list[str]:
    arguments = ["--input", str(rows.folder), "--slots", str(slots), "--row-cost-ms", str(ROW_COST_MS)]
    return arguments + [word for name, value in (WINDOW | options).items() for word in ("--option", f"{name}={value}")]


def kill_driver(spark: SparkSession, rows: Rows, folder: Path, arguments: list[str]) -> None:
    """After two checkpoints, and before the end."""
    with watching.driver(folder, *arguments) as first:
        first.read_until("completed", 2)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    committed = len(job.committed_rows(spark, folder))
    assert 0 < committed < len(rows.answer), "killed too early or too late to say anything"


def assert_resumed(spark: SparkSession, rows: Rows, folder: Path) -> None:
    assert watching.newest_generation(folder) == 2
    assert job.committed_rows(spark, folder) == rows.answer
