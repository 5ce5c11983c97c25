"""The running values of all calls of an aggregation as one: arguments, FILTER and DISTINCT are evaluated here."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators import grouped_entries
from tidegate.operators.accumulators.build import accumulator_of, add_partials
from tidegate.operators.accumulators.collected import CollectedList, CollectedSet
from tidegate.operators.accumulators.contract import Accumulator, Frozen
from tidegate.operators.accumulators.distinct import DistinctRows, FreshRows
from tidegate.operators.accumulators.grouped_entries import GroupedEntries
from tidegate.operators.columnar import GrowingArray, Slots, slots_array
from tidegate.operators.parts import summed
from tidegate.plan.expressions import Expression
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import fixed_values_of, validity_of
from tidegate.plan.nodes import AggregateCall
from tidegate.plan.physical import PartialLayout


class CallStates:
    """By slot. Calls over the same distinct values, with the same FILTER, share what was seen of them.

    `partials`: where each call's parts stand in rows that were combined before.
    """

    def __init__(self, calls: Sequence[AggregateCall], partials: PartialLayout | None = None) -> None:
        self._partials = partials
        self._calls = [_Call(call) for call in calls]
        self._plain = [
            _PlainCall(made, call) for made, call in zip(self._calls, calls, strict=True) if not call.distinct
        ]
        shared = dict.fromkeys((call.distinct, call.condition) for call in calls if call.distinct)
        self._sets = [
            _DistinctCalls(
                values,
                condition,
                [
                    made
                    for made, call in zip(self._calls, calls, strict=True)
                    if call.distinct == values and call.condition == condition
                ],
            )
            for values, condition in shared
        ]

    def stored_fields(self) -> list[pa.Field]:
        """Those of plain calls are named by the call's number, in the order of calls."""
        plain = [
            pa.field(f"call_{self._calls.index(each.call)}_{place}", kind)
            for each in self._plain
            for place, kind in enumerate(each.call.accumulator.stored_types)
        ]
        return [*plain, *(pa.field(f"distinct_{at}", each.seen.stored_type) for at, each in enumerate(self._sets))]

    def grow_to(self, slot_count: int) -> None:
        for call in self._calls:
            call.accumulator.grow_to(slot_count)
        for each in self._sets:
            each.seen.grow_to(slot_count)

    def add(self, rows: pa.RecordBatch, slots: Slots) -> None:
        if self._partials is not None:
            for call, columns in zip(self._calls, self._partials.columns, strict=True):
                add_partials(call.accumulator, [rows.column(at) for at in columns], slots)
            return
        for plain in self._plain:
            plain.add(rows, slots)
        for each in self._sets:
            each.add(rows, slots)

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        for plain in self._plain:
            plain.call.accumulator.merge(sources=sources, targets=targets)
        for each in self._sets:
            # Two groups may have seen the same value, so their running values cannot be put together.
            each.add_fresh(each.seen.merge(sources=sources, targets=targets))

    def clear(self, slots: Slots) -> None:
        for call in self._calls:
            call.accumulator.clear(slots)
        for each in self._sets:
            each.seen.clear(slots)

    def arrays(self) -> list[GrowingArray[Any]]:
        by_call = [array for call in self._calls for array in call.accumulator.arrays]
        return [*by_call, *(array for each in self._sets for array in each.seen.arrays)]

    def keep(self, slots: Slots) -> None:
        """As an accumulator does: what stands in `arrays` has been copied."""
        for call in self._calls:
            call.accumulator.keep(slots)
        for each in self._sets:
            each.seen.keep()

    def has_tidied_up(self) -> bool:
        """Leaves behind a part of what groups held that are gone; whether there is nothing to leave behind."""
        groups = next((each for each in self._entries() if not each.is_tidy()), None)
        if groups is not None:
            groups.tidy_up(grouped_entries.MOST_COPIED)
        return groups is None

    def freeze(self, slots: Slots | None = None) -> Frozen:
        parts = [plain.call.accumulator.freeze(slots) for plain in self._plain]
        parts += [each.seen.freeze(slots) for each in self._sets]
        return lambda part: [column for frozen in parts for column in frozen(part)]

    def array_bytes(self, slots: Slots | None = None) -> Slots | None:
        """About what these slots, or all, hold in arrays and for DISTINCT; None if no call does."""
        return summed(*(each.bytes_of(slots) for each in self._entries()))

    def slots_with_bytes(self, slot_count: int, size_bytes: int, *, key_bytes: int = 0) -> int | None:
        """How many of so many slots hold about so much in arrays and for DISTINCT; None if all hold less.

        `key_bytes`: what the keys of all have in arrays and strings, which counts too.
        """
        held_bytes = key_bytes + sum(each.size_bytes() for each in self._entries())
        return None if held_bytes <= size_bytes else max(1, slot_count * size_bytes // held_bytes)

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        start = 0
        for plain in self._plain:
            count = len(plain.call.accumulator.stored_types)
            plain.call.accumulator.restore(slots, columns[start : start + count])
            start += count
        for each, lists in zip(self._sets, columns[start:], strict=True):
            each.add_fresh(each.seen.restore(slots, lists))

    def results(self, slots: Slots) -> list[pa.Array]:
        return [call.accumulator.results(slots) for call in self._calls]

    def size_bytes(self) -> int:
        seen_bytes = sum(each.seen.size_bytes() for each in self._sets)
        return seen_bytes + sum(call.accumulator.size_bytes() for call in self._calls)

    def _entries(self) -> Iterator[GroupedEntries[Any]]:
        """Of calls that hold many for each group."""
        for call in self._calls:
            if isinstance(call.accumulator, CollectedList | CollectedSet):
                yield call.accumulator.groups
        for each in self._sets:
            yield each.seen.groups


class _Call:
    def __init__(self, call: AggregateCall) -> None:
        self.accumulator: Accumulator = accumulator_of(call)
        self._arguments = [compile_expression(argument) for argument in call.arguments]

    def add(self, rows: pa.RecordBatch, slots: Slots) -> None:
        self.accumulator.add([argument(rows) for argument in self._arguments], slots)


class _PlainCall:
    def __init__(self, made: _Call, call: AggregateCall) -> None:
        self.call = made
        self._condition = _compiled(call.condition)

    def add(self, rows: pa.RecordBatch, slots: Slots) -> None:
        rows, slots = chosen_rows(self._condition, rows, slots)
        if self._condition is None or len(slots):
            self.call.add(rows, slots)


class _DistinctCalls:
    """What was seen of some values, and the calls over them."""

    def __init__(self, values: Sequence[Expression], condition: Expression | None, calls: Sequence[_Call]) -> None:
        self.seen = DistinctRows([value.type for value in values])
        self._values = [compile_expression(value) for value in values]
        self._condition = _compiled(condition)
        self._calls = calls

    def add(self, rows: pa.RecordBatch, slots: Slots) -> None:
        rows, slots = chosen_rows(self._condition, rows, slots)
        if len(slots):
            self.add_fresh(self.seen.add([value(rows) for value in self._values], slots))

    def add_fresh(self, fresh: FreshRows) -> None:
        if len(fresh.slots):
            for call in self._calls:
                call.add(fresh.rows, fresh.slots)


_Condition: TypeAlias = Callable[[pa.RecordBatch], pa.Array]


def _compiled(condition: Expression | None) -> _Condition | None:
    return None if condition is None else compile_expression(condition)


def chosen_rows(condition: _Condition | None, rows: pa.RecordBatch, slots: Slots) -> tuple[pa.RecordBatch, Slots]:
    """Those for which the condition is true."""
    if condition is None:
        return rows, slots
    met = condition(rows)
    flags, valid = fixed_values_of(met).view(np.bool_), validity_of(met)
    chosen = np.flatnonzero(flags if valid is None else flags & valid)
    return rows.take(slots_array(chosen)), slots[chosen]
