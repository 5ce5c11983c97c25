"""Strikes: a process is killed at a named moment of the barrier path, once per run, by whoever comes to that moment.

The production code knows nothing of this: while a case runs, the functions that make a step are wrapped, on the driver
and, because the wrapper travels with the function that Spark runs, in every slot. Whoever makes the step kills the
victim, itself if it is the victim, and does not go on before that is gone.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, assert_never
from unittest.mock import patch

import msgspec

import tidegate.worker.main
from tests.golden.cases import PHASE_OF, Beside, Case, Moment, Phase, Victim
from tidegate.connectors import file_committer
from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.storage.job_log import JobLog
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.store import open_store
from tidegate.testing import Step
from tidegate.testing.simulation.steps import steps_watched
from tidegate.worker.reading import read_in_flight
from tidegate.worker.restoring import StoredFiles
from tidegate.worker.session import SlotSession

# Begins the names of notes of what was restored.
RESTORED = "restored-"
# The manifest is there before the log entry is: the one before it is complete for sure. Rows are published, too.
_MANIFESTS_BEFORE = 2
_GONE_WITHIN_S = 10.0
# A moment that comes with each checkpoint is not always struck at its first turn.
_MOST_SKIPPED = 2


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL, after the moment has passed by `skipped` times in the process that comes to it."""

    victim: Victim
    moment: Moment
    skipped: int


@dataclass(frozen=True, slots=True)
class Stumble:
    """An error in whoever makes the step: the processes stay, and the next generation is restored in them."""

    moment: Moment


Blow: TypeAlias = Kill | Stumble


class Restored(msgspec.Struct, frozen=True):
    """What a generation went on from; `suffixes`: the kinds of files that lie beside the slots' own."""

    checkpoint: int
    rows_in_flight: int
    suffixes: list[str]


def look_at_restored(location: Path, manifest_path: str) -> Restored:
    store = open_store(str(location))
    manifest = decode_manifest(store.read(manifest_path), name=manifest_path)
    assert manifest.plan is not None
    files = StoredFiles(store, manifest)
    in_flight = [
        rows.num_rows
        for slot in range(manifest.parallelism)
        for _, rows in read_in_flight(files, manifest.plan.edges, slot)
    ]
    suffixes = {Path(file.path).suffix for slot in manifest.slots for file in slot.shared}
    return Restored(manifest.checkpoint, sum(in_flight), sorted(suffixes))


def blows_of(case: Case, seed: int) -> tuple[Blow, ...]:
    """What happens in the run, in this order; to be struck while it restores, a job has to stumble first."""
    chance = random.Random(f"{case} {seed}")
    if PHASE_OF[case.moment] is Phase.RESTORING:
        return Stumble(Step.SNAPSHOT_TAKEN), Kill(case.victim, case.moment, 0)
    return (Kill(case.victim, case.moment, chance.randint(0, _MOST_SKIPPED)),)


@dataclass(frozen=True, slots=True)
class Strike:
    """`job` is the folder of the job, with a folder of this strike in it; the driver's own steps hit `slot`."""

    job: Path
    blows: tuple[Blow, ...]
    driver_pid: int
    slot: int

    @property
    def folder(self) -> Path:
        """With a mark for each blow that was struck, and who runs where."""
        return self.job / "strike"

    def mark(self, blow: int) -> Path:
        return self.folder / f"blow-{blow}"

    @property
    def last_mark(self) -> Path:
        return self.mark(len(self.blows) - 1)

    def restored(self, generation: int) -> Path:
        return self.folder / f"{RESTORED}{generation:03d}"

    @contextmanager
    def watched(self) -> Iterator["Watch"]:
        """In the driver's process, while the query runs; its slots are watched too."""
        from tidegate.spark import launch

        (self.folder / "slots").mkdir(parents=True, exist_ok=True)
        watch = Watch(self, slot=None)
        with watch.installed(), patch.object(launch, "_slot_function", _watching(launch._slot_function, self)):
            yield watch


