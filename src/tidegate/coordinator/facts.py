"""Puts together what is known of one checkpoint: what slots said, on the driver's time line, with the plan's names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.slot_clocks import SlotClocks
from tidegate.model.ids import ChannelId, CheckpointId, Generation, SlotIndex, TaskId
from tidegate.network.messages import Acknowledge, BarrierSeen, LongStep, SlotStanding, TaskPart, TaskStanding
from tidegate.plan.physical import JobPlan
from tidegate.protocol.checkpoint_facts import (
    BarrierFacts,
    CheckpointFacts,
    CommitFacts,
    Configured,
    InputBefore,
    Outcome,
    SlotFacts,
    StepFacts,
    TaskFacts,
)
from tidegate.protocol.checkpoints import CheckpointSettings

# Of a very wide job only the slots that answered last are kept: the critical path is among them.
_SLOTS_KEPT = 64
# Rows come in lumps: who gets how much of them is seen over about four epochs.
_KEPT_OF_EARLIER = 0.75


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is the same for all checkpoints of a generation."""

    plan: JobPlan
    generation: Generation
    settings: CheckpointSettings
    configured: Configured

    @classmethod
    def of(cls, spec: JobSpec, generation: Generation) -> "JobFacts":
        slots = spec.slot_settings
        configured = Configured(
            guarantee=slots.guarantee,
            switch_after_ms=spec.switch_after_ms,
            debloat_target_ms=slots.debloat_target_ms,
            active_backpressure=slots.active_backpressure,
        )
        return cls(slots.plan, generation, spec.checkpoints, configured)


