"""UnscaledValue: the digits of a decimal of at most 18 of them as a long; Catalyst averages short decimals by it."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Call
from tidegate.plan.kernels.constants import constant
from tidegate.plan.kernels.values import Kernel, Value, as_array, unsupported

_LONG_DIGITS = 18


def build_unscaled(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    (decimal,) = arguments
    if not pa.types.is_decimal128(decimal.type) or decimal.type.precision > _LONG_DIGITS:
        raise unsupported(call.function, decimal.type)

    def run(rows: pa.RecordBatch) -> Value:
        return _low_words(as_array(decimal.run(rows), rows.num_rows))

    return Kernel(run, pa.int64(), raises=decimal.raises)


def _low_words(decimals: pa.Array) -> pa.Array:
    if len(decimals) == 0:
        return pa.nulls(0, pa.int64())
    words = np.frombuffer(decimals.buffers()[1], dtype=np.int64)
    low = words[2 * decimals.offset : 2 * (decimals.offset + len(decimals)) : 2]
    longs = pa.Array.from_buffers(pa.int64(), len(low), [None, pa.py_buffer(np.ascontiguousarray(low))])
    return pc.if_else(decimals.is_valid(), longs, constant(None, pa.int64())) if decimals.null_count else longs


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {"UnscaledValue": build_unscaled}
