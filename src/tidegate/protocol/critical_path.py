"""The critical path of one checkpoint: from its end back to its trigger, always along what came last.

The phases follow one another without gap, so that they add up to how long the checkpoint took. Nothing here says whose
fault it was; `why` does.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidegate.model.ids import TaskId
from tidegate.protocol.checkpoint_facts import (
    BarrierFacts,
    CheckpointFacts,
    CommitFacts,
    Outcome,
    SlotFacts,
    TaskFacts,
)

DRIVER: Final = "driver"


class PhaseKind(Enum):
    TRIGGER = "until the slot heard of it"
    ON_THE_WAY = "the barrier on its way"
    ALIGNING = "data in front of the barrier"
    SYNC = "synchronous part"
    SETTLING = "rows still on the way"
    ENCODING = "encoding"
    UPLOAD_QUEUE = "waiting for the upload before it"
    SINK = "the sink's own files"
    UPLOAD = "upload"
    ACKNOWLEDGING = "acknowledging"
    HELD_BACK = "behind an older savepoint"
    BEHIND_COMMIT = "behind the sink's commit"
    STORE_QUEUE = "waiting for what the driver stored before it"
    LOGGING = "manifest and log entry"
    WAITING = "still waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """`where`: the task, `slot 1`, `driver`, or the checkpoint that is committed. `barrier`: the one on its way."""

    kind: PhaseKind
    where: str
    slot: int | None
    task: TaskId | None
    name: str
    started_ms: float
    duration_ms: float
    barrier: BarrierFacts | None = None
    commit: CommitFacts | None = None

    @property
    def ended_ms(self) -> float:
        return self.started_ms + self.duration_ms


def critical_path(facts: CheckpointFacts) -> tuple[Phase, ...]:
    """In order of time."""
    walk = _Walk(facts)
    answered = [slot for slot in facts.slots if slot.acknowledged_ms is not None]
    if facts.completing_ms is not None:
        walk.through_driver(facts.completing_ms)
    if answered and len(answered) == len(facts.slots):
        last = max(answered, key=lambda slot: slot.acknowledged_ms or 0.0)
        walk.back_to(last.acknowledged_ms or 0.0, PhaseKind.HELD_BACK)
        walk.through_slot(last)
    else:
        walk.from_the_open_end()
    return walk.finish()


class _Walk:
    """Goes back in time; `_now_ms` is how far it has come."""

    def __init__(self, facts: CheckpointFacts) -> None:
        self._facts = facts
        self._now_ms = facts.duration_ms
        self._phases: list[Phase] = []
        self._passed: set[TaskId] = set()

    def finish(self) -> tuple[Phase, ...]:
        self.back_to(0.0, PhaseKind.TRIGGER)
        return tuple(reversed(self._phases))

    def back_to(
        self,
        at_ms: float,
        kind: PhaseKind,
        *,
        slot: int | None = None,
        task: TaskFacts | None = None,
        barrier: BarrierFacts | None = None,
        commit: CommitFacts | None = None,
    ) -> None:
        at_ms = max(0.0, min(at_ms, self._now_ms))
        if at_ms == self._now_ms:
            return
        slot = task.task.subtask if task is not None else slot
        where = DRIVER if slot is None else f"slot {slot}"
        if task is not None:
            where = str(task.task)
        elif commit is not None:
            where = f"checkpoint {commit.checkpoint}"
        self._phases.append(
            Phase(
                kind=kind,
                where=where,
                slot=slot,
                task=None if task is None else task.task,
                name="" if task is None else task.name,
                started_ms=at_ms,
                duration_ms=self._now_ms - at_ms,
                barrier=barrier,
                commit=commit,
            )
        )
        self._now_ms = at_ms

    # -- complete

    def through_driver(self, ready_ms: float) -> None:
        """From the end back to when every slot had acknowledged: the writing, and what the driver did before it."""
        facts = self._facts
        writing_ms = self._now_ms if facts.writing_ms is None else facts.writing_ms
        if facts.writing_ms is None and facts.outcome is Outcome.COMPLETED:
            writing_ms = ready_ms  # stored when this was not noted yet: all of it counts as the writing
        self.back_to(max(ready_ms, writing_ms), PhaseKind.LOGGING)
        for commit in reversed(facts.commits_before):
            ended_ms = self._now_ms if commit.ended_ms is None else commit.ended_ms
            self.back_to(max(ready_ms, ended_ms), PhaseKind.STORE_QUEUE)
            self.back_to(max(ready_ms, commit.started_ms), PhaseKind.BEHIND_COMMIT, commit=commit)
        self.back_to(ready_ms, PhaseKind.STORE_QUEUE)

    def through_slot(self, slot: SlotFacts) -> None:
        """From its acknowledgement back: the upload, the encoding, then whichever of its tasks was ready last."""
        number = slot.slot
        if slot.uploading_ms is not None:
            stored_ms = slot.uploading_ms + slot.sink_ms + slot.storing_ms
            if slot.acknowledged_ms is not None:
                self.back_to(stored_ms, PhaseKind.ACKNOWLEDGING, slot=number)
            self.back_to(slot.uploading_ms + slot.sink_ms, PhaseKind.UPLOAD, slot=number)
            self.back_to(slot.uploading_ms, PhaseKind.SINK, slot=number)
        if slot.queued_ms is not None:
            self.back_to(slot.queued_ms, PhaseKind.UPLOAD_QUEUE, slot=number)
        if slot.encoding_ms is not None:
            self.back_to(slot.encoding_ms, PhaseKind.ENCODING, slot=number)
        self._through_last_of(self._facts.tasks_of(number), number)

    def _through_last_of(self, tasks: tuple[TaskFacts, ...], slot: int) -> None:
        last = max(tasks, key=_ready_ms, default=None)
        if last is None:
            self._through_trigger(slot)
            return
        self.back_to(_ready_ms(last), PhaseKind.SETTLING, slot=slot)
        end_ms = last.snapshot_end_ms
        if last.last is not None and (end_ms is None or last.last.at_ms > end_ms):
            self._through_barrier(last, last.last)
        else:
            self._through_snapshot(last)

    def _through_snapshot(self, task: TaskFacts) -> None:
        if task.task in self._passed or task.snapshot_ms is None:
            return
        self._passed.add(task.task)
        self.back_to(task.snapshot_ms, PhaseKind.SYNC, task=task)
        # An aligned one was taken when the last barrier's rows were done, the others are taken by the first barrier.
        barrier = task.last if task.kind == "aligned" else task.first
        if barrier is None:
            self._through_trigger(task.task.subtask)
            return
        self.back_to(barrier.at_ms, PhaseKind.ALIGNING, task=task)
        self._through_barrier(task, barrier)

    def _through_barrier(self, task: TaskFacts, barrier: BarrierFacts) -> None:
        sender = self._facts.task(barrier.sender)
        self.back_to(barrier.at_ms, PhaseKind.ALIGNING, task=task)
        if sender is None or sender.snapshot_end_ms is None:
            return
        self.back_to(sender.snapshot_end_ms, PhaseKind.ON_THE_WAY, task=task, barrier=barrier)
        self._through_snapshot(sender)

    def _through_trigger(self, slot: int) -> None:
        found = self._facts.slot(slot)
        if found is not None and found.triggered_ms is not None:
            self.back_to(found.triggered_ms, PhaseKind.ON_THE_WAY, slot=slot)
        self.back_to(0.0, PhaseKind.TRIGGER, slot=slot)

    # -- not complete

    def from_the_open_end(self) -> None:
        """From what it still waits for: the last part is a phase that has no end yet."""
        facts = self._facts
        task = waited_for_task(facts)
        if task is not None:
            self._from_task(task)
            return
        storing = [slot for slot in facts.slots if slot.acknowledged_ms is None]
        if storing:
            self._from_slot(storing[0])

    def _from_task(self, task: TaskFacts) -> None:
        slot = self._facts.slot(task.task.subtask)
        if task.last is not None and not task.missing:
            self.back_to(task.last.at_ms, PhaseKind.ALIGNING, task=task)
            self._through_barrier(task, task.last)
        elif slot is None or slot.triggered_ms is None:
            self.back_to(0.0, PhaseKind.TRIGGER, slot=task.task.subtask)
        else:
            self.back_to(slot.triggered_ms, PhaseKind.WAITING, task=task)
            self._through_trigger(task.task.subtask)

    def _from_slot(self, slot: SlotFacts) -> None:
        if slot.uploading_ms is not None:
            self.back_to(slot.uploading_ms + slot.sink_ms, PhaseKind.UPLOAD, slot=slot.slot)
        elif slot.queued_ms is not None:
            self.back_to(slot.queued_ms, PhaseKind.UPLOAD_QUEUE, slot=slot.slot)
        elif slot.encoding_ms is not None:
            self.back_to(slot.encoding_ms, PhaseKind.ENCODING, slot=slot.slot)
        self.through_slot(slot)


def waited_for_task(facts: CheckpointFacts) -> TaskFacts | None:
    """Of the tasks without a snapshot the one that holds up the others: nothing that it waits for is itself waiting."""
    open_ones = {task.task: task for task in facts.tasks if task.snapshot_ms is None}
    unheard = [t for t in open_ones.values() if (slot := facts.slot(t.task.subtask)) and slot.triggered_ms is None]
    candidates = unheard or list(open_ones.values())
    task = min(candidates, key=lambda t: (t.task.vertex, -t.left_bytes, t.task.subtask), default=None)
    passed: set[TaskId] = set()
    while task is not None and task.task not in passed:
        passed.add(task.task)
        before = next((open_ones[sender] for sender in task.missing if sender in open_ones), None)
        if before is None:
            return task
        task = before
    return task


def _ready_ms(task: TaskFacts) -> float:
    """When all that it contributes was decided: after its snapshot, and after its last barrier."""
    return max(task.snapshot_end_ms or 0.0, 0.0 if task.last is None else task.last.at_ms)
