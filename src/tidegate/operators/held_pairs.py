"""Pairs of a join that are still to be given out: a row with very many partners comes out slice by slice.

What is held are the numbers of pairs, not the pairs. A snapshot stores the rows that are left to be given, each with
its key group. Must never mark a row as one that has had a partner: that is done before its pairs come here.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from tidegate.operators.columnar import Slots, fixed_array
from tidegate.operators.contract import Emit, TaskContext
from tidegate.operators.join_rows import PAIRS_AT_ONCE, Candidates, Pairs
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes, fixed_values_of
from tidegate.state.contract import RestoredSection, Section

PAIRS_SECTION: Final = "join-pairs"
# The output of pairs, and for each row of it the row of the slice that it was made with.
MakePairs: TypeAlias = Callable[[Pairs], tuple[pa.RecordBatch, Slots]]


@dataclass(slots=True)
class _Probe:
    """Rows of one slice with what they have found; `hashes` are those of the rows. Pairs below `given` are out."""

    make: MakePairs
    hashes: Hashes
    candidates: Candidates
    given: int = 0


@dataclass(frozen=True, slots=True)
class _Made:
    """Pairs from a snapshot, and the hashes of their keys."""

    rows: pa.RecordBatch
    hashes: Hashes


class HeldPairs:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        # Positions name the columns: the names of a Spark plan may repeat. The output need not have the keys.
        columns = [pa.field(f"column_{at}", kind) for at, kind in enumerate(schema.types)]
        self._format = RowFormat(PAIRS_SECTION, "a join", pa.schema([*columns, pa.field("key_hash", pa.uint64())]))
        self._made: deque[_Made] = deque()
        self._probes: deque[_Probe] = deque()

    def restore(self, section: RestoredSection, context: TaskContext) -> None:
        for stored in self._format.restored(section, context.key_groups):
            *columns, hashes = stored.columns
            rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            self._made.append(_Made(rows, fixed_values_of(hashes)))

    def hold(self, make: MakePairs, hashes: Hashes, found: Sequence[Candidates]) -> None:
        self._probes += [_Probe(make, hashes, candidates) for candidates in found]

    def give(self, most: int, emit: Emit) -> int:
        """Up to so many pairs; how many, with those that turned out to be none."""
        if self._made:
            return self._give_made(most, emit)
        if not self._probes:
            return 0
        probe = self._probes[0]
        start, stop = probe.given, min(probe.given + min(most, PAIRS_AT_ONCE), probe.candidates.count)
        probe.given = stop
        if stop == probe.candidates.count:
            self._probes.popleft()
        rows, _ = probe.make(probe.candidates.pairs(start, stop))
        if rows.num_rows:
            emit(rows)
        return stop - start

    def is_empty(self) -> bool:
        return not self._probes and not self._made

    def snapshot(self, context: TaskContext) -> list[Section]:
        made = [self._sections_of_made(each, context) for each in self._made]
        probes = [self._sections_of_probe(each, context) for each in self._probes]
        return [section for sections in (*made, *probes) for section in sections]

    def size_bytes(self) -> int:
        return sum(each.rows.nbytes for each in self._made)

    def _give_made(self, most: int, emit: Emit) -> int:
        made = self._made.popleft()
        if len(made.hashes) > most:
            self._made.appendleft(_Made(made.rows.slice(most), made.hashes[most:]))
        emit(made.rows.slice(0, most))
        return min(most, len(made.hashes))

    def _sections_of_made(self, made: _Made, context: TaskContext) -> list[Section]:
        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            hashes = made.hashes[part]
            return self._stored(made.rows.slice(part.start, part.stop - part.start), hashes), hashes

        return self._format.sections(read, made.rows.num_rows, context)

    def _sections_of_probe(self, probe: _Probe, context: TaskContext) -> list[Section]:
        # Rows never change, so that pairs are made when encoding, of what is there now.
        make, all_hashes, given = probe.make, probe.hashes, probe.given
        candidates = probe.candidates.as_it_is()

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            rows, probing = make(candidates.pairs(given + part.start, given + part.stop))
            hashes = all_hashes[probing]
            return self._stored(rows, hashes), hashes

        return self._format.sections(read, candidates.count - given, context)

    def _stored(self, rows: pa.RecordBatch, hashes: Hashes) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [*rows.columns, fixed_array(pa.uint64(), hashes, None)], schema=self._format.schema
        )


def hashes_of_pairs(stored: pa.RecordBatch) -> Hashes:
    """Of the keys of pairs in a snapshot, whose last column is the key group."""
    hashes: Hashes = fixed_values_of(stored.column(stored.num_columns - 2))
    return hashes
