"""Rows and the partition folder that each belongs to (`day=1/user=7/`), taken apart by folder.

Pure: it opens no file and makes no folder.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.partition_values import folder_name, speller
from tidegate.plan.kernels.values import numpy_of

# Rows that come in small pieces wait for each other up to these: finding folders costs something for each piece.
_BLOCK_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 20
# No block has more folders: to spell a name takes microseconds, and a step is to last a few ms.
_BLOCK_FOLDERS = 1 << 10
# Rows whose folders are found in a step, for each that it brings, if more wait than make a block.
_FOUND_PER_ADDED = 2

# Of folders, where the value of each is among those of a column.
_Places: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowsByFolder:
    """`folder_of_row` counts in `folders`, where one may stand twice: null and an empty string are spelled alike."""

    rows: pa.RecordBatch
    partition_by: Sequence[str]
    folder_of_row: npt.NDArray[np.int64]
    folders: Sequence[str]

    def counts(self) -> Counter[str]:
        """How many rows each folder has."""
        counts: Counter[str] = Counter()
        for folder, count in zip(self.folders, self._counts().tolist(), strict=True):
            counts[folder] += count
        return counts

    def parts(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each folder in their order, without the columns that its name holds."""
        kept = self.rows.select([name for name in self.rows.schema.names if name not in self.partition_by])
        if len(self.folders) == 1:
            yield self.folders[0], kept
            return
        ordered = _taken(kept, np.argsort(self.folder_of_row, kind="stable"))
        start = 0
        for folder, count in zip(self.folders, self._counts().tolist(), strict=True):
            if count:
                yield folder, ordered.slice(start, count)
            start += count

    def apart(self, folders: Collection[str]) -> tuple["RowsByFolder", "RowsByFolder"]:
        """The rows of these folders, and all others. Both are copies, so that neither keeps the other in memory."""
        is_theirs = np.isin(self.folder_of_row, [n for n, folder in enumerate(self.folders) if folder in folders])
        return self._of_rows(is_theirs), self._of_rows(~is_theirs)

    def _of_rows(self, is_one: npt.NDArray[np.bool_]) -> "RowsByFolder":
        rows = _taken(self.rows, np.flatnonzero(is_one))
        return replace(self, rows=rows, folder_of_row=self.folder_of_row[is_one])

    def _counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.folder_of_row, minlength=len(self.folders))


