"""Spare executors are loaded beside a launch and never outlive it."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from tidegate.coordinator.launch import LaunchExit
from tidegate.spark import launch, spares
from tidegate.spark.launch import SparkLaunch
from tidegate.spark.spares import SpareExecutors

PATIENCE_S = 10.0


def without_a_jvm(*_: object, **__: object) -> Any:
    raise Py4JError("the JVM is gone")


def cluster(**context: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077", **context))


def spare_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tidegate-spares"]


def until_no_thread_is_left() -> None:
    for thread in spare_threads():
        thread.join(PATIENCE_S)
    assert spare_threads() == []


def test_a_launch_that_failed_before_its_job_leaves_nothing_looking_for_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spares, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(launch, "_is_stopped", lambda spark: True)
    exits: list[LaunchExit] = []
    order: Any = SimpleNamespace(launch=1)
    spark = cluster(setJobGroup=without_a_jvm, statusTracker=without_a_jvm)
    SparkLaunch(spark, order, slots=2, query_name="totals", on_exit=exits.append)
    deadline = time.monotonic() + PATIENCE_S
    while not exits:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    until_no_thread_is_left()


def test_a_warm_up_that_is_about_to_be_submitted_is_cancelled_too() -> None:
    """Closed between its last look and its job: Spark must refuse that job, which would take the new launch's cores."""
    calls: list[str] = []
    looked, closed = threading.Event(), threading.Event()

    class Jvm:
        def getExecutorMemoryStatus(self) -> Any:
            return SimpleNamespace(size=lambda: 3)

        def cancelJobGroupAndFutureJobs(self, group: str) -> None:
            calls.append(f"cancel {group}")

    def set_job_group(group: str, *_: object, **__: object) -> None:
        looked.set()
        assert closed.wait(PATIENCE_S)
        calls.append(f"submit {group}")
        raise Py4JError("Spark refuses jobs of a group that was cancelled")

    spark = cluster(setJobGroup=set_job_group, _jsc=SimpleNamespace(sc=Jvm))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spares, "spare_cores", lambda spark: 2)
        warming = SpareExecutors(spark, group="totals-1", have_slots_begun=lambda: True)
        assert looked.wait(PATIENCE_S)
        warming.close()
        closed.set()
        until_no_thread_is_left()
    assert calls == ["cancel totals-1-spares", "submit totals-1-spares"]