def _watching(slot_function: Callable[[Any], Any], strike: Strike) -> Callable[[Any], Any]:
    def watching_slot_function(order: Any) -> Any:
        serve = slot_function(order)

        def slot(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            watch = Watch(strike, slot=context.partitionId())
            if context.attemptNumber() == 0:  # Spark repeats a failed stage by itself, and a slot leaves it at once
                watch.say_where()
            with watch.installed():
                yield from serve(batches)

        return slot

    return watching_slot_function


class Watch:
    """Looks at the moments of one process, and strikes when it is time."""

    def __init__(self, strike: Strike, *, slot: int | None) -> None:
        self._strike = strike
        self._slot = slot
        self._passed: Counter[int] = Counter()

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(steps_watched(self.at))
            for owner, name, moment in _AFTERWARDS:
                wrapped = self._telling(getattr(owner, name), moment)
                stack.enter_context(patch.object(owner, name, wrapped))
            yield

    def at(self, moment: Moment) -> None:
        for number, blow in enumerate(self._strike.blows):
            if moment is blow.moment and self._is_due(number) and not self._passes_by(number, blow):
                self._strike_with(number, blow)

    def say_where(self) -> None:
        """So that the driver's steps can hit a slot."""
        place = self._strike.folder / "slots" / str(self._slot)
        draft = place.with_suffix(f".{os.getpid()}")
        draft.write_text(f"{os.getpid()} {_executor_of(os.getpid())}")
        draft.rename(place)

    def _is_due(self, number: int) -> bool:
        if self._strike.mark(number).exists():
            return False
        if number > 0:
            return self._strike.mark(number - 1).exists()
        manifests = list((self._strike.job / "chk").glob("checkpoints/*/manifest.json"))
        return len(manifests) >= _MANIFESTS_BEFORE and any((self._strike.job / "out").glob("[!_.]*"))

    def _passes_by(self, number: int, blow: Blow) -> bool:
        self._passed[number] += 1
        return isinstance(blow, Kill) and self._passed[number] <= blow.skipped

    def _strike_with(self, number: int, blow: Blow) -> None:
        try:
            mark = os.open(self._strike.mark(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return  # another slot was there first
        witness = "the driver" if self._slot is None else f"slot {self._slot}"
        match blow:
            case Kill(victim, moment):
                pid = self._pid_of(victim)
                os.write(mark, f"{witness} killed {victim.value} {pid} at {moment.name}: {moment.value}".encode())
                os.kill(pid, signal.SIGKILL)
                _await_gone(pid)
            case Stumble(moment):
                os.write(mark, f"{witness} stumbled at {moment.name}: {moment.value}".encode())
                raise RuntimeError("stumbled")
            case _:
                assert_never(blow)

    def _pid_of(self, victim: Victim) -> int:
        if victim is Victim.DRIVER:
            return self._strike.driver_pid
        if self._slot is None:
            told = (self._strike.folder / "slots" / str(self._strike.slot)).read_text()
            worker, executor = map(int, told.split())
        else:
            worker, executor = os.getpid(), _executor_of(os.getpid())
        return worker if victim is Victim.WORKER else executor

    def _telling(self, function: Callable[..., Any], moment: Moment) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if isinstance(result, GenerationBasis) and result.restore_manifest is not None:
                # Now, as it may be retired before the run ends.
                restored = look_at_restored(self._strike.job / "chk", result.restore_manifest)
                self._strike.restored(result.generation).write_bytes(msgspec.json.encode(restored))
            self.at(moment)
            return result

        return call


# A `foreachBatch` function tells by itself when it has done a part.
_AFTERWARDS: list[tuple[Any, str, Moment]] = [
    (file_committer, "_rename", Beside.HALF_PUBLISHED),
    (JobLog, "start_generation", Beside.GENERATION_LOGGED),
    (DurableJob, "start_generation", Beside.BASIS_CHOSEN),
    (tidegate.worker.main, "restore_for", Beside.STATE_READ),
    (SlotSession, "on_built", Beside.SLOT_READY),
]


def _executor_of(pid: int) -> int:
    """The JVM above a Python worker and its daemon."""
    while b"java" not in (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[0]:
        pid = int(_stat(pid)[1])
        if pid <= 1:
            raise RuntimeError("this process runs under no JVM")
    return pid


def _stat(pid: int) -> list[str]:
    # The name, in brackets, may hold anything; the state and the parent stand behind it.
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _await_gone(pid: int) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if _stat(pid)[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.002)
    raise RuntimeError(f"process {pid} was killed and is still there")
