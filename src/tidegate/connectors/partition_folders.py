"""Rows and the partition folder that each belongs to (`day=1/user=7/`), taken apart by folder.

Pure: it opens no file and makes no folder.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.partition_values import folder_name, speller
from tidegate.plan.kernels.values import numpy_of

# Rows that come in small pieces wait for each other up to these: finding folders costs something for each piece.
_BLOCK_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 20


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
    _new: list[pa.RecordBatch] = field(default_factory=list)
    _new_rows: int = 0
    _new_bytes: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._new.append(rows)
        self._new_rows += rows.num_rows
        self._new_bytes += rows.nbytes
        self.size_bytes += rows.nbytes
        if self._new_rows >= _BLOCK_ROWS or self._new_bytes >= _BLOCK_BYTES:
            self._find_folders()
        if self.earlier is not None and self.earlier.done():
            self.wait_for_earlier()

    def counts(self) -> Counter[str]:
        """How many rows each folder has."""
        self._find_folders()
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
        self._find_folders()
        self.wait_for_earlier()
        number_of: dict[str, int] = {}
        for block in self._blocks:
            for folder in block.folders:
                number_of.setdefault(folder, len(number_of))
        numbers = [np.array([number_of[folder] for folder in block.folders], np.int64) for block in self._blocks]
        folder_of_row = [of[block.folder_of_row] for of, block in zip(numbers, self._blocks, strict=True)]
        rows = pa.concat_batches([block.rows for block in self._blocks])
        return RowsByFolder(rows, self.partition_by, np.concatenate(folder_of_row), list(number_of))

    def _find_folders(self) -> None:
        if self._new:
            block = rows_by_folder(pa.concat_batches(self._new), self.partition_by, zone=self.zone)
            self._blocks.append(block)
            self.folder_rows.update(block.counts())
            self._new, self._new_rows, self._new_bytes = [], 0, 0


def rows_by_folder(rows: pa.RecordBatch, partition_by: Sequence[str], *, zone: str) -> RowsByFolder:
    folder_of_row, folders = np.zeros(rows.num_rows, np.int64), [""]
    for name in partition_by:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        spell = speller(encoded.dictionary.type, zone=zone)
        assert spell is not None, "other types are refused before the start"
        spelled = [folder_name(name, spell(value)) for value in encoded.dictionary.to_pylist()]
        code = folder_of_row * len(spelled) + numpy_of(encoded.indices)
        # Numbered anew with each column: the product of the numbers of values may be more than an integer holds.
        codes, folder_of_row = _numbered_anew(code, code_count=len(folders) * len(spelled))
        folders = [f"{folders[code // len(spelled)]}{spelled[code % len(spelled)]}/" for code in codes.tolist()]
    return RowsByFolder(rows, partition_by, folder_of_row, folders)


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
    indices = np.ascontiguousarray(at, np.int64)
    return rows.take(pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)]))
