"""The rows that one side of a join keeps, found by the hash of their key for a whole slice at once.

Rows lie in runs sorted by hash. A slice makes a run; runs of like size are merged up to a length that is still quickly
merged, so that there are few of them and a row is moved a few times only. Rows never change: what does, whether a row
has had a partner and whether it is still there, is a flag beside it. Where a log holds the rows, it is told of both.
The rows of a run may lie in a file. Must never touch single rows in Python.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.columnar import (
    FixedKeys,
    Flags,
    KeyColumn,
    Slots,
    VariableKeys,
    fixed_array,
    slots_array,
)
from tidegate.operators.key_leaves import key_leaves_of
from tidegate.operators.row_numbers import Changes, Numbers, RowNumbers
from tidegate.operators.rows_in_file import RowsInFile
from tidegate.plan.key_groups import Hashes, fixed_values_of, hash_rows, is_variable_width, validity_of

# Bounds what is joined at once: a slice may find any number of partners.
PAIRS_AT_ONCE: Final = 1 << 15
# Merging is one step of the stream, and has to stay short; beyond it, the number of runs grows with the state.
MOST_RUN_ROWS: Final = 1 << 17
# Runs up to this size are merged whenever the next one comes, so that small slices do not make many runs.
_SMALL_RUN_ROWS: Final = 1 << 10
_NEVER_US: Final = int(np.iinfo(np.int64).max)
# Arrow's columns of texts end at 2 GiB.
MOST_RUN_BYTES: Final = 1 << 30


@dataclass(slots=True)
class Run:
    """Rows by ascending hash. `ends_us`: when a row can find no partner any more. `numbers`: None without a log.

    `is_apart`: its rows are in a file or on the way there, and are not moved.
    """

    rows: pa.RecordBatch | RowsInFile
    hashes: Hashes
    ends_us: npt.NDArray[np.int64]
    has_partner: Flags
    is_live: Flags
    numbers: RowNumbers | None = None
    is_apart: bool = False
    first_end_us: int = field(init=False)
    live_count: int = field(init=False)
    rows_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.live_count = int(np.count_nonzero(self.is_live))
        self.rows_bytes = self.rows.size_bytes if isinstance(self.rows, RowsInFile) else int(self.rows.nbytes)
        self.find_first_end()

    def batch(self) -> pa.RecordBatch:
        """The rows, wherever they lie; for the step in which they are looked at."""
        return self.rows.batch() if isinstance(self.rows, RowsInFile) else self.rows

    def remove(self, places: Slots) -> None:
        """Rows that are there, each named once."""
        self.is_live[places] = False
        self.live_count -= len(places)
        if self.numbers is not None:
            self.numbers.changes.note_gone(self.numbers.of_row[places])

    def meet(self, places: Slots) -> None:
        """These have had a partner; some may be named twice."""
        if self.numbers is not None:
            self.numbers.changes.note_met(self.numbers.of_row[places[~self.has_partner[places]]])
        self.has_partner[places] = True

    def find_first_end(self) -> None:
        left = self.ends_us[self.is_live]
        self.first_end_us = int(left.min()) if len(left) else _NEVER_US

    def is_sparse(self) -> bool:
        """Most of its rows are gone."""
        return 2 * self.live_count <= len(self.is_live)

    def size_bytes(self) -> int:
        numbers_bytes = 0 if self.numbers is None else self.numbers.of_row.nbytes
        return self.rows_bytes + self.hashes.nbytes + self.ends_us.nbytes + 2 * len(self.is_live) + numbers_bytes


@dataclass(frozen=True, slots=True)
class Pairs:
    """Candidates with the same hash: row `probing[i]` of the slice with row `places[i]` of the run."""

    run: Run
    probing: Slots
    places: Slots


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of a run with the hashes of some rows, as pairs numbered through.

    Row `probing[i]` has `counts[i]` of them, from place `first[i]` on; they are numbered up to `ends[i]`.
    """

    run: Run
    probing: Slots
    first: Slots
    counts: Slots
    ends: Slots

    @property
    def count(self) -> int:
        return int(self.ends[-1])

    def pairs(self, start: int, stop: int) -> Pairs:
        """Those of these numbers whose rows are there."""
        which, nth = _expanded(self.counts, self.ends, start=start, stop=stop)
        probing, places = self.probing[which], self.first[which] + nth
        is_live = self.run.is_live[places]
        if not is_live.all():
            probing, places = probing[is_live], places[is_live]
        return Pairs(self.run, probing, places)

    def as_it_is(self) -> "Candidates":
        """The same, whatever is removed later."""
        return replace(self, run=replace(self.run, is_live=self.run.is_live.copy()))


