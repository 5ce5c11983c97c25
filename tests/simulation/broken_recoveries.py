"""Rules of what is stored and restored, each broken once: restores, the coordinator, the log and its files."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from tests.simulation.broken_variant import Patch, variant
from tidegate.coordinator import durable
from tidegate.coordinator.checkpointing import Checkpointing
from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.failed_savepoints import FailedSavepoints
from tidegate.coordinator.running import Running
from tidegate.coordinator.used_files import UsedFiles
from tidegate.model.elements import EndOfInput
from tidegate.model.ids import ChannelId, CheckpointId, SlotIndex
from tidegate.network.messages import FromSlot
from tidegate.protocol import rescale
from tidegate.protocol.checkpoints import Checkpoints
from tidegate.protocol.commit import permit_logged
from tidegate.protocol.shared_files import SharedFiles
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.timers import HeapTimers
from tidegate.storage.job_log import Committed, JobLog, next_checkpoint_id
from tidegate.storage.manifests import Manifest
from tidegate.worker import restored_channels, restoring
from tidegate.worker.gate import RecoveredChannel
from tidegate.worker.output import OutputChannel

# -- in the restore


@variant(found_at=27)
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


@variant(found_at=8)
def replays_the_end_marks_of_the_run_before(patch: Patch) -> None:
    original = restoring._Restoring._kept

    def kept(self: Any, edge: Any, stored: Any) -> RecoveredChannel:
        marks = {s: e for s, e, _ in self._captured(edge, stored) if isinstance(e, EndOfInput)}
        recovered = original(self, edge, stored)
        elements = (replace(a, element=marks.get(a.sequence, a.element)) for a in recovered.elements)
        return replace(recovered, elements=tuple(elements))

    patch.setattr(restoring._Restoring, "_kept", kept)


@variant(found_at=0)
def numbers_elements_from_zero_after_a_restore(patch: Patch) -> None:
    original = OutputChannel.__init__

    def init(self: OutputChannel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "next_sequence": 0})

    patch.setattr(OutputChannel, "__init__", init)


@variant(found_at=9)
def drops_timers(patch: Patch) -> None:
    patch.setattr(HeapTimers, "load", lambda self, key_groups: None)


# -- in the restore at another parallelism


@variant(found_at=5)
def gives_captured_rows_to_every_receiver_that_takes_over_a_part_of_them(patch: Patch) -> None:
    patch.setattr(restoring, "rows_of", lambda element, edge, piece, *, max_parallelism: element)


@variant(found_at=5)
def gives_captured_rows_to_the_owner_of_their_old_key_groups(patch: Patch) -> None:
    def by_old_receiver(old: Any, new: Any, moving: list[ChannelId]) -> Any:
        return rescale._by_old_receiver(new, moving)

    patch.setattr(rescale, "_by_key_group", by_old_receiver)


@variant(found_at=99)
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


@variant(found_at=3)
def takes_keyed_state_of_one_old_owner_alone(patch: Patch) -> None:
    original = rescale.overlapping
    patch.setattr(restoring, "overlapping", lambda subtask, **counts: original(subtask, **counts)[:1])


@variant(found_at=114)
def keeps_only_the_least_event_time(patch: Patch) -> None:
    original = restoring._Restoring._progress_of_all

    def progress_of_all(self: Any, vertex: Any, before: Any) -> Any:
        return original(self, vertex, before)[0], KeyGroupFloors(())

    patch.setattr(restoring._Restoring, "_progress_of_all", progress_of_all)


@variant(found_at=97)
def restores_broadcast_state_of_the_least_advanced_subtask(patch: Patch) -> None:
    def least_advanced(old: Any, in_flight: Iterable[Any]) -> int:
        left = [0] * old[0].receivers
        for part in in_flight:
            if part.channel.edge in {shape.edge for shape in old}:
                left[part.channel.receiver] += part.count
        return max(range(len(left)), key=lambda subtask: left[subtask])

    patch.setattr(restored_channels, "most_advanced_of", least_advanced)


@variant(found_at=32)
def gives_broadcast_state_to_the_old_subtasks_alone(patch: Patch) -> None:
    original = restoring._Restoring._broadcast_from

    def broadcast_from(self: Any, vertex: Any, before: Any) -> range:
        return original(self, vertex, before) if self._slot < self._files.parallelism_of(before) else range(0)

    patch.setattr(restoring._Restoring, "_broadcast_from", broadcast_from)


@variant(found_at=0)
def assigns_splits_again_that_were_read_before(patch: Patch) -> None:
    patch.setattr(durable, "read_source_states", lambda store, manifest, plan, match: {})


# -- on the coordinator


@variant(found_at=112)
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


@variant(found_at=78)
def does_not_tell_the_slots_of_an_abort(patch: Patch) -> None:
    original = Checkpointing._abort

    def abort(self: Checkpointing, *args: Any) -> None:
        tell, self.tell = self.tell, lambda slot, message: None
        original(self, *args)
        self.tell = tell

    patch.setattr(Checkpointing, "_abort", abort)


# -- in what is durable


@variant(found_at=23)
def commits_before_the_log_entry(patch: Patch) -> None:
    original = DurableJob.complete

    def complete(self: DurableJob, manifest: Manifest, *, location: str | None = None) -> str:
        committables = [committable for part in manifest.committables for committable in part.committables]
        self._committer.commit(committables, permit_logged(manifest.checkpoint))
        return original(self, manifest, location=location)

    patch.setattr(DurableJob, "complete", complete)


@variant(found_at=8)
def records_a_commit_before_the_sinks_have_committed(patch: Patch) -> None:
    original = DurableJob._commit_one

    def commit_one(self: DurableJob, checkpoint: CheckpointId, manifest: Manifest) -> None:
        self._log.append(Committed(checkpoint=checkpoint))
        with Patch.context() as unheard:
            unheard.setattr(self._log, "append", lambda entry: None)
            original(self, checkpoint, manifest)

    patch.setattr(DurableJob, "_commit_one", commit_one)


@variant(found_at=0)
def forgets_uncommitted_checkpoints_when_it_starts_again(patch: Patch) -> None:
    patch.setattr(durable, "uncommitted", lambda entries: [])


@variant(found_at=17)
def lets_a_superseded_driver_write_the_log(patch: Patch) -> None:
    patch.setattr(JobLog, "_stop_if_superseded", lambda self: None)


@variant(found_at=5)
def restores_another_checkpoint_than_the_newest(patch: Patch) -> None:
    original = DurableJob._choose
    patch.setattr(DurableJob, "_choose", lambda self, retained: original(self, retained[:-1] or retained))


@variant(found_at=0)
def retires_the_only_checkpoint(patch: Patch) -> None:
    def to_retire(completed: Any, *, keep: Any, now_ms: int) -> Any:
        return [c.checkpoint for c in completed if c.is_committed and not c.is_savepoint]

    patch.setattr(durable, "to_retire", to_retire)


@variant(found_at=86)
def leaves_what_was_written_of_a_savepoint_that_failed(patch: Patch) -> None:
    patch.setattr(FailedSavepoints, "add", lambda self, failed: None)


@variant(found_at=1)
def deletes_a_shared_file_with_the_checkpoint_that_wrote_it(patch: Patch) -> None:
    patch.setattr(SharedFiles, "_referenced", lambda self: set())
    patch.setattr(UsedFiles, "may_need", lambda self, path, writer: False)


@variant(found_at=12)
def deletes_a_shared_file_that_a_pending_checkpoint_refers_to(patch: Patch) -> None:
    patch.setattr(SharedFiles, "_may_be_used", lambda self, file, writer: writer > self._newest)


@variant(found_at=8)
def leaves_the_files_of_aborted_checkpoints_behind(patch: Patch) -> None:
    patch.setattr(DurableJob, "clean_up", lambda self, generation: None)
