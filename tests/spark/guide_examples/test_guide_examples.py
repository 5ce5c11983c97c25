"""The examples of Spark's programming guide run with `df.writeStream` changed to `tg.writeStream(df)`."""

import pytest

from tests.spark.guide_examples.queries import EXAMPLES
from tests.spark.same_answers.engines import Input, Pipeline, sparks_rows, tidegates_rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_query_of_the_guide_gives_sparks_rows(example: Pipeline, given: Input) -> None:
    expected = sparks_rows(example, given)
    assert expected, "an example without rows shows nothing"
    assert tidegates_rows(example, given, slots=2) == expected
