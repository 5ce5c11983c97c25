"""Runs cases: gives orders to driver programs, starts another one when a driver was killed, and reads what came out.

Has no Spark of its own. Drivers and the cluster are started when the first case needs them, and end with the `with`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, assert_never

import pyarrow.parquet as pq

from tests.golden import jobs
from tests.golden.cases import RESCALED, SLOTS, Case, Mode, Operator, Place, Sink, Victim
from tests.golden.strike import RESTORED, Kill, Restored, blows_of
from tidegate.storage.decoding import from_json
from tidegate.storage.job_log import GenerationStarted, JobLog, retained_checkpoints
from tidegate.storage.store import open_store
from tidegate.testing.standalone import standalone_cluster

Rows: TypeAlias = list[tuple[Any, ...]]

REPOSITORY = Path(__file__).resolve().parents[2]
# A little more than the driver's own, which says more about what hangs.
_PATIENCE_S = 400.0
_EXIT_WITHIN_S = 30.0
_SAID = "golden "
_ENVIRONMENT = {"PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "PYSPARK_PYTHON": sys.executable}


class DriverGone(Exception):
    """It was killed, or ended by itself, before it answered."""


class DriverProcess:
    """One driver program, in a process group of its own; its stderr goes to a file."""

    def __init__(self, master: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.golden.driver", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=REPOSITORY,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )
        self._log = log
        self._answer()

    def order(self, *words: str) -> None:
        """Returns when it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        match self._answer():
            case ["done"]:
                return
            case ["failed", reason]:
                raise AssertionError(f"the job failed; the driver's log is {self._log}\n{reason}")
            case other:
                raise AssertionError(f"the driver said {other}")

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_EXIT_WITHIN_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        finally:
            self._process.stdout.close()
            # Also what a killed driver left: its JVM outlives it for a moment.
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        # A driver that says nothing any more must not hold up the test for good.
        guard = threading.Timer(_PATIENCE_S, self._process.kill)
        guard.start()
        try:
            for line in self._process.stdout:
                if line.startswith(_SAID):
                    words: list[str] = json.loads(line.removeprefix(_SAID))
                    return words
        finally:
            guard.cancel()
        raise DriverGone(f"the driver ended with {self._process.wait()}; its log is {self._log}")


@dataclass(slots=True)
class Golden:
    """`folder` holds the input, the answers, the drivers' logs and a folder for each case.

    `restored`: what each case that was played has gone on from.
    """

    folder: Path
    _stack: ExitStack
    restored: dict[Case, Restored] = field(default_factory=dict)
    _drivers: dict[Place, DriverProcess] = field(default_factory=dict)
    _masters: dict[Place, str] = field(default_factory=dict)
    _answers: dict[Operator, Rows] = field(default_factory=dict)

    def play(self, case: Case, seed: int) -> str:
        """Raises AssertionError unless the committed rows are those of an undisturbed run; gives what happened."""
        folder = self.folder / f"{case}-{seed}"
        folder.mkdir()
        begun_s = time.monotonic()
        expected = self.answer(case.job.operator)
        self._give_order(case, seed, folder)
        marks = check_was_struck(case, seed, folder)
        restored = check_restored(case, folder)
        self.restored[case] = restored
        check_rows(case, committed_rows(case, folder), expected)
        went_on = f"went on from checkpoint {restored.checkpoint} with {restored.rows_in_flight} rows in flight"
        return f"{marks}; {went_on} ({time.monotonic() - begun_s:.1f} s)"

    def _give_order(self, case: Case, seed: int, folder: Path) -> None:
        """A driver that is the victim is killed the first time, and comes to the end the second time."""
        kills = 1 if case.victim is Victim.DRIVER else 0
        for attempt in range(kills + 1):
            slots = case.slots if attempt else SLOTS
            try:
                words = ("case", str(case), str(seed), str(slots), str(self.input), str(folder))
                self._driver(case.place).order(*words)
            except (DriverGone, BrokenPipeError) as gone:
                self._drivers.pop(case.place).end()
                if attempt == kills:
                    raise AssertionError("the driver is gone, and was not to be killed") from gone
            else:
                assert attempt == kills, "the driver was to be killed, and came to its end"

    def answer(self, operator: Operator) -> Rows:
        """What an undisturbed run commits, which must be what Spark says in a batch."""
        if operator not in self._answers:
            folder, sparks = self.folder / f"undisturbed-{operator.value}", self.folder / f"{operator.value}.parquet"
            self._driver(Place.LOCAL).order("answer", operator.value, str(self.input), str(sparks))
            self._driver(Place.LOCAL).order("undisturbed", operator.value, str(self.input), str(folder))
            assert len(retained_checkpoints(_log(folder))) >= 3, "the run was too short to say anything"
            rows = settled(operator, read_rows([*(folder / "out").glob("*.parquet")]))
            assert rows == read_rows([sparks]), "the undisturbed run is not what Spark says in a batch"
            self._answers[operator] = rows
        return self._answers[operator]

    @property
    def input(self) -> Path:
        return self.folder / "input"

    def _driver(self, place: Place) -> DriverProcess:
        if place not in self._drivers:
            log = self.folder / f"{place.value}.log"
            self._drivers[place] = DriverProcess(self._master(place), log)
        return self._drivers[place]

    def _master(self, place: Place) -> str:
        if place not in self._masters:
            match place:
                case Place.LOCAL:
                    # As many as the most slots take, and one for Spark's own jobs.
                    self._masters[place] = f"local[{max(RESCALED) + 1}]"
                case Place.CLUSTER:
                    # More cores than a driver takes: the next one need not wait until the last one's are free.
                    cluster = standalone_cluster(self.folder / "cluster", workers=2, cores=8, memory="4g")
                    self._masters[place] = self._stack.enter_context(cluster).url
                case _:
                    assert_never(place)
        return self._masters[place]

    def end_drivers(self) -> None:
        while self._drivers:
            self._drivers.popitem()[1].end()


