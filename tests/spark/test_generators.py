"""Rows made from rows are Spark's, in Spark's order; generators without a kernel are refused by name."""

import pytest
from pyspark.sql import SparkSession

from tests.spark.kernel_answers import by_kernels, by_spark, printed
from tests.spark.nested_rows import TABLE, offer_nested
from tidegate.model.errors import UnsupportedPlan
from tidegate.spark.catalyst import read_plan

pytestmark = pytest.mark.spark

QUERIES = [
    "SELECT k, explode(a) AS e FROM {t}",
    "SELECT explode_outer(a) AS e, k, a FROM {t}",
    "SELECT k, posexplode(t) FROM {t}",
    "SELECT k, posexplode_outer(t) FROM {t}",
    "SELECT c, explode(m) FROM {t}",
    "SELECT c, m, explode_outer(m) FROM {t}",
    "SELECT posexplode_outer(m) FROM {t}",
    "SELECT k, inline(z) FROM {t}",
    "SELECT k, inline_outer(z) FROM {t}",
    "SELECT k, i, stack(3, k, c, 1L, 'one', 2L, s.y) FROM {t}",
    "SELECT stack(3, k, c, 2L, 'x') FROM {t}",
    "SELECT k, e, f FROM {t} LATERAL VIEW explode(n) AS e LATERAL VIEW OUTER explode(e) AS f",
    "SELECT k, e.y FROM {t} LATERAL VIEW explode(z) AS e WHERE e.x > 1",
    "SELECT k, explode(filter(a, x -> x > 1)) AS e FROM {t} WHERE b",
    "SELECT explode(array(k, cast(i as long))) AS e FROM {t}",
    "SELECT explode(sequence(1, size(a))) AS e, size(a) AS n FROM {t} WHERE size(a) > 0",
]


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    offer_nested(spark, tmp_path_factory.mktemp("generators"))


@pytest.mark.parametrize("query", QUERIES)
def test_a_generator_makes_the_rows_that_spark_makes(spark: SparkSession, tables: None, query: str) -> None:
    expected = by_spark(spark, query.format(t="nested"))
    assert printed(by_kernels(spark, query.format(t="stream_nested"), TABLE)) == printed(expected)


def test_a_generator_without_a_kernel_is_refused_by_name(spark: SparkSession, tables: None) -> None:
    with pytest.raises(UnsupportedPlan, match="JsonTuple with a field that is not a constant"):
        read_plan(spark.sql("SELECT json_tuple(c, c) FROM stream_nested"))
