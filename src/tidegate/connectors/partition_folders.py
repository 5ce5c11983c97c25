"""Rows and the partition folder that each belongs to (`day=1/user=7/`), taken apart by folder.

Pure: it opens no file and makes no folder.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.partition_values import folder_name, speller
from tidegate.plan.kernels.values import numpy_of


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
        ordered = _taken(kept, np.argsort(self.folder_of_row, kind="stable"))
        start = 0
        for folder, count in zip(self.folders, self._counts().tolist(), strict=True):
            if count:
                yield folder, ordered.slice(start, count)
            start += count

    def largest(self) -> tuple["RowsByFolder", pa.RecordBatch]:
        """The largest folders that together have at least half of the rows, and all other rows."""
        counts = self._counts()
        by_size = np.argsort(-counts, kind="stable")
        half_at = int(np.searchsorted(np.cumsum(counts[by_size]), (self.rows.num_rows + 1) // 2))
        is_large = np.isin(self.folder_of_row, by_size[: half_at + 1])
        large = _taken(self.rows, np.flatnonzero(is_large))
        # A copy, so that the rows that stay do not keep in memory those that leave.
        rest = _taken(self.rows, np.flatnonzero(~is_large))
        return replace(self, rows=large, folder_of_row=self.folder_of_row[is_large]), rest

    def _counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.folder_of_row, minlength=len(self.folders))


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
