"""The same DataFrame gives the same rows, whoever runs it: Spark, Tidegate, or Tidegate with a fall midway."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.same_answers.data import make_input
from tests.spark.same_answers.engines import (
    Input,
    Pipeline,
    sparks_rows,
    tidegates_rows,
    tidegates_rows_after_a_fall,
)
from tests.spark.same_answers.pipelines import PIPELINES

pytestmark = pytest.mark.spark

# A fall takes two more starts of a query: these show every kind of state, `make same-answers` lets all of them fall.
_FALLING = {
    "count and sum",
    "sets",
    "complete mode",
    "several distinct sets",
    "tumbling windows",
    "sessions",
    "windows over windows",
    "dropDuplicatesWithinWatermark",
    "inner join",
    "full outer join",
    "lists and maps",
    "event-time timers",
}
_ALL = "TIDEGATE_EVERY_PIPELINE_FALLS" in os.environ


@pytest.fixture(scope="module")
def given(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Input:
    return make_input(spark, tmp_path_factory.mktemp("input"))


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_the_rows_are_sparks(pipeline: Pipeline, given: Input, tmp_path: Path) -> None:
    expected = sparks_rows(pipeline, given)
    assert expected, "a pipeline without rows shows nothing"
    assert tidegates_rows(pipeline, given, slots=3) == expected
    if pipeline.falls and (_ALL or pipeline.name in _FALLING):
        assert tidegates_rows_after_a_fall(pipeline, given, tmp_path, slots=2, slots_afterwards=3) == expected
