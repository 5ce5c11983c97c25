"""The simulation can fail: each of these faults, put into production code, is found within a few hundred seeds.

A variant is named after the rule it breaks. `found_at` is a seed that shows it: it is played first, so that this is
quick, and if it shows nothing any more (another scenario, another order of turns) all seeds are played.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tidegate.connectors.contract import EndOfData, EndOfSource
from tidegate.coordinator import durable
from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.running import Running
from tidegate.model.elements import EndOfInput
from tidegate.model.ids import ChannelId, CheckpointId, Sequence, SlotIndex
from tidegate.network.messages import CutSent, FromSlot
from tidegate.protocol import barriers, rescale
from tidegate.protocol.admission import SourceAdmission
from tidegate.protocol.barriers import CaptureArrival, GateBarriers, TakeSnapshot
from tidegate.protocol.checkpoints import Checkpoints
from tidegate.protocol.commit import permit_logged
from tidegate.protocol.cuts import ChannelCuts, SendCut
from tidegate.protocol.finished import TaskEnd
from tidegate.protocol.phases import RecoveryPhases
from tidegate.protocol.shared_files import SharedFiles
from tidegate.protocol.switching import StorageSpeed
from tidegate.protocol.watermarks import GateWatermarks, KeyGroupFloors
from tidegate.state.heap import HeapState
from tidegate.state.timers import Timers
from tidegate.storage import layout
from tidegate.storage.job_log import Committed, JobLog, next_checkpoint_id
from tidegate.storage.manifests import Manifest
from tidegate.testing.simulation import RunFailure, run_seed
from tidegate.worker import restoring
from tidegate.worker.gate import Gate, RecoveredChannel
from tidegate.worker.output import HeldCapture, OutputChannel
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.source_head import SourceHead
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task import Task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SEED" in os.environ, reason="SEED asks for one seed alone"),
]

_MOST_SEEDS = 500
# A variant that does not fit the production code any more fails as well, and shows nothing.
_DOES_NOT_FIT = ("TypeError:", "AttributeError:", "NameError:")
Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Variant:
    apply: Callable[[Patch], None]
    found_at: int


_variants: list[Variant] = []


def variant(*, found_at: int) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        _variants.append(Variant(apply, found_at))
        return apply

    return add


@pytest.mark.parametrize("broken", _variants, ids=lambda broken: broken.apply.__name__)
def test_a_variant_is_found_that(broken: Variant, monkeypatch: Patch) -> None:
    broken.apply(monkeypatch)
    seeds = dict.fromkeys([broken.found_at, *range(_MOST_SEEDS)])
    found = next((run for run in map(run_seed, seeds) if isinstance(run, RunFailure)), None)
    assert found is not None, f"no seed up to {_MOST_SEEDS} shows it"
    assert not any(sign in found.reason for sign in _DOES_NOT_FIT), f"the variant must be adapted: {found.reason}"


# -- at the receiver


@variant(found_at=1)
def captures_only_what_was_queued_at_the_snapshot(patch: Patch) -> None:
    original = GateBarriers.on_arrival

    def on_arrival(self: GateBarriers, *args: Any, **kwargs: Any) -> Any:
        return [action for action in original(self, *args, **kwargs) if not isinstance(action, CaptureArrival)]

    patch.setattr(GateBarriers, "on_arrival", on_arrival)


@variant(found_at=1)
def closes_the_capture_when_the_cut_is_known_whatever_is_still_on_its_way(patch: Patch) -> None:
    original = GateBarriers._look_at

    def look_at(self: GateBarriers, channel: ChannelId, active: Any) -> None:
        original(self, channel, active)
        if channel in active.cuts:
            active.unclosed.discard(channel)

    patch.setattr(GateBarriers, "_look_at", look_at)


@variant(found_at=1)
def keeps_what_the_sender_stores_too(patch: Patch) -> None:
    patch.setattr(GateBarriers, "_trim", lambda self, checkpoint, active, channel: [])


@variant(found_at=1)
def consumes_elements_of_a_newer_epoch(patch: Patch) -> None:
    original = GateBarriers.may_consume

    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return original(self, channel, epoch=CheckpointId(0))

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant(found_at=7)
def does_not_wait_at_an_aligned_barrier(patch: Patch) -> None:
    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return epoch <= self._channels[channel].newest_cut

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant(found_at=3)
def stays_aligned_although_the_sender_has_captured(patch: Patch) -> None:
    def must_switch(active: Any, now_ms: float) -> bool:
        return not active.snapshot_taken and active.switch_at_ms is not None and active.switch_at_ms <= now_ms

    patch.setattr(barriers, "_must_switch", must_switch)


@variant(found_at=2)
def reopens_an_aborted_checkpoint_on_a_late_barrier(patch: Patch) -> None:
    original = GateBarriers._open

    def open_again(self: GateBarriers, checkpoint: CheckpointId, **kwargs: Any) -> Any:
        if checkpoint not in self._active:
            self._newest_seen = CheckpointId(0)
        return original(self, checkpoint, **kwargs)

    patch.setattr(GateBarriers, "_open", open_again)


@variant(found_at=22)
def lets_an_older_checkpoint_stay_aligned_when_a_newer_one_overtakes(patch: Patch) -> None:
    original = GateBarriers._settle

    def settle(self: GateBarriers, now_ms: float) -> Any:
        due = [id for id, active in self._active.items() if barriers._must_switch(active, now_ms)]
        others = {id: active for id, active in self._active.items() if due and id < max(due) and id not in due}
        self._active = {id: active for id, active in self._active.items() if id not in others}
        actions = original(self, now_ms)
        self._active = {**others, **self._active}
        return actions

    patch.setattr(GateBarriers, "_settle", settle)


@variant(found_at=9)
def drops_the_rest_of_a_half_done_batch(patch: Patch) -> None:
    original = Gate._open_capture

    def open_capture(self: Gate, channel: ChannelId, state: Any) -> Any:
        capture = original(self, channel, state)
        if state.rows_done:
            del capture.elements[0]
            capture.first, capture.row = Sequence(capture.first + 1), 0
        return capture

    patch.setattr(Gate, "_open_capture", open_capture)


@variant(found_at=9)
def captures_a_half_done_batch_whole(patch: Patch) -> None:
    original = Gate._open_capture

    def open_capture(self: Gate, channel: ChannelId, state: Any) -> Any:
        rows_done, state.rows_done = state.rows_done, 0
        capture = original(self, channel, state)
        state.rows_done = rows_done
        return capture

    patch.setattr(Gate, "_open_capture", open_capture)


@variant(found_at=275)
def consumes_new_rows_before_recovered_ones(patch: Patch) -> None:
    patch.setattr(RecoveryPhases, "may_consume", lambda self, channel: True)


# Beyond the first seeds of all jobs, but the 140th of this one: two restores have to follow closely on another.
@variant(found_at=242)
def forgets_at_a_second_restore_what_was_recovered_at_the_first(patch: Patch) -> None:
    patch.setattr(RecoveryPhases, "left", lambda self, channel: ())


@variant(found_at=5)
def waits_for_the_barrier_of_a_finished_channel(patch: Patch) -> None:
    patch.setattr(GateBarriers, "on_finished", lambda self, channel, *, now_ms: [])


@variant(found_at=1)
def never_grants_what_it_consumed(patch: Patch) -> None:
    patch.setattr(OutputChannel, "on_granted", lambda self, consumed, window_bytes, now_ms: None)


@variant(found_at=20)
def goes_by_the_furthest_channels_event_time(patch: Patch) -> None:
    def furthest(self: GateWatermarks) -> int:
        return max(state.event_time_ms for state in self._channels.values())

    patch.setattr(GateWatermarks, "_lowest_active_ms", furthest)


# -- at the sender


@variant(found_at=1)
def forgets_what_the_sender_captured(patch: Patch) -> None:
    original = OutputChannel.take_held

    def take_held(self: OutputChannel, checkpoint: CheckpointId) -> HeldCapture | None:
        held = original(self, checkpoint)
        return None if held is None else replace(held, elements=())

    patch.setattr(OutputChannel, "take_held", take_held)


@variant(found_at=3)
def captures_on_neither_side_after_a_switch(patch: Patch) -> None:
    original = OutputChannel.on_time

    def on_time(self: OutputChannel, now_ms: float, *, storage: StorageSpeed) -> None:
        before = set(self._held)
        original(self, now_ms, storage=storage)
        for checkpoint in self._held.keys() - before:
            self._held[checkpoint] = replace(self._held[checkpoint], elements=())

    patch.setattr(OutputChannel, "on_time", on_time)


@variant(found_at=1)
def captures_on_both_sides_after_a_switch(patch: Patch) -> None:
    original = OutputChannel._perform

    def perform(self: OutputChannel, cuts: list[SendCut]) -> None:
        send = self._link.send_message

        def send_as_aligned(message: Any) -> None:
            is_cut = isinstance(message, CutSent)
            send(msgspec.structs.replace(message, held_from=message.before) if is_cut else message)

        link, self._link = self._link, _Speaking(self._link, send_as_aligned)
        original(self, cuts)
        self._link = link

    patch.setattr(OutputChannel, "_perform", perform)


class _Speaking:
    """A link whose messages go another way."""

    def __init__(self, link: Any, send_message: Callable[[Any], None]) -> None:
        self.can_accept = link.can_accept
        self.send_element = link.send_element
        self.send_message = send_message


@variant(found_at=5)
def leaves_gathered_rows_behind_the_barrier(patch: Patch) -> None:
    original = OutputChannel.barrier

    def barrier(self: OutputChannel, *args: Any, **kwargs: Any) -> None:
        gathered, self._gathered = self._gathered, []
        original(self, *args, **kwargs)
        self._gathered = gathered

    patch.setattr(OutputChannel, "barrier", barrier)


@variant(found_at=0)
def cuts_as_if_the_last_element_sent_were_still_held(patch: Patch) -> None:
    original = ChannelCuts.on_sent

    def on_sent(self: ChannelCuts, first_unsent: Any) -> list[SendCut]:
        return original(self, first_unsent - 1)

    patch.setattr(ChannelCuts, "on_sent", on_sent)


# -- in the task and its snapshot


@variant(found_at=3)
def takes_the_snapshot_before_operators_have_flushed(patch: Patch) -> None:
    original = Task._take

    def take(self: Task, take: TakeSnapshot) -> None:
        emits, self._emits = self._emits, [lambda rows: None for _ in self._emits]
        original(self, take)
        self._emits = emits

    patch.setattr(Task, "_take", take)


@variant(found_at=5)
def freezes_the_state_when_it_is_encoded_instead_of_at_the_barrier(patch: Patch) -> None:
    original = HeapState.snapshot

    def snapshot(self: HeapState) -> Any:
        sections = original(self)
        self._shared.clear()
        return sections

    patch.setattr(HeapState, "snapshot", snapshot)


@variant(found_at=21)
def stores_no_watermark(patch: Patch) -> None:
    patch.setattr(Task, "_progress", lambda self: StoredTask())


@variant(found_at=20)
def ends_event_time_when_it_is_suspended(patch: Patch) -> None:
    original = SourceHead.poll

    def poll(self: SourceHead, max_rows: int, now_ms: float) -> Any:
        polled = original(self, max_rows, now_ms)
        return EndOfData() if isinstance(polled, EndOfSource) else polled

    patch.setattr(SourceHead, "poll", poll)


@variant(found_at=2)
def forgets_what_sinks_prepared_for_a_checkpoint_that_failed(patch: Patch) -> None:
    original = SlotSnapshots._to_commit
    patch.setattr(SlotSnapshots, "_to_commit", lambda self, task, checkpoint: original(self, task, checkpoint)[-1:])


@variant(found_at=20)
def refers_to_captures_of_a_checkpoint_that_was_then_aborted(patch: Patch) -> None:
    acknowledge, abort = SlotSnapshots._acknowledge, Checkpointing._abort

    def known_at_once(self: SlotSnapshots, checkpoint: CheckpointId, *args: Any) -> None:
        acknowledge(self, checkpoint, *args)
        self.known.replace(self._acknowledged[checkpoint])

    # By itself this is harmless: nobody may refer to what an aborted checkpoint wrote.
    def delete_with_it(self: Checkpointing, checkpoint: CheckpointId, *args: Any) -> None:
        abort(self, checkpoint, *args)
        store = self.durable._store
        for path in store.list(layout.SHARED):
            folder = layout.parse_channel_file(path)
            if folder is not None and folder.checkpoint == checkpoint:
                store.delete(path)

    patch.setattr(SlotSnapshots, "_acknowledge", known_at_once)
    patch.setattr(Checkpointing, "_abort", delete_with_it)


@variant(found_at=164)
def stores_a_snapshot_before_the_coordinator_has_said_where(patch: Patch) -> None:
    original = SlotSnapshots._go_on

    def go_on(self: SlotSnapshots, checkpoint: CheckpointId, assembly: Any) -> None:
        assembly.is_triggered = True
        original(self, checkpoint, assembly)

    patch.setattr(SlotSnapshots, "_go_on", go_on)


@variant(found_at=16)
def lets_a_savepoint_refer_to_shared_files(patch: Patch) -> None:
    original = SlotSnapshots._encode

    def encode(self: SlotSnapshots, assembly: Any) -> Iterator[None]:
        savepoint, assembly.savepoint = assembly.savepoint, None
        yield from original(self, assembly)
        assembly.savepoint = savepoint

    patch.setattr(SlotSnapshots, "_encode", encode)


@variant(found_at=0)
def finishes_a_task_before_a_checkpoint_covers_its_end(patch: Patch) -> None:
    original = TaskEnd.on_end

    def on_end(self: TaskEnd) -> Any:
        self._is_covered = True
        return original(self)

    patch.setattr(TaskEnd, "on_end", on_end)


@variant(found_at=1)
def keeps_a_source_paused_when_its_checkpoint_has_settled(patch: Patch) -> None:
    original = SourceAdmission.may_pull

    def may_pull(self: SourceAdmission, now_ms: float) -> bool:
        return self._paused_since_ms is None and original(self, now_ms)

    patch.setattr(SourceAdmission, "may_pull", may_pull)


# -- in the restore


@variant(found_at=21)
def restores_what_the_sender_held_before_what_the_receiver_had(patch: Patch) -> None:
    original = restoring._Restoring._captured

    def captured(self: Any, edge: Any, stored: Any) -> Iterator[Any]:
        found = list(original(self, edge, stored))
        received = stored.h - stored.first
        turned = found[received:] + found[:received]
        for (sequence, _, _), (_, element, first_row) in zip(found, turned, strict=True):
            yield sequence, element, first_row

    patch.setattr(restoring._Restoring, "_captured", captured)


@variant(found_at=5)
def drops_captured_end_marks_and_leaves_a_hole(patch: Patch) -> None:
    original = restoring._Restoring._captured

    def captured(self: Any, edge: Any, stored: Any) -> Iterator[Any]:
        return (found for found in original(self, edge, stored) if not isinstance(found[1], EndOfInput))

    patch.setattr(restoring._Restoring, "_captured", captured)


@variant(found_at=5)
def replays_the_end_marks_of_the_run_before(patch: Patch) -> None:
    original = restoring._Restoring._kept

    def kept(self: Any, edge: Any, channel: ChannelId) -> RecoveredChannel:
        marks = {s: e for s, e, _ in self._captured(edge, self._ranges[channel]) if isinstance(e, EndOfInput)}
        recovered = original(self, edge, channel)
        elements = (replace(a, element=marks.get(a.sequence, a.element)) for a in recovered.elements)
        return replace(recovered, elements=tuple(elements))

    patch.setattr(restoring._Restoring, "_kept", kept)


@variant(found_at=1)
def numbers_elements_from_zero_after_a_restore(patch: Patch) -> None:
    original = OutputChannel.__init__

    def init(self: OutputChannel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "next_sequence": 0})

    patch.setattr(OutputChannel, "__init__", init)


@variant(found_at=9)
def drops_timers(patch: Patch) -> None:
    patch.setattr(Timers, "load", lambda self, key_groups: None)


# -- in the restore at another parallelism


@variant(found_at=0)
def gives_captured_rows_to_every_receiver_that_takes_over_a_part_of_them(patch: Patch) -> None:
    patch.setattr(restoring, "_rows_of", lambda element, edge, piece, *, max_parallelism: element)


@variant(found_at=6)
def gives_captured_rows_to_the_owner_of_their_old_key_groups(patch: Patch) -> None:
    def by_old_receiver(old: Any, new: Any, moving: list[ChannelId], max_parallelism: int) -> Any:
        return rescale._by_old_receiver(new, moving)

    patch.setattr(rescale, "_by_key_group", by_old_receiver)


@variant(found_at=20)
def gives_captured_rows_of_a_rebalance_to_two_receivers(patch: Patch) -> None:
    original = rescale._by_old_receiver

    def to_two(new: Any, moving: list[ChannelId]) -> Iterator[Any]:
        for channel, piece in original(new, moving):
            yield channel, piece
            others = [c for c in rescale.connections(new) if c[1] != channel.receiver]
            if others:
                sender, receiver = others[0]
                yield ChannelId(new.edge, sender, receiver), piece

    patch.setattr(rescale, "_by_old_receiver", to_two)


@variant(found_at=15)
def takes_keyed_state_of_one_old_owner_alone(patch: Patch) -> None:
    original = rescale.overlapping
    patch.setattr(restoring, "overlapping", lambda subtask, **counts: original(subtask, **counts)[:1])


@variant(found_at=54)
def keeps_only_the_least_event_time(patch: Patch) -> None:
    original = restoring._Restoring._progress_of_all

    def progress_of_all(self: Any, vertex: Any) -> Any:
        return original(self, vertex)[0], KeyGroupFloors(())

    patch.setattr(restoring._Restoring, "_progress_of_all", progress_of_all)


@variant(found_at=248)
def restores_broadcast_state_of_the_least_advanced_subtask(patch: Patch) -> None:
    def least_advanced(old: Any, in_flight: Iterable[Any]) -> int:
        left = [0] * old[0].receivers
        for part in in_flight:
            if part.channel.edge in {shape.edge for shape in old}:
                left[part.channel.receiver] += part.count
        return max(range(len(left)), key=lambda subtask: left[subtask])

    patch.setattr(restoring, "most_advanced_of", least_advanced)


@variant(found_at=6)
def gives_broadcast_state_to_the_old_subtasks_alone(patch: Patch) -> None:
    original = restoring._Restoring._broadcast_from

    def broadcast_from(self: Any, vertex: Any) -> range:
        return original(self, vertex) if self._slot < self._files.parallelism_of(vertex.id) else range(0)

    patch.setattr(restoring._Restoring, "_broadcast_from", broadcast_from)


@variant(found_at=1)
def assigns_splits_again_that_were_read_before(patch: Patch) -> None:
    patch.setattr(durable, "read_source_states", lambda store, manifest, plan: {})


# -- on the coordinator


@variant(found_at=31)
def believes_slots_of_an_older_generation_whose_ids_are_used_again(patch: Patch) -> None:
    on_message, begin = Driver._on_message, Running.begin

    def believe(self: Driver, slot: SlotIndex, message: FromSlot) -> None:
        generation = self._bringing_up.generation or message.generation
        on_message(self, slot, msgspec.structs.replace(message, generation=generation))

    def begin_anew(self: Running, *args: Any) -> None:
        self._next_checkpoint = CheckpointId(1)
        begin(self, *args)

    patch.setattr(Driver, "_on_message", believe)
    patch.setattr(Running, "begin", begin_anew)
    patch.setattr(durable, "next_checkpoint_id", lambda entries, stored_paths: next_checkpoint_id(entries, []))


@variant(found_at=0)
def completes_a_checkpoint_that_some_slots_have_acknowledged(patch: Patch) -> None:
    original = Checkpoints.on_acknowledged

    def on_acknowledged(self: Checkpoints, checkpoint: CheckpointId, slot: SlotIndex) -> Any:
        if checkpoint in self._pending:
            self._pending[checkpoint].waiting_for &= {slot}
        return original(self, checkpoint, slot)

    patch.setattr(Checkpoints, "on_acknowledged", on_acknowledged)


@variant(found_at=43)
def does_not_tell_the_slots_of_an_abort(patch: Patch) -> None:
    original = Checkpointing._abort

    def abort(self: Checkpointing, *args: Any) -> None:
        tell, self.tell = self.tell, lambda slot, message: None
        original(self, *args)
        self.tell = tell

    patch.setattr(Checkpointing, "_abort", abort)


# -- in what is durable


@variant(found_at=24)
def commits_before_the_log_entry(patch: Patch) -> None:
    original = DurableJob.complete

    def complete(self: DurableJob, manifest: Manifest, *, location: str | None = None) -> str:
        committables = [committable for part in manifest.committables for committable in part.committables]
        self._committer.commit(committables, permit_logged(manifest.checkpoint))
        return original(self, manifest, location=location)

    patch.setattr(DurableJob, "complete", complete)


@variant(found_at=11)
def records_a_commit_before_the_sinks_have_committed(patch: Patch) -> None:
    original = DurableJob._commit_one

    def commit_one(self: DurableJob, checkpoint: CheckpointId, manifest: Manifest) -> None:
        self._log.append(Committed(checkpoint=checkpoint))
        append, self._log.append = self._log.append, lambda entry: None  # type: ignore[method-assign]
        try:
            original(self, checkpoint, manifest)
        finally:
            self._log.append = append  # type: ignore[method-assign]

    patch.setattr(DurableJob, "_commit_one", commit_one)


@variant(found_at=6)
def forgets_uncommitted_checkpoints_when_it_starts_again(patch: Patch) -> None:
    patch.setattr(durable, "uncommitted", lambda entries: [])


@variant(found_at=109)
def commits_out_of_the_logs_order_after_a_failed_commit(patch: Patch) -> None:
    patch.setattr(DurableJob, "commit", DurableJob._commit_one)


@variant(found_at=6)
def lets_a_superseded_driver_write_the_log(patch: Patch) -> None:
    patch.setattr(JobLog, "_stop_if_superseded", lambda self: None)


@variant(found_at=1)
def restores_another_checkpoint_than_the_newest(patch: Patch) -> None:
    original = DurableJob._choose
    patch.setattr(DurableJob, "_choose", lambda self, retained: original(self, retained[:-1] or retained))


@variant(found_at=0)
def retires_the_only_checkpoint(patch: Patch) -> None:
    def to_retire(completed: Any, *, keep: Any, now_ms: int) -> Any:
        return [c.checkpoint for c in completed if c.is_committed and not c.is_savepoint]

    patch.setattr(durable, "to_retire", to_retire)


@variant(found_at=0)
def deletes_a_shared_file_with_the_checkpoint_that_wrote_it(patch: Patch) -> None:
    patch.setattr(SharedFiles, "_referenced", lambda self: set())
    patch.setattr(durable._UsedFiles, "may_need", lambda self, path, writer: False)


@variant(found_at=3)
def deletes_a_shared_file_that_a_pending_checkpoint_refers_to(patch: Patch) -> None:
    patch.setattr(SharedFiles, "_may_be_used", lambda self, file, writer: writer > self._newest)


@variant(found_at=0)
def leaves_the_files_of_aborted_checkpoints_behind(patch: Patch) -> None:
    patch.setattr(DurableJob, "clean_up", lambda self, generation: None)
