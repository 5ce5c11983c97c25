"""The examples of Spark's programming guide run with `df.writeStream` changed to `tg.writeStream(df)`."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tests.spark.guide_examples.data import make_input
from tests.spark.guide_examples.queries import EXAMPLES
from tests.spark.same_answers.engines import Input, Pipeline, sparks_rows, tidegates_rows

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def given(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Input:
    return make_input(spark, tmp_path_factory.mktemp("guide"))


@pytest.fixture(autouse=True)
def no_query_survives_its_test() -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_query_of_the_guide_gives_sparks_rows(example: Pipeline, given: Input) -> None:
    expected = sparks_rows(example, given)
    assert expected, "an example without rows shows nothing"
    assert tidegates_rows(example, given, slots=2) == expected
