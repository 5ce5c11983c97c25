"""Where a vectorised operator keeps its rows on disk: those that are in memory too in a log, the others by key."""

from dataclasses import dataclass

from tidegate.state.contract import StateBackend
from tidegate.state.row_log import RowLog


@dataclass(slots=True)
class RowMemory:
    """What rows may take in memory, shared by all operators of a slot that keep some."""

    total_bytes: int
    operators: int = 0

    def share_bytes(self) -> int:
        return self.total_bytes // max(1, self.operators)


@dataclass(frozen=True, slots=True)
class RowStore:
    """Of one operator in one subtask."""

    log: RowLog
    entries: StateBackend
    memory: RowMemory

    def close(self) -> None:
        self.log.close()
        self.entries.close()
