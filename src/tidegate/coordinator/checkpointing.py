"""The checkpoints of one generation: asks the protocol, tells the slots, stores, commits, keeps the numbers."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import msgspec

from tidegate.connectors.contract import CommittedPositions
from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.facts import (
    JobFacts,
    StoringTimes,
    as_completed,
    as_known_now,
    checkpoint_facts,
    inputs_after,
)
from tidegate.coordinator.failed_savepoints import FailedSavepoint
from tidegate.coordinator.history import HeldElsewhere, History, Underway, in_progress_view
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.savepoints import Savepoints
from tidegate.coordinator.slot_clocks import SlotClocks
from tidegate.coordinator.views import CheckpointView, TaskView
from tidegate.model.clock import Clock
from tidegate.model.errors import JobFailure, Superseded, TidegateError
from tidegate.model.ids import CheckpointId, Generation, SlotIndex, TaskId, VertexId
from tidegate.network.messages import (
    AbortCheckpoint,
    Acknowledge,
    BarrierEverywhere,
    CheckpointDone,
    Decline,
    SlotStanding,
    SnapshotsTaken,
    ToSlot,
    TriggerCheckpoint,
)
from tidegate.operators.described import describe_plan
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, InputBefore, Outcome
from tidegate.protocol.checkpoints import (
    Abort,
    CheckpointAction,
    Checkpoints,
    Complete,
    FailJob,
    FailureReason,
    Refuse,
    Trigger,
)
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.requests import Afterwards, CheckpointRequest, SavepointAlignment, SavepointRequest
from tidegate.protocol.why import why
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest
from tidegate.storage.stored_plan import StoredPlan
from tidegate.worker.mailbox import Background

log = logging.getLogger("tidegate")

# Slots tell how far they were with one that is given up; nobody waits for them for longer.
_LATE_WORDS = 4
# Slots report five times a second, and the loop turns far more often.
_LOOK_AT_PAUSES_EVERY_MS = 100.0


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A checkpoint that failed, as it was then."""

    underway: Underway
    reason: FailureReason
    detail: str | None
    duration_ms: float
    last_words_ms: dict[SlotIndex, float]


class CheckpointListener(Protocol):
    """Whom it concerns that a checkpoint is durable, or that the generation cannot go on; it has the slots' reports."""

    def on_checkpoint_committed(self, checkpoint: CheckpointId) -> None: ...
    def on_checkpointing_failed(self, failure: TidegateError) -> None: ...
    def on_suspending_committed(self) -> None: ...
    def on_suspending_failed(self) -> None: ...

    def task_views(self) -> tuple[TaskView, ...]:
        """What the slots reported last."""
        ...


