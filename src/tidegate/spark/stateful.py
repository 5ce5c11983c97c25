"""A user's `StatefulProcessor`, with Rows or with pandas, as operators call it.

Gives the user what PySpark gives: keys, Rows or DataFrames, TimerValues, a handle. Must never keep rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from tidegate.model.errors import UserError
from tidegate.operators.contract import ProcessorHandle, Times
from tidegate.plan.nodes import DeclaredState, StateShape
from tidegate.spark.commands import Command, open_function
from tidegate.spark.typed_states import KnownSchemas, ParsedSchemas, TypedHandle

TIME_MODE = "timeMode"
NO_TIME = "none"
_SCHEMA_PREFIX = "schema:"


class RowProcessor:
    """`operators.contract.UserProcessor` over a processor in Row mode."""

    def __init__(self, command: Command, *, value_names: tuple[str, ...], output_names: tuple[str, ...]) -> None:
        self._processor = stateful_processor(command)
        self._read_schema = known_schemas(command)
        self._has_time = command.details[TIME_MODE] != NO_TIME
        self._value_names = value_names
        self._output_names = output_names
        self._initial_names: tuple[str, ...] = ()

    def init(self, handle: ProcessorHandle) -> None:
        self._processor.init(TypedHandle(handle, self._read_schema))  # type: ignore[arg-type]

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        named = (named_row(self._value_names, values) for values in rows)
        outputs = self._processor.handleInputRows(key, named, self._timer_values(times))
        return (output_values(output, self._output_names, called="handleInputRows") for output in outputs)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        outputs = self._processor.handleExpiredTimer(
            key=key, timerValues=self._timer_values(times), expiredTimerInfo=ExpiredTimerInfo(at_ms)
        )
        return (output_values(output, self._output_names, called="handleExpiredTimer") for output in outputs)

    def handle_initial(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> None:
        for values in rows:
            row = named_row(self._initial_names, values)
            self._processor.handleInitialState(key, row, self._timer_values(times))

    def name_initial(self, names: tuple[str, ...]) -> None:
        self._initial_names = names

    def close(self) -> None:
        self._processor.close()

    def _timer_values(self, times: Times) -> TimerValues:
        return timer_values(times) if self._has_time else TimerValues()


def output_values(output: Any, names: tuple[str, ...], *, called: str) -> tuple[Any, ...]:
    """By name, as Spark does: a missing field is null, an unknown one is dropped. Without names, by position."""
    if getattr(output, "__fields__", None) is not None:
        by_name = output.asDict(recursive=True)
        return tuple(by_name.get(name) for name in names)
    if not isinstance(output, tuple) or len(output) != len(names):
        raise TypeError(f"{called} must give Rows with the fields {', '.join(names)}, but gave {output!r}.")
    return tuple(output)


def timer_values(times: Times) -> TimerValues:
    """Spark's event time begins at 0."""
    return TimerValues(times.processing_time_ms, max(0, times.watermark_ms))


def named_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    row = tuple.__new__(Row, values)
    row.__fields__ = names
    return row


def stateful_processor(command: Command) -> StatefulProcessor:
    """The UDF of transformWithState is a bound method of PySpark's wrapper around the user's processor."""
    processor = open_function(command).__self__._stateful_processor
    assert isinstance(processor, StatefulProcessor)
    return processor


def known_schemas(command: Command) -> KnownSchemas:
    return KnownSchemas(
        {name.removeprefix(_SCHEMA_PREFIX): text for name, text in command.details.items() if _is_schema(name)}
    )


def check_init(run: Callable[[], None], schemas: ParsedSchemas, *, name: str) -> dict[str, str]:
    """On the driver, before the job starts: runs a copy's `init` and `close`, as Spark's own pre-init does.

    Gives what its schemas in text form mean, to be put into the command's details.
    """
    try:
        run()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The processor {name} raised in init or close: {type(error).__name__}: {error}") from error
    return {_SCHEMA_PREFIX + text: parsed for text, parsed in schemas.json_by_text.items()}


def declared_state(
    name: str, shape: StateShape, schemas: Sequence[StructType], *, ttl_ms: int | None = None
) -> DeclaredState:
    # Slots import this module too, and do not need it.
    from pyspark.sql.pandas.types import to_arrow_schema

    *subkeys, values = [to_arrow_schema(schema, timezone="UTC") for schema in schemas]
    return DeclaredState(name, shape, values, subkeys[0] if subkeys else None, has_ttl=ttl_ms is not None)


def _is_schema(name: str) -> bool:
    return name.startswith(_SCHEMA_PREFIX)


class DeclaringHandle:
    """`ConnectHandle` that only collects declarations, as PySpark's driver handle does."""

    def __init__(self) -> None:
        self._declared: dict[str, tuple[StateShape, int | None]] = {}
        self._deleted: set[str] = set()

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> Any:
        return self._declare(name, StateShape.VALUE, ttl_ms)

    def list_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> Any:
        return self._declare(name, StateShape.LIST, ttl_ms)

    def map_state(
        self, name: str, key_fields: tuple[str, ...], value_fields: tuple[str, ...], *, ttl_ms: int | None = None
    ) -> Any:
        return self._declare(name, StateShape.MAP, ttl_ms)

    def broadcast_state(self, name: str) -> Any:
        return self._declare(name, StateShape.BROADCAST, None)

    def states(self, schemas: ParsedSchemas) -> tuple[DeclaredState, ...]:
        """All that were declared; `schemas` read theirs: of a map first that of its keys."""
        return tuple(
            declared_state(name, shape, schemas.by_state[name], ttl_ms=ttl_ms)
            for name, (shape, ttl_ms) in self._declared.items()
        )

    def deleted(self) -> tuple[str, ...]:
        return tuple(sorted(self._deleted))

    def delete_if_exists(self, name: str) -> None:
        self._deleted.add(name)
        self._check_not_both(name)

    def register_timer(self, at_ms: int) -> None:
        self._without_key("registerTimer")

    def delete_timer(self, at_ms: int) -> None:
        self._without_key("deleteTimer")

    def timers(self) -> list[int]:
        self._without_key("listTimers")

    def _declare(self, name: str, shape: StateShape, ttl_ms: int | None) -> "_DeclaredState":
        if name in self._declared:
            raise UserError(f"State {name!r} is declared twice in init: give each state its own name.")
        self._declared[name] = (shape, ttl_ms)
        self._check_not_both(name)
        return _DeclaredState(name)

    def _check_not_both(self, name: str) -> None:
        """In either order: `init` runs again at every recovery, which would empty the state."""
        if name in self._deleted and name in self._declared:
            raise UserError(f"State {name!r} is deleted and opened in one init: do one of both.")

    def _without_key(self, method: str) -> NoReturn:
        raise UserError(f"init calls {method}, but there is no key yet: call it where rows are handled.")


class _DeclaredState:
    """Stands for a state while only declarations are collected."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        raise UserError(f"init uses state {self._name!r}, which has no key yet: use it in handleInputRows only.")
