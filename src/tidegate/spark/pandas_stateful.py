"""Stateful user code over pandas: `transformWithStateInPandas` and `applyInPandasWithState`, as operators call it.

DataFrames are made and taken by PySpark's own conversions, so dtypes and columns are Spark's. Must never keep rows.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructField, StructType

from tidegate.operators.contract import ProcessorHandle, Times
from tidegate.spark.commands import Command, open_function, schema_detail
from tidegate.spark.stateful import NO_TIME, TIME_MODE, known_schemas, stateful_processor, timer_values
from tidegate.spark.typed_states import Fields, TypedHandle
from tidegate.spark.zoned_batches import in_zone

KEY_POSITIONS = "keyPositions"
INITIAL_KEY_POSITIONS = "initialKeyPositions"
OUTPUT_SCHEMA = "outputSchema"
STATE_SCHEMA = "stateSchema"
TIMEOUT = "timeout"
HAS_WATERMARK = "hasWatermark"

STATE_NAME = "groupState"


class Frames:
    """Batches as DataFrames and back, with the settings of the query's session."""

    def __init__(self, command: Command) -> None:
        from pyspark.worker import RunnerConf

        self._conf = RunnerConf(dict(command.settings))
        self._zone = command.time_zone
        self._output = StructType([StructField("_0", schema_detail(command.details[OUTPUT_SCHEMA]))])

    def series(self, batch: pa.RecordBatch) -> list[Any]:
        from pyspark.sql.conversion import ArrowBatchTransformer

        return ArrowBatchTransformer.to_pandas(
            in_zone(batch, self._zone),
            timezone=self._zone,
            prefer_int_ext_dtype=self._conf.prefer_int_ext_dtype,
        )

    def batches(self, results: Iterable[Any], *, called: str) -> Iterator[pa.RecordBatch]:
        import pandas as pd
        from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion

        for result in results:
            if not isinstance(result, pd.DataFrame):
                raise TypeError(f"{called} must give pandas.DataFrame, but gave {type(result).__name__}")
            if len(result) == 0:
                continue
            wrapped = PandasToArrowConversion.convert(
                [result],
                self._output,
                timezone=self._zone,
                safecheck=self._conf.safecheck,
                arrow_cast=True,
                assign_cols_by_name=self._conf.assign_cols_by_name,
                int_to_decimal_coercion_enabled=self._conf.int_to_decimal_coercion_enabled,
            )
            yield ArrowBatchTransformer.flatten_struct(wrapped)


class PandasProcessor:
    """`UserProcessor` over a processor in pandas mode."""

    def __init__(self, command: Command) -> None:
        self._processor = stateful_processor(command)
        self._read_schema = known_schemas(command)
        self._has_time = command.details[TIME_MODE] != NO_TIME
        self._key_positions = _positions(command, KEY_POSITIONS)
        self._initial_key_positions = _positions(command, INITIAL_KEY_POSITIONS)
        self._frames = Frames(command)

    def init(self, handle: ProcessorHandle) -> None:
        self._processor.init(TypedHandle(handle, self._read_schema))  # type: ignore[arg-type]

    def handle_rows(self, key: tuple[Any, ...], rows: pa.RecordBatch, times: Times) -> Iterator[pa.RecordBatch]:
        key, frame = self._keyed(rows, self._key_positions)
        results = self._processor.handleInputRows(key, iter([frame]), self._timer_values(times))
        return self._frames.batches(results, called="handleInputRows")

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterator[pa.RecordBatch]:
        results = self._processor.handleExpiredTimer(
            key=key, timerValues=self._timer_values(times), expiredTimerInfo=ExpiredTimerInfo(at_ms)
        )
        return self._frames.batches(results, called="handleExpiredTimer")

    def handle_initial(self, key: tuple[Any, ...], rows: pa.RecordBatch, times: Times) -> None:
        key, frame = self._keyed(rows, self._initial_key_positions)
        self._processor.handleInitialState(key, frame, self._timer_values(times))

    def name_initial(self, names: tuple[str, ...]) -> None:
        return  # batches carry their names

    def close(self) -> None:
        self._processor.close()

    def _keyed(self, rows: pa.RecordBatch, key_positions: list[int]) -> tuple[tuple[Any, ...], Any]:
        """As PySpark's worker makes them: row by row, which is what decides the dtypes."""
        import pandas as pd

        named = list(pd.concat(self._frames.series(rows), axis=1).itertuples(index=False))
        return tuple(named[0][position] for position in key_positions), pd.DataFrame(named)

    def _timer_values(self, times: Times) -> TimerValues:
        return timer_values(times) if self._has_time else TimerValues()


