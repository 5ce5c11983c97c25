"""Why a checkpoint took as long as it did, or failed: its critical path, one culprit, and what to do about it.

Pure: from the facts of one checkpoint to a report. It never guesses where facts are missing: what is not known is said
to be not known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.model.ids import TaskId
from tidegate.protocol.checkpoint_facts import (
    CheckpointFacts,
    CommitFacts,
    Outcome,
    SlotFacts,
    TaskFacts,
)
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.critical_path import Phase, PhaseKind, critical_path, waited_for_task
from tidegate.protocol.culprits import (
    DRIVERS_STORE,
    JOB_LOG,
    BehindSavepoint,
    BigState,
    BigSynchronousPart,
    Cause,
    Culprit,
    Declined,
    Expired,
    GaveWay,
    LateChannel,
    LateSlot,
    LongCall,
    NothingWrong,
    NotWritten,
    SilentSlot,
    SkewedSubtask,
    SlowCommit,
    SlowOperator,
    SlowStore,
    UploadFailed,
    WaitedFor,
    Where,
    root_of,
)
from tidegate.protocol.why_costs import CostToStream, OtherMode, cost_to_stream, other_mode
from tidegate.protocol.why_text import advice, described, report_text

# A checkpoint that takes less, and less than half of the interval, needs no explanation.
UNREMARKABLE_MS: Final = 250.0
# One step or snapshot must make up so much of a wait to be its reason; many slow calls are a slow operator.
_ONE_CALL_SHARE: Final = 0.5
# A subtask that gets so much more than its fair share of its vertex's input is skewed.
_SKEWED_ABOVE_FAIR: Final = 0.2
# A commit writes a log entry, as its checkpoint did before: one that takes so many times as long is slow by its sink.
_SINK_ABOVE_WRITING: Final = 2.0
# A slot reports five times a second: one that has not for so long is stuck in a call, or gone.
SILENT_AFTER_MS: Final = 1_000.0
# Shorter phases are not looked into.
_LEAST_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyReport:
    """`str(report)` is for a terminal. `critical_path` adds up to `duration_ms`."""

    checkpoint: int
    outcome: str
    kind: str
    duration_ms: float
    summary: str
    culprit: Culprit
    critical_path: tuple[Phase, ...]
    other_mode: OtherMode | None
    cost_to_stream: CostToStream
    advice: tuple[str, ...]

    @property
    def cause(self) -> Cause:
        """Of an expired one: the cause of what it waited for."""
        return root_of(self.culprit).cause

    def __str__(self) -> str:
        return report_text(
            checkpoint=self.checkpoint,
            outcome=self.outcome,
            kind=self.kind,
            duration_ms=self.duration_ms,
            summary=self.summary,
            path=self.critical_path,
            other=self.other_mode,
            cost=self.cost_to_stream,
            advice=self.advice,
        )


def why(facts: CheckpointFacts) -> WhyReport:
    path = critical_path(facts)
    culprit = _culprit(facts, path)
    return WhyReport(
        checkpoint=facts.checkpoint,
        outcome=facts.outcome.value if facts.failure is None else facts.failure,
        kind=facts.kind,
        duration_ms=facts.duration_ms,
        summary=described(culprit, facts),
        culprit=culprit,
        critical_path=path,
        other_mode=other_mode(facts, path),
        cost_to_stream=cost_to_stream(facts),
        advice=advice(culprit, facts),
    )


def choose(newest_first: Sequence[CheckpointFacts], checkpoint: int | None) -> CheckpointFacts | None:
    """The one that is asked for; if none is, the newest that was slow or failed, else the newest."""
    if checkpoint is not None:
        return next((facts for facts in newest_first if facts.checkpoint == checkpoint), None)
    ended = [facts for facts in newest_first if facts.outcome is not Outcome.IN_PROGRESS]
    late = [facts for facts in newest_first if facts.outcome is Outcome.IN_PROGRESS and is_late(facts)]
    return next((facts for facts in (*late, *ended) if _is_worth_a_look(facts)), next(iter(newest_first), None))


def is_late(facts: CheckpointFacts) -> bool:
    """The next one is due, and this one is not complete."""
    return facts.duration_ms > max(facts.interval_ms, UNREMARKABLE_MS)


def _is_worth_a_look(facts: CheckpointFacts) -> bool:
    """Slow or failed. One that ended with its generation is neither: the reason is elsewhere."""
    if facts.failure is not None:
        return FailureReason(facts.failure).counts_as_failure
    return not _is_unremarkable(facts)


def _is_unremarkable(facts: CheckpointFacts) -> bool:
    return facts.duration_ms < min(UNREMARKABLE_MS, facts.interval_ms / 2)


def _culprit(facts: CheckpointFacts, path: tuple[Phase, ...]) -> Culprit:
    reason = None if facts.failure is None else FailureReason(facts.failure)
    detail = facts.detail or ""
    match reason:
        case None if facts.outcome is Outcome.IN_PROGRESS:
            return _waited_for(facts, path)
        case None:
            return _slowest(facts, path)
        case FailureReason.EXPIRED:
            return Expired(_waited_for(facts, path), facts.timeout_ms)
        case FailureReason.DECLINED if facts.is_upload_failure:
            return UploadFailed(facts.failed_slot, detail)
        case FailureReason.DECLINED:
            return Declined(facts.failed_slot, detail)
        case FailureReason.STORE_FAILED | FailureReason.INCONSISTENT:
            return NotWritten(reason.value, detail)
        case _:
            return GaveWay(reason.value, detail)


# -- complete


def _slowest(facts: CheckpointFacts, path: tuple[Phase, ...]) -> WaitedFor:
    if _is_unremarkable(facts):
        return NothingWrong(facts.duration_ms)
    found: dict[tuple[Cause, str], tuple[float, WaitedFor]] = {}
    for phase in path:
        if phase.duration_ms < _LEAST_SHARE * facts.duration_ms:
            continue
        culprit = _culprit_of(facts, phase)
        key = culprit.cause, str(culprit.where)
        # The same one may show in several phases: its input fills up, and then that of the task before it.
        before_ms, first = found.get(key, (0.0, culprit))
        found[key] = before_ms + phase.duration_ms, first
    return max(found.values(), key=lambda one: one[0], default=(0.0, NothingWrong(facts.duration_ms)))[1]


def _culprit_of(facts: CheckpointFacts, phase: Phase) -> WaitedFor:
    slot = None if phase.slot is None else facts.slot(phase.slot)
    standstill = _standstill(facts, slot, phase)
    match phase.kind:
        case PhaseKind.LOGGING:
            return SlowStore(Where(JOB_LOG), phase.duration_ms, 0)
        case PhaseKind.STORE_QUEUE:
            return SlowStore(Where(DRIVERS_STORE), phase.duration_ms, 0)
        case PhaseKind.BEHIND_COMMIT if phase.commit is not None:
            return _slow_commit(facts, phase.commit, phase)
        case PhaseKind.HELD_BACK:
            return BehindSavepoint(phase.duration_ms)
        case PhaseKind.SINK:
            return SlowStore(Where(f"the sink of {phase.where}"), phase.duration_ms, 0)
        case PhaseKind.UPLOAD | PhaseKind.UPLOAD_QUEUE:
            return _slow_store(slot, phase)
        case PhaseKind.SYNC:
            return _big_synchronous_part(facts, phase)
        case _ if standstill is not None:
            return standstill
        case PhaseKind.ENCODING:
            return BigState(Where(phase.where), phase.duration_ms, 0 if slot is None else slot.stored_bytes)
        case PhaseKind.ALIGNING:
            task = None if phase.task is None else facts.task(phase.task)
            return LateSlot(Where(phase.where), phase.duration_ms) if task is None else _behind_data(facts, task)
        case PhaseKind.ON_THE_WAY if phase.barrier is not None:
            sender = facts.slot(phase.barrier.sender.subtask)
            if (senders := _standstill(facts, sender, phase)) is not None:
                return senders
            return LateChannel(Where(str(phase.barrier.channel)), phase.duration_ms, str(phase.barrier.sender))
        case _:
            return LateSlot(Where(phase.where), phase.duration_ms)


def _standstill(facts: CheckpointFacts, slot: SlotFacts | None, phase: Phase) -> LongCall | BigSynchronousPart | None:
    """The snapshot or step that makes up most of the phase, if one does: the slot could do nothing else meanwhile."""
    if slot is None:
        return None
    least_ms = _ONE_CALL_SHARE * phase.duration_ms
    # Snapshots first: a step in which one was taken was as long because of it.
    taken = [(_sync_overlap_ms(task, phase), task) for task in facts.tasks_of(slot.slot) if task.sync_ms]
    overlap_ms, task = max(taken, key=lambda one: one[0], default=(0.0, None))
    if task is not None and overlap_ms >= least_ms and overlap_ms > 0:
        return BigSynchronousPart(_where(facts, task.task), task.sync_ms, task.state_bytes)
    longest = max(slot.long_steps, key=lambda step: _overlap_ms(step.started_ms, step.ended_ms, phase), default=None)
    if longest is None or _overlap_ms(longest.started_ms, longest.ended_ms, phase) < least_ms:
        return None
    return LongCall(_where(facts, longest.task), longest.duration_ms, longest.rows)


def _sync_overlap_ms(task: TaskFacts, phase: Phase) -> float:
    started_ms, ended_ms = task.snapshot_ms, task.snapshot_end_ms
    return 0.0 if started_ms is None or ended_ms is None else _overlap_ms(started_ms, ended_ms, phase)


def _overlap_ms(started_ms: float, ended_ms: float, phase: Phase) -> float:
    return max(0.0, min(ended_ms, phase.ended_ms) - max(started_ms, phase.started_ms))


def _slow_commit(facts: CheckpointFacts, commit: CommitFacts, phase: Phase) -> SlowCommit | SlowStore:
    ended_ms = facts.duration_ms if commit.ended_ms is None else commit.ended_ms
    commit_ms = ended_ms - commit.started_ms
    if commit_ms <= _SINK_ABOVE_WRITING * commit.written_ms:
        return SlowStore(Where(JOB_LOG), phase.duration_ms, 0)
    return SlowCommit(
        Where("the sink's commit"), checkpoint=commit.checkpoint, waited_ms=phase.duration_ms, commit_ms=commit_ms
    )


def _slow_store(slot: SlotFacts | None, phase: Phase) -> SlowStore:
    stored_bytes = 0 if slot is None else slot.stored_bytes
    return SlowStore(Where(f"checkpointLocation, written by {phase.where}"), phase.duration_ms, stored_bytes)


def _big_synchronous_part(facts: CheckpointFacts, phase: Phase) -> WaitedFor:
    task = None if phase.task is None else facts.task(phase.task)
    if task is None:
        return LateSlot(Where(phase.where), phase.duration_ms)
    # It may have gone on after the checkpoint was given up.
    return BigSynchronousPart(_where(facts, task.task), max(phase.duration_ms, task.sync_ms), task.state_bytes)


def _behind_data(facts: CheckpointFacts, task: TaskFacts) -> WaitedFor:
    """Rows stood in front of the barrier: whoever was slow to take them, this task or one behind it."""
    slow = _busiest_behind(facts, task)
    if _waits_for_store(slow):
        changes = Where(f"checkpointLocation, changes of state of {_where(facts, slow.task).what}")
        return SlowStore(changes, slow.unstored_ms, 0)
    if (share := _skewed_share(facts, slow)) is not None:
        subtasks = 1 + len(facts.siblings(slow.task))
        return SkewedSubtask(_where(facts, slow.task), share=share, subtasks=subtasks, rows=slow.epoch_rows)
    return SlowOperator(
        _where(facts, slow.task),
        queued_bytes=max(slow.queued_bytes, slow.left_bytes),
        bytes_per_s=None if slow.drain_bytes_per_ms is None else slow.drain_bytes_per_ms * 1000,
    )


def _skewed_share(facts: CheckpointFacts, task: TaskFacts) -> float | None:
    """Of the data of all subtasks of its vertex; None if it is not far above its part.

    Where checkpoints capture, each subtask works on for as long as it likes before its snapshot, and what it worked on
    came at any time: there the last few epochs are looked at, by what came in them.
    """
    subtasks = (task, *facts.siblings(task.task))
    if all(each.has_whole_epoch for each in subtasks):
        shares = [each.offered_bytes for each in subtasks]
    else:
        shares = [each.came_bytes for each in subtasks]
    total = sum(shares)
    is_skewed = len(shares) > 1 and total and shares[0] / total >= 1 / len(shares) + _SKEWED_ABOVE_FAIR
    return shares[0] / total if is_skewed else None


def _busiest_behind(facts: CheckpointFacts, task: TaskFacts) -> TaskFacts:
    """Down the stream for as long as the task mostly waits for room, to the one that takes the room."""
    passed = {task.task}
    while task.backpressured_ms > task.busy_ms and not _waits_for_store(task):
        behind = [each for each in facts.receivers(task.task) if each.task not in passed]
        if not behind:
            return task
        task = max(behind, key=lambda each: (max(each.queued_bytes, each.left_bytes), each.busy_ms))
        passed.add(task.task)
    if _waits_for_store(task):
        return task
    neighbours = facts.tasks_of(task.task.subtask)
    # A task that neither works nor lacks room waits for its turn: another one of its slot works.
    busiest = max(neighbours, key=lambda each: each.busy_ms, default=task)
    share_ms = task.alignment_ms / 4
    is_waiting_for_turn = task.busy_ms + task.backpressured_ms < share_ms <= busiest.busy_ms
    return busiest if is_waiting_for_turn and busiest.busy_ms > 4 * task.busy_ms else task


def _waits_for_store(task: TaskFacts) -> bool:
    return task.unstored_ms > max(task.busy_ms, task.backpressured_ms / 2)


# -- not complete


def _waited_for(facts: CheckpointFacts, path: tuple[Phase, ...]) -> WaitedFor:
    silent = _silent(facts, (slot for slot in facts.slots if slot.acknowledged_ms is None))
    if silent is not None:
        return silent
    task = waited_for_task(facts)
    if task is not None:
        return _held_up_by(facts, task)
    if path:
        return _culprit_of(facts, max(path, key=lambda phase: phase.duration_ms))
    return NothingWrong(facts.duration_ms)


def _silent(facts: CheckpointFacts, slots: Iterable[SlotFacts]) -> SilentSlot | LongCall | BigSynchronousPart | None:
    for slot in slots:
        # What it said before the trigger does not count as an answer to it.
        silent_ms = facts.duration_ms - max(0.0, slot.last_word_ms or 0.0)
        never_answered = slot.triggered_ms is None and (slot.last_word_ms is None or slot.last_word_ms <= 0.0)
        if silent_ms < SILENT_AFTER_MS and not never_answered:
            continue
        # It may have told afterwards what it was doing.
        if (standstill := _standstill(facts, slot, _last_part(facts, slot, silent_ms))) is not None:
            return standstill
        tasks = facts.tasks_of(slot.slot)
        likely = max(tasks, key=lambda task: (task.busy_ms, task.is_source), default=None)
        return SilentSlot(
            Where(f"slot {slot.slot}", "" if likely is None else likely.name),
            silent_ms=silent_ms,
            tasks=tuple(f"{task.task} ({task.name})" for task in tasks),
        )
    return None


def _last_part(facts: CheckpointFacts, slot: SlotFacts, duration_ms: float) -> Phase:
    return Phase(
        kind=PhaseKind.WAITING,
        where=f"slot {slot.slot}",
        slot=slot.slot,
        task=None,
        name="",
        started_ms=facts.duration_ms - duration_ms,
        duration_ms=duration_ms,
    )


def _held_up_by(facts: CheckpointFacts, task: TaskFacts) -> WaitedFor:
    slot = facts.slot(task.task.subtask)
    if slot is None or slot.triggered_ms is None:
        # A peer's barrier may have come to another of its tasks before the trigger.
        if slot is not None and (standstill := _standstill(facts, slot, _last_part(facts, slot, facts.duration_ms))):
            return standstill
        return SilentSlot(Where(f"slot {task.task.subtask}", task.name), facts.duration_ms, (str(task.task),))
    for sender in task.missing:
        found = facts.task(sender)
        if found is not None and found.snapshot_ms is not None:
            late_ms = facts.duration_ms - found.snapshot_ms
            return LateChannel(Where(f"{sender} -> {task.task}"), late_ms, str(sender))
    return _behind_data(facts, task)


def _where(facts: CheckpointFacts, task: TaskId) -> Where:
    found = facts.task(task)
    return Where(str(task), "" if found is None else found.name)
