"""The rows that the examples of the guide are asked about."""

import pytest
from pyspark.sql import SparkSession

from tests.spark.guide_examples.data import make_input
from tests.spark.same_answers.engines import Input


@pytest.fixture(scope="package")
def given(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Input:
    return make_input(spark, tmp_path_factory.mktemp("guide"))
