"""What the chaos tests do to a running job, and how they see what became of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tidegate as tg
from tidegate.storage.job_log import JobLog, running_generation
from tidegate.storage.store import open_store

REPOSITORY = Path(__file__).resolve().parents[2]
# Long enough for a busy machine; a job that hangs is what it is there to find.
PATIENCE_S = 120.0


def until(condition: Callable[[], bool], *, what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {patience_s:.0f} s"
        time.sleep(0.01)


def completed_ids(query: tg.StreamingQuery) -> list[int]:
    """Newest first."""
    return [checkpoint.id for checkpoint in query.checkpoints if checkpoint.status == "completed"]


def await_checkpoints(query: tg.StreamingQuery, count: int) -> None:
    """Until `count` checkpoints are complete, in all generations together."""

    def are_there() -> bool:
        assert query.isActive, f"the job ended after {len(completed_ids(query))} checkpoints: make its input longer"
        return len(completed_ids(query)) >= count

    until(are_there, what=f"checkpoint number {count}")


def pids(query: tg.StreamingQuery) -> tuple[int, ...]:
    progress = query.lastProgress
    return () if progress is None else tuple(slot["pid"] for slot in progress["slots"])


def generation(query: tg.StreamingQuery) -> int:
    return query._coordinator.view().generation


def kill_worker(query: tg.StreamingQuery, slot: int) -> int:
    """SIGKILL, as the kernel does when memory runs out; the pid that is gone."""
    pid = pids(query)[slot]
    os.kill(pid, signal.SIGKILL)
    return pid


def command_of_parent(pid: int) -> str:
    """Of a Python worker: the daemon that Spark forked it from."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    return Path(f"/proc/{parent}/cmdline").read_text(encoding="utf-8").replace("\0", " ")


def await_end(query: tg.StreamingQuery) -> None:
    assert query.awaitTermination(PATIENCE_S), f"the job hangs: {query.status}"


def newest_generation(folder: Path) -> int:
    """Of the job log, which forgets older ones."""
    running = running_generation(JobLog(open_store(str(folder / "chk")), driver="a test").read())
    assert running is not None, "there is a log"
    return running.generation


class Driver:
    """The job as a program of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, word: str, count: int = 1) -> str:
        """The `count`-th line from here on that starts with the word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(word):
                count -= 1
            if count == 0:
                return self.lines[-1]
        raise AssertionError(f"The driver ended before it said {word!r}:\n" + "\n".join(self.lines[-40:]))


@contextmanager
def driver(folder: Path, *arguments: str, program: str = "tests.chaos.job") -> Iterator[Driver]:
    """Starts the job in a process group of its own; whatever of it is left at the end is killed."""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, "-m", program, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield Driver(process)
        finally:
            # The JVM outlives a killed driver for a moment, in the same group.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
