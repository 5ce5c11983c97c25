"""Functions over numpy's values as kernels: they see only rows where every argument is valid.

Owns how nulls pass by such a function. Never evaluates an argument that may raise where one before it is null.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.values import Kernel, Value, as_array, numpy_of, run_where, spread

Numbers: TypeAlias = npt.NDArray[Any]
Flags: TypeAlias = npt.NDArray[np.bool_]
# A column, or a fixed width column with a mask of the rows that are null.
Lifted: TypeAlias = pa.Array | Numbers | tuple[Numbers, Flags]


def lift(call: Call, arguments: Sequence[Kernel], function: Callable[..., Lifted], *, raises: bool = False) -> Kernel:
    """`function` takes a numpy array for each fixed width argument and an Arrow array for any other."""

    def run(rows: pa.RecordBatch) -> Value:
        columns, valid = _evaluated(arguments, rows)
        if valid is None:
            return as_column(function(*map(_plain, columns)), call.type)
        dense = as_column(function(*(_plain(column.filter(valid)) for column in columns)), call.type)
        return spread(dense, valid)

    return Kernel(run, call.type, raises=raises or any(argument.raises for argument in arguments))


def as_column(result: Lifted, type_: pa.DataType) -> pa.Array:
    if isinstance(result, pa.Array):
        return result
    values, missing = result if isinstance(result, tuple) else (result, None)
    width = np.dtype(f"{'f' if pa.types.is_floating(type_) else 'i'}{type_.bit_width // 8}")
    packed = np.ascontiguousarray(values.astype(width, copy=False))
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(type_, len(packed), [validity, pa.py_buffer(packed)])


def unscaled_longs(decimals: pa.Array) -> npt.NDArray[np.int64]:
    """The low 64 bits, which hold any decimal of up to 18 digits."""
    if len(decimals) == 0:
        return np.empty(0, np.int64)
    words = np.frombuffer(decimals.buffers()[1], np.int64)
    return words[2 * decimals.offset : 2 * (decimals.offset + len(decimals)) : 2]


def decimal_column(unscaled: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    words = np.stack([unscaled, unscaled >> 63], axis=1)
    return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(np.ascontiguousarray(words))])


def _evaluated(arguments: Sequence[Kernel], rows: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
    columns: list[pa.Array] = []
    valid: pa.Array | None = None
    for argument in arguments:
        value = argument.run(rows) if valid is None or not argument.raises else run_where(argument, rows, valid)
        column = as_array(value, rows.num_rows)
        if column.null_count:
            valid = column.is_valid() if valid is None else pc.and_(valid, column.is_valid())
        columns.append(column)
    return columns, valid


def _plain(column: pa.Array) -> Numbers | pa.Array:
    fixed = pa.types.is_primitive(column.type) and column.type.bit_width in (8, 16, 32, 64)
    return numpy_of(column) if fixed else column
