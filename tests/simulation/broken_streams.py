"""Rules of the running stream, each broken once: gates, outputs, tasks and their snapshots."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from tests.simulation.broken_variant import Patch, variant
from tidegate.connectors.contract import EndOfData, EndOfSource
from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.model.ids import ChannelId, CheckpointId, Sequence
from tidegate.network.messages import CutSent
from tidegate.protocol import barriers
from tidegate.protocol.admission import SourceAdmission
from tidegate.protocol.barriers import CaptureArrival, GateBarriers, TakeSnapshot
from tidegate.protocol.cuts import ChannelCuts, SendCut
from tidegate.protocol.finished import TaskEnd
from tidegate.protocol.phases import RecoveryPhases
from tidegate.protocol.switching import StorageSpeed
from tidegate.protocol.watermarks import GateWatermarks
from tidegate.state.heap import HeapState
from tidegate.storage import layout
from tidegate.worker.gate import Gate
from tidegate.worker.output import HeldCapture, OutputChannel
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.source_head import SourceHead
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task import Task

# -- at the receiver


@variant(found_at=1)
def captures_only_what_was_queued_at_the_snapshot(patch: Patch) -> None:
    original = GateBarriers.on_arrival

    def on_arrival(self: GateBarriers, *args: Any, **kwargs: Any) -> Any:
        return [action for action in original(self, *args, **kwargs) if not isinstance(action, CaptureArrival)]

    patch.setattr(GateBarriers, "on_arrival", on_arrival)


@variant(found_at=4)
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


@variant(found_at=17)
def consumes_elements_of_a_newer_epoch(patch: Patch) -> None:
    original = GateBarriers.may_consume

    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return original(self, channel, epoch=CheckpointId(0))

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant(found_at=12)
def does_not_wait_at_an_aligned_barrier(patch: Patch) -> None:
    def may_consume(self: GateBarriers, channel: ChannelId, *, epoch: CheckpointId) -> bool:
        return epoch <= self._channels[channel].newest_cut

    patch.setattr(GateBarriers, "may_consume", may_consume)


@variant(found_at=45)
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


@variant(found_at=107)
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


@variant(found_at=5)
def drops_the_rest_of_a_half_done_batch(patch: Patch) -> None:
    original = Gate._open_capture

    def open_capture(self: Gate, channel: ChannelId, state: Any) -> Any:
        capture = original(self, channel, state)
        if state.rows_done:
            del capture.elements[0]
            capture.first, capture.row = Sequence(capture.first + 1), 0
        return capture

    patch.setattr(Gate, "_open_capture", open_capture)


@variant(found_at=5)
def captures_a_half_done_batch_whole(patch: Patch) -> None:
    original = Gate._open_capture

    def open_capture(self: Gate, channel: ChannelId, state: Any) -> Any:
        rows_done, state.rows_done = state.rows_done, 0
        capture = original(self, channel, state)
        state.rows_done = rows_done
        return capture

    patch.setattr(Gate, "_open_capture", open_capture)


@variant(found_at=66)
def consumes_new_rows_before_recovered_ones(patch: Patch) -> None:
    patch.setattr(RecoveryPhases, "may_consume", lambda self, channel: True)


# Beyond the first seeds of all jobs, but the 140th of this one: two restores have to follow closely on another.
@variant(found_at=130)
def forgets_at_a_second_restore_what_was_recovered_at_the_first(patch: Patch) -> None:
    patch.setattr(RecoveryPhases, "left", lambda self, channel: ())


@variant(found_at=3)
def waits_for_the_barrier_of_a_finished_channel(patch: Patch) -> None:
    patch.setattr(GateBarriers, "on_finished", lambda self, channel, *, now_ms: [])


@variant(found_at=1)
def never_grants_what_it_consumed(patch: Patch) -> None:
    patch.setattr(OutputChannel, "on_granted", lambda self, consumed, window_bytes, now_ms: None)


@variant(found_at=9)
def goes_by_the_furthest_channels_event_time(patch: Patch) -> None:
    def furthest(self: GateWatermarks) -> int:
        return max(state.event_time_ms for state in self._channels.values())

    patch.setattr(GateWatermarks, "_lowest_active_ms", furthest)


# -- at the sender


@variant(found_at=0)
def forgets_what_the_sender_captured(patch: Patch) -> None:
    original = OutputChannel.take_held

    def take_held(self: OutputChannel, checkpoint: CheckpointId) -> HeldCapture | None:
        held = original(self, checkpoint)
        return None if held is None else replace(held, elements=())

    patch.setattr(OutputChannel, "take_held", take_held)


@variant(found_at=4)
def captures_on_neither_side_after_a_switch(patch: Patch) -> None:
    original = OutputChannel.on_time

    def on_time(self: OutputChannel, now_ms: float, *, storage: StorageSpeed) -> None:
        before = set(self._held)
        original(self, now_ms, storage=storage)
        for checkpoint in self._held.keys() - before:
            self._held[checkpoint] = replace(self._held[checkpoint], elements=())

    patch.setattr(OutputChannel, "on_time", on_time)


@variant(found_at=0)
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


@variant(found_at=0)
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


@variant(found_at=0)
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


@variant(found_at=0)
def stores_no_watermark(patch: Patch) -> None:
    patch.setattr(Task, "_progress", lambda self: StoredTask())


@variant(found_at=90)
def ends_event_time_when_it_is_suspended(patch: Patch) -> None:
    original = SourceHead.poll

    def poll(self: SourceHead, max_rows: int, now_ms: float) -> Any:
        polled = original(self, max_rows, now_ms)
        return EndOfData() if isinstance(polled, EndOfSource) else polled

    patch.setattr(SourceHead, "poll", poll)


@variant(found_at=3)
def forgets_what_sinks_prepared_for_a_checkpoint_that_failed(patch: Patch) -> None:
    original = SlotSnapshots._to_commit
    patch.setattr(SlotSnapshots, "_to_commit", lambda self, task, checkpoint: original(self, task, checkpoint)[-1:])


@variant(found_at=9)
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


@variant(found_at=1869)
def stores_a_snapshot_before_the_coordinator_has_said_where(patch: Patch) -> None:
    original = SlotSnapshots._go_on

    def go_on(self: SlotSnapshots, checkpoint: CheckpointId, assembly: Any) -> None:
        assembly.is_triggered = True
        original(self, checkpoint, assembly)

    patch.setattr(SlotSnapshots, "_go_on", go_on)


@variant(found_at=12)
def lets_a_savepoint_refer_to_shared_files(patch: Patch) -> None:
    original = SlotSnapshots._encode

    def encode(self: SlotSnapshots, checkpoint: CheckpointId, assembly: Any) -> Iterator[None]:
        savepoint, assembly.savepoint = assembly.savepoint, None
        yield from original(self, checkpoint, assembly)
        assembly.savepoint = savepoint

    patch.setattr(SlotSnapshots, "_encode", encode)


@variant(found_at=0)
def finishes_a_task_before_a_checkpoint_covers_its_end(patch: Patch) -> None:
    original = TaskEnd.on_end

    def on_end(self: TaskEnd) -> Any:
        self._is_covered = True
        return original(self)

    patch.setattr(TaskEnd, "on_end", on_end)


@variant(found_at=3)
def keeps_a_source_paused_when_its_checkpoint_has_settled(patch: Patch) -> None:
    original = SourceAdmission.may_pull

    def may_pull(self: SourceAdmission, now_ms: float) -> bool:
        return self._paused_since_ms is None and original(self, now_ms)

    patch.setattr(SourceAdmission, "may_pull", may_pull)