class RowStore:
    """`changes`: for rows that a log holds. `most_run_bytes`: of the rows of runs that are merged."""

    def __init__(self, changes: Changes | None = None) -> None:
        self.runs: list[Run] = []
        self.most_run_bytes = MOST_RUN_BYTES
        self._changes = changes

    def number_rows(self, changes: Changes | None) -> None:
        """From now on, as none of them is in a log any more; None: there is no log."""
        self._changes = changes
        for run in self.runs:
            run.numbers = None if changes is None else _no_numbers(len(run.hashes), changes)

    def add(
        self,
        rows: pa.RecordBatch,
        hashes: Hashes,
        ends_us: npt.NDArray[np.int64],
        has_partner: Flags,
        of_row: Numbers | None = None,
    ) -> None:
        """`hashes` ascend. `of_row`: the numbers of rows that are in the log already."""
        if rows.num_rows == 0:
            return
        numbers = None
        if self._changes is not None:
            if of_row is None:
                numbers = _no_numbers(len(hashes), self._changes)
            else:
                numbers = RowNumbers(of_row, self._changes)
        self.runs.append(Run(rows, hashes, ends_us, has_partner, np.ones(len(hashes), dtype=np.bool_), numbers))
        self._merge_like_sizes()

    def found(self, hashes: Hashes) -> Iterator[Candidates]:
        """By run, the rows with the hashes asked for; quickest if those ascend."""
        for run in self.runs:
            first = np.searchsorted(run.hashes, hashes, side="left")
            hits = np.flatnonzero(run.hashes[np.minimum(first, len(run.hashes) - 1)] == hashes)
            if len(hits):
                first = first[hits]
                counts = np.searchsorted(run.hashes, hashes[hits], side="right") - first
                yield Candidates(run, hits, first, counts, np.cumsum(counts))

    def due(self, is_due: Callable[[Run], Flags]) -> Iterator[tuple[Run, Slots]]:
        """Rows that are there and due, by run."""
        for run in self.runs:
            found = np.flatnonzero(run.is_live & is_due(run))
            if len(found):
                yield run, found

    def tidy(self) -> None:
        """Gives back the room of removed rows, once that is most of a run."""
        self.runs = [run if run.is_apart or not run.is_sparse() else _kept(run) for run in self.runs if run.live_count]

    def bring_back(self, run: Run) -> None:
        """What is left of a run that is apart is in memory then, and merged with others that are as short."""
        self.runs = [each for each in self.runs if each is not run]
        if run.live_count:
            self.runs.append(_kept(run))
        # Short ones may lie between longer ones, which were as long once.
        self.runs.sort(key=lambda run: (not run.is_apart, -run.live_count))
        self._merge_like_sizes()

    def size_bytes(self) -> int:
        return sum(run.size_bytes() for run in self.runs)

    def _merge_like_sizes(self) -> None:
        """Each run stays more than twice as long as the next, unless both are very short or too long to be merged."""
        while len(self.runs) > 1:
            first, second = self.runs[-2:]
            before, last = first.live_count, second.live_count
            if (before > 2 * last and before > _SMALL_RUN_ROWS) or before + last > MOST_RUN_ROWS:
                return
            if first.is_apart or second.is_apart or first.rows_bytes + second.rows_bytes > self.most_run_bytes:
                return
            self.runs[-2:] = [_merged(first, second)]


def pairs_of(found: Iterable[Candidates]) -> Iterator[Pairs]:
    """A bounded number at a time."""
    for candidates in found:
        for start in range(0, candidates.count, PAIRS_AT_ONCE):
            # Asked now: handling the pairs before these may have removed some.
            pairs = candidates.pairs(start, min(start + PAIRS_AT_ONCE, candidates.count))
            if len(pairs.places):
                yield pairs


def by_hash(rows: pa.RecordBatch, key_count: int) -> tuple[pa.RecordBatch, Hashes]:
    """The rows in the order of the hashes of their keys, and those."""
    hashes = hash_rows(rows, key_count)
    order = np.argsort(hashes, kind="stable")
    return taken(rows, order), hashes[order]


