"""One run of one system: a process of its own on a given number of cores, what it says, and what processors it used.

A measured process says `measuring`, `sample` and `measured` in lines of JSON, a checking one `checked`. It leads a
session, by which its processor time is found, and by which whatever it left behind is ended. Nothing of a run outlives
it.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

# Stands in a command for the folder of the run.
FOLDER = "{folder}"
_ROOT = Path(__file__).resolve().parents[1]
# It has said what was asked of it: to stop in good order may take longer than this, and changes nothing.
_TERMINATE_S = 0.5
_KEPT_ERROR_LINES = 3
_KEPT_LINE_LENGTH = 300
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b")
_MEMORY_EVERY_S = 1.0


class RunFailed(Exception):
    """A run gave no result; the text says what it said last."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`at_s` is when it was triggered, since the measurement began. An unfinished one has lasted `ms` so far.

    `sync_ms` is that of the task that took longest.
    """

    id: int
    status: str
    kind: str
    at_s: float
    ms: float
    inflight_bytes: int
    new_inflight_bytes: int
    state_bytes: int
    new_state_bytes: int = 0
    sync_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the processes of a run hold at a moment: shared pages count once."""

    at_s: float
    driver_bytes: int
    workers_bytes: int
    jvm_bytes: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run measured. `cpu_s` is None where the system does not tell; `figures` are the system's own."""

    rows: float
    seconds: float
    cpu_s: float | None
    load_before: float
    checkpoints: tuple[Checkpoint, ...] = ()
    samples: tuple[Mapping[str, float], ...] = ()
    memory: tuple[Memory, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Results:
    """What a checking run found in its groups."""

    groups: int
    rows: int
    total: int
    digest: int


def observe(
    command: Sequence[str],
    *,
    cores: int,
    timeout_s: float,
    extra_environment: Mapping[str, str] | None = None,
    files_in: Path | None = None,
) -> Observation:
    """`files_in`: where the run has its folder, checkpoints and all; None is where temporary files go."""
    load_before = os.getloadavg()[0]
    cpu_before_s: float | None = None
    samples: list[Mapping[str, float]] = []
    watch: MemoryWatch | None = None
    more = extra_environment or {}
    with _events(command, cores=cores, timeout_s=timeout_s, more=more, files_in=files_in) as (session, events):
        try:
            for event in events:
                match event.pop("event"):
                    case "measuring":
                        cpu_before_s = _cpu_s_of(session)
                        watch = MemoryWatch(session)
                    case "sample":
                        samples.append(event)
                    case "measured":
                        cpu_s = _cpu_s_of(session)
                        used_s = None if cpu_s is None or cpu_before_s is None else cpu_s - cpu_before_s
                        return Observation(
                            rows=event.pop("rows"),
                            seconds=event.pop("seconds"),
                            cpu_s=used_s,
                            load_before=load_before,
                            checkpoints=tuple(Checkpoint(**one) for one in event.pop("checkpoints")),
                            samples=tuple(samples),
                            memory=() if watch is None else watch.close(),
                            figures=event,
                        )
        finally:
            if watch is not None:
                watch.close()
    raise RunFailed("it ended without a measurement")


def check(command: Sequence[str], *, cores: int, timeout_s: float) -> Results:
    with _events(command, cores=cores, timeout_s=timeout_s, more={}) as (_, events):
        for event in events:
            if event["event"] == "checked":
                return Results(event["groups"], event["rows"], event["total"], event["digest"])
    raise RunFailed("it ended without results")


class MemoryWatch:
    """Looks at the processes of a session once a second, until it is closed."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._began_s = time.monotonic()
        self._seen: list[Memory] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory-watch", daemon=True)
        self._thread.start()

    def close(self) -> tuple[Memory, ...]:
        self._is_over.set()
        self._thread.join()
        return tuple(self._seen)

    def _look(self) -> None:
        while not self._is_over.wait(_MEMORY_EVERY_S):
            held = {"driver": 0, "workers": 0, "jvm": 0}
            for pid in _pids_of(self._session):
                kind = "jvm" if _name(pid) == "java" else "driver" if pid == self._session else "workers"
                held[kind] += _proportional_bytes(pid)
            at_s = time.monotonic() - self._began_s
            self._seen.append(Memory(at_s, held["driver"], held["workers"], held["jvm"]))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


@contextmanager
def _events(
    command: Sequence[str], *, cores: int, timeout_s: float, more: Mapping[str, str], files_in: Path | None = None
) -> "Iterator[tuple[int, Iterator[dict[str, Any]]]]":
    """Starts the process, gives its session and what it says, and ends all of it."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=files_in, ignore_cleanup_errors=True) as folder:
        errors = Path(folder) / "stderr"
        place = Path(folder) / "files"
        place.mkdir()
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [part.replace(FOLDER, str(place)) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=place,
                env=_environment(place, more),
                start_new_session=True,
                preexec_fn=_on_cores(cores),
            )
        is_late = threading.Event()
        watchdog = threading.Timer(timeout_s, _end_late, [process.pid, is_late])
        watchdog.start()
        try:
            yield process.pid, _spoken(process, errors, is_late)
        finally:
            watchdog.cancel()
            _end(process)


def _spoken(process: "subprocess.Popen[str]", errors: Path, is_late: threading.Event) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
    code = process.wait()
    if is_late.is_set():
        raise RunFailed("it took too long and was ended")
    if code != 0:
        raise RunFailed(f"it ended with {code}: " + _essence(errors.read_text(errors="replace")))


def _essence(said: str) -> str:
    """The last error's own words, which a trace or a plan may follow at length; otherwise the last lines."""
    lines = [line.strip() for line in said.strip().splitlines()]
    named = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    kept = lines[named[-1] :][:_KEPT_ERROR_LINES] if named else lines[-_KEPT_ERROR_LINES:]
    return " | ".join(line[:_KEPT_LINE_LENGTH] for line in kept)


def _end_late(session: int, is_late: threading.Event) -> None:
    is_late.set()
    _end_session(session)


def _environment(place: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Modules are found from the run's own folder, where everything that is written goes."""
    given = [more.get("PYTHONPATH"), str(_ROOT), os.environ.get("PYTHONPATH")]
    found_in = os.pathsep.join(filter(None, given))
    own = {"PYTHONPATH": found_in, "TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **more, **own}


def _on_cores(cores: int) -> Callable[[], None] | None:
    """All systems get the same cores, also where there are more: tasks, collectors and helpers share them."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    return partial(os.sched_setaffinity, 0, chosen)


def _end(process: "subprocess.Popen[str]") -> None:
    """Lets it stop by itself if it is quick about it."""
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        pass
    _end_session(process.pid)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _end_session(session: int) -> None:
    for pid in _pids_of(session) or [session]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _cpu_s_of(session: int) -> float | None:
    pids = _pids_of(session)
    ticks = [_stat(pid) for pid in pids]
    known = [int(stat[11]) + int(stat[12]) for stat in ticks if stat is not None]
    return sum(known) / os.sysconf("SC_CLK_TCK") if known else None


def _pids_of(session: int) -> list[int]:
    """Empty where there is no /proc."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    stats = {pid: _stat(pid) for pid in pids}
    return [pid for pid, stat in stats.items() if stat is not None and int(stat[3]) == session]


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name, which may itself hold blanks: state, parent, group, session, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