@contextmanager
def golden(folder: Path) -> Iterator[Golden]:
    jobs.make_input(folder / "input")
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)  # the cluster's executors have it from here
    try:
        with ExitStack() as stack:
            running = Golden(folder, stack)
            stack.callback(running.end_drivers)
            yield running
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# -- what came out


def check_was_struck(case: Case, seed: int, folder: Path) -> str:
    """Each blow, once, before the end; gives what they left behind. None is struck before a checkpoint is there."""
    blows = blows_of(case, seed)
    marks = sorted((folder / "strike").glob("blow-*"))
    assert len(marks) == len(blows), f"of {blows} only {len(marks)} were struck"
    assert any(isinstance(blow, Kill) for blow in blows)
    generations = [entry.generation for entry in _log(folder) if isinstance(entry, GenerationStarted)]
    # The newest, whatever became of older entries: a log that has grown long is shortened.
    assert generations[-1] > len(blows), f"{len(blows)} blows, and the newest generation is {generations[-1]}"
    return ", then ".join(mark.read_text() for mark in marks)


def check_restored(case: Case, folder: Path) -> Restored:
    """What the last generation went on from; with a changelog, changes must have been in its files."""
    notes = sorted((folder / "strike").glob(f"{RESTORED}*"))
    assert notes, "no generation has gone on from a checkpoint"
    restored = from_json(notes[-1].read_bytes(), Restored)
    logged = ".entries" if case.job.operator is Operator.TIMERS else ".rows"
    if case.job.backend.has_changelog:
        assert logged in restored.suffixes, f"no changes were stored in {logged}: there is {restored.suffixes}"
    if case.job.mode is Mode.ALIGNED:
        assert restored.rows_in_flight == 0, "an aligned checkpoint held rows in flight"
    return restored


def committed_rows(case: Case, folder: Path) -> Rows:
    out = folder / "out"
    match case.job.sink:
        case Sink.PARQUET:
            return read_rows([*out.glob("*.parquet")])
        case Sink.FOREACH_BATCH:
            rows: Rows = []
            for epoch in out.iterdir():
                calls = [read_rows([call]) for call in epoch.glob("*.parquet")]
                assert all(call == calls[0] for call in calls), f"epoch {epoch.name} was given out with other rows"
                rows += calls[0] if calls else []
            return sorted(rows, key=repr)
        case _:
            assert_never(case.job.sink)


def check_rows(case: Case, rows: Rows, expected: Rows) -> None:
    assert len(set(rows)) == len(rows), f"doubled: {_some(row for row in set(rows) if rows.count(row) > 1)}"
    result, answer = set(settled(case.job.operator, rows)), set(expected)
    assert result == answer, f"lost: {_some(answer - result)}; wrong: {_some(result - answer)}"


def settled(operator: Operator, rows: Rows) -> Rows:
    """In update mode the last row of each group, which is the one that has counted the most; else all."""
    if operator is not Operator.AGGREGATION:
        return rows
    last: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        key, n = row[0], row[1]
        if key not in last or n > last[key][1]:
            last[key] = row
    return sorted(last.values(), key=repr)


def read_rows(files: list[Path]) -> Rows:
    # Each by itself: an epoch's file need not have the null flags of the next one.
    return sorted((tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()), key=repr)


def _log(folder: Path) -> list[Any]:
    return JobLog(open_store(str(folder / "chk")), driver="a test").read()


def _some(rows: Any) -> str:
    listed = sorted(rows, key=repr)
    return f"{len(listed)} rows, first {listed[:5]}"
