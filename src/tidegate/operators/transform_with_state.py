"""A user's `StatefulProcessor`: called once per key and slice, with the key's rows in their order.

Keys come in the order of their first row. What the user's generators give is taken at once, while the state
handles still point at their key. Must never hold rows or output from one slice to the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.columnar import KeyIndex, slots_array
from tidegate.operators.contract import Emit, TaskContext, UserProcessor, ValueStateHandle
from tidegate.operators.user_code import user_code_failure
from tidegate.plan.key_groups import key_group_of
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.state.codec import decode, encode_key, encode_value
from tidegate.state.contract import KeyedState, RestoredSection, Section, StateBackend


@dataclass(slots=True)
class CurrentKey:
    """Where the state handles read and write; `key` is None while no key is being handled."""

    key_group: int = 0
    key: bytes | None = None


class ValueState:
    """`ValueStateHandle` over one keyed state, at the current key."""

    def __init__(self, name: str, fields: Sequence[str], state: KeyedState, current: CurrentKey) -> None:
        self._name = name
        self._fields = fields
        self._state = state
        self._current = current

    def exists(self) -> bool:
        return self._state.get(self._current.key_group, self._key()) is not None

    def get(self) -> tuple[Any, ...] | None:
        data = self._state.get(self._current.key_group, self._key())
        return None if data is None else decode(data)

    def update(self, new_value: tuple[Any, ...]) -> None:
        if not isinstance(new_value, tuple) or len(new_value) != len(self._fields):
            raise UserCodeFailure(
                f"State {self._name!r} has the fields ({', '.join(self._fields)}): update it with a tuple of "
                f"{len(self._fields)}, not with {new_value!r}."
            )
        self._state.put(self._current.key_group, self._key(), encode_value(new_value, state=self._name))

    def clear(self) -> None:
        self._state.delete(self._current.key_group, self._key())

    def _key(self) -> bytes:
        if self._current.key is None:
            raise UserCodeFailure(
                f"State {self._name!r} is used outside of handleInputRows, where it has no key: use it only there."
            )
        return self._current.key


class TransformWithStateOperator:
    def __init__(self, spec: TransformWithStateSpec) -> None:
        self._spec = spec
        fields = [spec.input_schema.field(index) for index in range(len(spec.input_schema))]
        self._key_types = [_plain_type(field.type) for field in fields[: spec.key_count]]
        self._value_names = [field.name for field in fields[spec.key_count :]]
        self._current = CurrentKey()
        self._backend: StateBackend | None = None
        self._processor: UserProcessor | None = None

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        # Arrow imports pandas at its first look at a Python list: better now than in the first slice.
        _column([], pa.field("none", pa.null()))
        self._max_parallelism = context.max_parallelism
        self._backend = context.open_state()
        self._backend.restore(restored)
        processor = context.user_code.processor(
            self._spec.processor, value_names=self._value_names, output_names=self._spec.schema.names
        )
        try:
            processor.init(self._open_value_state)
        except UserCodeFailure:
            raise
        except Exception as error:
            raise user_code_failure(error, called="StatefulProcessor.init") from error
        self._processor = processor

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        output: list[tuple[Any, ...]] = []
        for key_group, key, key_rows in self._by_key(rows):
            self._current.key_group = key_group
            self._current.key = encode_key(key, state="key of transformWithState")
            try:
                output.extend(self._handle_rows(key, key_rows))
            finally:
                self._current.key = None
        if output:
            emit(batch_from_tuples(output, self._spec.schema))

    def before_barrier(self, emit: Emit) -> None:
        pass

    def end_of_input(self, emit: Emit) -> None:
        pass

    def on_idle(self, emit: Emit) -> None:
        pass

    def snapshot(self) -> list[Section]:
        return self._opened().snapshot()

    def state_bytes(self) -> int:
        return self._opened().size_bytes()

    def close(self) -> None:
        processor, self._processor = self._processor, None
        backend, self._backend = self._backend, None
        try:
            if processor is not None:
                processor.close()
        except Exception as error:
            raise user_code_failure(error, called="StatefulProcessor.close") from error
        finally:
            if backend is not None:
                backend.close()

    def _open_value_state(self, name: str, fields: tuple[str, ...]) -> ValueStateHandle:
        return ValueState(name, fields, self._opened().keyed(name), self._current)

    def _opened(self) -> StateBackend:
        assert self._backend is not None, "open comes before every other call"
        return self._backend

    def _handle_rows(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        assert self._processor is not None, "open comes before every other call"
        try:
            return list(self._processor.handle_rows(key, rows))
        except UserCodeFailure:
            raise
        except Exception as error:
            raise user_code_failure(error, called=f"StatefulProcessor.handleInputRows for key {key!r}") from error

    def _by_key(self, rows: pa.RecordBatch) -> Iterator[tuple[int, tuple[Any, ...], Iterator[tuple[Any, ...]]]]:
        """Key group, key and rows of every key of the slice."""
        if rows.num_rows == 0:
            return
        index = KeyIndex(self._key_types)
        slots = index.find_or_add(rows)
        _, first_rows = np.unique(slots, return_index=True)
        by_appearance = np.argsort(first_rows)
        key_groups = key_group_of(index.hashes, self._max_parallelism)[by_appearance].tolist()
        counts = np.bincount(slots)[by_appearance].tolist()
        rank = np.argsort(by_appearance)
        order = np.argsort(rank[slots], kind="stable")
        keys = _python_rows(index.gather(by_appearance), len(by_appearance))
        values = _python_rows(rows.take(slots_array(order)).columns[self._spec.key_count :], rows.num_rows)
        start = 0
        for key_group, key, count in zip(key_groups, keys, counts, strict=True):
            yield key_group, key, iter(values[start : start + count])
            start += count


def batch_from_tuples(output: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    for row in output:
        if not isinstance(row, tuple) or len(row) != len(schema):
            raise UserCodeFailure(
                f"StatefulProcessor.handleInputRows gave {row!r}, its declared schema has {len(schema)} columns "
                f"({', '.join(schema.names)}): give one value for each."
            )
    columns = zip(*output, strict=True)
    return pa.RecordBatch.from_arrays(
        [_column(values, field) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        _refuse_lossy(values, field.type)
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserCodeFailure(
            f"StatefulProcessor.handleInputRows gave a value for column {field.name!r} that does not fit its declared "
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


def _python_rows(columns: Sequence[pa.Array], row_count: int) -> list[tuple[Any, ...]]:
    if not columns:
        return [()] * row_count
    lists = [column.cast(_plain_type(column.type)).to_pylist() for column in columns]
    return list(zip(*lists, strict=True))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type as it reads in Python: no dictionaries, and instants without a zone.

    Spark gives a timestamp as a naive datetime in the zone of the session. That zone is taken to be UTC here, so an
    instant of Arrow, which counts from the epoch in UTC, only loses its label.
    """
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind
