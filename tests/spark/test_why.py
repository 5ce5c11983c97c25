"""On real Spark: a slow function in the slots, and what the query, its metrics and the command line say of it."""

import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import tidegate as tg
from tidegate.cli.main import app
from tidegate.protocol.culprits import SlowOperator

pytestmark = pytest.mark.spark

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.002 * batch.num_rows)
        yield batch


def test_a_slow_function_is_named_by_the_query_and_from_outside(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20_000).load()
    query = (
        tg.writeStream(rows.repartition(2).mapInArrow(slow, rows.schema))
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "chk"))
        .options(**{"checkpoint.interval": "1s", "checkpoint.unaligned": "false", "parallelism": "2"})
        .options(**{"network.window": "32kb", "network.debloat": "false", "ui.port": "0"})
        .start()
    )
    try:
        deadline = time.monotonic() + 60
        while not any(c.status == "completed" and c.duration_ms > 400 for c in query.checkpoints):
            assert query.isActive and time.monotonic() < deadline, query.checkpoints
            time.sleep(0.1)
        report = query.why()
        assert isinstance(report.culprit, SlowOperator), report
        assert "MapInArrow(slow)" in report.culprit.where.name
        assert sum(phase.duration_ms for phase in report.critical_path) == pytest.approx(report.duration_ms, abs=0.01)

        progress = query.lastProgress
        assert progress is not None
        behind = [task for task in progress["tidegate"]["tasks"] if "MapInArrow" in task["name"]]
        assert max(task["busyMsPerSecond"] for task in behind) > 500
        assert query.url is not None
        with urllib.request.urlopen(f"{query.url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert "tidegate_checkpoints_completed_total" in text and text.endswith("# EOF\n")
        url = query.url
    finally:
        query.stop()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/metrics", timeout=5)
    told = CliRunner().invoke(app, ["why", str(tmp_path / "chk")])
    assert told.exit_code == 0 and "Critical path" in told.output, told.output
