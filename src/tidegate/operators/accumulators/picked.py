"""first, last and any_value: the value of the row that came first or last."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.contract import first_rows, last_rows
from tidegate.operators.accumulators.stored_values import ValueSlots
from tidegate.operators.columnar import Slots, slots_array
from tidegate.plan.key_groups import validity_of


class FirstValue(ValueSlots):
    def __init__(self, kind: pa.DataType, *, ignores_nulls: bool) -> None:
        super().__init__(kind)
        self._ignores_nulls = ignores_nulls

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        rows = _rows_that_count(columns[0], ignores_nulls=self._ignores_nulls)
        rows = rows[~self.has(slots[rows])]
        rows = rows[first_rows(slots[rows], self.slot_count)]
        self.put(slots[rows], columns[0].take(slots_array(rows)))

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        sources, targets = _filled(self, sources, targets)
        empty = ~self.has(targets)
        chosen = first_rows(targets[empty], self.slot_count)
        self.put(targets[empty][chosen], self.take(sources[empty][chosen]))

    def results(self, slots: Slots) -> pa.Array:
        return self.take(slots)


class LastValue(ValueSlots):
    def __init__(self, kind: pa.DataType, *, ignores_nulls: bool) -> None:
        super().__init__(kind)
        self._ignores_nulls = ignores_nulls

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        rows = _rows_that_count(columns[0], ignores_nulls=self._ignores_nulls)
        rows = rows[last_rows(slots[rows], self.slot_count)]
        self.put(slots[rows], columns[0].take(slots_array(rows)))

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        sources, targets = _filled(self, sources, targets)
        chosen = last_rows(targets, self.slot_count)
        self.put(targets[chosen], self.take(sources[chosen]))

    def results(self, slots: Slots) -> pa.Array:
        return self.take(slots)


def _rows_that_count(column: pa.Array, *, ignores_nulls: bool) -> Slots:
    valid = validity_of(column) if ignores_nulls else None
    return np.arange(len(column)) if valid is None else np.flatnonzero(valid)


def _filled(held: ValueSlots, sources: Slots, targets: Slots) -> tuple[Slots, Slots]:
    has = held.has(sources)
    return sources[has], targets[has]
