"""Runs the few functions that DuckDB computes exactly as Spark does and our own kernels do not, such as a search for
a text that is itself a column.

Only what stands in the table goes to DuckDB: it has many functions of Spark's names that differ in detail. DuckDB is
imported when the first such expression is compiled, and runs in the calling thread.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.text import require_utf8, run_in_order
from tidegate.plan.kernels.values import Kernel, Value, as_array, unsupported

TEXT = pa.string()
_ROWS = "given"


@dataclass(frozen=True, slots=True)
class Entry:
    """DuckDB's name and the result's SQL type; `order` says which of Spark's arguments it takes, in its order."""

    name: str
    arguments: tuple[pa.DataType, ...]
    order: tuple[int, ...]
    result: str
    accepts: Callable[[tuple[Kernel, ...]], bool] = lambda _arguments: True


def _starts_at_one(arguments: tuple[Kernel, ...]) -> bool:
    start = arguments[2].constant
    return start is not None and start.as_py() == 1


_TABLE: Mapping[str, Entry] = {
    "Contains": Entry("contains", (TEXT, TEXT), (0, 1), "boolean"),
    "StartsWith": Entry("starts_with", (TEXT, TEXT), (0, 1), "boolean"),
    "EndsWith": Entry("ends_with", (TEXT, TEXT), (0, 1), "boolean"),
    "StringInstr": Entry("instr", (TEXT, TEXT), (0, 1), "int"),
    "StringLocate": Entry("instr", (TEXT, TEXT, pa.int32()), (1, 0), "int", _starts_at_one),
    "StringReplace": Entry("replace", (TEXT, TEXT, TEXT), (0, 1, 2), "varchar"),
    "StringTrim": Entry("trim", (TEXT, TEXT), (0, 1), "varchar"),
    "StringTrimLeft": Entry("ltrim", (TEXT, TEXT), (0, 1), "varchar"),
    "StringTrimRight": Entry("rtrim", (TEXT, TEXT), (0, 1), "varchar"),
}
FUNCTIONS = frozenset(_TABLE)


def can_run(call: Call, arguments: tuple[Kernel, ...]) -> bool:
    entry = _TABLE.get(call.function)
    if entry is None or tuple(argument.type for argument in arguments) != entry.arguments:
        return False
    return entry.accepts(arguments)


def build(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    if not can_run(call, arguments):
        raise unsupported(call.function, *(argument.type for argument in arguments))
    query = _query(_TABLE[call.function])
    names = [_column_name(index) for index in range(len(arguments))]

    def run(rows: pa.RecordBatch) -> Value:
        values = [as_array(value, rows.num_rows) for value in run_in_order(arguments, rows)]
        for value in values:
            if value.type == TEXT:
                require_utf8(value, call.function)
        if rows.num_rows == 0:
            return pa.nulls(0, call.type)
        given = pa.Table.from_arrays(values, names=names)
        connection = _databases().connection
        connection.register(_ROWS, given)
        result = connection.sql(query).to_arrow_table().column(0).combine_chunks()
        connection.unregister(_ROWS)
        return result

    return Kernel(run, call.type, raises=any(argument.raises for argument in arguments))


def _query(entry: Entry) -> str:
    from sqlglot import exp

    arguments = [exp.column(_column_name(index)) for index in entry.order]
    called = exp.Anonymous(this=entry.name, expressions=arguments)
    return exp.select(exp.cast(called, entry.result)).from_(_ROWS).sql(dialect="duckdb")


def _column_name(index: int) -> str:
    return f"argument_{index}"


class _Databases(threading.local):
    """One database in memory per thread: a slot has one, and a connection must not be shared."""

    def __init__(self) -> None:
        import duckdb

        self.connection = duckdb.connect(":memory:", config={"threads": 1})


@functools.cache
def _databases() -> _Databases:
    return _Databases()
