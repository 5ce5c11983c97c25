"""Which shared files the checkpoints that stay may still need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.model.ids import CheckpointId
from tidegate.storage.job_log import CheckpointCompleted


@dataclass(frozen=True, slots=True)
class UsedFiles:
    """`unknown_up_to`: a damaged checkpoint may need any file that was written up to it."""

    files: frozenset[str]
    unknown_up_to: CheckpointId

    @classmethod
    def of(
        cls,
        staying: Sequence[CheckpointCompleted],
        shared_files_of: Callable[[CheckpointCompleted], frozenset[str] | None],
    ) -> "UsedFiles":
        found = {completed.checkpoint: shared_files_of(completed) for completed in staying}
        unknown = [checkpoint for checkpoint, files in found.items() if files is None]
        known = frozenset(path for files in found.values() if files is not None for path in files)
        return cls(known, max(unknown, default=CheckpointId(0)))

    def may_need(self, path: str, writer: CheckpointId) -> bool:
        return path in self.files or writer <= self.unknown_up_to
