"""Which files of a location nobody needs: left by generations that crashed, and by checkpoints that never completed.

A file is somebody's if a retained or skipped checkpoint names it, if its generation may still run, or if it is unknown
whether it is needed: because of a damaged manifest, or of a checkpoint that may be under way. Other queries may put
their savepoints here as well: what does not bear the name of a run of this job may be in the making at this moment.
Deletes nothing.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum

from tidegate.model.ids import CheckpointId, Generation

# A savepoint without a run in its name may be another query's: it is left for long after it would be over as one's own.
_NAMELESS_OVER_MS = 24 * 3_600_000


class Belongs(Enum):
    """To what a file belongs."""

    TO_ONE_CHECKPOINT = "one checkpoint"
    TO_WHOEVER_NAMES_IT = "whoever names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file, and the checkpoint and generation that wrote it.

    `run`: of a savepoint, the one in its name, empty if there is none; None for what only the job itself writes.
    """

    path: str
    checkpoint: CheckpointId
    generation: Generation
    belongs: Belongs
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """`checkpoints`: those whose own files stay. `named`: the shared files that they name.

    `unknown_up_to`: one whose manifest cannot be read, or is not written yet, may need any shared file that was written
    up to that id.
    """

    checkpoints: frozenset[tuple[CheckpointId, Generation]]
    named: frozenset[str]
    unknown_up_to: CheckpointId

    def needs(self, file: WrittenFile) -> bool:
        if file.belongs is Belongs.TO_ONE_CHECKPOINT:
            return (file.checkpoint, file.generation) in self.checkpoints
        return file.path in self.named or file.checkpoint <= self.unknown_up_to


def orphans(
    files: Iterable[WrittenFile],
    needed: Needed,
    *,
    starts: Mapping[Generation, int],
    runs: Set[str],
    before_ms: int,
) -> list[WrittenFile]:
    """Those that nobody needs, of generations before one that was started at `before_ms` or earlier.

    `starts`: when generations were started, as far as the log still knows. None comes after the newest: it may be
    running. `runs`: those of this job, likewise.
    """
    successor = _newest_started(starts, by_ms=before_ms)
    long_since = _newest_started(starts, by_ms=before_ms - _NAMELESS_OVER_MS)

    def is_over(file: WrittenFile) -> bool:
        match file.run:
            case None:
                return file.generation < successor
            case "":
                return file.generation < long_since
            case run:
                # Of any other run the generation says nothing: it is another query's.
                return run in runs and file.generation < successor

    return [file for file in files if is_over(file) and not needed.needs(file)]


def _newest_started(starts: Mapping[Generation, int], *, by_ms: int) -> Generation:
    return max((generation for generation, at_ms in starts.items() if at_ms <= by_ms), default=Generation(0))
