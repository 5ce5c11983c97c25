"""A table of nested columns with nulls, empty collections and extremes."""

import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.kernel_answers import offer

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


def offer_nested(spark: SparkSession, folder: Path) -> None:
    """As the views `nested` and `stream_nested`."""
    offer(spark, folder, "nested", TABLE)
