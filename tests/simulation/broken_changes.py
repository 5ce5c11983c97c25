"""Rules of state that is stored by what changed, and ahead of the barrier, each broken once.

Played with `StateDice.MIXED`: `found_at` is a seed of those dice.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tests.simulation.broken_variant import Patch, variant
from tidegate.model.ids import CheckpointId, KeyGroupRange
from tidegate.protocol.shared_files import SharedFiles
from tidegate.state import changelog, entry_files, heap, rocksdb
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import RestoredSection
from tidegate.state.entry_files import Change, Changes, EntryFiles
from tidegate.state.logged import IncrementalHeapBackend, LoggedState, LoggedStates
from tidegate.state.rocksdb import RocksBackend
from tidegate.worker.stored_ahead import StoredAhead

# -- what is logged


@variant(found_at=1)
def leaves_out_of_the_log_what_an_aborted_checkpoint_has_taken(patch: Patch) -> None:
    """Its file of changes is dropped with it."""
    snapshot = ChangelogBackend.snapshot

    def snapshot_alone(self: ChangelogBackend) -> Any:
        before = list(self._files.changes)
        sections = snapshot(self)
        if self._files.image or before:
            self._files.changes = before
        return sections

    patch.setattr(ChangelogBackend, "snapshot", snapshot_alone)


@variant(found_at=83)
def leaves_out_of_incremental_snapshots_what_an_aborted_checkpoint_has_taken(patch: Patch) -> None:
    append = EntryFiles.append_and_join

    def append_to_written(self: EntryFiles, changes: Any) -> Any:
        self.changes = [file for file in self.changes if file.is_written()]
        return append(self, changes)

    patch.setattr(EntryFiles, "append_and_join", append_to_written)


@variant(found_at=23)
def does_not_log_deletes(patch: Patch) -> None:
    patch.setattr(LoggedState, "delete", lambda self, key_group, key: self._state.delete(key_group, key))


@variant(found_at=0)
def does_not_log_what_changes_behind_the_first_image(patch: Patch) -> None:
    patch.setattr(LoggedStates, "begin", lambda self: None)


@variant(found_at=1)
def empties_the_notes_that_a_snapshot_has_taken(patch: Patch) -> None:
    """They are handed over, and written later: who goes on to note must not do so in the same dictionaries."""

    def take(self: LoggedStates) -> Changes:
        return {name: state.noted for name, state in self._states.items() if state.noted}

    patch.setattr(LoggedStates, "take", take)


# -- images


@variant(found_at=1)
def drops_changes_that_came_while_the_image_was_made(patch: Patch) -> None:
    """The range of the log begins too late: where the image is whole, not where it was begun."""
    on_stored = ChangelogBackend._on_stored

    def from_now_on(self: ChangelogBackend, making: Any, error: BaseException | None) -> None:
        making.behind = self._files.newest_number()
        on_stored(self, making, error)

    patch.setattr(ChangelogBackend, "_on_stored", from_now_on)


@variant(found_at=1)
def forgets_what_is_noted_when_an_image_is_begun(patch: Patch) -> None:
    """The image will have it; but until it is whole, the one before and all changes since count."""
    make_image = ChangelogBackend._make_image

    def forgetting(self: ChangelogBackend, now_ms: float) -> None:
        if self._making is None and now_ms >= self._image_at_ms:
            self._states.take()
        make_image(self, now_ms)

    patch.setattr(ChangelogBackend, "_make_image", forgetting)


@variant(found_at=1)
def stores_of_an_image_the_first_file_alone(patch: Patch) -> None:
    image_parts = changelog.image_parts
    patch.setattr(changelog, "image_parts", lambda state, key_groups: list(image_parts(state, key_groups))[:1])


@variant(found_at=23)
def forgets_files_of_an_image_that_the_newest_checkpoint_does_not_hold(patch: Patch) -> None:
    patch.setattr(StoredAhead, "_store_others_again", lambda self, names: None)


@variant(found_at=1)
def asks_for_an_image_all_the_time_while_one_is_stored(patch: Patch) -> None:
    next_deadline_ms = ChangelogBackend.next_deadline_ms

    def always(self: ChangelogBackend) -> float | None:
        due_ms = next_deadline_ms(self)
        return self._image_at_ms if due_ms is None else min(due_ms, self._image_at_ms)

    patch.setattr(ChangelogBackend, "next_deadline_ms", always)


# -- files that are stored ahead


@variant(found_at=31)
def deletes_files_of_changes_that_a_retained_checkpoint_uses(patch: Patch) -> None:
    deletable = SharedFiles.deletable

    def with_changes(self: SharedFiles, listed: Any) -> list[str]:
        all_listed = list(listed)
        settled = [path for path, writer in all_listed if ".entries" in path and writer < self._newest - 1]
        return [*dict.fromkeys([*deletable(self, all_listed), *settled])]

    patch.setattr(SharedFiles, "deletable", with_changes)


@variant(found_at=10)
def refers_to_what_was_stored_for_a_checkpoint_that_was_aborted(patch: Patch) -> None:
    def all_files(self: StoredAhead, checkpoint: CheckpointId) -> Any:
        return {name: ahead.stored for name, ahead in self._stored.items()}

    patch.setattr(StoredAhead, "files_of", all_files)
    patch.setattr(StoredAhead, "_store_lost_again", lambda self: None)


@variant(found_at=10)
def lets_a_checkpoint_refer_to_what_was_stored_for_another(patch: Patch) -> None:
    def all_files(self: StoredAhead, checkpoint: CheckpointId) -> Any:
        return {name: ahead.stored for name, ahead in self._stored.items()}

    patch.setattr(StoredAhead, "files_of", all_files)


# -- restores


@variant(found_at=3)
def applies_changes_in_the_wrong_order(patch: Patch) -> None:
    described = entry_files._described

    def turned(section: Any) -> Any:
        found = described(section)
        return msgspec.structs.replace(found, changes=found.changes[::-1])

    patch.setattr(entry_files, "_described", turned)


@variant(found_at=1)
def applies_changes_before_the_image(patch: Patch) -> None:
    described = entry_files._described

    def turned(section: Any) -> Any:
        found = described(section)
        return msgspec.structs.replace(found, image=found.changes, changes=found.image)

    patch.setattr(entry_files, "_described", turned)


@variant(found_at=2)
def does_not_apply_changes_behind_the_files_of_rocksdb(patch: Patch) -> None:
    patch.setattr(RocksBackend, "_replay", lambda self, section: None)


@variant(found_at=3)
def applies_the_log_twice_from_its_middle(patch: Patch) -> None:
    """The first half once more behind the whole of it."""
    described = entry_files._described

    def doubled(section: Any) -> Any:
        found = described(section)
        half = found.changes[: len(found.changes) // 2]
        return msgspec.structs.replace(found, changes=[*found.changes, *half])

    patch.setattr(entry_files, "_described", doubled)


@variant(found_at=3)
def takes_entries_of_all_key_groups_at_another_parallelism(patch: Patch) -> None:
    read = entry_files._read
    everything = KeyGroupRange(0, 1 << 15)
    patch.setattr(entry_files, "_read", lambda path, key_groups: read(path, everything))


@variant(found_at=3)
def takes_of_an_image_only_files_that_lie_within_its_own_key_groups(patch: Patch) -> None:
    changes_in = entry_files.changes_in

    def within(section: RestoredSection, key_groups: KeyGroupRange, *, folder: Path | None) -> Iterator[Change]:
        found = entry_files._described(section)
        inside = [file for file in found.image if key_groups.first <= file.first and file.last <= key_groups.last]
        described = msgspec.structs.replace(found, image=inside)
        narrowed = replace(section, content=memoryview(msgspec.msgpack.encode(described)))
        return changes_in(narrowed, key_groups, folder=folder)

    patch.setattr(heap, "changes_in", within)
    patch.setattr(rocksdb, "changes_in", within)


@variant(found_at=24)
def goes_on_with_the_log_of_other_key_groups(patch: Patch) -> None:
    """At another parallelism no image is begun: what it restored is in no file of its own."""

    def restore(self: IncrementalHeapBackend, sections: Any) -> None:
        self._heap.restore(sections)
        self._has_image = True
        self._states.begin()

    patch.setattr(IncrementalHeapBackend, "restore", restore)
