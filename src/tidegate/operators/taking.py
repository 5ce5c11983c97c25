"""Rows by what changed, until all of them were taken into files: for a snapshot, or ahead of the next one.

What is owed to a snapshot is as it was at the barrier. Its files are known when it is complete, and can be written
then. Must never be stored before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidegate.operators import log_book
from tidegate.operators.columnar import Slots
from tidegate.plan.key_groups import Hashes
from tidegate.state.row_log import LogFile, Part, RowLog

# Keys that are not there any more, and their hashes.
GoneKeys: TypeAlias = tuple[pa.RecordBatch, Hashes]


@dataclass(slots=True, eq=False)
class Taking:
    """`advance` takes a part. `kept`: files of older rows. `gone`: keys that have left, for the next file.

    `is_owed`: there may be rows among those that changed that are to be taken. `looked_to`: slots before it are done
    with. `moves_until`: rows in files up to this number are written again, 0 if none are. `slots`: those of each added
    file. `looked_at`: how many of those that changed were looked at.
    """

    advance: Callable[["Taking"], None]
    kept: tuple[LogFile, ...]
    gone: list[GoneKeys]
    added: list[LogFile] = field(default_factory=list)
    slots: list[list[Slots]] = field(default_factory=list)
    row_count: int = 0
    looked_at: int = 0
    is_owed: bool = True
    looked_to: int = 0
    moves_until: int = 0
    is_taken: bool = False
    _parts: list[Part] = field(default_factory=list)
    _given_files: int = 0

    @property
    def files(self) -> Sequence[LogFile]:
        assert self.is_taken, "known once all is taken"
        return *self.kept, *self.added

    def steps(self) -> Iterator[None]:
        """Several may do them in turns, each then finds less to do."""
        while not self.is_taken:
            self.advance(self)
            yield

    def take_whole_files(self) -> list[LogFile]:
        """To which nothing will be added, each given once."""
        whole = len(self.added) if self.is_taken else len(self.added) - 1
        files = self.added[self._given_files : whole]
        self._given_files = max(self._given_files, whole)
        return files

    def begin_file(self, log: RowLog, parts: Sequence[Part], row_count: int) -> None:
        # Parts are added to it until all is taken, and it is written afterwards.
        self._parts = list(parts)
        self.added.append(log.append(self._parts, row_count))
        self.slots.append([])

    def has_room(self, row_count: int) -> bool:
        return bool(self.added) and self.added[-1].row_count + row_count <= log_book.FILE_ROWS

    def add(self, part: Part, slots: Slots) -> int:
        """To the last file, whose number it gives."""
        file = self.added[-1]
        self._parts.append(part)
        self.slots[-1].append(slots)
        file.row_count += len(slots)
        self.row_count += len(slots)
        return file.number
