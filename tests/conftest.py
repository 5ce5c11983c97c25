"""What all tests share: how Hypothesis behaves, where they write, what comes first, and the one session of Spark."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.in_memory import IN_MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline per example: how long one takes says more about the machine than about the code. The same examples in
# every run, so that a change is judged by itself; `make explore` looks for new ones.
settings.register_profile(
    "tidegate", deadline=None, print_blob=True, derandomize=os.environ.get("TIDEGATE_EXPLORE") is None
)
settings.load_profile("tidegate")

if IN_MEMORY is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes first, then those on Spark: processes that share the files then end at the same time."""
    ranks: dict[Path, int] = {}
    for item in items:
        ranks[item.path] = min(ranks.get(item.path, len(_FIRST)), _rank(item))
    items.sort(key=lambda item: ranks[item.path])


# Markers of what comes first.
_FIRST = ("slow", "spark")


def _rank(item: pytest.Item) -> int:
    return next((at for at, marker in enumerate(_FIRST) if item.get_closest_marker(marker)), len(_FIRST))


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
