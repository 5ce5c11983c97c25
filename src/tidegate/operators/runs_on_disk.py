"""Which rows of a join are in memory: the runs that came last, as many as there is room for; the others lie in files.

What finds rows, hashes, ends, flags and numbers, stays in memory for all of them. A file is written a part at a time.
Must never change what a run holds, only where its rows lie, nor bring back more than a run in a step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.operators.join_rows import MOST_RUN_BYTES, RowStore, Run
from tidegate.operators.rows_in_file import Mappings, RowsInFile, begin_file
from tidegate.state.row_store import RowMemory
from tidegate.state.scratch_files import ScratchFiles
from tidegate.state.stepwise_file import StepwiseFile

# A part of the memory is for rows that are copied, by merging runs and for snapshots, and one for pages of files.
_MEMORY_PARTS: Final = 2
_MAPPED_PARTS: Final = 4
# Runs are merged up to this part of what there is room for, so that one can leave and others stay.
_RUN_PARTS: Final = 4
# So much is written in a step, if no more was added: a few ms.
_LEAST_WRITTEN_BYTES: Final = 4 << 20
# Per byte that was added: some come while others leave.
_WRITTEN_PER_ADDED: Final = 4


@dataclass(slots=True)
class _Leaving:
    run: Run
    file: StepwiseFile
    steps: Iterator[None]


class RunsOnDisk:
    """`sides`: both of a join; they share the memory."""

    def __init__(self, files: ScratchFiles, memory: RowMemory, sides: Sequence[RowStore]) -> None:
        self._files = files
        self._memory = memory
        self._sides = sides
        self._mappings = Mappings(lambda: memory.share_bytes() // _MAPPED_PARTS)
        self._leaving: _Leaving | None = None
        self._is_emptying = False
        self._bytes_before = 0

    def step(self) -> None:
        """After rows came or went: one part of what there is to do."""
        for side in self._sides:
            # Other operators of the slot may have been opened since.
            side.most_run_bytes = min(MOST_RUN_BYTES, self._most_bytes() // _RUN_PARTS)
        self._bring_back_sparse()
        added_bytes = self._in_memory_bytes() - self._bytes_before
        left_bytes = max(_LEAST_WRITTEN_BYTES, _WRITTEN_PER_ADDED * added_bytes)
        while left_bytes > 0 and (leaving := self._next_leaving()) is not None:
            left_bytes -= self._write(leaving, left_bytes)
        self._bytes_before = self._in_memory_bytes()

    def leave_all(self) -> None:
        """Until what is in memory fits."""
        self.step()
        while self._is_emptying:
            self.step()

    def close(self) -> None:
        self._leaving = None
        for side in self._sides:
            side.runs = []
        self._files.close()

    def _next_leaving(self) -> _Leaving | None:
        """The run that is being written, or one that is to be; once there are too many, half of them leave."""
        if self._leaving is not None and self._leaving.run.live_count == 0:
            self._leaving = None
        if self._leaving is None and self._has_too_many():
            run = self._chosen()
            run.is_apart = True
            file = begin_file(run.batch(), self._files)
            self._leaving = _Leaving(run, file, file.steps())
        return self._leaving

    def _has_too_many(self) -> bool:
        most_bytes = self._most_bytes() // 2 if self._is_emptying else self._most_bytes()
        self._is_emptying = self._in_memory_bytes() > most_bytes
        return self._is_emptying

    def _chosen(self) -> Run:
        """Of the runs that came first on each side the larger one: runs that came later are smaller, or as large."""
        first = [next((run for run in side.runs if not run.is_apart), None) for side in self._sides]
        return max((run for run in first if run is not None), key=lambda run: run.rows_bytes)

    def _write(self, leaving: _Leaving, most_bytes: int) -> int:
        """About so much of it; how much it was."""
        run, file = leaving.run, leaving.file
        begun_at = file.written_bytes
        while file.written_bytes < begun_at + most_bytes and not file.is_written():
            next(leaving.steps, None)
        if file.is_written():
            run.rows = RowsInFile(file, run.rows_bytes, self._mappings)
            self._leaving = None
        return file.written_bytes - begun_at

    def _bring_back_sparse(self) -> None:
        """One whose rows have mostly gone: those that are left leave again with others, and its file goes."""
        for side in self._sides:
            for run in side.runs:
                if run.is_apart and run.is_sparse():
                    side.bring_back(run)
                    if self._leaving is not None and self._leaving.run is run:
                        self._leaving = None
                    return

    def _in_memory_bytes(self) -> int:
        leaving = None if self._leaving is None else self._leaving.run
        runs = (run for side in self._sides for run in side.runs)
        return sum(run.rows_bytes for run in runs if not run.is_apart or run is leaving)

    def _most_bytes(self) -> int:
        return self._memory.share_bytes() // _MEMORY_PARTS
