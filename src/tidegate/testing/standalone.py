"""A standalone Spark cluster on this machine, made of Spark's own master and worker classes out of the pyspark package.

For tests and for trying out what happens when an executor or a machine is gone. It listens on loopback only and ends
with its `with` block, whatever happened inside.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.model.errors import EnvironmentProblem
from tidegate.spark.java import ensure_java

_HOST = "127.0.0.1"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_START_TIMEOUT_S = 120.0
_DAEMON_MEMORY = "-Xmx256m"


@dataclass(slots=True)
class StandaloneCluster:
    """`url` is for `SparkSession.builder.master`; workers count from 0."""

    url: str
    _workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs."""
        found = [_children(worker.pid) for worker in self._workers if worker.poll() is None]
        return [pid for children in found for pid, command in children if _EXECUTOR in command]

    def lose_worker(self, worker: int) -> None:
        """As when a machine is gone: the worker and its executors, at once, with nobody to start them again."""
        process = self._workers[worker]
        children = [pid for pid, _ in _children(process.pid)]
        process.kill()
        for pid in children:
            os.kill(pid, 9)
        process.wait()


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int, cores: int, memory: str = "1g", environment: Mapping[str, str] | None = None
) -> Iterator[StandaloneCluster]:
    """So many workers of so many cores each; logs and work directories go into `folder`.

    `environment`: what the machines' processes see, by default what this process sees.
    """
    seen = dict(os.environ if environment is None else environment)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = folder / "master.log"
        master = _start(stack, log, seen, _MASTER, "--host", _HOST, "--port", "0", "--webui-port", "0")
        url = _await(master, log, re.compile(r"spark://[\d.]+:\d+"))
        cluster = StandaloneCluster(url)
        for number in range(workers):
            size = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"worker-{number}")]
            log = folder / f"worker-{number}.log"
            place = ["--host", _HOST, "--port", "0", "--webui-port", "0"]
            cluster._workers.append(_start(stack, log, seen, _WORKER, *place, *size, url))
        for number, worker in enumerate(cluster._workers):
            _await(worker, folder / f"worker-{number}.log", re.compile(r"Successfully registered with master"))
        yield cluster


def _start(
    stack: ExitStack, log: Path, seen: Mapping[str, str], java_class: str, *arguments: str
) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    jars = home / "jars"
    environment = {**seen, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": _scala_version(jars)}
    command = [str(ensure_java().home / "bin" / "java"), _DAEMON_MEMORY, "-cp", f"{jars}/*", java_class, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its executors, which would otherwise look for their worker for a while."""
    children = [pid for pid, _ in _children(process.pid)] if process.poll() is None else []
    process.kill()
    process.wait()
    for pid in children:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def _await(process: subprocess.Popen[bytes], log: Path, sign: re.Pattern[str]) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (found := sign.search(log.read_text(errors="replace"))) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise EnvironmentProblem(f"A part of the standalone cluster did not start: see {log}.")
        time.sleep(0.05)
    return found.group(0)


def _scala_version(jars: Path) -> str:
    """Workers build the executors' command line by it."""
    library = next(jars.glob("scala-library-*.jar"))
    return ".".join(library.stem.removeprefix("scala-library-").split(".")[:2])


def _children(parent: int) -> list[tuple[int, str]]:
    """Process ids and command lines, as Linux shows them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything; the parent stands behind the state that follows it.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(fields[1]) == parent:
            found.append((int(process.name), command))
    return found
