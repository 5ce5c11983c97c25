"""The daemon that has Tidegate loaded before Spark forks a worker from it."""

import subprocess
import sys

import pytest

# In place of PySpark's manager, which would wait for Spark: says what the daemon has, and forks as that does.
PROGRAM = """
import os, sys, threading
from pyspark import daemon

def manager():
    print(threading.active_count(), *(name in sys.modules for name in ("pyspark.worker", "tidegate.worker.build")))
    import numpy
    numpy.random.random()
    sys.stdout.flush()
    for _ in range(2):
        if (child := os.fork()) == 0:
            print(numpy.random.random(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)

daemon.manager = manager
from tidegate.spark.daemon import main
main()
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_it_has_loaded_what_a_slot_needs_without_a_thread_and_without_a_word(said: list[str]) -> None:
    assert said[0] == "1 True True"


def test_workers_forked_from_it_draw_numbers_of_their_own(said: list[str]) -> None:
    _, first, second = said
    assert first != second
