"""The named steps of the barrier path, on worker and coordinator, at each of which a process may be made to crash.

The production code knows nothing of this: while somebody watches, the functions that make a step are wrapped.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from unittest.mock import patch

from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.coordinator.durable import DurableJob
from tidegate.storage.job_log import CheckpointCompleted, Committed, JobLog
from tidegate.testing.simulation.world import Crash
from tidegate.worker.gate import Gate
from tidegate.worker.output import OutputChannel
from tidegate.worker.slot_tasks import SlotTasks
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.task import Task


class Step(Enum):
    # In the order in which a checkpoint passes them.
    TRIGGER_DECIDED = "the coordinator decided to start it, nobody was told"
    TRIGGER_TOLD = "every slot was told to start it"
    TRIGGER_HEARD = "a slot hears that it starts"
    BARRIER_FORWARDED = "a channel's barrier was sent"
    BARRIER_HEARD = "a gate hears of a barrier"
    CUT_HEARD = "a gate hears of a cut"
    SNAPSHOT_TAKEN = "a task's state is frozen"
    CAPTURE_CLOSED = "a gate's part is complete"
    OUTPUTS_DECIDED = "a task's outputs are decided"
    ENCODED = "a slot's part is encoded, nothing is written"
    UPLOADED = "a slot's files are written, the coordinator was not told"
    ACKNOWLEDGED = "the coordinator was told"
    ALL_ACKNOWLEDGED = "every slot has acknowledged"
    MANIFEST_WRITTEN = "the manifest is there, the log entry is not"
    LOGGED = "the log entry is there"
    DONE_TOLD = "the slots were told that it is complete"
    COMMIT_BEGINS = "the sinks commit next"
    SINKS_COMMITTED = "the sinks have committed, the log does not say so"
    COMMIT_RECORDED = "the log says that it is committed"
    DONE_HEARD = "a slot hears that it is complete"
    ABORT_HEARD = "a slot hears that it is aborted"
    RETIRED = "old checkpoints were removed"


@dataclass(slots=True)
class CrashAt:
    """Crashes whoever makes the step for the `times`-th time from now on."""

    step: Step
    times: int = 1

    def reached(self, step: Step) -> bool:
        if step is not self.step:
            return False
        self.times -= 1
        return self.times == 0


class StepWatch:
    """`armed` is what crashes next; a crash disarms it."""

    def __init__(self) -> None:
        self.armed: CrashAt | None = None
        self.reached: set[Step] = set()

    def at(self, step: Step) -> None:
        self.reached.add(step)
        if self.armed is not None and self.armed.reached(step):
            self.armed = None
            raise Crash


@contextmanager
def steps_watched(at: Callable[[Step], None]) -> Iterator[None]:
    """While it lasts, whoever makes a step in this process calls `at` with it."""
    with ExitStack() as stack:
        for owner, name, before, after in _WRAPPED:
            wrapped = _wrapped(getattr(owner, name), at, before, after)
            stack.enter_context(patch.object(owner, name, wrapped))
        stack.enter_context(patch.object(JobLog, "append", _append(JobLog.append, at)))
        yield


_WRAPPED: list[tuple[type, str, Step | None, Step | None]] = [
    (Checkpointing, "_trigger", Step.TRIGGER_DECIDED, Step.TRIGGER_TOLD),
    (SlotTasks, "on_trigger", Step.TRIGGER_HEARD, None),
    (OutputChannel, "barrier", None, Step.BARRIER_FORWARDED),
    (Gate, "on_barrier", Step.BARRIER_HEARD, None),
    (Gate, "on_cut", Step.CUT_HEARD, None),
    (Task, "_take", None, Step.SNAPSHOT_TAKEN),
    (SlotSnapshots, "on_received", Step.CAPTURE_CLOSED, None),
    (SlotSnapshots, "on_held", Step.OUTPUTS_DECIDED, None),
    (SlotSnapshots, "_upload", Step.ENCODED, None),
    (SlotSnapshots, "_acknowledge", Step.UPLOADED, Step.ACKNOWLEDGED),
    (SlotTasks, "on_done", Step.DONE_HEARD, None),
    (SlotTasks, "on_abort", Step.ABORT_HEARD, None),
    (Checkpointing, "_complete", Step.ALL_ACKNOWLEDGED, None),
    (DurableJob, "complete", None, Step.LOGGED),
    (Checkpointing, "_on_stored", None, Step.DONE_TOLD),
    (DurableJob, "_commit_one", Step.COMMIT_BEGINS, Step.COMMIT_RECORDED),
    (DurableJob, "retire", None, Step.RETIRED),
]


def _wrapped(
    function: Callable[..., Any], at: Callable[[Step], None], before: Step | None, after: Step | None
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            at(before)
        result = function(*args, **kwargs)
        if after is not None:
            at(after)
        return result

    return call


def _append(function: Callable[..., Any], at: Callable[[Step], None]) -> Callable[..., Any]:
    """The log is where a checkpoint begins to exist, and where its commit is recorded."""

    @functools.wraps(function)
    def append(self: JobLog, entry: Any) -> Any:
        match entry:
            case CheckpointCompleted():
                at(Step.MANIFEST_WRITTEN)
            case Committed():
                at(Step.SINKS_COMMITTED)
        return function(self, entry)

    return append