class GroupStateProcessor:
    """`UserProcessor` over a function of applyInPandasWithState; a key's timeout is its one timer."""

    def __init__(self, command: Command, *, value_names: tuple[str, ...]) -> None:
        self._function = open_function(command)
        self._timeout = command.details[TIMEOUT]
        self._has_watermark = command.details[HAS_WATERMARK] == "true"
        self._schema = schema_detail(command.details[STATE_SCHEMA])
        self._fields = Fields(self._schema, state=STATE_NAME)
        self._key_positions = _positions(command, KEY_POSITIONS)
        self._value_names = value_names
        self._frames = Frames(command)

    def init(self, handle: ProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.value_state(STATE_NAME, self._fields.names)

    def handle_rows(self, key: tuple[Any, ...], rows: pa.RecordBatch, times: Times) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        series = self._frames.series(rows)
        key = tuple(series[position][0] for position in self._key_positions)
        return self._called(key, iter([pd.concat(series, axis=1)]), times, has_timed_out=False)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        empty = pd.DataFrame(columns=list(self._value_names))
        return self._called(key, [empty], times, has_timed_out=True)

    def close(self) -> None:
        return

    def _called(
        self, key: tuple[Any, ...], frames: Iterable[Any], times: Times, *, has_timed_out: bool
    ) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        stored = self._state.get()
        state = self._group_state(stored, times, has_timed_out=has_timed_out)
        results = self._function(key, frames, state)
        if isinstance(results, pd.DataFrame):
            raise TypeError("the function must give an iterable of pandas.DataFrame, but gave one DataFrame")
        yield from self._frames.batches(results, called="the function")
        # The function may be a generator: only now has it run to its end.
        self._keep(state)

    def _group_state(self, stored: tuple[Any, ...] | None, times: Times, *, has_timed_out: bool) -> GroupState:
        return GroupState(
            optionalValue=None if stored is None else Row(*self._fields.given(stored)),  # type: ignore[arg-type]
            batchProcessingTimeMs=times.processing_time_ms,
            eventTimeWatermarkMs=max(0, times.watermark_ms) if self._has_watermark else GroupState.NO_TIMESTAMP,
            timeoutConf=self._timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._has_watermark,
            defined=stored is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )

    def _keep(self, state: GroupState) -> None:
        """A value that was not changed and a timeout that was not set leave both as they are, as in Spark."""
        timeout_ms = int(state._timeout_timestamp)
        if state._removed:
            self._state.clear()
        elif state._updated:
            self._state.update(self._fields.stored(tuple(state._value)))
        is_set = timeout_ms != GroupState.NO_TIMESTAMP
        if self._timeout == GroupStateTimeout.NoTimeout or not (state._removed or state._updated or is_set):
            return
        for at_ms in self._handle.timers():
            self._handle.delete_timer(at_ms)
        if is_set:
            # Spark times out what lies before the time, a timer is due at its time.
            self._handle.register_timer(timeout_ms + 1)


def positions_detail(positions: Iterable[int]) -> str:
    return json.dumps(list(positions))


def _positions(command: Command, name: str) -> list[int]:
    positions: list[int] = json.loads(command.details.get(name, "[]"))
    return positions
