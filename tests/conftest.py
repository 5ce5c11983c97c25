"""What all tests share: how Hypothesis behaves, and the one Spark session that a process can have."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline per example: how long one takes says more about the machine than about the code. The same examples in
# every run, so that a change is judged by itself; `make explore` looks for new ones.
settings.register_profile(
    "tidegate", deadline=None, print_blob=True, derandomize=os.environ.get("TIDEGATE_EXPLORE") is None
)
settings.load_profile("tidegate")


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    # Imported here: most tests need no Spark, and importing it takes longer than they do.
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[4]")
        .appName("tidegate-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
