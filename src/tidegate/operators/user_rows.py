"""Rows between Arrow and user code: a slice becomes Python tuples by key, the user's tuples become a batch.

Must never change a value quietly on the way: what does not fit its declared type is the user's to convert.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.columnar import KeyIndex, slots_array
from tidegate.plan.key_groups import key_group_of

Key: TypeAlias = tuple[Any, ...]
Row: TypeAlias = tuple[Any, ...]

# Giving a key its declared scale back must not round it.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class RowsByKey:
    """Cuts slices of one input, keyed by the first `key_count` columns, into the rows of each key."""

    def __init__(self, schema: pa.Schema, key_count: int, *, time_zone: str | None = None) -> None:
        """`time_zone`: in which instants are shown, with it; else without any, in UTC."""
        fields = [schema.field(index) for index in range(len(schema))]
        self._time_zone = time_zone
        self.key_types = [plain_type(field.type) for field in fields[:key_count]]
        self._declared_types = [field.type for field in fields[:key_count]]
        self.value_names = [field.name for field in fields[key_count:]]

    def of(self, rows: pa.RecordBatch, *, max_parallelism: int) -> Iterator[tuple[int, Key, Iterator[Row]]]:
        """Key group, key and rows of every key of the slice: keys in the order of their first row, rows in theirs."""
        if rows.num_rows == 0:
            return
        index = KeyIndex(self.key_types)
        slots = index.find_or_add(rows)
        _, first_rows = np.unique(slots, return_index=True)
        by_appearance = np.argsort(first_rows)
        key_groups = key_group_of(index.hashes, max_parallelism)[by_appearance].tolist()
        counts = np.bincount(slots)[by_appearance].tolist()
        rank = np.argsort(by_appearance)
        order = np.argsort(rank[slots], kind="stable")
        keys = self._keys(index.gather(by_appearance), len(by_appearance))
        values = self.values(rows.take(slots_array(order)))
        start = 0
        for key_group, key, count in zip(key_groups, keys, counts, strict=True):
            yield key_group, key, iter(values[start : start + count])
            start += count

    def values(self, rows: pa.RecordBatch) -> list[Row]:
        """All rows in their order, without their keys."""
        return _python_rows(rows.columns[len(self.key_types) :], rows.num_rows, self._time_zone)

    def as_declared(self, key: Key) -> Key:
        """A key that was read from state as rows give it: state keeps no trailing zeros, and instants in UTC."""
        return tuple(self._field_as_declared(field, kind) for field, kind in zip(key, self.key_types, strict=True))

    def _field_as_declared(self, field: Any, kind: pa.DataType) -> Any:
        if isinstance(field, Decimal):
            return _EXACT.quantize(field, Decimal(1).scaleb(-kind.scale))
        if isinstance(field, datetime) and field.tzinfo is not None and self._time_zone is not None:
            return pa.scalar(field, pa.timestamp("us", self._time_zone)).as_py()
        return field

    def _keys(self, columns: Sequence[pa.Array], count: int) -> list[Key]:
        # The index holds plain values: an instant gets its label back before it gets its zone.
        labelled = [
            column.cast(pa.timestamp(kind.unit, "UTC")) if pa.types.is_timestamp(kind) and kind.tz else column
            for column, kind in zip(columns, self._declared_types, strict=True)
        ]
        return _python_rows(labelled, count, self._time_zone)


def prepare_conversions() -> None:
    # Arrow imports pandas at its first look at a Python list: better before the first slice than in it.
    pa.array([], pa.null())


def batch_from_tuples(output: Sequence[Any], schema: pa.Schema, *, called: str) -> pa.RecordBatch:
    """`called`: what of the user's gave the output."""
    for row in output:
        if not isinstance(row, tuple) or len(row) != len(schema):
            raise UserCodeFailure(
                f"{called} gave {row!r}, its declared schema has {len(schema)} columns "
                f"({', '.join(schema.names)}): give one value for each."
            )
    columns = zip(*output, strict=True)
    return pa.RecordBatch.from_arrays(
        [_column(values, field, called) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _column(values: Sequence[Any], field: pa.Field, called: str) -> pa.Array:
    try:
        _refuse_lossy(values, field.type)
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserCodeFailure(
            f"{called} gave a value for column {field.name!r} that does not fit its declared "
            f"type {field.type} ({error}): convert it in the processor, or change the schema."
        ) from error


def _refuse_lossy(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises where Arrow would quietly cut a value down, or read a bare number as a date."""
    allowed: tuple[type, ...]
    if pa.types.is_integer(kind):
        allowed = (int, np.integer)
    elif pa.types.is_timestamp(kind):
        allowed = (datetime,)
    elif pa.types.is_date(kind):
        allowed = (date,)
    else:
        return
    for value in values:
        if value is not None and (not isinstance(value, allowed) or (date in allowed and isinstance(value, datetime))):
            raise TypeError(f"{value!r} is of type {type(value).__name__}")


def _python_rows(columns: Sequence[pa.Array], row_count: int, time_zone: str | None) -> list[Row]:
    if not columns:
        return [()] * row_count
    lists = [column.cast(plain_type(column.type, time_zone)).to_pylist() for column in columns]
    return list(zip(*lists, strict=True))


def plain_type(kind: pa.DataType, time_zone: str | None = None) -> pa.DataType:
    """The type as it reads in Python: no dictionaries, and instants in the zone, or in UTC without a label."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, time_zone)
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, time_zone if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type, time_zone)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type, time_zone)))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type, time_zone), plain_type(kind.item_type, time_zone))
    return kind
