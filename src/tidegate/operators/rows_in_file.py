"""Rows that lie in a file, read where they are: of a file that is mapped only the pages that are looked at are read.

Pages of mapped files count as memory of the process, and each mapping holds its file open. So a bounded number of files
is mapped at a time, up to a number of bytes. Must never copy a file into memory to look at some of its rows.
"""

import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from tidegate.operators.stored_rows import stream_of
from tidegate.state.scratch_files import ScratchFiles
from tidegate.state.stepwise_file import StepwiseFile

# Writing so much takes about a ms.
_PART_BYTES: Final = 1 << 20
# Processes may have a thousand files open, and a slot shares them with its sockets and with others.
_MOST_MAPPED: Final = 128


class Mappings:
    """`most_bytes`: of files that are mapped at a time; the one that is looked at may be larger."""

    def __init__(self, most_bytes: Callable[[], int]) -> None:
        self._most_bytes = most_bytes
        # In the order in which they were mapped; some may be gone.
        self._mapped: deque[tuple[weakref.ref[RowsInFile], int]] = deque()
        self._mapped_bytes = 0

    def make_room(self, rows: "RowsInFile") -> None:
        """For one that is to be mapped. All runs are looked at in turns, so that none is due to be looked at sooner."""
        most_bytes = self._most_bytes()
        while self._mapped and (len(self._mapped) >= _MOST_MAPPED or self._mapped_bytes + rows.size_bytes > most_bytes):
            oldest, size_bytes = self._mapped.popleft()
            self._mapped_bytes -= size_bytes
            if (found := oldest()) is not None:
                found.unmap()
        self._mapped.append((weakref.ref(rows), rows.size_bytes))
        self._mapped_bytes += rows.size_bytes


class RowsInFile:
    """`file` is written. `size_bytes`: of the rows."""

    def __init__(self, file: StepwiseFile, size_bytes: int, mappings: Mappings) -> None:
        self.size_bytes = size_bytes
        self._file = file
        self._mappings = mappings
        self._batch: pa.RecordBatch | None = None

    def batch(self) -> pa.RecordBatch:
        """All of them, not to be kept beyond a step: its pages stay in memory as long."""
        if self._batch is None:
            self._mappings.make_room(self)
            with open(self._file.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with pa.ipc.open_stream(pa.py_buffer(mapped)) as stream:
                self._batch = stream.read_next_batch()
        return self._batch

    def unmap(self) -> None:
        # The mapping goes with the last batch that refers to it.
        self._batch = None


def begin_file(rows: pa.RecordBatch, files: ScratchFiles) -> StepwiseFile:
    """One for these rows, in which they are as they are in memory."""
    return files.begin(_parts(stream_of(rows)))


def _parts(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    part: list[memoryview] = []
    part_bytes = 0
    for piece in pieces:
        for start in range(0, len(piece), _PART_BYTES):
            part.append(piece[start : start + _PART_BYTES])
            part_bytes += len(part[-1])
            if part_bytes >= _PART_BYTES:
                yield part
                part, part_bytes = [], 0
    if part:
        yield part
