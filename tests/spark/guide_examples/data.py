"""The bounded input of the guide's examples: devices, words, impressions and clicks, in the order of event time."""

import datetime
from pathlib import Path
from random import Random

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.same_answers.engines import Input, write_files

FILES = 2
BEGIN = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
SCHEMAS = {
    "devices": "device string, deviceType string, signal double, time timestamp",
    "types": "deviceType string, room string",
    "words": "timestamp timestamp, word string",
    "events": "guid string, eventTime timestamp, userId string",
    "impressions": "impressionAdId int, impressionTime timestamp",
    "clicks": "clickAdId int, clickTime timestamp",
}
_TIMESTAMP = pa.timestamp("us", "UTC")


def make_input(spark: SparkSession, folder: Path) -> Input:
    random = Random(11)
    devices = {
        "device": [f"d{at % 7}" for at in range(60)],
        "deviceType": [random.choice(["door", "lamp", "pump", None]) for _ in range(60)],
        "signal": [float(random.randint(0, 20)) for _ in range(60)],
        "time": _times(60, every_s=3),
    }
    words = {
        "timestamp": _times(90, every_s=120),
        "word": [random.choice(["cat", "dog", "owl", "bee"]) for _ in range(90)],
    }
    events = {
        "guid": [f"g{at - at % 3}" for at in range(60)],
        "eventTime": _times(60, every_s=2),
        "userId": [random.choice(["ann", "bob"]) for _ in range(60)],
    }
    impressions = {"impressionAdId": list(range(40)), "impressionTime": _times(40, every_s=300)}
    # Every other impression is clicked, some of them too late.
    clicked = [ad for ad in range(40) if ad % 2]
    at = dict(enumerate(_times(40, every_s=300)))
    delays = {ad: datetime.timedelta(minutes=10 if ad % 3 else 75) for ad in clicked}
    clicked.sort(key=lambda ad: at[ad] + delays[ad])
    clicks = {"clickAdId": clicked, "clickTime": [at[ad] + delays[ad] for ad in clicked]}
    write_files(folder / "devices", _table(devices), files=FILES)
    write_files(folder / "types", _table({"deviceType": ["door", "lamp"], "room": ["hall", "attic"]}), files=1)
    write_files(folder / "words", _table(words), files=FILES)
    write_files(folder / "events", _table(events), files=FILES)
    write_files(folder / "impressions", _table(impressions), files=1)
    write_files(folder / "clicks", _table(clicks), files=1)
    return Input(folder, SCHEMAS, spark)


def _times(count: int, *, every_s: int) -> list[datetime.datetime]:
    return [BEGIN + datetime.timedelta(seconds=every_s * at) for at in range(count)]


def _table(columns: dict[str, list[object]]) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        if isinstance(values[0], datetime.datetime):
            arrays[name] = pa.array(values, _TIMESTAMP)
        else:
            arrays[name] = pa.array(values, pa.int32() if isinstance(values[0], int) else None)
    return pa.table(arrays)
