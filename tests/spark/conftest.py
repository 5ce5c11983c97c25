"""What all tests on Spark share."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import tidegate as tg


@pytest.fixture(autouse=True)
def no_query_survives_its_test() -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()


@pytest.fixture(params=["ansi", "legacy"])
def mode(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways in which Spark treats overflows and wrong casts."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", str(request.param == "ansi").lower())
    yield request.param
    spark.conf.set("spark.sql.ansi.enabled", before)
