"""Where a vectorised operator keeps rows on disk: in a log for checkpoints, and elsewhere what is not in memory."""

from dataclasses import dataclass

from tidegate.state.contract import StateBackend
from tidegate.state.row_log import RowLog
from tidegate.state.rows_ahead import RowsAhead
from tidegate.state.scratch_files import ScratchFiles


@dataclass(slots=True)
class RowMemory:
    """What rows may take in memory, shared by all operators of a slot that keep some."""

    total_bytes: int
    operators: int = 0

    def share_bytes(self) -> int:
        return self.total_bytes // max(1, self.operators)


@dataclass(frozen=True, slots=True)
class RowStore:
    """Of one operator in one subtask. `entries`: rows that are not in memory, by key; None if all are.

    `ahead`: stores what is in the log before a checkpoint needs it; None if nobody does.
    """

    log: RowLog
    entries: StateBackend | None
    memory: RowMemory
    ahead: RowsAhead | None = None

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
        self.log.close()
        if self.entries is not None:
            self.entries.close()


@dataclass(frozen=True, slots=True)
class RunStore:
    """Of one operator whose rows never change. `files`: for those that are not in memory; None if all are.

    `ahead`: as of a `RowStore`.
    """

    log: RowLog
    files: ScratchFiles | None
    memory: RowMemory
    ahead: RowsAhead | None = None

    def close(self) -> None:
        """The log; the files are their owner's."""
        if self.ahead is not None:
            self.ahead.close()
        self.log.close()
