"""Groups of a stored aggregation as columns: keys, the running value of each call, what each DISTINCT has seen.

Running values are those that the operator would go on with: they are made by the same accumulators. So are groups of
such columns, where these say all that is stored; must never guess at what they leave out.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import OptionError
from tidegate.operators.accumulators.build import accumulator_of, add_partials
from tidegate.operators.columnar import Slots
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction
from tidegate.storage.stored_plan import StoredCall, StoredGroups, decode_schema

_COUNTS: Final = frozenset({AggregateFunction.COUNT_ROWS.value, AggregateFunction.COUNT.value})
# What they keep is what they would keep of one value that is their result.
_TOLD_BY_RESULT: Final = _COUNTS | {
    function.value
    for function in (
        AggregateFunction.SUM,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.FIRST,
        AggregateFunction.FIRST_NON_NULL,
        AggregateFunction.LAST,
        AggregateFunction.LAST_NON_NULL,
        AggregateFunction.BIT_AND,
        AggregateFunction.BIT_OR,
        AggregateFunction.BIT_XOR,
    )
}


def group_fields(state: StoredGroups) -> list[pa.Field]:
    calls = [_shown(call) for call in state.calls]
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


def not_told(state: StoredGroups) -> str | None:
    """Of which column what is stored is not made; None if it is of all."""
    for call in state.calls:
        if call.function not in _TOLD_BY_RESULT:
            return (
                f"column {_shown(call).name!r} is {call.function}, whose running values are not made of what it shows"
            )
    if len(seen := decode_schema(state.seen)):
        return f"column {seen.field(0).name!r} is what a DISTINCT has seen, which results are not made of"
    return None


def stored_columns(state: StoredGroups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """What is stored of groups with these keys and running values, where nothing is `not_told`.

    Raises `OptionError` for values that no group has.
    """
    key_count = len(decode_schema(state.keys))
    stored = list(columns[:key_count])
    for call, given in zip(state.calls, columns[key_count:], strict=True):
        values = given.cast(_shown(call).type)
        _check(call, values)
        accumulator = accumulator_of(_call(call))
        accumulator.grow_to(len(values))
        add_partials(accumulator, [values], np.arange(len(values)))
        stored += accumulator.freeze()(slice(0, len(values)))
    return stored


def _check(call: StoredCall, values: pa.Array) -> None:
    name = _shown(call).name
    if call.function in _COUNTS:
        if values.null_count or (len(values) and pc.min(values).as_py() < 0):
            raise OptionError(f"Column {name!r} is a count, and a row has null or less than 0 in it: give a number.")
    elif values.null_count and _has_two_nulls(call):
        raise OptionError(
            f"Column {name!r} is null in a row, which does not say {_two_nulls(call)}: give a value, or leave the "
            f"group out."
        )


def _has_two_nulls(call: StoredCall) -> bool:
    """A sum of decimals that has overflowed stays null; a first value that is null stays the first."""
    is_decimal_sum = call.function == AggregateFunction.SUM.value and pa.types.is_decimal(_shown(call).type)
    return is_decimal_sum or call.function == AggregateFunction.FIRST.value


def _two_nulls(call: StoredCall) -> str:
    if call.function == AggregateFunction.FIRST.value:
        return "whether null is the first value or there is none yet"
    return "whether nothing was added up yet or the sum has overflowed for good"


def _shown(call: StoredCall) -> pa.Field:
    return decode_schema(call.types).field(0)


def _call(stored: StoredCall) -> AggregateCall:
    result, *arguments = decode_schema(stored.types)
    return AggregateCall(
        AggregateFunction(stored.function),
        tuple(Column(at, field.name, field.type) for at, field in enumerate(arguments)),
        result.type,
        # A sum that has overflowed is shown as null, and is no error of whoever looks at it.
        ansi=False,
    )
