"""The simulation can fail: each of these faults, put into production code, is found within a few hundred seeds.

A variant is named after the rule it breaks.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.coordinator import durable
from tidegate.model.elements import EndOfInput
from tidegate.model.ids import ChannelId, CheckpointId, Sequence, TaskId
from tidegate.protocol.barriers import CaptureArrival, GateAction, GateBarriers, TakeSnapshot
from tidegate.protocol.commit import permit_logged
from tidegate.storage.job_log import CheckpointCompleted, Entry, JobLog
from tidegate.storage.manifests import Manifest
from tidegate.testing.simulation import RunFailure, run_seed
from tidegate.worker import restoring
from tidegate.worker.gate import Gate
from tidegate.worker.output import HeldCapture, OutputChannel
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.task import Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SEED" in os.environ, reason="SEED asks for one seed alone"),
]

_MOST_SEEDS = 300
_variants: list[Callable[[pytest.MonkeyPatch], None]] = []


def variant(apply: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    _variants.append(apply)
    return apply


# -- at the receiver


@variant
def captures_only_what_was_queued_at_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    original = GateBarriers.on_arrival

    def on_arrival(self: GateBarriers, channel: ChannelId, sequence: Sequence, *, now_ms: float) -> list[GateAction]:
        actions = original(self, channel, sequence, now_ms=now_ms)
        return [action for action in actions if not isinstance(action, CaptureArrival)]

    patch.setattr(GateBarriers, "on_arrival", on_arrival)


@variant
def closes_the_capture_when_the_cut_is_known_whatever_is_still_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GateBarriers, "_is_closed", lambda self, active, channel: channel in active.cuts)


@variant
def keeps_what_the_sender_stores_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GateBarriers, "_trim", lambda self, checkpoint, active, channel: [])


@variant
def consumes_elements_of_a_newer_epoch(patch: pytest.MonkeyPatch) -> None:
    original = GateBarriers.may_consume

    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return original(self, channel, epoch=CheckpointId(0))

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant
def does_not_wait_at_an_aligned_barrier(patch: pytest.MonkeyPatch) -> None:
    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return epoch <= self._channels[channel].newest_cut

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant
def stays_aligned_although_the_sender_has_captured(patch: pytest.MonkeyPatch) -> None:
    def must_switch(active: Any, now_ms: float) -> bool:
        return not active.snapshot_taken and active.switch_at_ms is not None and active.switch_at_ms <= now_ms

    patch.setattr(GateBarriers, "_must_switch", staticmethod(must_switch))


@variant
def reopens_an_aborted_checkpoint_on_a_late_barrier(patch: pytest.MonkeyPatch) -> None:
    original = GateBarriers._open

    def open_again(self: GateBarriers, checkpoint: CheckpointId, *, age_ms: float, now_ms: float) -> Any:
        if checkpoint not in self._active:
            self._newest_seen = CheckpointId(0)
        return original(self, checkpoint, age_ms=age_ms, now_ms=now_ms)

    patch.setattr(GateBarriers, "_open", open_again)


@variant
def drops_the_rest_of_a_half_done_batch(patch: pytest.MonkeyPatch) -> None:
    original = Gate._open_capture

    def open_capture(state: Any) -> Any:
        capture = original(state)
        if state.rows_done:
            del capture.elements[0]
            capture.first = Sequence(capture.first + 1)
        return capture

    patch.setattr(Gate, "_open_capture", staticmethod(open_capture))


@variant
def captures_a_half_done_batch_whole(patch: pytest.MonkeyPatch) -> None:
    original = Gate._open_capture

    def open_capture(state: Any) -> Any:
        capture = original(state)
        capture.elements = [(arrived.sequence, arrived.element) for arrived in state.queue]
        return capture

    patch.setattr(Gate, "_open_capture", staticmethod(open_capture))


# -- at the sender


@variant
def forgets_what_the_sender_captured(patch: pytest.MonkeyPatch) -> None:
    def take_held(self: OutputChannel, checkpoint: CheckpointId) -> HeldCapture | None:
        self._held.pop(checkpoint, None)
        return None

    patch.setattr(OutputChannel, "take_held", take_held)


@variant
def leaves_gathered_rows_behind_the_barrier(patch: pytest.MonkeyPatch) -> None:
    original = OutputChannel.barrier

    def barrier(self: OutputChannel, *args: Any, **kwargs: Any) -> None:
        gathered, self._gathered = self._gathered, []
        original(self, *args, **kwargs)
        self._gathered = gathered

    patch.setattr(OutputChannel, "barrier", barrier)


@variant
def loses_grants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutputChannel, "on_granted", lambda self, consumed: None)


# -- in the task and its snapshot


@variant
def takes_the_snapshot_before_operators_have_flushed(patch: pytest.MonkeyPatch) -> None:
    original = Task._take

    def take(self: Task, take: TakeSnapshot) -> None:
        emits, self._emits = self._emits, [lambda rows: None for _ in self._emits]
        original(self, take)
        self._emits = emits

    patch.setattr(Task, "_take", take)


@variant
def forgets_what_sinks_prepared_for_a_checkpoint_that_failed(patch: pytest.MonkeyPatch) -> None:
    original = SlotSnapshots._to_commit

    def to_commit(self: SlotSnapshots, task: TaskId, checkpoint: CheckpointId) -> Any:
        return original(self, task, checkpoint)[-1:]

    patch.setattr(SlotSnapshots, "_to_commit", to_commit)


# -- in the restore


@variant
def restores_what_the_sender_held_before_what_the_receiver_had(patch: pytest.MonkeyPatch) -> None:
    original = restoring._captured_elements

    def captured_elements(*args: Any, **kwargs: Any) -> Any:
        return {channel: list(reversed(found)) for channel, found in original(*args, **kwargs).items()}

    patch.setattr(restoring, "_captured_elements", captured_elements)


@variant
def drops_captured_end_marks_and_leaves_a_hole(patch: pytest.MonkeyPatch) -> None:
    original = restoring._recovered_channel

    def recovered_channel(stored: Any, elements: Any, schema: Any) -> Any:
        channel = original(stored, elements, schema)
        ends = {sequence for sequence, element in elements if isinstance(element, EndOfInput)}
        kept = tuple(arrived for arrived in channel.elements if arrived.sequence not in ends)
        return restoring.RecoveredChannel(kept, channel.next_sequence)

    patch.setattr(restoring, "_recovered_channel", recovered_channel)


@variant
def numbers_elements_from_zero_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    original = OutputChannel.__init__

    def init(self: OutputChannel, *args: Any, next_sequence: Sequence, **kwargs: Any) -> None:
        original(self, *args, next_sequence=Sequence(0), **kwargs)

    patch.setattr(OutputChannel, "__init__", init)


# -- in what is durable


@variant
def commits_before_the_log_entry(patch: pytest.MonkeyPatch) -> None:
    original = durable.DurableJob.complete

    def complete(self: durable.DurableJob, manifest: Manifest) -> str:
        committables = [committable for part in manifest.committables for committable in part.committables]
        self._committer.commit(committables, permit_logged(manifest.checkpoint))
        return original(self, manifest)

    patch.setattr(durable.DurableJob, "complete", complete)


@variant
def forgets_uncommitted_checkpoints_when_it_starts_again(patch: pytest.MonkeyPatch) -> None:
    def none_uncommitted(entries: list[Entry]) -> list[CheckpointCompleted]:
        return []

    patch.setattr(durable, "uncommitted", none_uncommitted)


@variant
def commits_out_of_the_logs_order_after_a_failed_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(durable.DurableJob, "commit", durable.DurableJob._commit_one)


@variant
def lets_a_superseded_driver_write_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JobLog, "_stop_if_superseded", lambda self: None)


@pytest.mark.parametrize("broken", _variants, ids=lambda apply: apply.__name__)
def test_a_variant_is_found_that(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(isinstance(run_seed(seed), RunFailure) for seed in range(_MOST_SEEDS))
