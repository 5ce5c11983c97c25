"""The checkpoints of one generation: asks the protocol, tells the slots, stores, commits, keeps the numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.history import History, Underway, in_progress_view
from tidegate.coordinator.views import CheckpointView
from tidegate.model.clock import Clock
from tidegate.model.errors import JobFailure, Superseded, TidegateError
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import AbortCheckpoint, Acknowledge, CheckpointDone, Decline, ToSlot, TriggerCheckpoint
from tidegate.plan.physical import JobPlan
from tidegate.protocol.checkpoints import (
    Abort,
    CheckpointAction,
    Checkpoints,
    Complete,
    FailJob,
    FailureReason,
    Trigger,
)
from tidegate.storage.manifests import Manifest
from tidegate.worker.mailbox import Background


class CheckpointListener(Protocol):
    """Whom it concerns that a checkpoint is durable, or that the generation cannot go on."""

    def on_checkpoint_committed(self, checkpoint: CheckpointId) -> None: ...
    def on_checkpointing_failed(self, failure: TidegateError) -> None: ...


@dataclass(slots=True)
class Checkpointing:
    """`tell_all` reaches every slot; `storing` runs what blocks, in order. Closed, it does nothing any more."""

    generation: Generation
    plan: JobPlan
    fingerprint: Sequence[str]
    machine: Checkpoints
    durable: DurableJob
    storing: Background
    clock: Clock
    history: History
    tell_all: Callable[[ToSlot], None]
    listener: CheckpointListener
    _underway: dict[CheckpointId, Underway] = field(default_factory=dict)
    _details: dict[CheckpointId, str] = field(default_factory=dict)
    _is_closed: bool = False

    # -- events

    def on_time(self) -> None:
        self._perform(self.machine.on_time(self.clock.monotonic_ms()))

    def request(self) -> CheckpointId:
        """One more as soon as it may start; gives the least id that it can have."""
        least = self.machine.next_id
        self._perform(self.machine.request(self.clock.monotonic_ms()))
        return least

    def on_acknowledge(self, slot: SlotIndex, message: Acknowledge) -> None:
        underway = self._underway.get(message.checkpoint)
        if underway is not None:
            underway.acknowledged[slot] = message
            self._perform(self.machine.on_acknowledged(message.checkpoint, slot))

    def on_decline(self, slot: SlotIndex, message: Decline) -> None:
        self._give_up_on(message.checkpoint, FailureReason.DECLINED, f"slot {slot}: {message.reason}")

    def close(self, reason: FailureReason) -> None:
        self._perform(self.machine.close(reason))
        self._is_closed = True

    # -- questions

    def next_deadline_ms(self) -> float:
        return self.machine.next_deadline_ms()

    def in_progress(self) -> tuple[CheckpointView, ...]:
        now_ms = self.clock.monotonic_ms()
        return tuple(in_progress_view(underway, now_ms) for underway in reversed(self._underway.values()))

    # -- inside

    def _perform(self, actions: list[CheckpointAction]) -> None:
        for action in actions:
            match action:
                case Trigger(checkpoint):
                    started = Underway(checkpoint, self.clock.monotonic_ms(), self.clock.wall_ms())
                    self._underway[checkpoint] = started
                    self.tell_all(TriggerCheckpoint(self.generation, checkpoint))
                case Complete(checkpoint):
                    self._complete(self._underway[checkpoint])
                case Abort(checkpoint, reason):
                    self.tell_all(AbortCheckpoint(self.generation, checkpoint))
                    self.history.failed(
                        self._underway.pop(checkpoint),
                        reason=reason,
                        detail=self._details.pop(checkpoint, None),
                        now_ms=self.clock.monotonic_ms(),
                    )
                case FailJob(checkpoint, reason):
                    why = self.history.views()[0].failure_reason or reason.value
                    self.listener.on_checkpointing_failed(
                        JobFailure(f"Checkpoint {checkpoint} failed, and no more may fail: {why}.")
                    )
                case unreachable:
                    assert_never(unreachable)

    def _complete(self, underway: Underway) -> None:
        """Manifest, log entry, commit, retention: in this order, beside the loop."""
        checkpoint = underway.checkpoint
        if (gap := underway.find_gap()) is not None:
            self._give_up_on(checkpoint, FailureReason.INCONSISTENT, gap)
            return
        manifest = underway.manifest(
            generation=self.generation,
            now_ms=self.clock.monotonic_ms(),
            fingerprint=self.fingerprint,
            parallelism=self.plan.parallelism,
            max_parallelism=self.plan.max_parallelism,
        )
        paths: list[str] = []

        def commit_if_stored() -> None:
            if paths:
                self.durable.commit(checkpoint, manifest)
                self.durable.retire()

        self.storing.submit(
            lambda: paths.append(self.durable.complete(manifest)),
            lambda error: self._on_stored(manifest, paths, error),
        )
        self.storing.submit(commit_if_stored, lambda error: self._on_committed(checkpoint, paths, error))

    def _on_stored(self, manifest: Manifest, paths: list[str], error: BaseException | None) -> None:
        checkpoint = manifest.checkpoint
        if self._is_closed or checkpoint not in self._underway:
            return
        if isinstance(error, Superseded):
            self.listener.on_checkpointing_failed(error)
        elif error is not None:
            self._give_up_on(checkpoint, FailureReason.STORE_FAILED, f"{type(error).__name__}: {error}")
        else:
            done, now_ms = self._underway.pop(checkpoint), self.clock.monotonic_ms()
            self.history.completed(done, path=paths[0], duration_ms=now_ms - done.triggered_at_ms)
            self.tell_all(CheckpointDone(self.generation, checkpoint))
            self._perform(self.machine.on_stored(checkpoint, now_ms))

    def _on_committed(self, checkpoint: CheckpointId, paths: list[str], error: BaseException | None) -> None:
        if self._is_closed or not paths:
            return
        if error is None:
            self.listener.on_checkpoint_committed(checkpoint)
        else:
            self.listener.on_checkpointing_failed(as_failure(error, f"Checkpoint {checkpoint} could not be committed"))

    def _give_up_on(self, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> None:
        if checkpoint in self._underway:
            self._details[checkpoint] = detail
            self._perform(self.machine.on_failed(checkpoint, reason))


def as_failure(error: BaseException, what: str) -> TidegateError:
    if isinstance(error, TidegateError):
        return error
    return JobFailure(f"{what}: {type(error).__name__}: {error}")
