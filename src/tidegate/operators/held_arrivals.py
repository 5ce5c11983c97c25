"""Rows of an outer or semi join whose partners are still being looked for, a bounded number of pairs at a time.

Until all are known nothing of such rows is kept, and none of their pairs given. So a snapshot stores them as rows that
have just come, to be looked at from the start; what they have marked in the rows of the other side stays true. Must
never hold a row that was given already.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.operators.columnar import Flags
from tidegate.operators.contract import TaskContext
from tidegate.operators.join_rows import Candidates, Pairs, by_hash, taken
from tidegate.operators.join_side import JoinSide
from tidegate.plan.key_groups import Hashes
from tidegate.state.contract import RestoredSection, Section


@dataclass(slots=True)
class Arrival:
    """Rows of one slice by ascending hash. `is_shown`: rows that need not be kept, as they came out already."""

    rows: pa.RecordBatch
    hashes: Hashes
    own: JoinSide
    other: JoinSide
    has_partner: Flags = field(init=False)
    is_shown: Flags = field(init=False)
    _found: list[Candidates] | None = None
    _part: int = 0
    _pair: int = 0

    def __post_init__(self) -> None:
        self.has_partner = np.zeros(self.rows.num_rows, dtype=np.bool_)
        self.is_shown = np.zeros(self.rows.num_rows, dtype=np.bool_)

    @property
    def found(self) -> list[Candidates]:
        """What the other side has at the moment of the first look; it must not change until the last."""
        if self._found is None:
            self._found = list(self.other.store.found(self.hashes))
        return self._found

    @property
    def pair_count(self) -> int:
        return sum(each.count for each in self.found)

    def is_done(self) -> bool:
        return self._part == len(self.found)

    def next_pairs(self, most: int) -> tuple[Pairs, int]:
        """Up to so many pairs, and how many they are with those whose partners have gone; only if it is not done."""
        candidates, start = self.found[self._part], self._pair
        stop = min(start + most, candidates.count)
        self._pair = stop
        if stop == candidates.count:
            self._part, self._pair = self._part + 1, 0
        return candidates.pairs(start, stop), stop - start

    def kept(self) -> "Arrival":
        """Without the rows that came out already."""
        if not self.is_shown.any():
            return self
        left = np.flatnonzero(~self.is_shown)
        kept = Arrival(taken(self.rows, left), self.hashes[left], self.own, self.other)
        kept.has_partner = self.has_partner[left]
        return kept


class HeldArrivals:
    def __init__(self) -> None:
        self._held: deque[Arrival] = deque()

    def restore(self, section: RestoredSection, own: JoinSide, other: JoinSide, context: TaskContext) -> None:
        for stored in own.arrived.restored(section, context.key_groups):
            rows = pa.RecordBatch.from_arrays(stored.columns, schema=own.spec.schema)
            self.hold(Arrival(*by_hash(rows, own.spec.key_count), own, other))

    def hold(self, arrival: Arrival) -> None:
        self._held.append(arrival)

    def first(self) -> Arrival:
        return self._held[0]

    def drop_first(self) -> None:
        self._held.popleft()

    def is_empty(self) -> bool:
        return not self._held

    def snapshot(self, context: TaskContext) -> list[Section]:
        return [section for arrival in self._held for section in _sections(arrival.kept(), context)]

    def size_bytes(self) -> int:
        return sum(int(arrival.rows.nbytes) for arrival in self._held)


def _sections(arrival: Arrival, context: TaskContext) -> list[Section]:
    rows, all_hashes, stored_as = arrival.rows, arrival.hashes, arrival.own.arrived

    def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
        columns = rows.slice(part.start, part.stop - part.start).columns
        return pa.RecordBatch.from_arrays(columns, schema=stored_as.schema), all_hashes[part]

    return stored_as.sections(read, rows.num_rows, context)
