"""Which files of a location nobody needs: left by generations that crashed, and by checkpoints that never completed.

A file is somebody's if a retained or skipped checkpoint names it, if its generation may still run, or if a damaged
manifest makes it unknown whether it is needed. Deletes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from tidegate.model.ids import CheckpointId, Generation


class Belongs(Enum):
    """To what a file belongs."""

    TO_ONE_CHECKPOINT = "one checkpoint"
    TO_WHOEVER_NAMES_IT = "whoever names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file, and the checkpoint and generation that wrote it."""

    path: str
    checkpoint: CheckpointId
    generation: Generation
    belongs: Belongs


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """`checkpoints`: those whose own files stay. `named`: the shared files that they name.

    `unknown_up_to`: one whose manifest cannot be read may need any shared file that was written up to it.
    """

    checkpoints: frozenset[tuple[CheckpointId, Generation]]
    named: frozenset[str]
    unknown_up_to: CheckpointId

    def needs(self, file: WrittenFile) -> bool:
        if file.belongs is Belongs.TO_ONE_CHECKPOINT:
            return (file.checkpoint, file.generation) in self.checkpoints
        return file.path in self.named or file.checkpoint <= self.unknown_up_to


def orphans(
    files: Iterable[WrittenFile], needed: Needed, *, starts: Mapping[Generation, int], before_ms: int
) -> list[WrittenFile]:
    """Those that nobody needs, of generations before one that was started at `before_ms` or earlier.

    `starts`: when generations were started, as far as the log still knows. None comes after the newest: it may be
    running.
    """
    successor = max((generation for generation, at_ms in starts.items() if at_ms <= before_ms), default=0)
    return [file for file in files if file.generation < successor and not needed.needs(file)]
