"""Opens the Python functions of a plan in a slot, each by what PySpark's evaluation type says it is."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.util import PythonEvalType

from tidegate.operators.contract import ConnectProcessor, UserProcessor, WaitingFunction
from tidegate.spark.commands import decode_command, open_function
from tidegate.spark.stateful import RowProcessor
from tidegate.spark.zoned_batches import in_zone

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROW_PROCESSORS = (
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_INIT_STATE_UDF,
)


class PySparkUserCode:
    """Implements `operators.contract.UserCode`."""

    def map_function(self, command: bytes) -> BatchFunction:
        opened = decode_command(command)
        if opened.eval_type == PythonEvalType.SQL_MAP_PANDAS_ITER_UDF:
            from tidegate.spark.python_udfs import open_map_in_pandas

            return open_map_in_pandas(opened)
        function: BatchFunction = open_function(opened)
        return lambda batches: function(in_zone(batch, opened.time_zone) for batch in batches)

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> UserProcessor:
        opened = decode_command(command)
        if opened.eval_type in ROW_PROCESSORS:
            return RowProcessor(opened, value_names=tuple(value_names), output_names=tuple(output_names))
        from tidegate.spark.pandas_stateful import GroupStateProcessor, PandasProcessor

        if opened.eval_type == PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE:
            return GroupStateProcessor(opened, value_names=tuple(value_names))
        return PandasProcessor(opened)

    def connect_processor(self, command: bytes) -> ConnectProcessor:
        from tidegate.spark.connected import RowConnectProcessor

        return RowConnectProcessor(decode_command(command))

    def udfs(self, calls: bytes) -> BatchFunction:
        from tidegate.spark.python_udfs import open_udfs

        return open_udfs(calls)

    def waiting_function(
        self, command: bytes, *, input_names: Sequence[str], output_names: Sequence[str]
    ) -> WaitingFunction:
        from tidegate.spark.async_mapped import open_waiting_function

        return open_waiting_function(
            decode_command(command), input_names=tuple(input_names), output_names=tuple(output_names)
        )