def same_keys(left: pa.RecordBatch, right: pa.RecordBatch, key_count: int) -> Flags:
    """Where the first columns are equal, row by row, a null to a null: a hash alone may be another key's."""
    same = np.ones(left.num_rows, dtype=np.bool_)
    for at in range(key_count):
        leaves = zip(key_leaves_of(_plain(left.column(at))), key_leaves_of(_plain(right.column(at))), strict=True)
        for one, other in leaves:
            same &= _equal(_key_column(one), _key_column(other))
    return same


def has_nulls_in_keys(rows: pa.RecordBatch, key_count: int) -> Flags:
    flags = np.zeros(rows.num_rows, dtype=np.bool_)
    for at in range(key_count):
        column = rows.column(at)
        if column.null_count:
            flags |= fixed_values_of(column.is_null()).view(np.bool_)
    return flags


def taken(rows: pa.RecordBatch, places: Slots) -> pa.RecordBatch:
    return rows.take(slots_array(places))


def true_flags(mask: pa.Array) -> Flags:
    """Where a condition is true: neither false nor null."""
    flags = fixed_values_of(mask).view(np.bool_)
    valid = validity_of(mask)
    return flags if valid is None else flags & valid


def flags_array(flags: Flags) -> pa.Array:
    return fixed_array(pa.bool_(), flags, None)


def _expanded(counts: Slots, ends: Slots, *, start: int, stop: int) -> tuple[Slots, Slots]:
    """Of pairs numbered through, those from `start` to `stop`: for each its row, and the how manieth of that row."""
    low = int(np.searchsorted(ends, start, side="right"))
    high = int(np.searchsorted(ends, stop, side="left")) + 1
    before = ends[low:high] - counts[low:high]
    which = np.repeat(np.arange(low, high), np.minimum(ends[low:high], stop) - np.maximum(before, start))
    return which, np.arange(start, stop) - before[which - low]


def _merged(first: Run, second: Run) -> Run:
    live = np.concatenate([first.is_live, second.is_live])
    hashes = np.concatenate([first.hashes, second.hashes])
    order = np.argsort(hashes, kind="stable")
    order = order[live[order]]
    return Run(
        rows=taken(pa.concat_batches([first.batch(), second.batch()]), order),
        hashes=hashes[order],
        ends_us=np.concatenate([first.ends_us, second.ends_us])[order],
        has_partner=np.concatenate([first.has_partner, second.has_partner])[order],
        is_live=np.ones(len(order), dtype=np.bool_),
        numbers=_numbers_of([first, second], order),
    )


def _kept(run: Run) -> Run:
    live = np.flatnonzero(run.is_live)
    return Run(
        rows=taken(run.batch(), live),
        hashes=run.hashes[live],
        ends_us=run.ends_us[live],
        has_partner=run.has_partner[live],
        is_live=np.ones(len(live), dtype=np.bool_),
        numbers=_numbers_of([run], live),
    )


def _numbers_of(runs: Sequence[Run], order: Slots) -> RowNumbers | None:
    """Those of the rows of all these runs, in that order."""
    numbers = [run.numbers for run in runs if run.numbers is not None]
    if not numbers:
        return None
    return RowNumbers(np.concatenate([each.of_row for each in numbers])[order], numbers[0].changes)


def _no_numbers(count: int, changes: Changes) -> RowNumbers:
    return RowNumbers(np.zeros(count, dtype=np.int64), changes)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _key_column(leaf: pa.Array) -> KeyColumn:
    keys = VariableKeys(leaf.type) if is_variable_width(leaf.type) else FixedKeys(leaf.type)
    return keys.read(leaf)


def _equal(one: KeyColumn, other: KeyColumn) -> Flags:
    if isinstance(one.values, np.ndarray):
        same: Flags = one.values == other.values
        same = same if same.ndim == 1 else np.logical_and(same[:, 0], same[:, 1])
    else:
        same = fixed_values_of(pc.equal(one.values, other.values)).view(np.bool_)
    if one.valid is None and other.valid is None:
        return same
    one_valid = True if one.valid is None else one.valid
    other_valid = True if other.valid is None else other.valid
    return same & np.equal(one_valid, other_valid)