@dataclass(slots=True)
class Checkpointing:
    """`tell` reaches one slot; `storing` runs what blocks, in order. Closed, it does nothing any more."""

    generation: Generation
    spec: JobSpec
    machine: Checkpoints
    durable: DurableJob
    storing: Background
    clock: Clock
    history: History
    savepoints: Savepoints
    tell: Callable[[SlotIndex, ToSlot], None]
    listener: CheckpointListener
    tell_sources: Callable[[VertexId, CommittedPositions], None] = lambda vertex, committed: None
    clocks: SlotClocks = field(default_factory=SlotClocks)
    _underway: dict[CheckpointId, Underway] = field(default_factory=dict)
    _given_up: dict[CheckpointId, "_GivenUp"] = field(default_factory=dict)
    _details: dict[CheckpointId, str] = field(default_factory=dict)
    _waiting: deque[CheckpointAction] = field(default_factory=deque)
    _uncommitted: list[StoringTimes] = field(default_factory=list)
    _inputs: Mapping[TaskId, InputBefore] = field(default_factory=dict)
    _look_at_pauses_ms: float = 0.0
    _described: StoredPlan | None = None
    _is_performing: bool = False
    _is_closed: bool = False

    # -- events

    def on_time(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._look_at_pauses_ms:
            self._look_at_pauses_ms = now_ms + _LOOK_AT_PAUSES_EVERY_MS
            self._look_at_pauses()
        self._perform(self.machine.on_time(now_ms))

    def request(self) -> CheckpointId:
        """One more as soon as it may start; gives the least id that it can have."""
        least = self.machine.next_id
        self._perform(self.machine.request(CheckpointRequest(), self.clock.monotonic_ms()))
        return least

    def request_savepoint(self, request: SavepointRequest) -> None:
        self._perform(self.machine.request(request, self.clock.monotonic_ms()))

    def on_snapshots_taken(self, slot: SlotIndex, message: SnapshotsTaken) -> None:
        underway = self._underway.get(message.checkpoint)
        if underway is None:
            return
        underway.taken.add(slot)
        if len(underway.taken) == self._slot_count():
            self._tell_all(BarrierEverywhere(self.generation, message.checkpoint))
            for follower in self.spec.followers:
                follower.on_reached_all(message.checkpoint)

    def on_acknowledge(self, slot: SlotIndex, message: Acknowledge) -> None:
        underway = self._underway.get(message.checkpoint)
        if underway is not None:
            underway.acknowledged.setdefault(slot, message)  # said twice, it counts once, as in the machine
            underway.acknowledged_at_ms.setdefault(slot, self.clock.monotonic_ms())
            self._perform(self.machine.on_acknowledged(message.checkpoint, slot))

    def on_standings(self, slot: SlotIndex, standings: list[SlotStanding]) -> None:
        """How far a slot is with the checkpoints that are under way; only for who asks why."""
        for standing in standings:
            checkpoint = standing.checkpoint
            if checkpoint in self._underway:
                self._underway[checkpoint].standings[slot] = standing
            elif (given_up := self._given_up.get(checkpoint)) is not None:
                given_up.underway.standings[slot] = standing
                self.history.failed_later_known(self._facts_of_failed(given_up))

    def on_decline(self, slot: SlotIndex, message: Decline) -> None:
        if (underway := self._underway.get(message.checkpoint)) is not None:
            underway.failed_slot, underway.is_upload_failure = slot, message.is_upload
        self._give_up_on(message.checkpoint, FailureReason.DECLINED, f"slot {slot}: {message.reason}")

    def close(self, reason: FailureReason, detail: str | None = None) -> None:
        if detail is not None:
            self._details = {checkpoint: self._details.get(checkpoint, detail) for checkpoint in self._underway}
        self._perform(self.machine.close(reason))
        self._is_closed = True
        # Also those that are stored: whether they are committed is found out by the next generation.
        self.savepoints.release_all(f"{reason.value} before it was committed")

    # -- questions

    def next_deadline_ms(self) -> float:
        return self.machine.next_deadline_ms()

    def in_progress(self) -> tuple[CheckpointView, ...]:
        now_ms = self.clock.monotonic_ms()
        return tuple(in_progress_view(underway, now_ms) for underway in reversed(self._underway.values()))

    def facts_in_progress(self) -> tuple[CheckpointFacts, ...]:
        now_ms = self.clock.monotonic_ms()
        return tuple(
            checkpoint_facts(
                self._job_facts(),
                underway.heard(self._last_words_ms()),
                self.clocks,
                outcome=Outcome.IN_PROGRESS,
                duration_ms=now_ms - underway.triggered_at_ms,
            )
            for underway in self._underway.values()
        )

    # -- inside

    def _perform(self, actions: list[CheckpointAction]) -> None:
        """In the order in which they were decided: one that leads to others does not overtake those before them."""
        self._waiting.extend(actions)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._waiting:
                self._perform_one(self._waiting.popleft())
        finally:
            self._is_performing = False

    def _perform_one(self, action: CheckpointAction) -> None:
        match action:
            case Trigger(checkpoint, savepoint):
                self._trigger(checkpoint, savepoint)
            case Complete(checkpoint):
                if checkpoint in self._underway:
                    self._complete(self._underway[checkpoint])
            case Abort(checkpoint, reason, savepoint):
                self._abort(checkpoint, reason, savepoint)
            case Refuse(request, reason):
                self.history.refused(reason)
                if isinstance(request, SavepointRequest):
                    self._refuse_savepoint(request, reason.value)
            case FailJob(checkpoint, reason):
                said = self.history.views()[0].failure_reason or reason.value
                self.listener.on_checkpointing_failed(
                    JobFailure(
                        f"Checkpoint {checkpoint} failed, and no more may fail: {said}.{self._because(checkpoint)}"
                    )
                )
            case unreachable:
                assert_never(unreachable)

    def _trigger(self, checkpoint: CheckpointId, savepoint: SavepointRequest | None) -> None:
        location = None
        switch_after_ms = self.spec.switch_after_ms
        if savepoint is not None:
            location = f"{savepoint.location}/{layout.savepoint(checkpoint, self.generation, run=self.spec.run)}"
            switch_after_ms = 0.0 if savepoint.alignment is SavepointAlignment.UNALIGNED else None
        if self.spec.slot_settings.guarantee is Guarantee.AT_LEAST_ONCE:
            switch_after_ms = None  # nothing waits for its barrier, so nothing needs to overtake
        self._underway[checkpoint] = Underway(
            checkpoint,
            self.clock.monotonic_ms(),
            self.clock.wall_ms(),
            savepoint=savepoint,
            location=location,
            inputs_before=self._inputs,
            ingest_paused_before_ms=self._ingest_paused_ms(),
            names={vertex.id: vertex.name for vertex in self.spec.slot_settings.plan.vertices},
        )
        self.history.triggered(self._underway[checkpoint])
        for follower in self.spec.followers:
            follower.on_triggered(checkpoint)
        suspends = savepoint is not None and savepoint.afterwards is Afterwards.SUSPEND
        self._tell_all(TriggerCheckpoint(self.generation, checkpoint, switch_after_ms, location, suspends))

    def _abort(self, checkpoint: CheckpointId, reason: FailureReason, savepoint: SavepointRequest | None) -> None:
        self._tell_all(AbortCheckpoint(self.generation, checkpoint))
        self._settled(checkpoint)
        self._look_at_pauses()
        detail = self._details.pop(checkpoint, None)
        now_ms = self.clock.monotonic_ms()
        underway = self._underway.pop(checkpoint)
        given_up = _GivenUp(underway, reason, detail, now_ms - underway.triggered_at_ms, self._last_words_ms())
        facts = self._facts_of_failed(given_up)
        self._inputs = {**self._inputs, **inputs_after(facts)}
        self.history.failed(underway, reason=reason, detail=detail, now_ms=now_ms, facts=facts)
        self._given_up[checkpoint] = given_up
        while len(self._given_up) > _LATE_WORDS:
            del self._given_up[next(iter(self._given_up))]
        if savepoint is not None:
            self._forget_files_of(underway)
            self._refuse_savepoint(savepoint, reason.value if detail is None else f"{reason.value}: {detail}")

    def _forget_files_of(self, savepoint: Underway) -> None:
        """Noted behind what is being stored, which may be this very one; they go when a later one is acknowledged."""
        assert savepoint.location is not None, "each savepoint has a folder of its own"
        failed = FailedSavepoint(
            checkpoint=savepoint.checkpoint,
            generation=self.generation,
            location=savepoint.location,
            triggered_at_ms=savepoint.triggered_wall_ms,
            quiet_from=self.machine.next_id,
        )
        self.storing.submit(lambda: self.durable.on_savepoint_failed(failed), lambda error: None)

    def _stored_plan(self) -> StoredPlan:
        if self._described is None:
            self._described = describe_plan(self.spec.slot_settings.plan)
        return self._described

    def _refuse_savepoint(self, request: SavepointRequest, why: str) -> None:
        self.savepoints.refuse(request, why)
        if request.afterwards is Afterwards.SUSPEND and not self._is_closed:
            self.listener.on_suspending_failed()

    def _complete(self, underway: Underway) -> None:
        """Manifest, log entry, commit: in this order, beside the loop."""
        checkpoint = underway.checkpoint
        if (gap := underway.find_gap()) is not None:
            self._give_up_on(checkpoint, FailureReason.INCONSISTENT, gap)
            return
        self._look_at_pauses()
        now_ms = self.clock.monotonic_ms()
        manifest = underway.manifest(
            generation=self.generation,
            now_ms=now_ms,
            fingerprint=self.spec.fingerprint,
            plan=self.spec.slot_settings.plan,
            state_backend=self.spec.slot_settings.state_backend,
        )
        paths: list[str] = []
        times = underway.storing = StoringTimes(checkpoint, now_ms)
        underway.before = tuple(before for before in self._uncommitted if before.ended_at_ms is None)
        self._uncommitted = [*underway.before, times]
        heard = underway.heard(self._last_words_ms())
        facts = checkpoint_facts(
            self._job_facts(), heard, self.clocks, outcome=Outcome.COMPLETED, duration_ms=manifest.duration_ms
        )
        manifest = msgspec.structs.replace(manifest, plan=self._stored_plan())

        def store() -> None:
            # Not before: the commit of an earlier checkpoint may have taken long.
            times.writing_at_ms = self.clock.monotonic_ms()
            told = msgspec.structs.replace(manifest, statistics=as_known_now(facts, heard))
            if underway.location is not None:
                told = msgspec.structs.replace(told, job=self.spec.slot_settings.checkpoint_location)
            path = self.durable.complete(told, location=underway.location)
            times.logged_at_ms = self.clock.monotonic_ms()
            # As `restore.from` takes it.
            own = f"{self.spec.slot_settings.checkpoint_location}/{path.removesuffix(f'/{layout.MANIFEST}')}"
            paths.append(own if underway.location is None else path)

        def commit_if_stored() -> None:
            times.committing_at_ms = self.clock.monotonic_ms()
            try:
                if times.logged_at_ms is not None:
                    duration_ms = times.logged_at_ms - underway.triggered_at_ms
                    self.durable.commit(checkpoint, manifest, duration_ms=duration_ms)
            finally:
                times.ended_at_ms = self.clock.monotonic_ms()

        self.storing.submit(store, lambda error: self._on_stored(manifest, facts, times, paths, error))
        self.storing.submit(commit_if_stored, lambda error: self._on_committed(underway, paths, error))

    def _on_stored(
        self,
        manifest: Manifest,
        facts: CheckpointFacts,
        times: StoringTimes,
        paths: list[str],
        error: BaseException | None,
    ) -> None:
        checkpoint = manifest.checkpoint
        if self._is_closed or checkpoint not in self._underway:
            return
        if isinstance(error, Superseded):
            self.listener.on_checkpointing_failed(error)
        elif error is not None:
            self._give_up_on(checkpoint, FailureReason.STORE_FAILED, f"{type(error).__name__}: {error}")
        else:
            self._look_at_pauses()
            done, now_ms = self._underway.pop(checkpoint), self.clock.monotonic_ms()
            self._settled(checkpoint)
            assert times.logged_at_ms is not None, "it is stored"
            duration_ms = times.logged_at_ms - done.triggered_at_ms
            facts = as_known_now(facts, done.heard(self._last_words_ms()))
            completed = as_completed(facts, duration_ms=duration_ms)
            self._inputs = {**self._inputs, **inputs_after(completed)}
            self.history.completed(done, path=paths[0], duration_ms=duration_ms, facts=completed)
            held_by_receiver = done.held_by_receiver()
            for slot in map(SlotIndex, range(self._slot_count())):
                held = held_by_receiver.get(slot, HeldElsewhere())
                self.tell(slot, CheckpointDone(self.generation, checkpoint, held.files, held.channels))
            self._perform(self.machine.on_stored(checkpoint, now_ms))

    def _on_committed(self, underway: Underway, paths: list[str], error: BaseException | None) -> None:
        checkpoint = underway.checkpoint
        if self._is_closed and paths and error is not None:
            log.warning("Checkpoint %d is stored and not committed, the next start does that: %s", checkpoint, error)
        if self._is_closed or not paths:
            return
        if error is not None:
            self.listener.on_checkpointing_failed(as_failure(error, f"Checkpoint {checkpoint} could not be committed"))
            return
        self._perform(self.machine.on_committed(checkpoint, self.clock.monotonic_ms()))
        # After the slots were told what is complete: only what is under way now may still refer to what goes.
        pending = frozenset(self.machine.pending())
        retained: list[CheckpointId] = []

        def retire() -> None:
            try:
                self.durable.retire(pending, told=checkpoint)
            finally:
                # Sources wait for it, whatever became of old files.
                retained.append(self.durable.oldest_retained())

        self.storing.submit(retire, lambda error: self._on_retired(underway, retained, error))
        if underway.savepoint is not None:
            self.savepoints.complete(underway.savepoint, paths[0])
        self.listener.on_checkpoint_committed(checkpoint)
        if underway.savepoint is not None and underway.savepoint.afterwards is Afterwards.SUSPEND:
            self.listener.on_suspending_committed()

    def _on_retired(self, underway: Underway, retained: list[CheckpointId], error: BaseException | None) -> None:
        if retained and not self._is_closed:
            for vertex, positions in underway.positions().items():
                self.tell_sources(vertex, CommittedPositions(underway.checkpoint, positions, retained[0]))
        if isinstance(error, Superseded) and not self._is_closed:
            self.listener.on_checkpointing_failed(error)
        elif error is not None:
            log.warning("Old checkpoints could not be removed, the next one tries again: %s", error)

    def _look_at_pauses(self) -> None:
        """Sources may pause for a checkpoint that their slot has acknowledged: only reports tell of that."""
        if self.spec.slot_settings.active_backpressure is ActiveBackpressure.OFF or not self._underway:
            return
        totals_ms = {view.task: view.paused_ms for view in self.listener.task_views() if view.is_source}
        last_words_ms, ingest_totals_ms = self._last_words_ms(), self._ingest_paused_ms()
        for underway in self._underway.values():
            underway.note_pauses(totals_ms, last_words_ms)
            underway.note_ingest_pauses(ingest_totals_ms)

    def _ingest_paused_ms(self) -> dict[str, float]:
        return {name: ms for follower in self.spec.followers for name, ms in follower.paused_ms().items()}

    def _facts_of_failed(self, given_up: "_GivenUp") -> CheckpointFacts:
        underway = given_up.underway
        return checkpoint_facts(
            self._job_facts(),
            underway.heard(given_up.last_words_ms),
            self.clocks,
            outcome=Outcome.FAILED,
            duration_ms=given_up.duration_ms,
            failure=given_up.reason.value,
            detail=given_up.detail,
            failed_slot=underway.failed_slot,
            is_upload_failure=underway.is_upload_failure,
        )

    def _because(self, checkpoint: CheckpointId) -> str:
        """What an expired one waited for; the other reasons come with a text of their own."""
        facts = next((one for one in self.history.facts() if one.checkpoint == checkpoint), None)
        is_expired = facts is not None and facts.failure == FailureReason.EXPIRED.value
        return f" {why(facts).summary}" if facts is not None and is_expired else ""

    def _job_facts(self) -> JobFacts:
        return JobFacts.of(self.spec, self.generation)

    def _last_words_ms(self) -> dict[SlotIndex, float]:
        words = ((SlotIndex(slot), self.clocks.last_word_ms(SlotIndex(slot))) for slot in range(self._slot_count()))
        return {slot: at_ms for slot, at_ms in words if at_ms is not None}

    def _give_up_on(self, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> None:
        if checkpoint in self._underway:
            self._details[checkpoint] = detail
            self._perform(self.machine.on_failed(checkpoint, reason))

    def _settled(self, checkpoint: CheckpointId) -> None:
        for follower in self.spec.followers:
            follower.on_settled(checkpoint)

    def _tell_all(self, message: ToSlot) -> None:
        for slot in range(self._slot_count()):
            self.tell(SlotIndex(slot), message)

    def _slot_count(self) -> int:
        return self.spec.slot_settings.plan.parallelism


def as_failure(error: BaseException, what: str) -> TidegateError:
    if isinstance(error, TidegateError):
        return error
    return JobFailure(f"{what}: {type(error).__name__}: {error}")
