"""Groups of a stored aggregation as columns: keys, the running value of each call, what each DISTINCT has seen.

Running values are those that the operator would go on with: they are made by the same accumulators.
"""

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.build import accumulator_of
from tidegate.operators.columnar import Slots
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.storage.stored_plan import StoredCall, StoredGroups, decode_schema


def group_fields(state: StoredGroups) -> list[pa.Field]:
    calls = [decode_schema(call.types).field(0) for call in state.calls]
    return [*decode_schema(state.keys), *calls, *decode_schema(state.seen)]


def group_columns(state: StoredGroups, stored: pa.RecordBatch) -> list[pa.Array]:
    """Of the stored columns, without the key group."""
    slots: Slots = np.arange(stored.num_rows)
    at = len(decode_schema(state.keys))
    columns = list(stored.columns[:at])
    for call in state.calls:
        if call.function == AggregateFunction.APPROX_COUNT_DISTINCT.value:
            columns.append(stored.column(at).cast(pa.binary()))
            at += 1
            continue
        accumulator = accumulator_of(_call(call))
        count = len(accumulator.stored_types)
        accumulator.grow_to(stored.num_rows)
        accumulator.restore(slots, stored.columns[at : at + count])
        columns.append(accumulator.results(slots))
        at += count
    return [*columns, *stored.columns[at:]]


def _call(stored: StoredCall) -> AggregateCall:
    result, *arguments = decode_schema(stored.types)
    return AggregateCall(
        AggregateFunction(stored.function),
        tuple(Column(at, field.name, field.type) for at, field in enumerate(arguments)),
        result.type,
        # A sum that has overflowed is shown as null, and is no error of whoever looks at it.
        ansi=False,
    )
