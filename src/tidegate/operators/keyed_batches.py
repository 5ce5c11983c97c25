"""What operators that call user code by key give it and take from it: tuples, or Arrow batches.

Must never change a value on the way, nor hold rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.operators.columnar import KeyIndex, slots_array
from tidegate.operators.map_in_arrow import fit_to_schema
from tidegate.operators.user_rows import Key, RowsByKey, batch_from_tuples, plain_type
from tidegate.plan.key_groups import key_group_of


class ByKey(Protocol):
    """Cuts slices of one input into what user code is given of each key."""

    def of(self, rows: pa.RecordBatch, *, max_parallelism: int) -> Iterator[tuple[int, Key, Any]]: ...
    def as_declared(self, key: Key) -> Key: ...


class BatchesByKey:
    """Keys in the order of their first row, each with a batch of its rows without the key columns."""

    def __init__(self, schema: pa.Schema, key_count: int) -> None:
        fields = [schema.field(index) for index in range(len(schema))]
        self._key_types = [plain_type(field.type) for field in fields[:key_count]]
        self._values = pa.schema(fields[key_count:])
        self._rows = RowsByKey(schema, key_count)

    def of(self, rows: pa.RecordBatch, *, max_parallelism: int) -> Iterator[tuple[int, Key, pa.RecordBatch]]:
        if rows.num_rows == 0:
            return
        index = KeyIndex(self._key_types)
        slots = index.find_or_add(rows)
        _, first_rows = np.unique(slots, return_index=True)
        by_appearance = np.argsort(first_rows)
        key_groups = key_group_of(index.hashes, max_parallelism)[by_appearance].tolist()
        counts = np.bincount(slots)[by_appearance].tolist()
        order = np.argsort(np.argsort(by_appearance)[slots], kind="stable")
        keys = list(zip(*[column.to_pylist() for column in index.gather(by_appearance)], strict=True))
        columns = rows.take(slots_array(order)).columns[len(self._key_types) :]
        sorted_rows = pa.RecordBatch.from_arrays(columns, schema=self._values)
        start = 0
        for key_group, key, count in zip(key_groups, keys, counts, strict=True):
            yield key_group, key, sorted_rows.slice(start, count)
            start += count

    def as_declared(self, key: Key) -> Key:
        return self._rows.as_declared(key)


class TakeOutput(Protocol):
    """All that user code gave in one slice, as one batch."""

    def __call__(self, output: Sequence[Any], schema: pa.Schema, *, called: str) -> pa.RecordBatch: ...


def take_tuples(output: Sequence[Any], schema: pa.Schema, *, called: str) -> pa.RecordBatch:
    return batch_from_tuples(output, schema, called=called)


def take_batches(output: Sequence[Any], schema: pa.Schema, *, called: str) -> pa.RecordBatch:
    fitted = [fit_to_schema(batch, schema, called=called) for batch in output]
    return fitted[0] if len(fitted) == 1 else pa.concat_batches(fitted)
