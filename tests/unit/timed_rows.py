"""Rows of a key, an event time in seconds and a value: as tuples for tests to read, as batches for operators."""

from typing import Any

import pyarrow as pa

from tidegate.model.ids import KeyGroupRange

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.string()), ("ts", TIME), ("v", pa.int64())])
ALL = KeyGroupRange(0, 128)


def batch(rows: Any) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    times = [None if at is None else at * 1_000_000 for at in columns[1]]
    arrays = [pa.array(columns[0], pa.string()), pa.array(times, TIME), pa.array(columns[2], pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Of any columns, several of which may be times."""
    return [
        tuple(map(_plain, row))
        for rows in batches
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    ]


def _plain(value: Any) -> Any:
    return int(value.timestamp()) if hasattr(value, "timestamp") else value
