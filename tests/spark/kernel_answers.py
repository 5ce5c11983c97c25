"""What Spark and the kernels say about the same expressions on the same rows.

Spark evaluates a batch read of a small table; the kernels evaluate the plan of a streaming read of the same files.
Many expressions are asked in one query, as each query costs Spark a compilation.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidegate.model.errors import UserCodeFailure
from tidegate.plan import kernels
from tidegate.plan.nodes import Expand, Filter, Generate, Node, Project, Scan
from tidegate.spark.catalyst import read_plan

_CHUNK = 24

# What comes out, in a form that can be compared, or the class of the error.
Answer: TypeAlias = object
Ask: TypeAlias = Callable[[Sequence[str]], pa.Table | str]


def offer(spark: SparkSession, folder: Path, name: str, rows: pa.RecordBatch) -> None:
    """As the view `name`, a batch, and `stream_name`, a stream of the same file."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_batches([rows]), folder / "rows.parquet")
    batch = spark.read.parquet(str(folder))
    batch.createOrReplaceTempView(name)
    spark.readStream.schema(batch.schema).parquet(str(folder)).createOrReplaceTempView(f"stream_{name}")


def by_spark(spark: SparkSession, query: str) -> pa.Table | str:
    """The result, or the class of the error."""
    try:
        return spark.sql(query).toArrow()
    except Exception as error:
        return error_class(error)


def by_kernels(spark: SparkSession, query: str, rows: pa.RecordBatch) -> pa.Table | str:
    plan = read_plan(spark.sql(query))
    try:
        return pa.Table.from_batches([run(plan, rows)])
    except UserCodeFailure as error:
        return error_class(error)


def error_class(error: Exception) -> str:
    found = re.search(r"\[([A-Z_]+)(\.[A-Z_]+)*\]|Illegal sequence boundaries|must have the same length", str(error))
    return (found.group(1) or found.group(0)) if found else f"unknown: {error}"


def run(node: Node, rows: pa.RecordBatch) -> pa.RecordBatch:
    match node:
        case Scan():
            return rows
        case Project():
            return kernels.compile_projection(node.columns, node.schema)(run(node.child, rows))
        case Filter():
            return kernels.compile_filter(node.condition)(run(node.child, rows))
        case Generate():
            make = kernels.compile_generate(
                node.collection, node.exploded_as, node.of_empty, kept=node.kept, schema=node.schema
            )
            return _one_batch(make(run(node.child, rows)), node.schema)
        case Expand():
            make = kernels.compile_expand(node.projections, node.schema)
            return _one_batch(make(run(node.child, rows)), node.schema)
    raise AssertionError(f"no stateless plan: {node}")


def printed(result: pa.Table | str) -> Answer:
    """NaN equals itself and -0.0 differs from 0.0, as the bits do; whether a part may be null is not compared."""
    if isinstance(result, str):
        return result
    types = [str(field.type).replace(" not null", "").replace("list<element", "list<item") for field in result.schema]
    return types, [[repr(value) for value in _within_python(column).to_pylist()] for column in result.columns]


def selected(expressions: Sequence[str], source: str) -> str:
    return f"SELECT {', '.join(f'{expression} AS x{at}' for at, expression in enumerate(expressions))} FROM {source}"


def differences(
    spark: SparkSession, expressions: Sequence[str], name: str, rows: pa.RecordBatch
) -> dict[str, tuple[Answer, Answer]]:
    """What the kernels and Spark say about expressions on which they do not agree."""
    ours = _answers(lambda asked: by_kernels(spark, selected(asked, f"stream_{name}"), rows), expressions)
    quiet = [expression for expression in expressions if not isinstance(ours[expression], str)]
    theirs = _answers(lambda asked: by_spark(spark, selected(asked, name)), quiet)
    # Those that raise are asked alone, so that Spark need not look for them; without generated code it says the same,
    # and sooner.
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    for expression in expressions:
        if expression not in theirs:
            theirs[expression] = printed(by_spark(spark, selected([expression], name)))
    spark.conf.unset("spark.sql.codegen.factoryMode")
    spark.conf.unset("spark.sql.codegen.wholeStage")
    return {each: (ours[each], theirs[each]) for each in expressions if ours[each] != theirs[each]}


def _answers(ask: Ask, expressions: Sequence[str]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for start in range(0, len(expressions), _CHUNK):
        answers |= _halving(ask, expressions[start : start + _CHUNK])
    return answers


def _halving(ask: Ask, expressions: Sequence[str]) -> dict[str, Answer]:
    """Halves the list until what raises stands alone."""
    result = ask(expressions)
    if not isinstance(result, str):
        each = (result.select([at]).rename_columns(["x"]) for at in range(len(expressions)))
        return dict(zip(expressions, map(printed, each), strict=True))
    if len(expressions) == 1:
        return {expressions[0]: result}
    half = len(expressions) // 2
    return _halving(ask, expressions[:half]) | _halving(ask, expressions[half:])


def _within_python(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Strings as bytes, which need not be UTF-8, and times as numbers, which may be beyond Python's."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    stored = {pa.string(): pa.binary(), pa.date32(): pa.int32()}.get(column.type, column.type)
    return column.cast(stored)


def _one_batch(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    table = pa.Table.from_batches(list(batches), schema=schema).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=schema)
