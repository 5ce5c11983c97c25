"""One run of one system: a process of its own on a given number of cores, what it says, and what processors it used.

A measured process says `measuring` and `measured` in lines of JSON, a checking one `checked`. It leads a session, by
which its processor time is found, and by which whatever it left behind is ended. Nothing of a run outlives it.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Stands in a command for the folder of the run.
FOLDER = "{folder}"
_ROOT = Path(__file__).resolve().parents[1]
_TERMINATE_S = 10.0
_KEPT_ERROR_LINES = 6


class RunFailed(Exception):
    """A run gave no result; the text says what it said last."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured. `cpu_s` is None where the system does not tell."""

    rows: int
    seconds: float
    cpu_s: float | None
    checkpoints_ms: tuple[float, ...]
    load_before: float


@dataclass(frozen=True, slots=True)
class Results:
    """What a checking run found in its groups."""

    groups: int
    rows: int
    total: int
    digest: int


def measure(command: Sequence[str], *, cores: int, timeout_s: float) -> Run:
    load_before = os.getloadavg()[0]
    cpu_before_s: float | None = None
    with _events(command, cores=cores, timeout_s=timeout_s) as (session, events):
        for event in events:
            match event["event"]:
                case "measuring":
                    cpu_before_s = _cpu_s_of(session)
                case "measured":
                    cpu_s = _cpu_s_of(session)
                    used_s = None if cpu_s is None or cpu_before_s is None else cpu_s - cpu_before_s
                    return Run(event["rows"], event["seconds"], used_s, tuple(event["checkpoints_ms"]), load_before)
    raise RunFailed("it ended without a measurement")


def check(command: Sequence[str], *, cores: int, timeout_s: float) -> Results:
    with _events(command, cores=cores, timeout_s=timeout_s) as (_, events):
        for event in events:
            if event["event"] == "checked":
                return Results(event["groups"], event["rows"], event["total"], event["digest"])
    raise RunFailed("it ended without results")


@contextmanager
def _events(
    command: Sequence[str], *, cores: int, timeout_s: float
) -> "Iterator[tuple[int, Iterator[dict[str, Any]]]]":
    """Starts the process, gives its session and what it says, and ends all of it."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
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
                env=_environment(place),
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
        last = errors.read_text(errors="replace").strip().splitlines()[-_KEPT_ERROR_LINES:]
        raise RunFailed(f"it ended with {code}: " + " | ".join(last))


def _end_late(session: int, is_late: threading.Event) -> None:
    is_late.set()
    _end_session(session)


def _environment(place: Path) -> dict[str, str]:
    """Modules are found from the run's own folder, where everything that is written goes."""
    found_in = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": found_in, "TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own}


def _on_cores(cores: int) -> Callable[[], None] | None:
    """All systems get the same cores, also where there are more: tasks, collectors and helpers share them."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    return partial(os.sched_setaffinity, 0, chosen)


def _end(process: "subprocess.Popen[str]") -> None:
    """Lets it stop by itself first: it has Spark or Flink to shut down."""
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
