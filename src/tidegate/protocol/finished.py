"""Checkpoints while tasks end: whom to trigger, whom to wait for, and when one task has finished.

Nothing here ends a task: `Finish` says that it may go.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, TaskId


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Every task with those that send to it; a source has none."""

    senders: Mapping[TaskId, frozenset[TaskId]]

    def __post_init__(self) -> None:
        for task, senders in self.senders.items():
            for unknown in sorted(senders - self.senders.keys()):
                raise ProtocolViolation(f"Task {task} receives from {unknown}, which is not in the graph.")


def to_trigger(graph: TaskGraph, finished: Set[TaskId]) -> list[TaskId]:
    """Those that run and that no barrier can reach: sources, and tasks all of whose senders are finished."""
    return [task for task, senders in graph.senders.items() if task not in finished and senders <= finished]


def to_wait_for(graph: TaskGraph, finished: Set[TaskId]) -> list[TaskId]:
    """Those that acknowledge: all that are not finished."""
    return [task for task in graph.senders if task not in finished]


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left for the task to do: no checkpoint waits for it from now on."""


class TaskEnd:
    """The end of one task. Events come in any order, save that a checkpoint completes after its snapshots.

    The task is finished once its input has ended, its outputs are consumed, and a checkpoint is complete whose snapshot
    it took after the end: a restore then finds it ended, and nothing of it has to be sent again.
    """

    def __init__(self) -> None:
        self._has_ended = False
        self._are_outputs_consumed = False
        self._is_covered = False
        self._was_told = False
        self._newest_before_end = CheckpointId(0)
        # What lies between these two was taken after the end: two ids say it, however many checkpoints fail.
        self._first_after_end: CheckpointId | None = None
        self._newest_after_end = CheckpointId(0)

    @property
    def is_finished(self) -> bool:
        return self._has_ended and self._are_outputs_consumed and self._is_covered

    def on_end(self) -> list[Finish]:
        """All input is processed and the end marks are sent."""
        self._has_ended = True
        return self._finish_once()

    def on_outputs_consumed(self) -> list[Finish]:
        """The receivers have taken everything, the end marks included; at once if there are none."""
        self._are_outputs_consumed = True
        return self._finish_once()

    def on_snapshot(self, checkpoint: CheckpointId) -> list[Finish]:
        """The task took part in this checkpoint."""
        if not self._has_ended:
            self._newest_before_end = max(self._newest_before_end, checkpoint)
        elif checkpoint > self._newest_before_end:
            self._first_after_end = min(self._first_after_end or checkpoint, checkpoint)
            self._newest_after_end = max(self._newest_after_end, checkpoint)
        # Else it was overtaken by one from before the end: not told from those, and the next one serves as well.
        return self._finish_once()

    def on_completed(self, checkpoint: CheckpointId) -> list[Finish]:
        first = self._first_after_end
        if first is not None and first <= checkpoint <= self._newest_after_end:
            self._is_covered = True
        return self._finish_once()

    def _finish_once(self) -> list[Finish]:
        if self._was_told or not self.is_finished:
            return []
        self._was_told = True
        return [Finish()]
