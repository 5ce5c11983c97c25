"""Python UDFs and mapInPandas, run by PySpark's own worker code, so that values are converted as Spark converts them.

Pickled UDFs end in the JVM, whose conversion is `external_types`. Must never keep rows from one call to the next.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.util import PythonEvalType

from tidegate.spark.commands import Command, decode_command, missing_module, register_broadcasts, schema_detail
from tidegate.spark.external_types import to_stored
from tidegate.spark.types import to_arrow_schema
from tidegate.spark.zoned_batches import in_zone

Batches: TypeAlias = Iterator[pa.RecordBatch]

INPUT_SCHEMA = "inputSchema"
OUTPUT_SCHEMA = "outputSchema"

ITERATOR_UDFS = (PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF)


class UdfCall(msgspec.Struct, frozen=True, kw_only=True):
    """One result column: functions from the innermost out, and which input columns are their arguments."""

    functions: list[bytes]
    positions: list[int]
    names: dict[str, int]


class UdfCalls(msgspec.Struct, frozen=True, kw_only=True):
    """All result columns of one of Spark's evaluation nodes; each function is an encoded `Command`."""

    calls: list[UdfCall]
    details: dict[str, str]


_encode = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(UdfCalls)


def encode_calls(calls: UdfCalls) -> bytes:
    return _encode(calls)


def open_udfs(data: bytes) -> Callable[[Batches], Batches]:
    """From batches of arguments to batches of results, as many rows in all."""
    calls = _DECODER.decode(data)
    commands = [[decode_command(function) for function in call.functions] for call in calls.calls]
    first = commands[0][0]
    evaluate = _worker_function(commands, calls)
    if first.eval_type == PythonEvalType.SQL_BATCHED_UDF:
        return _pickled(evaluate, calls)
    return lambda batches: evaluate(0, (in_zone(batch, first.time_zone) for batch in batches))


def open_map_in_pandas(command: Command) -> Callable[[Batches], Batches]:
    from pyspark.sql.conversion import ArrowBatchTransformer

    calls = UdfCalls(calls=[UdfCall(functions=[], positions=[], names={})], details={})
    evaluate = _worker_function([[command]], calls)

    def run(batches: Batches) -> Batches:
        wrapped = (ArrowBatchTransformer.wrap_struct(in_zone(batch, command.time_zone)) for batch in batches)
        for result in evaluate(0, wrapped):
            yield ArrowBatchTransformer.flatten_struct(result)

    return run


def _worker_function(commands: Sequence[Sequence[Command]], calls: UdfCalls) -> Callable[[int, Any], Any]:
    from pyspark.worker import EvalConf, RunnerConf, read_udfs
    from pyspark.worker_message import UDFInfo

    infos = []
    for chain, call in zip(commands, calls.calls, strict=True):
        for command in chain:
            register_broadcasts(command)
        pickled = [memoryview(command.pickled) for command in chain]
        infos.append(UDFInfo(udfs=pickled, args=list(call.positions), kwargs=dict(call.names), result_id=0))
    first = commands[0][0]
    eval_conf = {"input_type": calls.details[INPUT_SCHEMA]} if INPUT_SCHEMA in calls.details else {}
    try:
        evaluate, _profiler, _reader, _writer = read_udfs(  # type: ignore[no-untyped-call]
            CPickleSerializer(), infos, first.eval_type, RunnerConf(dict(first.settings)), EvalConf(eval_conf)
        )
    except ModuleNotFoundError as missing:
        raise missing_module(missing) from missing
    result: Callable[[int, Any], Any] = evaluate
    return result


def _pickled(evaluate: Callable[[int, Any], Any], calls: UdfCalls) -> Callable[[Batches], Batches]:
    """Rows of Python values in, as the JVM pickles them; results through the JVM's conversion by declared type."""
    given = _given_values(schema_detail(calls.details[INPUT_SCHEMA]))
    declared = schema_detail(calls.details[OUTPUT_SCHEMA])
    schema = to_arrow_schema(json.loads(calls.details[OUTPUT_SCHEMA]))
    convert = [to_stored(field.dataType, of=f"The result {field.name!r}") for field in declared.fields]

    def run(batches: Batches) -> Batches:
        for batch in batches:
            results = list(evaluate(0, iter(given(batch))))
            columns = [results] if len(convert) == 1 else list(zip(*results, strict=True))
            arrays = [
                pa.array(_arrow_values([to(value) for value in column], field.type), field.type)
                for column, to, field in zip(columns, convert, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return run


def _given_values(schema: Any) -> Callable[[pa.RecordBatch], list[tuple[Any, ...]]]:
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    converters = [ArrowTableToRowsConversion._create_converter(field.dataType) for field in schema.fields]

    def given(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        if not converters:
            return [()] * batch.num_rows
        columns = [
            [convert(value) for value in column.to_pylist()]
            for convert, column in zip(converters, batch.columns, strict=True)
        ]
        return list(zip(*columns, strict=True))

    return given


def _arrow_values(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Structs by name for Arrow; dates and instants are counts already, which Arrow takes as they are."""
    if pa.types.is_struct(kind):
        return [None if value is None else _named(value, kind) for value in values]
    if pa.types.is_list(kind):
        return [None if value is None else _arrow_values(value, kind.value_type) for value in values]
    if pa.types.is_map(kind):
        return [None if value is None else _pairs(value, kind) for value in values]
    return values


def _named(value: Sequence[Any], kind: pa.DataType) -> Mapping[str, Any]:
    return {field.name: _arrow_values([item], field.type)[0] for field, item in zip(kind, value, strict=True)}


def _pairs(value: Sequence[Any], kind: pa.DataType) -> list[tuple[Any, Any]]:
    keys = _arrow_values([pair[0] for pair in value], kind.key_type)
    items = _arrow_values([pair[1] for pair in value], kind.item_type)
    return list(zip(keys, items, strict=True))
