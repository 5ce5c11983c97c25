"""spark-submit to machines that have Spark but not Tidegate: all that the slots import travels with the job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from scripts.pack_environment import pack, submit_command
from tidegate.spark.java import ensure_java
from tidegate.testing.standalone import StandaloneCluster, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
# As on a machine where nobody installed anything: no PYTHONPATH, no virtual environment.
BARE = {"PATH": "/usr/bin:/bin"}
PATIENCE_S = 500.0


def submit(cluster: StandaloneCluster, archive: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = submit_command(
        archive,
        master=cluster.url,
        job=[str(REPOSITORY / "tests" / "cluster" / "submitted.py"), str(folder)],
        driver_python=sys.executable,
        py_files=[str(REPOSITORY / "examples" / "cluster" / "pipeline.py")],
        settings=[
            "spark.executor.cores=2",
            "spark.executor.memory=512m",
            "spark.driver.host=127.0.0.1",
            "spark.ui.enabled=false",
        ],
    )
    spark = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(spark), "JAVA_HOME": str(ensure_java().home)}
    return subprocess.run(
        [str(spark / "bin" / command[0]), *command[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_a_packed_environment_carries_the_job_to_machines_without_tidegate(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    pack(archive, compression=1)
    with standalone_cluster(tmp_path / "cluster", workers=2, cores=2, environment=BARE) as cluster:
        run = submit(cluster, archive, tmp_path)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    report = json.loads(run.stdout.splitlines()[-1])
    assert (report["rows"], report["missing"], report["unexpected"]) == (15_000, 0, 0)
    assert report["slots"] == 3
    # Both machines took part, and each imported from what its executor unpacked.
    executors = {str(place.parent) for place in (tmp_path / "cluster").glob("worker-*/app-*/*/environment")}
    assert len(executors) == 2
    for name in ("tidegate", "pyarrow"):
        places = {place[name] for place in report["whereabouts"]}
        assert {place.partition("/environment/")[0] for place in places} == executors, places
    assert all(str(tmp_path) in place["pipeline"] for place in report["whereabouts"]), report["whereabouts"]
