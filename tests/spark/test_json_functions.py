"""Functions on JSON, over generated texts of which many are malformed: the kernels give what Spark gives, or refuse."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.json_texts import texts
from tests.spark.test_every_expression import Bound, nullable, printed, run
from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan.nodes import Project
from tidegate.spark.catalyst import read_plan

pytestmark = pytest.mark.spark

TEXTS = 1200
READ = [
    "from_json(js, 'a INT')", "from_json(js, 'a INT, b STRING, c DOUBLE, _corrupt_record STRING')",
    "from_json(js, 'a STRING, m STRING')", "from_json(js, 'a LONG, b SHORT, c BYTE, d FLOAT, e BOOLEAN')",
    "from_json(js, 'a DECIMAL(10,2), b DATE, t TIMESTAMP, c TIMESTAMP_NTZ, _corrupt_record STRING')",
    "from_json(js, 'a ARRAY<INT>, b ARRAY<STRING>, c INT')",
    "from_json(js, 'a STRUCT<a: INT, b: STRING>, b STRUCT<a: STRUCT<a: INT, c: DATE>>, c INT')",
    "from_json(js, 'a ARRAY<STRUCT<a: INT, t: TIMESTAMP>>, b ARRAY<ARRAY<DATE>>, x INT, _corrupt_record STRING')",
    "from_json(js, 'a MAP<STRING, INT>, b MAP<STRING, STRUCT<a: INT>>, c STRING')",
    "from_json(js, 'ARRAY<INT>')", "from_json(js, 'ARRAY<STRUCT<a: INT, b: DATE>>')",
    "from_json(js, 'MAP<STRING, STRING>')",
    "from_json(js, 'MAP<STRING, ARRAY<INT>>')",
    "from_json(js, 'a INT, t TIMESTAMP, bad STRING', "
    "map('columnNameOfCorruptRecord', 'bad', 'timeZone', 'Asia/Tokyo'))",
    "from_json(js, 'a STRING, b INT', map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false'))",
    "from_json(js, 'a STRING, b INT', map('allowUnquotedControlChars', 'true', "
    "'allowBackslashEscapingAnyCharacter', 'true'))",
]  # fmt: skip
ASKED = [
    "get_json_object(js, '$.a')", "get_json_object(js, '$.a.b')", "get_json_object(js, '$.b[0]')",
    "get_json_object(js, '$[1].a')", "get_json_object(js, '$')", "get_json_object(js, '$[''a'']')",
    "get_json_object(js, '$.a[1][0]')", "json_array_length(js)", "json_object_keys(js)",
]  # fmt: skip


@pytest.fixture
def plan_of(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], Bound]]:
    folder = tmp_path / "texts"
    folder.mkdir()
    pq.write_table(pa.table({"js": pa.array(texts(1, TEXTS), pa.string())}), folder / "rows.parquet")
    spark.readStream.schema("js STRING").parquet(str(folder)).createOrReplaceTempView("stream")
    spark.read.parquet(str(folder)).createOrReplaceTempView("rows")

    def plan(selected: str) -> Any:
        return read_plan(spark.sql(f"SELECT {selected} FROM stream"))

    yield plan
    for view in ("stream", "rows"):
        spark.catalog.dropTempView(view)


def rows_of_texts() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(texts(1, TEXTS), pa.string())], names=["js"])


def assert_same(actual: pa.RecordBatch, expected: pa.Table, names: list[str]) -> None:
    for at, name in enumerate(names):
        theirs = expected.column(at).combine_chunks()
        assert nullable(actual.column(at).type) == nullable(theirs.type), name
        for text, mine, sparks in zip(texts(1, TEXTS), printed(actual.column(at)), printed(theirs), strict=True):
            assert mine == sparks, f"{name} of {text!r}"


@pytest.mark.parametrize("expressions", [READ, ASKED], ids=["read", "asked"])
def test_texts_of_any_kind_give_what_spark_gives(
    spark: SparkSession, plan_of: Callable[[str], Any], expressions: list[str]
) -> None:
    selected = ", ".join(f"{expression} AS x{at}" for at, expression in enumerate(expressions))
    actual = run(plan_of(selected), rows_of_texts())
    assert_same(actual, spark.sql(f"SELECT {selected} FROM rows").toArrow(), expressions)


def test_json_tuple_gives_what_spark_gives(spark: SparkSession, plan_of: Callable[[str], Any]) -> None:
    query = "json_tuple(js, 'a', 'b', 'a')"
    plan = plan_of(query)
    assert isinstance(plan, Project)
    assert_same(run(plan, rows_of_texts()), spark.sql(f"SELECT {query} FROM rows").toArrow(), ["a", "b", "a again"])


def test_a_malformed_record_raises_where_the_mode_says_so(plan_of: Callable[[str], Any]) -> None:
    plan = plan_of("from_json(js, 'a INT', map('mode', 'failfast')) AS x")
    fine = pa.RecordBatch.from_arrays([pa.array(['{"a": 1}', None, ""])], names=["js"])
    assert run(plan, fine).column(0).to_pylist() == [{"a": 1}, None, None]
    bad = pa.RecordBatch.from_arrays([pa.array(['{"a": "x"}'])], names=["js"])
    with pytest.raises(UserCodeFailure, match="'mode' is FAILFAST"):
        run(plan, bad)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("from_json(js, 't TIMESTAMP', map('timestampFormat', 'yyyy'))", "option 'timestampformat'"),
        ("from_json(js, 'a INT', map('mode', 'DROPMALFORMED'))", "choose PERMISSIVE or FAILFAST"),
        ("get_json_object(js, '$.a[*].b')", "other than fields and positions"),
        ("from_json(js, 'a BINARY')", "no kernel for JsonToStructs"),
    ],
)
def test_what_could_differ_is_refused_by_name(plan_of: Callable[[str], Any], expression: str, reason: str) -> None:
    with pytest.raises(UnsupportedPlan, match=reason.replace("[", r"\[")):
        plan_of(f"{expression} AS x")
