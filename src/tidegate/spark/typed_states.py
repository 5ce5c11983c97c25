"""PySpark's states and handle, over those of the operators: the same names, and values by their declared types.

Must never parse a schema in text form in a slot: only Spark's own parser, on the driver, may say what it means.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from pyspark.sql import Row
from pyspark.sql.types import StructType

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure, UserError
from tidegate.operators.contract import ListStateHandle, MapStateHandle, ProcessorHandle, ValueStateHandle
from tidegate.spark.external_types import from_stored, to_stored


class Fields:
    """The values of one state, between user code and the bytes of state."""

    def __init__(self, schema: StructType, *, state: str) -> None:
        self.names = tuple(schema.names)
        self._schema = schema
        self._state = state
        of = f"State {state!r}"
        self._to_stored = [to_stored(field.dataType, of=of) for field in schema.fields]
        self._from_stored = [from_stored(field.dataType) for field in schema.fields]

    def stored(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(self.names):
            raise UserCodeFailure(
                f"State {self._state!r} has the fields ({', '.join(self.names)}): update it with a tuple of "
                f"{len(self.names)}, not with {value!r}."
            )
        internal = self._schema.toInternal(tuple(_normalised(item) for item in value))
        return tuple(convert(item) for convert, item in zip(self._to_stored, internal, strict=True))

    def given(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(convert(item) for convert, item in zip(self._from_stored, stored, strict=True))

    def given_row(self, stored: Sequence[Any]) -> Row:
        row = tuple.__new__(Row, self.given(stored))
        row.__fields__ = list(self.names)
        return row


class ReadSchema(Protocol):
    """Turns the schema of a state, as the user wrote it, into Spark's."""

    def __call__(self, schema: StructType | str, /, *, state: str) -> StructType: ...


class TypedValueState:
    def __init__(self, state: ValueStateHandle, fields: Fields) -> None:
        self._state = state
        self._fields = fields

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> tuple[Any, ...] | None:
        stored = self._state.get()
        return None if stored is None else self._fields.given(stored)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._state.update(self._fields.stored(newValue))

    def clear(self) -> None:
        self._state.clear()


class TypedListState:
    def __init__(self, state: ListStateHandle, fields: Fields, *, name: str) -> None:
        self._state = state
        self._fields = fields
        self._name = name

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> Iterator[tuple[Any, ...]]:
        return map(self._fields.given, self._state.get())

    def put(self, newState: Sequence[tuple[Any, ...]]) -> None:
        self._state.put(self._stored(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._state.append_value(self._fields.stored(newState))

    def appendList(self, newState: Sequence[tuple[Any, ...]]) -> None:
        self._state.append_list(self._stored(newState))

    def clear(self) -> None:
        self._state.clear()

    def _stored(self, values: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        stored = [self._fields.stored(value) for value in values]
        if not stored:
            raise UserCodeFailure(f"List state {self._name!r} was given an empty list: use clear() to empty it.")
        return stored


class TypedMapState:
    def __init__(self, state: MapStateHandle, key_fields: Fields, value_fields: Fields) -> None:
        self._state = state
        self._keys = key_fields
        self._values = value_fields

    def exists(self) -> bool:
        return self._state.exists()

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        stored = self._state.get_value(self._keys.stored(key))
        return None if stored is None else self._values.given_row(stored)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._state.contains_key(self._keys.stored(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state.update_value(self._keys.stored(key), self._values.stored(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return ((self._keys.given(key), self._values.given(value)) for key, value in self._state.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return (self._keys.given(key) for key, _ in self._state.items())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return (self._values.given(value) for _, value in self._state.items())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.remove_key(self._keys.stored(key))

    def clear(self) -> None:
        self._state.clear()


class TypedHandle:
    """What `init` gets in place of PySpark's StatefulProcessorHandle."""

    def __init__(self, handle: ProcessorHandle, read_schema: ReadSchema) -> None:
        self._handle = handle
        self._read_schema = read_schema

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> TypedValueState:
        fields = self._fields(stateName, schema)
        state = self._handle.value_state(stateName, fields.names, ttl_ms=_ttl_ms(stateName, ttlDurationMs))
        return TypedValueState(state, fields)

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> TypedListState:
        fields = self._fields(stateName, schema)
        state = self._handle.list_state(stateName, fields.names, ttl_ms=_ttl_ms(stateName, ttlDurationMs))
        return TypedListState(state, fields, name=stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> TypedMapState:
        keys, values = self._fields(stateName, userKeySchema), self._fields(stateName, valueSchema)
        ttl_ms = _ttl_ms(stateName, ttlDurationMs)
        return TypedMapState(self._handle.map_state(stateName, keys.names, values.names, ttl_ms=ttl_ms), keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._handle.register_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._handle.delete_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self._handle.timers())

    def deleteIfExists(self, stateName: str) -> None:
        self._handle.delete_if_exists(stateName)

    def _fields(self, name: str, schema: StructType | str) -> Fields:
        return Fields(self._read_schema(schema, state=name), state=name)


class KnownSchemas:
    """`ReadSchema` in a slot: text forms by what Spark's parser made of them on the driver."""

    def __init__(self, json_by_text: Mapping[str, str]) -> None:
        self._json_by_text = json_by_text

    def __call__(self, schema: StructType | str, /, *, state: str) -> StructType:
        if isinstance(schema, StructType):
            return schema
        known = self._json_by_text.get(schema) if isinstance(schema, str) else None
        if known is None:
            raise UserCodeFailure(
                f"State {state!r} has the schema {schema!r}, which init did not use when the query was started: "
                f"use the same schemas each time."
            )
        return StructType.fromJson(json.loads(known))


class ParsedSchemas:
    """`ReadSchema` on the driver; remembers what Spark's parser made of text forms, and the schemas of each state."""

    def __init__(self) -> None:
        self.json_by_text: dict[str, str] = {}
        self.by_state: dict[str, list[StructType]] = {}

    def __call__(self, schema: StructType | str, /, *, state: str) -> StructType:
        parsed = self._parsed(schema, state)
        self.by_state.setdefault(state, []).append(parsed)
        return parsed

    def _parsed(self, schema: StructType | str, state: str) -> StructType:
        if isinstance(schema, str):
            parsed = StructType.fromDDL(schema)
            if not isinstance(parsed, StructType):
                raise UserError(f"State {state!r} has the schema {schema!r}: write fields, such as 'n long'.")
            self.json_by_text[schema] = parsed.json()
            return parsed
        if isinstance(schema, StructType):
            return schema
        raise UnsupportedPlan(f"State {state!r} needs a StructType or its text as schema, not {type(schema).__name__}.")


def _ttl_ms(state: str, ttl_ms: int | None) -> int | None:
    if ttl_ms is not None and ttl_ms <= 0:
        raise UserError(f"State {state!r} has a ttlDurationMs of {ttl_ms}: give one above 0.")
    return ttl_ms


def _normalised(value: Any) -> Any:
    """NumPy's and pandas' scalars as Python's own, at any depth, as PySpark does."""
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(_normalised, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_normalised, value))
    if isinstance(value, dict):
        return {_normalised(key): _normalised(item) for key, item in value.items()}
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
