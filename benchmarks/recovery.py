"""From a failure to the first row that is committed after it, and where that time goes.

One job (rate source, mapInArrow, shuffle, one row counter per key, parquet) with a checkpoint every 200 ms, and every
other option at its default. Several times each: its function raises (restart in place), one of its Python workers is
killed (local mode, with Spark's own daemon and with the one that has Tidegate loaded), the JVM of an executor that
carries a slot is killed (standalone cluster on loopback, with spare cores). Between two strikes the job runs on. The
end is reached when a reader of the output sees a file of the new generation. Times on shared machines vary: each figure
is a median with its spread.
"""

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg
from tidegate.testing.standalone import standalone_cluster

# Workers cannot import the benchmarks: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SLOTS = 2
KEYS = 100
ROWS_PER_SECOND = 5_000
INTERVAL = "200ms"
# Enough for everything that is not under test to have settled since the last strike.
CHECKPOINTS_BEFORE_A_STRIKE = 5
_LOOK_EVERY_S = 0.001
_SPIN_S = 0.2
# A job that has not recovered by then will not.
_PATIENCE_S = 90.0
_GENERATION = re.compile(r"-g(\d+)-")

PARTS = ("noticed", "old generation gone", "new slots here", "state restored", "first row committed")


class CountRows(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self._count.get()[0] if self._count.exists() else 0
        n += sum(1 for _ in rows)
        self._count.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        return


def failing_when_told(order: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Raises once whenever the file is there: whoever removes it is the one to fail."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                os.remove(order)
            except FileNotFoundError:
                yield batch
            else:
                raise ValueError("the benchmark asked for it")

    return pass_on


@dataclass
class Watch:
    """Writes down when the coordinator's view of the job changed, and when files of a generation came into sight."""

    query: tg.StreamingQuery
    output: Path
    changes: list[tuple[float, str, int, tuple[int, ...], bool]] = field(default_factory=list)
    visible: dict[int, float] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        # It sits in the call to Spark until the launch is over.
        self._launch = next(thread for thread in threading.enumerate() if thread.name == "tidegate-launch-1")
        self._thread = threading.Thread(target=self._look, name="recovery-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S):
            view = self.query._coordinator.view()
            now = time.monotonic()
            seen = (view.state, view.generation, view.slot_pids, self._launch.is_alive())
            if not self.changes or self.changes[-1][1:] != seen:
                self.changes.append((now, *seen))
            if view.generation not in self.visible and self._shows(view.generation):
                self.visible[view.generation] = time.monotonic()

    def _shows(self, generation: int) -> bool:
        names = (entry.name for entry in os.scandir(self.output) if entry.name.startswith("part-"))
        return any((found := _GENERATION.search(name)) and int(found[1]) == generation for name in names)

    def times_since(self, struck_at: float, generation: int) -> tuple[float, ...]:
        """When each part was over, in seconds since the strike. In place, slots stay: their parts are empty."""
        later = [change for change in self.changes if change[0] >= struck_at]
        noticed = next(at for at, state, *_ in later if state != "running")
        gone = next((at for at, _, _, _, is_there in later if not is_there), noticed)
        here = next(at for at, _, _, pids, _ in later if at >= gone and len(pids) == SLOTS)
        restored = next(at for at, state, number, *_ in later if state == "running" and number == generation)
        return tuple(at - struck_at for at in (noticed, gone, here, restored, self.visible[generation]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="strikes per case")
    parser.add_argument("--case", choices=[*CASES], action="append", help="default: all")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # So that what was started is ended, whoever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{machine()} at the start, {os.cpu_count()} cores, {given.times} strikes per case")
    print(f"{'':22}{'':>22}" + "".join(f"{part:>24}" for part in PARTS))
    with tempfile.TemporaryDirectory(prefix="tidegate-recovery-") as folder:
        for case in given.case or CASES:
            report(case, CASES[case](Path(folder) / case, given.times))
    print(f"{machine()} at the end")


def machine() -> str:
    """How busy it is: a machine that is busy with other things gives one thread a part of a core only."""
    began_s, used_s = time.perf_counter(), time.process_time()
    while time.process_time() - used_s < _SPIN_S:
        pass
    share = _SPIN_S / (time.perf_counter() - began_s)
    return f"load {os.getloadavg()[0]:.1f}, {share:.0%} of a core for one thread"


def report(case: str, strikes: list[tuple[float, ...]]) -> None:
    """Each part on its own: what came before it is not in it."""
    parts = [tuple(b - a for a, b in zip((0.0, *strike), strike, strict=False)) for strike in strikes]
    columns = "".join(f"{spread([part[i] for part in parts]):>24}" for i in range(len(PARTS)))
    print(f"{case:22}{spread([strike[-1] for strike in strikes]):>22}{columns}", flush=True)


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"


def operator_error(folder: Path, times: int) -> list[tuple[float, ...]]:
    def strike(query: tg.StreamingQuery, order: Path) -> None:
        order.touch()

    return in_local_mode(folder, times, strike)


def killed_worker(folder: Path, times: int) -> list[tuple[float, ...]]:
    return in_local_mode(folder, times, kill_a_worker)


def killed_worker_loaded(folder: Path, times: int) -> list[tuple[float, ...]]:
    return in_local_mode(folder, times, kill_a_worker, {"spark.python.daemon.module": "tidegate.spark.daemon"})


def kill_a_worker(query: tg.StreamingQuery, order: Path) -> None:
    os.kill(query._coordinator.view().slot_pids[0], signal.SIGKILL)


def killed_executor(folder: Path, times: int) -> list[tuple[float, ...]]:
    def strike(query: tg.StreamingQuery, order: Path) -> None:
        os.kill(executor_of(query._coordinator.view().slot_pids[0]), signal.SIGKILL)

    # One executor per worker: a lost one leaves twice the cores that the job needs.
    with standalone_cluster(folder / "cluster", workers=3, cores=2) as cluster:
        spark = session(cluster.url, {"spark.executor.cores": "2", "spark.executor.memory": "512m"})
        try:
            while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 4:  # with the driver
                time.sleep(0.1)
            return measure(spark, folder, times, strike)
        finally:
            spark.stop()


CASES: Mapping[str, Callable[[Path, int], list[tuple[float, ...]]]] = {
    "operator-error": operator_error,
    "killed-worker": killed_worker,
    "killed-worker-loaded": killed_worker_loaded,
    "killed-executor": killed_executor,
}


def in_local_mode(
    folder: Path,
    times: int,
    strike: Callable[[tg.StreamingQuery, Path], None],
    settings: Mapping[str, str] | None = None,
) -> list[tuple[float, ...]]:
    spark = session("local[3]", settings or {})
    try:
        return measure(spark, folder, times, strike)
    finally:
        spark.stop()


def session(master: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # What the first Python task of a session costs is no part of a recovery.
    spark.range(0, SLOTS, 1, SLOTS).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def measure(
    spark: SparkSession, folder: Path, times: int, strike: Callable[[tg.StreamingQuery, Path], None]
) -> list[tuple[float, ...]]:
    output, order = folder / "out", folder / "fail-once"
    output.mkdir(parents=True)
    found = []
    for number in range(times):
        query = start(spark, folder / f"chk-{number}", output, order)
        until(lambda: bool(query._coordinator.view().slot_pids), query)  # noqa: B023 - called before the loop goes on
        watch = Watch(query, output)
        try:
            await_checkpoints(query, watch)
            struck_at = time.monotonic()
            strike(query, order)
            until(lambda: 2 in watch.visible, query)  # noqa: B023 - called before the loop goes on
            found.append(watch.times_since(struck_at, 2))
        finally:
            watch.close()
            query.stop()
        for file in output.glob("part-*"):
            file.unlink()
    return found


def start(spark: SparkSession, checkpoints: Path, output: Path, order: Path) -> tg.StreamingQuery:
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    keyed = rows.select((F.col("value") % KEYS).alias("k")).mapInArrow(failing_when_told(str(order)), "k long")
    counted = keyed.groupBy("k").transformWithState(CountRows(), "k long, n long", "Append", "None")
    return (
        tg.writeStream(counted)
        .format("parquet")
        .option("checkpointLocation", str(checkpoints))
        .option("checkpoint.interval", INTERVAL)
        .option("parallelism", SLOTS)
        .start(str(output))
    )


def await_checkpoints(query: tg.StreamingQuery, watch: Watch) -> None:
    until(
        lambda: 1 in watch.visible and query._coordinator.view().committed_checkpoints >= CHECKPOINTS_BEFORE_A_STRIKE,
        query,
    )


def until(condition: Callable[[], bool], query: tg.StreamingQuery) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline or not query.isActive:
            raise SystemExit(f"the job did not recover: {query.status}")
        time.sleep(0.005)


def executor_of(worker: int) -> int:
    """The JVM above a Python worker and the daemon that forked it."""
    parent = worker
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{parent}/cmdline").read_bytes():
        parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


if __name__ == "__main__":
    main()
