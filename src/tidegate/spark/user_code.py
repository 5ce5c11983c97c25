"""Opens PySpark's pickled commands: the function of mapInArrow, the StatefulProcessor of transformWithState.

Gives the user what PySpark gives (Rows, TimerValues, a handle) and takes back plain tuples. Refuses, before the job
starts, what of the handle Tidegate does not have.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from tidegate.model.errors import EnvironmentProblem, ProtocolViolation, UnsupportedPlan, UserError
from tidegate.operators.contract import ConnectProcessor, ProcessorHandle, Times, UserProcessor, ValueStateHandle


class OpenValueState(Protocol):
    def __call__(self, name: str, fields: tuple[str, ...], /, *, ttl_ms: int = ...) -> ValueStateHandle: ...


class PySparkUserCode:
    """Implements `operators.contract.UserCode`."""

    def map_function(self, command: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _function(command)
        return function

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> UserProcessor:
        return RowProcessor(
            _stateful_processor(command), value_names=tuple(value_names), output_names=tuple(output_names)
        )

    def connect_processor(self, command: bytes) -> ConnectProcessor:
        raise UnsupportedPlan(
            "The plan connects two inputs with a processor, which PySpark has no way to write: "
            "join them, or union them and use transformWithState."
        )


class RowProcessor:
    """A user's `StatefulProcessor` in Row mode, as operators see it."""

    def __init__(
        self, processor: StatefulProcessor, *, value_names: tuple[str, ...], output_names: tuple[str, ...]
    ) -> None:
        self._processor = processor
        self._value_names = value_names
        self._output_names = output_names
        self._timer_values = TimerValues()  # -1 and -1: time mode None knows no time.

    def init(self, handle: ProcessorHandle) -> None:
        self._processor.init(StateHandle(handle.value_state))  # type: ignore[arg-type]

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        outputs = self._processor.handleInputRows(key, map(self._row, rows), self._timer_values)
        return map(self._output, outputs)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise ProtocolViolation(
            f"A timer of key {key!r} at {at_ms} ms is due, but time mode None lets no processor register one."
        )

    def close(self) -> None:
        self._processor.close()

    def _row(self, values: tuple[Any, ...]) -> Row:
        row = tuple.__new__(Row, values)
        row.__fields__ = self._value_names
        return row

    def _output(self, output: Any) -> tuple[Any, ...]:
        """By name, as Spark does: a missing field is null, an unknown one is dropped. Without names, by position."""
        names = getattr(output, "__fields__", None)
        if names is not None and tuple(names) != self._output_names:
            by_name = dict(zip(names, output, strict=True))
            return tuple(by_name.get(name) for name in self._output_names)
        if not isinstance(output, tuple) or len(output) != len(self._output_names):
            expected = ", ".join(self._output_names)
            raise TypeError(f"handleInputRows must give Rows with the fields {expected}, but gave {output!r}.")
        return tuple(output)


class StateHandle:
    """What `init` gets in place of PySpark's StatefulProcessorHandle."""

    def __init__(self, open_value_state: OpenValueState) -> None:
        self._open_value_state = open_value_state

    def getValueState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> ValueStateHandle:
        fields = _field_names(stateName, schema)
        if ttlDurationMs is None:
            return self._open_value_state(stateName, fields)
        if ttlDurationMs <= 0:
            raise UserError(f"State {stateName!r} has a ttlDurationMs of {ttlDurationMs}: give one above 0.")
        return self._open_value_state(stateName, fields, ttl_ms=ttlDurationMs)

    def getListState(self, stateName: str, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_state("getListState", stateName)

    def getMapState(self, stateName: str, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_state("getMapState", stateName)

    def registerTimer(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_call("registerTimer")

    def deleteTimer(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_call("deleteTimer")

    def listTimers(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_call("listTimers")

    def deleteIfExists(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _refused_call("deleteIfExists")


class _DeclaredState:
    """Stands for a state while only declarations are collected, as PySpark's driver handle does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exists(self) -> bool:
        raise self._used_too_early()

    def get(self) -> tuple[Any, ...] | None:
        raise self._used_too_early()

    def update(self, new_value: tuple[Any, ...]) -> None:
        raise self._used_too_early()

    def clear(self) -> None:
        raise self._used_too_early()

    def _used_too_early(self) -> UserError:
        return UserError(f"init uses state {self._name!r}, which has no key yet: use it in handleInputRows only.")


def check_processor(command: bytes) -> None:
    """On the driver, before the job starts: runs `init` and `close` of a copy, as Spark's own pre-init does."""
    processor = _stateful_processor(command)
    declared: set[str] = set()

    def declare(name: str, _fields: tuple[str, ...], /, *, ttl_ms: int | None = None) -> ValueStateHandle:
        if name in declared:
            raise UserError(f"State {name!r} is declared twice in init: give each state its own name.")
        declared.add(name)
        return _DeclaredState(name)

    name = type(processor).__name__
    try:
        processor.init(_CheckingHandle(declare))  # type: ignore[arg-type]
        processor.close()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The processor {name} raised in init or close: {type(error).__name__}: {error}") from error


class _CheckingHandle(StateHandle):
    """Also has Spark's own parser look at schemas in text form, which slots cannot ask."""

    def getValueState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> ValueStateHandle:
        if isinstance(schema, str):
            parsed = StructType.fromDDL(schema)
            if not isinstance(parsed, StructType) or tuple(parsed.names) != _names_in_ddl(schema):
                raise UnsupportedPlan(f"State {stateName!r} has the schema {schema!r}: write it as a StructType.")
        return super().getValueState(stateName, schema, ttlDurationMs)


def _function(command: bytes) -> Any:
    try:
        function, _return_type = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    except ModuleNotFoundError as missing:
        raise EnvironmentProblem(
            f"A function of the query needs the module {missing.name!r}, which the workers cannot import: "
            f"ship it with spark.sparkContext.addPyFile(...) or install it on the executors."
        ) from missing
    return function


def _stateful_processor(command: bytes) -> StatefulProcessor:
    """The UDF of transformWithState is a bound method of PySpark's wrapper around the user's processor."""
    processor = _function(command).__self__._stateful_processor
    assert isinstance(processor, StatefulProcessor)
    return processor


def _refused_state(method: str, name: str) -> UnsupportedPlan:
    return UnsupportedPlan(f"State {name!r} is opened with {method}, which Tidegate does not have: use getValueState.")


def _refused_call(method: str) -> UnsupportedPlan:
    return UnsupportedPlan(f"The processor calls {method}, which Tidegate does not have: use getValueState only.")


def _field_names(state: str, schema: StructType | str) -> tuple[str, ...]:
    if isinstance(schema, str):
        return _names_in_ddl(schema)
    if isinstance(schema, StructType):
        return tuple(schema.names)
    raise UnsupportedPlan(f"State {state!r} needs a StructType or its text as schema, not {type(schema).__name__}.")


# A name in backticks or plain, up to the blank or colon before its type.
_DDL_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))")


def _names_in_ddl(ddl: str) -> tuple[str, ...]:
    """The field names of `a INT, b DECIMAL(10, 2)`; the types are left alone."""
    names = []
    for part in _top_level_parts(ddl):
        match = _DDL_NAME.match(part)
        if match is not None:
            names.append(match.group(1).replace("``", "`") if match.group(1) else match.group(2))
    return tuple(names)


def _top_level_parts(ddl: str) -> list[str]:
    """Split at commas that are inside no brackets, backticks or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for index, character in enumerate(ddl):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(ddl[start:index])
            start = index + 1
    return [*parts, ddl[start:]]
