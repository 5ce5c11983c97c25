"""When a query has ended, however it ended, nothing of it is left: no thread, socket, setting, process or file."""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tests.chaos import job
from tidegate.model.errors import UserCodeFailure
from tidegate.spark.session import LEDGER

pytestmark = pytest.mark.spark

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0
# What a writer of the store, or of the system's own store, names a file before it is complete.
UNFINISHED = re.compile(r".*#\d+|_tidegate")


@dataclass(frozen=True)
class Process:
    """What can be seen of a process from inside."""

    pid: int
    threads: frozenset[str]
    listening: int
    switch_interval_s: float


def this_process() -> Process:
    gc.collect()
    return Process(
        os.getpid(),
        frozenset(thread.name for thread in threading.enumerate()),
        len(listening_inodes() & open_socket_inodes()),
        sys.getswitchinterval(),
    )


def open_socket_inodes() -> set[str]:
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def listening_inodes() -> set[str]:
    tcp = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepting = 0x10000
    return {words[9] for words in tcp if words[3] == "0A"} | {w[6] for w in unix if int(w[3], 16) & accepting}


# Spark hands out the worker that has been idle for longest, and other tests may have left it more than four.
ROUNDS = 8


def workers(spark: SparkSession, wanted: set[int]) -> dict[int, Process]:
    """Spark keeps its Python workers and gives them the next tasks: these. Until all that are wanted have had one."""
    seen: dict[int, Process] = {}
    for _ in range(ROUNDS):
        seen |= four_workers(spark)
        if wanted <= seen.keys():
            break
    return seen


def four_workers(spark: SparkSession) -> dict[int, Process]:

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        time.sleep(0.5)  # all four at once, so that each gets a worker of its own
        seen = this_process()
        names = ["\n".join(sorted(seen.threads))]
        columns = [[seen.pid], names, [seen.listening], [seen.switch_interval_s]]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["pid", "names", "n", "s"])

    rows = spark.range(0, 4, 1, 4).mapInArrow(look, "pid long, names string, n long, s double").collect()
    return {row.pid: Process(row.pid, frozenset(row.names.split("\n")), row.n, row.s) for row in rows}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything of this process that is temporary goes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Path:
    job.make_input(spark, tmp_path, rows=4000, files=16)
    return tmp_path / "in"


def counting(spark: SparkSession, source: Path, row_cost_s: float = 0.0005) -> DataFrame:
    return job.pipeline(spark.readStream.schema(job.INPUT).parquet(str(source)), row_cost_s=row_cost_s)


def writer(df: DataFrame, folder: Path) -> tg.DataStreamWriter:
    writer = tg.writeStream(df).format("parquet").option("parallelism", 3).option("checkpoint.interval", "50ms")
    writer.option("checkpointLocation", folder / "chk").option("path", folder / "out")
    return writer.option("restart.strategy", "none").option("network.window", "4kb")


