"""Every Nexmark query gives the rows that Spark gives over the same events."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg
from tests.spark.same_answers.engines import comparable
from tidegate.connectors.memory import read_memory_table

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0
# A hundred seconds of event time.
OPTIONS = {"events": "5000", "eventTimeRate": "50", "seed": "3"}
# Their last windows wait for more rows, which a batch would not.
_AWAIT_EVENT_TIME = {"q5", "q7", "q11"}


def _load_queries() -> Any:
    path = Path(__file__).parents[2] / "examples" / "nexmark" / "queries.py"
    spec = importlib.util.spec_from_file_location("nexmark_queries", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


QUERIES = _load_queries().QUERIES


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_a_nexmark_query_gives_sparks_rows(query: Any, spark: SparkSession) -> None:
    spark.dataSource.register(tg.NexmarkDataSource)
    expected = _sparks_rows(query, spark)
    assert expected, "a query without rows shows nothing"
    assert _tidegates_rows(query, spark) == expected


def _sparks_rows(query: Any, spark: SparkSession) -> list[Any]:
    if query.name not in _AWAIT_EVENT_TIME:
        return comparable(query.build(lambda table: _batch(spark, table)).toArrow(), keys=0)
    name = f"spark_{query.name}"
    writer = query.build(lambda table: _stream(spark, table)).writeStream.format("memory").queryName(name)
    started = writer.outputMode(query.mode).trigger(availableNow=True).start()
    assert started.awaitTermination(int(PATIENCE_S))
    return comparable(spark.table(name).toArrow(), keys=0)


def _tidegates_rows(query: Any, spark: SparkSession) -> list[Any]:
    name = f"tidegate_{query.name}"
    writer = tg.writeStream(query.build(lambda table: _stream(spark, table))).format("memory").queryName(name)
    started = writer.outputMode(query.mode).option("parallelism", 2).trigger(availableNow=True).start()
    assert started.awaitTermination(PATIENCE_S)
    return comparable(read_memory_table(name), keys=query.keys)


def _batch(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("nexmark").options(**OPTIONS).option("table", table).load()


def _stream(spark: SparkSession, table: str) -> DataFrame:
    return spark.readStream.format("nexmark").options(**OPTIONS).option("table", table).load()
