"""The same job on a standalone cluster, whose executors are processes of their own that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.testing.standalone import StandaloneCluster, _children, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path / "cluster", workers=2, cores=2) as started:
        yield started


def driver(cluster: StandaloneCluster, folder: Path, *, slots: int) -> "subprocess.Popen[str]":
    """In a process of its own: pytest's session belongs to another master."""
    command = [sys.executable, "-m", "tests.cluster.driver", cluster.url, str(folder), str(slots)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)


def await_line(process: "subprocess.Popen[str]", begin: str) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_S
    for line in process.stdout:
        assert time.monotonic() < deadline, f"{begin} did not come"
        if line.startswith(begin):
            return line.strip()
    raise AssertionError(f"the driver ended before it said {begin}")


def test_a_killed_executor_and_a_lost_machine_cost_no_row(cluster: StandaloneCluster, tmp_path: Path) -> None:
    with driver(cluster, tmp_path, slots=3) as process:
        await_line(process, "running")
        os.kill(cluster.executors()[0], signal.SIGKILL)
        await_line(process, "recovered")
        cluster.lose_worker(1)
        line = await_line(process, "recovered")
        assert line.endswith("2 slots"), line
        assert await_line(process, "rows").split()[1:] == ["equal"]
        assert process.wait(PATIENCE_S) == 0


def test_an_executor_without_a_slot_is_loaded_beforehand(cluster: StandaloneCluster, tmp_path: Path) -> None:
    with driver(cluster, tmp_path, slots=1) as process:
        try:
            await_line(process, "running")
            deadline = time.monotonic() + PATIENCE_S
            while not all(has_python(executor) for executor in cluster.executors()):
                assert time.monotonic() < deadline, "the executor beside the slot's was left alone"
                time.sleep(0.1)
            assert len(cluster.executors()) == 2
        finally:
            process.kill()


def has_python(executor: int) -> bool:
    return any("pyspark.daemon" in command for _, command in _children(executor))