@dataclass(slots=True)
class GatheredRows:
    """Rows that wait for their files. Their folders are found as they come, so that `counts` costs no look at a row.

    `earlier`: the first of them, if they are still being taken apart from others; then `folder_rows` has them already.
    """

    partition_by: Sequence[str]
    zone: str
    earlier: "Future[RowsByFolder] | None" = None
    folder_rows: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0
    _blocks: list[RowsByFolder] = field(default_factory=list)
    _new: deque[pa.RecordBatch] = field(default_factory=deque)
    _new_rows: int = 0
    _new_bytes: int = 0
    _block_rows: int = field(init=False)
    _folders: "Folders" = field(init=False)

    def __post_init__(self) -> None:
        # More, while so many rows have few folders.
        self._block_rows = _BLOCK_FOLDERS
        self._folders = Folders(self.partition_by, zone=self.zone)

    def add(self, rows: pa.RecordBatch) -> None:
        self._new.append(rows)
        self._new_rows += rows.num_rows
        self._new_bytes += rows.nbytes
        self.size_bytes += rows.nbytes
        found = 0
        while self._is_block_full() and found < _FOUND_PER_ADDED * rows.num_rows:
            found += self._find_folders()
        if self.earlier is not None and self.earlier.done():
            self.wait_for_earlier()

    def counts(self) -> Counter[str]:
        """How many rows each folder has."""
        self._find_all_folders()
        return self.folder_rows

    def largest(self) -> Counter[str]:
        """The largest folders that together have at least half of the rows, and how many each has."""
        counts = self.counts()
        largest: Counter[str] = Counter()
        missing = (counts.total() + 1) // 2
        for folder, count in counts.most_common():
            if missing <= 0:
                break
            largest[folder] = count
            missing -= count
        return largest

    def wait_for_earlier(self) -> None:
        if self.earlier is not None:
            block, self.earlier = self.earlier.result(), None
            self._blocks.insert(0, block)
            self.size_bytes += block.rows.nbytes

    def whole(self) -> RowsByFolder:
        """All of them in one piece, in their order; takes as long as copying them."""
        self._find_all_folders()
        self.wait_for_earlier()
        number_of: dict[str, int] = {}
        for block in self._blocks:
            for folder in block.folders:
                number_of.setdefault(folder, len(number_of))
        numbers = [np.array([number_of[folder] for folder in block.folders], np.int64) for block in self._blocks]
        folder_of_row = [of[block.folder_of_row] for of, block in zip(numbers, self._blocks, strict=True)]
        rows = pa.concat_batches([block.rows for block in self._blocks])
        return RowsByFolder(rows, self.partition_by, np.concatenate(folder_of_row), list(number_of))

    def _most_rows(self) -> int:
        return min(self._block_rows, _BLOCK_ROWS)

    def _is_block_full(self) -> bool:
        return self._new_rows >= self._most_rows() or self._new_bytes >= _BLOCK_BYTES

    def _find_all_folders(self) -> None:
        while self._new_rows:
            self._find_folders()

    def _find_folders(self) -> int:
        """Of the first rows that wait; of how many."""
        # All of them, if what is left over would be less than a block.
        count = self._new_rows if self._new_rows < 2 * self._most_rows() else self._most_rows()
        rows = self._taken_from_new(count)
        block = self._folders.of_first_rows(rows, _BLOCK_FOLDERS)
        found = len(block.folder_of_row)
        if found < rows.num_rows:
            self._new.appendleft(rows.slice(found))
        self._new_rows -= found
        self._new_bytes = sum(waiting.nbytes for waiting in self._new)
        self._blocks.append(block)
        self.folder_rows.update(block.counts())
        self._block_rows = max(_BLOCK_FOLDERS, min(2 * self._block_rows, found * _BLOCK_FOLDERS // len(block.folders)))
        return found

    def _taken_from_new(self, count: int) -> pa.RecordBatch:
        taken, left = [], count
        while left > 0:
            rows = self._new.popleft()
            if rows.num_rows > left:
                self._new.appendleft(rows.slice(left))
                rows = rows.slice(0, left)
            taken.append(rows)
            left -= rows.num_rows
        return pa.concat_batches(taken)


class Folders:
    """Which folders rows belong to. A name is spelled once for all rows with that value."""

    def __init__(self, partition_by: Sequence[str], *, zone: str) -> None:
        self._partition_by = partition_by
        self._zone = zone
        # By column, and then by value.
        self._names: dict[str, dict[Any, str]] = {name: {} for name in partition_by}

    def of_first_rows(self, rows: pa.RecordBatch, most_folders: int) -> RowsByFolder:
        """Of as many of them as have no more folders."""
        folder_of_row, values, places = np.zeros(rows.num_rows, np.int64), list[pa.Array](), list[_Places]()
        for name in self._partition_by:
            encoded = rows.column(name).dictionary_encode(null_encoding="encode")
            count = len(encoded.dictionary)
            code = folder_of_row * count + numpy_of(encoded.indices)
            folder_count = len(places[0]) if places else 1
            # Numbered anew with each column: the product of the numbers of values may be more than an integer holds.
            codes, folder_of_row = _numbered_anew(code, code_count=folder_count * count)
            places = [*(each[codes // count] for each in places), codes % count]
            values.append(encoded.dictionary)
        if places and len(places[0]) > most_folders:
            folder_of_row, kept = _without_later(folder_of_row, len(places[0]), most_folders)
            rows, places = rows.slice(0, len(folder_of_row)), [each[kept] for each in places]
        return RowsByFolder(rows, self._partition_by, folder_of_row, self._spelled(values, places))

    def _spelled(self, values: Sequence[pa.Array], places: Sequence[_Places]) -> list[str]:
        """Of each folder the name, by the place of its value in each column."""
        folders = [""] * (len(places[0]) if places else 1)
        for name, of_column, places_of_column in zip(self._partition_by, values, places, strict=True):
            used, number = np.unique(places_of_column, return_inverse=True)
            spelled = self._spelled_values(name, of_column.take(_indices(used)))
            folders = [f"{folder}{spelled[at]}/" for folder, at in zip(folders, number.tolist(), strict=True)]
        return folders

    def _spelled_values(self, name: str, values: pa.Array) -> list[str]:
        known = self._names[name]
        # Times by their numbers: what clocks show twice are two, which Python would take for one.
        keys = (values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist()
        missing = [at for at, key in enumerate(keys) if key not in known]
        if missing:
            spell = speller(values.type, zone=self._zone)
            assert spell is not None, "other types are refused before the start"
            for at, value in zip(missing, values.take(_indices(np.array(missing))).to_pylist(), strict=True):
                known[keys[at]] = folder_name(name, spell(value))
        return [known[key] for key in keys]


def _without_later(
    folder_of_row: npt.NDArray[np.int64], folder_count: int, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first rows, as many as have so many folders, with these numbered anew; and what their numbers were."""
    first_rows = np.empty(folder_count, np.int64)
    # The last write to a place stays: in reverse, that of the first row.
    first_rows[folder_of_row[::-1]] = np.arange(len(folder_of_row))[::-1]
    row_count = int(np.partition(first_rows, most)[most])
    kept = np.flatnonzero(first_rows < row_count)
    numbers = np.zeros(folder_count, np.int64)
    numbers[kept] = np.arange(len(kept))
    return numbers[folder_of_row[:row_count]], kept


def _numbered_anew(
    code: npt.NDArray[np.int64], *, code_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The codes that occur, and for each row the place of its own among them."""
    if code_count > len(code):
        codes, place = np.unique(code, return_inverse=True)
        return codes, place
    # Several times as fast as sorting, for the usual few values of many rows.
    occurs = np.zeros(code_count, np.bool_)
    occurs[code] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[code]


def _taken(rows: pa.RecordBatch, at: npt.NDArray[Any]) -> pa.RecordBatch:
    return rows.take(_indices(at))


def _indices(at: npt.NDArray[Any]) -> pa.Array:
    indices = np.ascontiguousarray(at, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)])