@dataclass(slots=True)
class StoringTimes:
    """How far the driver is with one checkpoint that all slots have acknowledged, by its clock.

    Noted by the thread that stores, one time after the other; the loop only looks.
    """

    checkpoint: CheckpointId
    ready_at_ms: float
    writing_at_ms: float | None = None
    logged_at_ms: float | None = None
    committing_at_ms: float | None = None
    ended_at_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Of one checkpoint: what each slot said of it and, by the driver's clock, when it acknowledged and spoke last.

    `inputs_before`: of its tasks, as far as known. `paused_ms`: of its sources, since the trigger, and of what Spark
    ingests that which paused longest. `before`: checkpoints that the driver was not done with when this one was ready.
    """

    checkpoint: int
    is_savepoint: bool
    kind: str
    triggered_at_ms: float
    triggered_wall_ms: int
    acknowledged: Mapping[SlotIndex, Acknowledge]
    acknowledged_at_ms: Mapping[SlotIndex, float]
    standings: Mapping[SlotIndex, SlotStanding]
    last_words_ms: Mapping[SlotIndex, float]
    inputs_before: Mapping[TaskId, InputBefore] = field(default_factory=dict)
    paused_ms: Mapping[TaskId, float] = field(default_factory=dict)
    ingest_paused_ms: float = 0.0
    storing: StoringTimes | None = None
    before: tuple[StoringTimes, ...] = ()


def checkpoint_facts(
    job: JobFacts,
    heard: Heard,
    clocks: SlotClocks,
    *,
    outcome: Outcome,
    duration_ms: float,
    failure: str | None = None,
    detail: str | None = None,
    failed_slot: SlotIndex | None = None,
    is_upload_failure: bool = False,
) -> CheckpointFacts:
    slots = sorted(range(job.plan.parallelism), key=lambda slot: -heard.acknowledged_at_ms.get(SlotIndex(slot), 1e300))
    lines = [_SlotLine(job, heard, clocks, SlotIndex(slot), duration_ms) for slot in sorted(slots[:_SLOTS_KEPT])]
    facts = CheckpointFacts(
        checkpoint=heard.checkpoint,
        generation=job.generation,
        outcome=outcome,
        kind=heard.kind,
        is_savepoint=heard.is_savepoint,
        triggered_at_ms=heard.triggered_wall_ms,
        duration_ms=duration_ms,
        interval_ms=job.settings.interval_ms,
        timeout_ms=job.settings.timeout_ms,
        failure=failure,
        detail=detail,
        failed_slot=failed_slot,
        is_upload_failure=is_upload_failure,
        tasks=tuple(task for line in lines for task in line.tasks()),
        slots=tuple(line.slot_facts() for line in lines),
        edges=tuple((int(edge.sender), int(edge.receiver)) for edge in job.plan.edges),
        configured=job.configured,
    )
    return as_known_now(facts, heard)


def inputs_after(facts: CheckpointFacts) -> dict[TaskId, InputBefore]:
    """What the next checkpoint has to know of the tasks that took their snapshots."""
    return {
        task.task: InputBefore(task.waiting_bytes, int(_KEPT_OF_EARLIER * task.came_bytes))
        for task in facts.tasks
        if task.snapshot_ms is not None
    }


def as_known_now(facts: CheckpointFacts, heard: Heard) -> CheckpointFacts:
    """With what came to be known since they were put together: pauses of sources, and how far the driver is."""
    tasks = tuple(
        replace(task, paused_ms=paused_ms)
        if (paused_ms := heard.paused_ms.get(task.task, 0.0)) > task.paused_ms
        else task
        for task in facts.tasks
    )
    facts = replace(facts, tasks=tasks, ingest_paused_ms=max(facts.ingest_paused_ms, heard.ingest_paused_ms))
    if (storing := heard.storing) is None:
        return facts
    since_ms, writing_at_ms = heard.triggered_at_ms, storing.writing_at_ms
    commits = (_commit(times, since_ms) for times in heard.before)
    return replace(
        facts,
        completing_ms=storing.ready_at_ms - since_ms,
        writing_ms=None if writing_at_ms is None else writing_at_ms - since_ms,
        commits_before=tuple(commit for commit in commits if commit is not None),
    )


def _commit(times: StoringTimes, since_ms: float) -> CommitFacts | None:
    """None if it has not begun."""
    writing_at_ms, committing_at_ms, ended_at_ms = times.writing_at_ms, times.committing_at_ms, times.ended_at_ms
    if writing_at_ms is None or committing_at_ms is None:
        return None
    return CommitFacts(
        checkpoint=times.checkpoint,
        started_ms=committing_at_ms - since_ms,
        ended_ms=None if ended_at_ms is None else ended_at_ms - since_ms,
        written_ms=committing_at_ms - writing_at_ms,
    )


def as_completed(facts: CheckpointFacts, *, duration_ms: float) -> CheckpointFacts:
    """Once its log entry is there: what came after `facts` was known is the driver's part."""
    return replace(facts, duration_ms=max(duration_ms, facts.duration_ms), completing_ms=facts.duration_ms)


