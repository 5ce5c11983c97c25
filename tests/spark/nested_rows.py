"""A table of nested columns with nulls, empty collections and extremes, and what Spark and the kernels make of it."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidegate.model.errors import UserCodeFailure
from tidegate.plan import kernels
from tidegate.plan.nodes import Expand, Filter, Generate, Node, Project, Scan
from tidegate.spark.catalyst import read_plan

NAN, INF = math.nan, math.inf
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("i", pa.int32()),
        ("b", pa.bool_()),
        ("c", pa.string()),
        ("a", pa.list_(pa.int64())),
        ("a2", pa.list_(pa.int64())),
        ("d", pa.list_(pa.float64())),
        ("t", pa.list_(pa.string())),
        ("n", pa.list_(pa.list_(pa.int64()))),
        ("s", POINT),
        ("s2", POINT),
        ("z", pa.list_(POINT)),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("mi", pa.map_(pa.int64(), pa.string())),
        ("deep", pa.struct([("p", POINT), ("q", pa.list_(pa.int64()))])),
        ("de", pa.list_(pa.decimal128(20, 3))),
    ]
)


def point(x: int | None, y: str | None) -> dict[str, object]:
    return {"x": x, "y": y}


ROWS: list[tuple[object, ...]] = [
    # k, i, b, c, a, a2, d, t, n, s, s2, z, m, mi, deep, de
    (1, 1, True, "a", [1, 2, 3], [3, 1], [1.5, 0.5], ["x", "y"], [[1], [2, 3]], point(1, "a"), point(1, "a"),
     [point(1, "a"), point(2, "b")], {"a": 1, "b": 2}, {1: "a", 2: "b"},
     {"p": point(1, "a"), "q": [1, 2]}, ["1.5", "2"]),
    (2, 2, False, "é", [3, 3, None, 1], [None, 3], [NAN, 1.0, None], ["b", None, "a"], [[1], None], point(None, "b"),
     point(None, "b"), [None, point(3, None)], {"é": None, "a": LONG_MIN}, {0: None}, {"p": None, "q": None}, [None]),
    (3, None, None, None, None, [1], None, None, None, None, point(1, "a"), None, None, None, None, None),
    (None, 0, True, "", [], None, [], [], [], point(1, None), None, [], {}, {}, {"p": point(5, "q"), "q": []}, []),
    (LONG_MAX, -1, False, "b", [LONG_MAX, LONG_MIN, 0], [0], [INF, -INF, 2.0, NAN], ["", "\U0001f30a", "ß"],
     [[], [None], [7, 8, 9]], point(LONG_MAX, "z"), point(LONG_MIN, "z"), [point(9, "i"), point(8, "j"), point(7, "k")],
     {"": 5, "b": 7, "\U0001f30a": 0}, {LONG_MIN: "low", LONG_MAX: "high"}, {"p": point(None, None), "q": [None, 3]},
     ["-99999999999999999.999", "99999999999999999.999", "0"]),
    (LONG_MIN, 3, True, "zz", [7, 7, 7, 7, 7], [7, 8], [2.0, 1.0, 2.0], ["q"], [[1, 2], [3]], point(2, "a"),
     point(1, "b"), [point(None, None)], {"a": 3}, {5: "five"}, {"p": point(2, "a"), "q": [3, 2, 1]}, ["3", "3.000"]),
    (5, -5, None, "a", [None, None], [None], [None, None], [None], [None], point(None, None), point(None, None),
     [None, None], {"zz": None}, {7: None}, {"p": point(1, None), "q": [None]}, [None, "1"]),
]  # fmt: skip


def table() -> pa.RecordBatch:
    columns = [pa.array([_as_arrow(row[at]) for row in ROWS], field.type) for at, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _as_arrow(value: object) -> object:
    if isinstance(value, dict) and not set(value) & {"x", "p"}:
        return list(value.items())
    if isinstance(value, list) and any(isinstance(part, str) and part.lstrip("-")[:1].isdigit() for part in value):
        return [None if part is None else Decimal(part) for part in value]
    return value


TABLE = table()


def register_tables(spark: SparkSession, root: Path) -> Path:
    """The views `nested`, a batch, and `stream_nested`, a stream of the same file."""
    pq.write_table(pa.Table.from_batches([TABLE]), root / "rows.parquet")
    batch = spark.read.parquet(str(root))
    batch.createOrReplaceTempView("nested")
    spark.readStream.schema(batch.schema).parquet(str(root)).createOrReplaceTempView("stream_nested")
    return root


def by_spark(spark: SparkSession, query: str) -> pa.Table | str:
    """The result, or the class of the error."""
    try:
        return spark.sql(query).toArrow()
    except Exception as error:
        return error_class(error)


def by_kernels(spark: SparkSession, query: str) -> pa.Table | str:
    plan = read_plan(spark.sql(query))
    try:
        return pa.Table.from_batches([run(plan, TABLE)])
    except UserCodeFailure as error:
        return error_class(error)


def error_class(error: Exception) -> str:
    found = re.search(r"\[([A-Z_]+)(\.[A-Z_]+)*\]|Illegal sequence boundaries|must have the same length", str(error))
    return (found.group(1) or found.group(0)) if found else f"unknown: {error}"


def run(node: Node, rows: pa.RecordBatch) -> pa.RecordBatch:
    match node:
        case Scan():
            return rows
        case Project():
            return kernels.compile_projection(node.columns, node.schema)(run(node.child, rows))
        case Filter():
            return kernels.compile_filter(node.condition)(run(node.child, rows))
        case Generate():
            make = kernels.compile_generate(
                node.collection, node.exploded_as, node.of_empty, kept=node.kept, schema=node.schema
            )
            return _one_batch(make(run(node.child, rows)), node.schema)
        case Expand():
            make = kernels.compile_expand(node.projections, node.schema)
            return _one_batch(make(run(node.child, rows)), node.schema)
    raise AssertionError(f"no stateless plan: {node}")


def printed(result: pa.Table | str) -> object:
    """Comparable: NaN equals itself and -0.0 differs from 0.0; whether a part may be null is not compared."""
    if isinstance(result, str):
        return result
    types = [str(field.type).replace(" not null", "").replace("list<element", "list<item") for field in result.schema]
    return types, [[repr(value) for value in column.to_pylist()] for column in result.columns]


def _one_batch(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    table = pa.Table.from_batches(list(batches), schema=schema).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=schema)
