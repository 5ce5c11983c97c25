"""What a user of the guide writes besides queries: functions and classes that travel to the workers."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STATE = StructType(
    [
        StructField("id", StringType(), True),
        StructField("seen", LongType(), True),
        StructField("last", TimestampType(), True),
    ]
)


class Downtime(StatefulProcessor):
    """As the guide's detector: remembers when a device was last heard of, and wakes up when it is silent for long."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", StructType([StructField("count", LongType(), True)]))
        self._last = handle.getValueState("last", StructType([StructField("at", TimestampType(), True)]))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        latest, count = None, 0
        for pdf in rows:
            newest = pdf["time"].max()
            latest = newest if latest is None else max(latest, newest)
            count += len(pdf)
        if self._seen.exists():
            count += self._seen.get()[0]
            latest = max(latest, pd.Timestamp(self._last.get()[0]))
        self._seen.update((count,))
        self._last.update((latest,))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(latest.timestamp() * 1000) + 3_600_000)
        yield pd.DataFrame({"id": key, "seen": [count], "last": [latest]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": key, "seen": [0], "last": [pd.Timestamp(self._last.get()[0])]})

    def close(self) -> None: ...


def row_appender(folder: str) -> Any:
    """`foreach` with a function."""

    def append(row: Any) -> None:
        with open(f"{folder}/{os.getpid()}", "a") as file:
            file.write(json.dumps([row.timestamp.isoformat(), row.word]) + "\n")

    return append


class RowWriter:
    """`foreach` with an object."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.file = open(f"{self.folder}/{partition_id}-{epoch_id}", "w")  # noqa: SIM115 - closed in close
        return True

    def process(self, row: Any) -> None:
        self.file.write(json.dumps([row.timestamp.isoformat(), row.word]) + "\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()