class _SlotLine:
    """One slot's part, with its times put onto the checkpoint's own line."""

    def __init__(self, job: JobFacts, heard: Heard, clocks: SlotClocks, slot: SlotIndex, duration_ms: float) -> None:
        self._job = job
        self._heard = heard
        self._clocks = clocks
        self._slot = slot
        self._duration_ms = duration_ms
        self._ack = heard.acknowledged.get(slot)
        self._standing = self._ack.standing if self._ack is not None else heard.standings.get(slot)
        self._senders = {edge.id: edge.sender for edge in job.plan.edges}

    def slot_facts(self) -> SlotFacts:
        said, heard = self._standing, self._heard
        acknowledged_ms, word_ms = heard.acknowledged_at_ms.get(self._slot), heard.last_words_ms.get(self._slot)
        since_ms = heard.triggered_at_ms
        return SlotFacts(
            slot=self._slot,
            triggered_ms=None if said is None else self._at(said.triggered_at_ms),
            encoding_ms=None if said is None else self._at(said.encoding_at_ms),
            queued_ms=None if said is None else self._at(said.queued_at_ms),
            uploading_ms=None if said is None else self._at(said.uploading_at_ms),
            sink_ms=0.0 if said is None else said.sink_ms,
            storing_ms=0.0 if said is None else said.storing_ms,
            stored_bytes=0 if said is None else said.stored_bytes,
            acknowledged_ms=None if acknowledged_ms is None else acknowledged_ms - since_ms,
            last_word_ms=None if word_ms is None else word_ms - since_ms,
            long_steps=() if said is None else tuple(step for one in said.long_steps if (step := self._step(one))),
            storage=None if said is None else said.storage,
            encoded_for_ms=None if said is None else said.encoded_for_ms,
        )

    def tasks(self) -> list[TaskFacts]:
        standings = {} if self._standing is None else {one.task: one for one in self._standing.tasks}
        parts = {} if self._ack is None else {part.task: part for part in self._ack.parts}
        found = []
        for vertex in self._job.plan.vertices:
            task = TaskId(vertex.id, int(self._slot))
            if self._slot >= self._job.plan.parallelism_of(vertex.id):
                continue
            facts = TaskFacts(task=task, name=vertex.name, is_source=vertex.source is not None)
            if task in standings:
                facts = self._with_standing(facts, standings[task])
            elif self._standing is not None or task in parts:
                # A task that has finished takes no part: its last snapshot stands for it.
                facts = replace(facts, snapshot_ms=0.0, kind="aligned")
            found.append(_with_part(facts, parts[task]) if task in parts else facts)
        return found

    def _with_standing(self, facts: TaskFacts, said: TaskStanding) -> TaskFacts:
        return replace(
            facts,
            first=self._barrier(said.first),
            last=self._barrier(said.last),
            missing=tuple(self._sender(channel) for channel in said.missing),
            kind=said.kind,
            snapshot_ms=self._at(said.snapshot_at_ms),
            sync_ms=said.sync_ms,
            state_bytes=said.state_bytes,
            queued_bytes=said.queued_bytes,
            left_bytes=said.left_bytes,
            processed_bytes=said.processed_bytes,
            drain_bytes_per_ms=said.drain_bytes_per_ms,
            busy_ms=said.busy_ms,
            backpressured_ms=said.backpressured_ms,
            epoch_rows=said.epoch_rows,
            epoch_bytes=said.epoch_bytes,
            paused_ms=said.paused_ms,
            unstored_ms=said.unstored_ms,
            before=self._heard.inputs_before.get(said.task),
        )

    def _barrier(self, seen: BarrierSeen | None) -> BarrierFacts | None:
        at_ms = None if seen is None else self._at(seen.at_ms)
        if seen is None or at_ms is None:
            return None
        return BarrierFacts(seen.channel, self._sender(seen.channel), at_ms)

    def _sender(self, channel: ChannelId) -> TaskId:
        return TaskId(self._senders[channel.edge], channel.sender)

    def _step(self, step: LongStep) -> StepFacts | None:
        """None if it was over before the checkpoint was triggered."""
        ended_ms = self._since_trigger_ms(step.ended_at_ms)
        if ended_ms is None or ended_ms <= 0.0:
            return None
        return StepFacts(step.task, ended_ms - step.duration_ms, step.duration_ms, step.rows)

    def _at(self, slot_ms: float | None) -> float | None:
        """None also for what came after the checkpoint had ended."""
        at_ms = None if slot_ms is None else self._since_trigger_ms(slot_ms)
        return None if at_ms is None or at_ms > self._duration_ms else max(0.0, at_ms)

    def _since_trigger_ms(self, slot_ms: float) -> float | None:
        at_ms = self._clocks.in_driver_time_ms(self._slot, slot_ms)
        return None if at_ms is None else at_ms - self._heard.triggered_at_ms


def _with_part(facts: TaskFacts, part: TaskPart) -> TaskFacts:
    return replace(
        facts,
        async_ms=part.async_ms,
        state_bytes=part.state_bytes,
        inflight_bytes=part.inflight_bytes,
        new_inflight_bytes=part.new_inflight_bytes,
    )
