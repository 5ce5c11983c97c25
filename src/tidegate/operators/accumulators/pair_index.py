"""Pairs of an owner and what it holds, each once: an index whose keys begin with the owner."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import KeyIndex, Slots, slots_array


class PairIndex(KeyIndex):
    """Its first key column is the owner, as a 64-bit number."""

    def add_pairs(self, owners: Slots, values: Sequence[pa.Array]) -> Slots:
        """For each pair that is new, in the order of their slots, a row that has it."""
        names = [str(at) for at in range(len(values) + 1)]
        count_before = self.count
        found = self.find_or_add(pa.RecordBatch.from_arrays([slots_array(owners), *values], names=names))
        rows = np.flatnonzero(found >= count_before)
        new = np.empty(self.count - count_before, dtype=np.int64)
        new[found[rows] - count_before] = rows
        return new

    def memory_met_anywhere(self) -> list[npt.NDArray[Any]]:
        return [self.table.now.memory]

    def size_bytes(self) -> int:
        """With what finding them takes: whoever has room for groups knows of that for a key of each only."""
        valid_bytes = sum(valid.used.nbytes for valid in self._valid)
        return super().size_bytes() + valid_bytes + self.table.size_bytes()
