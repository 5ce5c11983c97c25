"""What a kernel is made of: values that are columns or constants, and evaluation of some rows only.

Never converts to Python objects row by row, and never goes through pandas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.kernels.constants import constant

Value: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True, slots=True)
class Kernel:
    """`run` gives an array as long as the batch, or one scalar that stands for all its rows.

    `raises` says that some row may end in an error, so that rows Spark would not evaluate must not be evaluated.
    """

    run: Callable[[pa.RecordBatch], Value]
    type: pa.DataType
    raises: bool
    constant: pa.Scalar | None = None


def unsupported(function: str, *types: pa.DataType) -> UnsupportedPlan:
    named = ", ".join(str(type_) for type_ in types)
    return UnsupportedPlan(f"Tidegate has no kernel for {function} on ({named})")


def as_array(value: Value, length: int) -> pa.Array:
    if isinstance(value, pa.Scalar):
        if length == 0 or not value.is_valid:
            return pa.nulls(length, value.type)
        return pa.repeat(value, length)
    return value


def run_where(kernel: Kernel, rows: pa.RecordBatch, mask: pa.Array) -> Value:
    """The kernel's values on the rows of `mask` (which has no nulls); null elsewhere."""
    taken = mask.true_count
    if taken == rows.num_rows:
        return kernel.run(rows)
    if taken == 0:
        return constant(None, kernel.type)
    part = as_array(kernel.run(rows.filter(mask)), taken)
    return spread(part, mask)


def spread(part: pa.Array, mask: pa.Array) -> pa.Array:
    """The values where `mask` (which has no nulls) is true, and null elsewhere."""
    if pa.types.is_nested(part.type) or pa.types.is_duration(part.type) or pa.types.is_interval(part.type):
        # Arrow replaces no such values.
        sources = pc.subtract(pc.cumulative_sum(pc.cast(mask, pa.int64())), constant(1, pa.int64()))
        return part.take(pc.if_else(mask, sources, constant(None, pa.int64())))
    return pc.replace_with_mask(pa.nulls(len(mask), part.type), mask, part)


def run_if_valid(kernel: Kernel, rows: pa.RecordBatch, decided_by: Value) -> Value:
    """Spark skips an operand when the one before it is null; that is visible only if it could raise."""
    if not kernel.raises:
        return kernel.run(rows)
    if isinstance(decided_by, pa.Scalar):
        return kernel.run(rows) if decided_by.is_valid else constant(None, kernel.type)
    if decided_by.null_count == 0:
        return kernel.run(rows)
    return run_where(kernel, rows, decided_by.is_valid())


def any_true(mask: Value) -> bool:
    return bool(pc.any(mask).as_py())


def numpy_of(array: pa.Array) -> npt.NDArray[np.generic]:
    """A view of a primitive column's values; slots of nulls hold anything."""
    dtype = _DTYPES[array.type.bit_width, pa.types.is_floating(array.type)]
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def array_of(values: npt.NDArray[np.generic], type_: pa.DataType, *, nulls_of: pa.Array) -> pa.Array:
    """A primitive column of these values, null where `nulls_of` is."""
    packed = np.ascontiguousarray(values)
    array = pa.Array.from_buffers(type_, len(packed), [None, pa.py_buffer(packed)])
    if nulls_of.null_count == 0:
        return array
    return pc.if_else(nulls_of.is_valid(), array, constant(None, type_))


def mask_of(flags: npt.NDArray[np.bool_]) -> pa.Array:
    """A boolean column without nulls."""
    packed = np.packbits(flags, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(packed)])


_DTYPES: dict[tuple[int, bool], type[np.generic]] = {
    (8, False): np.int8,
    (16, False): np.int16,
    (32, False): np.int32,
    (64, False): np.int64,
    (32, True): np.float32,
    (64, True): np.float64,
}
