"""Sessions are judged before anything starts; in a process of its own, since a process has one session at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from tidegate.model.errors import EnvironmentProblem
from tidegate.spark import java, session

java.ensure_java()

def start(**settings):
    builder = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()

def refusal(spark, **arguments):
    try:
        session.check_session(spark, **arguments)
    except EnvironmentProblem as problem:
        return str(problem)

spark = start()
facts = session.check_session(spark)
assert (facts.cores, facts.is_local, facts.master) == (3, True, "local[3]"), facts
assert facts.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
assert "needs 4 slots, but the session has 3 cores" in refusal(spark, slots_wanted=4)
first = session.claim_slots(spark, query="first", wanted=None)
assert first.slots == 2
assert session.claim_slots(spark, query="second", wanted=None).slots == 1

os.environ.pop("PYSPARK_PYTHON", None)
session.use_driver_interpreter(spark)
def interpreter(batches):
    import pyarrow, sys
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [sys.executable]})
rows = spark.range(0, 2, 1, 2).mapInArrow(interpreter, "path string", barrier=True).collect()
assert {row.path for row in rows} == {sys.executable}, rows

spark.stop()
assert refusal(spark).startswith("The SparkSession is stopped")
spark = start(spark_dynamicAllocation_enabled="true")
assert refusal(spark).startswith("Dynamic allocation is on")
spark.stop()
print("all checked")
"""


@pytest.mark.spark
def test_a_session_is_measured_and_an_unfit_one_is_refused() -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{PROGRAM}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout.endswith("all checked\n"), run.stderr[-2000:]
