"""A user's `ConnectProcessor` over two inputs: how it travels inside a DataFrame's plan, and how operators call it.

Must never run in Spark's own engine: the function that carries it only says where it belongs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from tidegate.model.errors import UserError
from tidegate.operators.contract import BroadcastState, ConnectHandle, Times
from tidegate.plan.nodes import RightSide
from tidegate.spark.commands import Command, open_function
from tidegate.spark.stateful import NO_TIME, TIME_MODE, known_schemas, named_row, output_values, timer_values
from tidegate.spark.typed_states import Fields, ReadSchema, TypedHandle

LEFT_NAMES = "leftNames"
RIGHT_NAMES = "rightNames"
OUTPUT_NAMES = "outputNames"
_ATTRIBUTE = "tidegate_connect"
_SEPARATOR = "\x00"


class TypedBroadcastState:
    """A map that is the same in every slot; only `handleRight` of a broadcast side may change it."""

    def __init__(self, state: BroadcastState, key_fields: Fields, value_fields: Fields) -> None:
        self._state = state
        self._keys = key_fields
        self._values = value_fields

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        stored = self._state.get(self._keys.stored(key))
        return None if stored is None else self._values.given_row(stored)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._state.get(self._keys.stored(key)) is not None

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return ((self._keys.given(key), self._values.given(value)) for key, value in self._state.items())

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state.put(self._keys.stored(key), self._values.stored(value))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.delete(self._keys.stored(key))


class ConnectProcessorHandle(TypedHandle):
    """What `ConnectProcessor.init` gets: PySpark's states and timers, and broadcast state."""

    def __init__(self, handle: ConnectHandle, read_schema: ReadSchema) -> None:
        super().__init__(handle, read_schema)
        self._connected = handle

    def getBroadcastState(
        self, stateName: str, userKeySchema: StructType | str, valueSchema: StructType | str
    ) -> TypedBroadcastState:
        keys, values = self._fields(stateName, userKeySchema), self._fields(stateName, valueSchema)
        return TypedBroadcastState(self._connected.broadcast_state(stateName), keys, values)


class ConnectProcessor:
    """Two inputs, one state: subclass it and give it to `tg.connect`.

    Rows and timers are as in PySpark's `StatefulProcessor`. With a broadcast right side, `handleRight` has the key `()`
    and may change broadcast state only.
    """

    def init(self, handle: ConnectProcessorHandle) -> None:
        raise NotImplementedError("A ConnectProcessor opens its states in init.")

    def handleLeft(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterable[Row]:
        raise NotImplementedError("A ConnectProcessor handles the rows of the left side in handleLeft.")

    def handleRight(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterable[Row]:
        raise NotImplementedError("A ConnectProcessor handles the rows of the right side in handleRight.")

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterable[Row]:
        return ()

    def close(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Connection:
    """What `tg.connect` was given; `left_key_count` of the grouped columns are real."""

    processor: ConnectProcessor
    right_side: RightSide
    time_mode: str
    left_key_count: int


def carrying(connection: Connection) -> Callable[[Any, Any], Any]:
    """A function for a cogroup, which holds its two children and the output schema in the plan."""

    def connect(left: Any, right: Any) -> Any:
        raise UserError("tg.connect runs in a Tidegate query: write its DataFrame with tg.writeStream(df).")

    setattr(connect, _ATTRIBUTE, connection)
    return connect


def connection_in(command: Command) -> Connection | None:
    """None for a cogroup of the user's own."""
    found: Connection | None = getattr(open_function(command), _ATTRIBUTE, None)
    return found


def names_detail(names: Iterable[str]) -> str:
    return _SEPARATOR.join(names)


class RowConnectProcessor:
    """`operators.contract.ConnectProcessor` over the user's."""

    def __init__(self, command: Command) -> None:
        connection = connection_in(command)
        assert connection is not None, "the plan's reader makes this command for a connection only"
        self._processor = connection.processor
        self._read_schema = known_schemas(command)
        self._has_time = command.details[TIME_MODE] != NO_TIME
        self._left_names = _names(command, LEFT_NAMES)
        self._right_names = _names(command, RIGHT_NAMES)
        self._output_names = _names(command, OUTPUT_NAMES)

    def init(self, handle: ConnectHandle) -> None:
        self._processor.init(ConnectProcessorHandle(handle, self._read_schema))

    def handle_left(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        named = (named_row(self._left_names, values) for values in rows)
        return self._taken(self._processor.handleLeft(key, named, self._timer_values(times)), "handleLeft")

    def handle_right(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        named = (named_row(self._right_names, values) for values in rows)
        return self._taken(self._processor.handleRight(key, named, self._timer_values(times)), "handleRight")

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        outputs = self._processor.handleExpiredTimer(
            key=key, timerValues=self._timer_values(times), expiredTimerInfo=ExpiredTimerInfo(at_ms)
        )
        return self._taken(outputs, "handleExpiredTimer")

    def close(self) -> None:
        self._processor.close()

    def _taken(self, outputs: Iterable[Any] | None, method: str) -> Iterator[tuple[Any, ...]]:
        # A method that gives nothing may also have no return.
        for output in outputs or ():
            yield output_values(output, self._output_names, called=method)

    def _timer_values(self, times: Times) -> TimerValues:
        return timer_values(times) if self._has_time else TimerValues()


def _names(command: Command, name: str) -> tuple[str, ...]:
    return tuple(command.details[name].split(_SEPARATOR))
