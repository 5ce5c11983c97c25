"""The bounded input of the comparisons: three tables whose rows come in the order of event time."""

import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.same_answers.engines import LAST_ID, Input, write_files

ROWS = LAST_ID + 1
FILES = 12
BEGIN = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)

SCHEMAS = {
    "orders": "id long, user string, item int, amount double, price decimal(10,2), ts timestamp, "
    "tags array<string>, address struct<city: string, zip: int>, extras map<string, int>, note string",
    "clicks": "id long, user string, page string, ts timestamp",
    "users": "id long, user string, country string",
}


def make_input(spark: SparkSession, folder: Path) -> Input:
    random = Random(4)
    write_files(folder / "orders", _orders(random), files=FILES)
    write_files(folder / "clicks", _clicks(random), files=FILES)
    write_files(folder / "users", _users(), files=1)
    return Input(folder, SCHEMAS, spark)


def _orders(random: Random) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "id": list(range(ROWS)),
        "user": [random.choice(["ann", "bob", "cid", "dee", None, "Ünal"]) for _ in range(ROWS)],
        "item": [random.choice([None, *range(9)]) for _ in range(ROWS)],
        "amount": [random.choice([None, random.uniform(-50, 50), 1.5, 0.0]) for _ in range(ROWS)],
        "price": [random.choice([None, Decimal(random.randint(-9999, 9999)).scaleb(-2)]) for _ in range(ROWS)],
        "ts": [BEGIN + datetime.timedelta(seconds=2 * at, milliseconds=random.randint(0, 999)) for at in range(ROWS)],
        "tags": [random.choice([None, [], ["a"], ["a", "b", None], ["c", "a"]]) for _ in range(ROWS)],
        "address": [
            random.choice([None, {"city": "Rome", "zip": at % 5}, {"city": None, "zip": 1}]) for at in range(ROWS)
        ],
        "extras": [random.choice([None, [], [("x", at)], [("x", 1), ("y", None)]]) for at in range(ROWS)],
        "note": [random.choice([None, "", " a b ", "x,y;z", f"n{at % 7}", "2026-03-01"]) for at in range(ROWS)],
    }
    address = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    types = {
        "id": pa.int64(),
        "user": pa.string(),
        "item": pa.int32(),
        "amount": pa.float64(),
        "price": pa.decimal128(10, 2),
        "ts": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "address": address,
        "extras": pa.map_(pa.string(), pa.int32()),
        "note": pa.string(),
    }
    return pa.table(columns, schema=pa.schema(list(types.items())))


def _clicks(random: Random) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "id": list(range(ROWS)),
        "user": [random.choice(["ann", "bob", "cid", "eve", None]) for _ in range(ROWS)],
        "page": [f"/{random.randint(0, 5)}" for _ in range(ROWS)],
        "ts": [BEGIN + datetime.timedelta(seconds=2 * at + 1) for at in range(ROWS)],
    }
    types = [("id", pa.int64()), ("user", pa.string()), ("page", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
    return pa.table(columns, schema=pa.schema(types))


def _users() -> pa.Table:
    columns = {"id": [0, 1, 2], "user": ["ann", "bob", "zoe"], "country": ["it", None, "fr"]}
    return pa.table(columns, schema=pa.schema([("id", pa.int64()), ("user", pa.string()), ("country", pa.string())]))