def until(condition: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def pids_of(query: tg.StreamingQuery) -> set[int]:
    return set(query._coordinator.view().slot_pids)


def run_to_the_end(spark: SparkSession, source: Path, folder: Path) -> set[int]:
    query = writer(counting(spark, source), folder).trigger(availableNow=True).start()
    assert until(lambda: len(pids_of(query)) == 3)
    pids = pids_of(query)
    assert query.awaitTermination(PATIENCE_S)
    return pids


def stop_midway(spark: SparkSession, source: Path, folder: Path) -> set[int]:
    query = writer(counting(spark, source), folder).start()
    assert until(lambda: query._coordinator.view().committed_checkpoints >= 2)
    pids = pids_of(query)
    query.stop()
    return pids


def fail_midway(spark: SparkSession, source: Path, folder: Path) -> set[int]:
    seen = str(folder / "seen")  # its slots, so that they are not gone before anybody has looked

    def bad(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.path.exists(seen):
                raise ValueError("enough")
            yield batch

    df = spark.readStream.schema(job.INPUT).parquet(str(source)).mapInArrow(bad, job.INPUT)
    query = writer(job.pipeline(df, row_cost_s=0.003), folder).start()
    assert until(lambda: len(pids_of(query)) == 3)
    pids = pids_of(query)
    Path(seen).touch()
    with pytest.raises(UserCodeFailure):
        query.awaitTermination(PATIENCE_S)
    return pids


def run_without_a_location(spark: SparkSession, source: Path, folder: Path) -> set[int]:
    query = tg.writeStream(counting(spark, source)).format("noop").option("parallelism", 3)
    query = query.option("checkpoint.interval", "50ms").start()
    assert until(lambda: query._coordinator.view().committed_checkpoints >= 2)
    assert list((folder / "temporary").glob("tidegate-*")), "its checkpoints are somewhere"
    pids = pids_of(query)
    query.stop()
    return pids


@pytest.mark.parametrize("run", [run_to_the_end, stop_midway, fail_midway, run_without_a_location])
def test_a_query_leaves_nothing_in_a_session_that_goes_on(
    spark: SparkSession,
    source: Path,
    tmp_path: Path,
    temporary: Path,
    run: Callable[[SparkSession, Path, Path], set[int]],
) -> None:
    usual, before = next(iter(four_workers(spark).values())), this_process()
    pids = run(spark, source, tmp_path)

    assert until(lambda: this_process().threads <= before.threads), this_process().threads - before.threads
    after = this_process()
    assert after.listening == before.listening
    assert after.switch_interval_s == before.switch_interval_s
    assert tg.queries() == [] and LEDGER.held(spark.sparkContext.applicationId) == ()

    slots_after = [worker for pid, worker in workers(spark, pids).items() if pid in pids]
    assert slots_after, "no worker that was a slot could be looked at"
    for worker in slots_after:
        assert worker.threads == usual.threads
        assert worker.listening == usual.listening
        assert worker.switch_interval_s == usual.switch_interval_s

    assert [path for path in tmp_path.rglob("*") if UNFINISHED.fullmatch(path.name)] == []
    assert list(temporary.glob("tidegate-*")) == []


def test_a_query_whose_start_fails_when_it_runs_already_does_not_run_on(
    spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = this_process()

    def fail(*_: object) -> None:
        raise RuntimeError("no events today")

    with monkeypatch.context() as patched:
        patched.setattr("tidegate.api.writer.SparkEvents", fail)
        with pytest.raises(RuntimeError, match="no events today"):
            writer(counting(spark, source), tmp_path).start()
    assert tg.queries() == [], "it has ended when that is raised"
    assert until(lambda: this_process().threads <= before.threads), this_process().threads - before.threads
    assert LEDGER.held(spark.sparkContext.applicationId) == ()
    assert run_to_the_end(spark, source, tmp_path), "the location is free"


def session_processes(leader: int) -> list[str]:
    """Every process of the session that `leader` began, ended ones that nobody has waited for left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(") ")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(after_name[3]) == leader and after_name[0] != "Z":
            found.append(f"{entry.name} {command[:120]}")
    return found


ENDLESS = """
    import faulthandler, os, signal, sys
    faulthandler.register(signal.SIGUSR1)
    import tidegate as tg
    from tests.chaos import job
    spark = job.session("local[3]")
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    query = tg.writeStream(rate).format("noop").option("checkpoint.interval", "100ms").start()
    while not query._coordinator.view().committed_checkpoints:
        assert query.isActive, query.exception()
        query.awaitTermination(0.05)
    job.say("running")
    {then}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "interrupt", "said"),
    [
        ("query.awaitTermination()", True, "KeyboardInterrupt"),
        ("query.stop()", False, None),
        ("sys.exit(0)", False, None),
        ("spark.stop(); query.awaitTermination(); job.say(query.status['message'])", False, "stopped"),
        ("raise RuntimeError('the script has a bug')", False, "the script has a bug"),
        ("os.kill(spark._sc._gateway.proc.pid, 9); query.awaitTermination()", False, "Spark's JVM has ended"),
    ],
    ids=["Ctrl-C", "stop", "exit", "session stopped", "error in the script", "JVM killed"],
)
def test_a_driver_that_ends_leaves_no_process_and_no_file(
    tmp_path: Path, then: str, interrupt: bool, said: str | None
) -> None:
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}",
        "PYSPARK_PYTHON": sys.executable,
    }
    # A file and not a pipe: whoever reads a pipe line by line may hold what comes right after the line it waits for.
    shown = tmp_path / "shown.txt"
    with (
        shown.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(ENDLESS).format(then=then)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        ) as driver,
    ):
        try:
            assert until(lambda: "running" in shown.read_text() or driver.poll() is not None), shown.read_text()
            if interrupt:
                time.sleep(0.3)
                os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
            try:
                driver.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                left = session_processes(driver.pid)
                driver.send_signal(signal.SIGUSR1)  # its threads say where they are
                time.sleep(1)
                os.killpg(driver.pid, signal.SIGKILL)
                pytest.fail(f"still there: {left}\n{shown.read_text()}")
            assert until(lambda: not session_processes(driver.pid)), session_processes(driver.pid)
        finally:
            for process in session_processes(driver.pid):
                os.kill(int(process.split()[0]), signal.SIGKILL)
    output = shown.read_text()
    assert "Exception in thread" not in output, output
    assert said is None or said in output, output
    assert "The coordinator of query" not in output, output
    assert list(tmp_path.glob("**/tidegate-*")) == []
