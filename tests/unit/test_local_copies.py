"""Which copies of checkpoint files a machine keeps, and that only intact ones are read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_restoring import EDGES, MANIFEST, RECEIVER, Job, in_flight, plan_of, recovered_values
from tidegate.model.ids import CheckpointId, SlotIndex, TaskId
from tidegate.state.contract import Section
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker.local_copies import LocalCopies, LocalRecovery, open_local_copies
from tidegate.worker.local_first import LocalFirst, ReadBytes
from tidegate.worker.restoring import SlotRestore, restore_slot

STATE = bytes(1000)


def copies_in(folder: Path, *, slot: int = 0, slots: int = 2, least_bytes: int = 0) -> LocalCopies:
    return LocalCopies(folder, slot=SlotIndex(slot), slots=slots, least_bytes=least_bytes)


def kept(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_the_newest_completed_checkpoint_and_later_ones_need_stays(tmp_path: Path) -> None:
    copies = copies_in(tmp_path)
    other = copies_in(tmp_path, slot=1)
    gone = copies_in(tmp_path, slot=7)
    for owner in (other, gone):
        owner.keep("checkpoints/1-g1/1.state", [b"x"], length_bytes=1)
    for path in ("checkpoints/1-g1/0.state", "checkpoints/2-g1/0.state", "checkpoints/3-g1/0.state"):
        copies.keep(path, [b"a", b"bc"], length_bytes=3)
    for path in ("shared/1-g1-s0.channels", "shared/2-g1-s0.channels", "shared/3-g1-s0.channels"):
        copies.keep(path, [b"abc"], length_bytes=3)
    copies.on_acknowledged(CheckpointId(1), frozenset())
    copies.on_acknowledged(CheckpointId(2), frozenset({"checkpoints/2-g1/0.state", "shared/1-g1-s0.channels"}))
    copies.prune(CheckpointId(2), copies.on_done(CheckpointId(2)))
    assert kept(tmp_path) == [
        "0/checkpoints/2-g1/0.state",
        "0/checkpoints/3-g1/0.state",
        "0/shared/1-g1-s0.channels",
        "0/shared/3-g1-s0.channels",
        "1/checkpoints/1-g1/1.state",
    ]
    assert not (tmp_path / "0/checkpoints/1-g1").exists()
    copies.discard()
    assert not tmp_path.exists()


def test_a_file_of_another_slot_stays_for_whoever_refers_to_it(tmp_path: Path) -> None:
    copies, other = copies_in(tmp_path), copies_in(tmp_path, slot=1)
    other.keep("shared/1-g1-s1.channels", [b"abc"], length_bytes=3)
    for _ in range(2):
        copies.adopt("shared/1-g1-s1.channels")
    copies.adopt("shared/of-another-machine")
    other.prune(CheckpointId(2), frozenset())
    assert kept(tmp_path) == ["0/shared/1-g1-s1.channels"]
    assert (tmp_path / "0/shared/1-g1-s1.channels").read_bytes() == b"abc"


def test_small_files_are_not_kept(tmp_path: Path) -> None:
    copies = copies_in(tmp_path, least_bytes=4)
    copies.keep("checkpoints/1-g1/0.state", [b"abc"], length_bytes=3)
    assert kept(tmp_path) == []


def test_where_checkpoints_are_on_the_same_disk_nothing_is_kept_twice(tmp_path: Path) -> None:
    def opened(recovery: LocalRecovery, location: str) -> LocalCopies | None:
        return open_local_copies(recovery, location, folder=tmp_path, slot=SlotIndex(0), slots=1, least_bytes=0)

    assert opened(LocalRecovery.WHERE_IT_HELPS, str(tmp_path)) is None
    assert opened(LocalRecovery.WHERE_IT_HELPS, f"file://{tmp_path}") is None
    assert opened(LocalRecovery.WHERE_IT_HELPS, "s3://bucket/chk") is not None
    assert opened(LocalRecovery.ALWAYS, str(tmp_path)) is not None
    assert opened(LocalRecovery.OFF, "s3://bucket/chk") is None


class OnlyTheManifest(LocalFiles):
    """Whatever else is read of the store is a failure of the test."""

    def read(self, path: str) -> bytes:
        assert path == MANIFEST
        return super().read(path)

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        raise AssertionError(f"{path} was read from the store")

    def size(self, path: str) -> int:
        raise AssertionError(f"{path} was looked at in the store")


class Copied:
    """A checkpoint with rows in flight, and copies of all its files, each kept by another slot than will read it."""

    def __init__(self, folder: Path, *, with_state: bool = False) -> None:
        self.store = LocalFiles(folder / "chk")
        self.plan = plan_of(3, EDGES["hash"])
        state = [Section("state", None, lambda: STATE)] if with_state else []
        self.job = Job(
            self.store,
            self.plan,
            in_flight(self.plan),
            sections=lambda task: state if task.vertex == RECEIVER else [],
            inline_below_bytes=0,
        )
        self.manifest: Manifest = self.job.write()
        self.copies = copies_in(folder / "copies", slot=0, slots=3)
        self.elsewhere = copies_in(folder / "copies", slot=1, slots=3)
        self.folder = folder / "copies"
        self.paths = [slot.path for slot in self.manifest.slots]
        self.paths += [file.path for slot in self.manifest.slots for file in slot.shared]
        for path in self.paths:
            data = self.store.read(path)
            self.elsewhere.keep(path, [data], length_bytes=len(data))

    def restore(self, store: LocalFiles) -> list[SlotRestore]:
        return [restore_slot(store, MANIFEST, self.plan, SlotIndex(s), copies=self.copies) for s in range(3)]

    def values(self) -> list[list[int]]:
        return [recovered_values(restore) for restore in self.job.restore(self.plan)]


def test_what_is_on_this_machine_is_not_read_from_the_store(tmp_path: Path) -> None:
    copied = Copied(tmp_path)
    restored = copied.restore(OnlyTheManifest(copied.store.root))
    assert [recovered_values(restore) for restore in restored] == copied.values()
    for restore in restored:
        assert restore.reads.locally > 0
        assert (restore.reads.remotely, restore.reads.damaged_copies) == (0, 0)


def test_state_comes_from_the_copies_when_it_is_read_and_from_the_store_if_they_have_gone_since(tmp_path: Path) -> None:
    copied = Copied(tmp_path, with_state=True)
    restored = copied.restore(OnlyTheManifest(copied.store.root))[0]
    before = restored.reads.locally
    (section,) = restored.tasks[TaskId(RECEIVER, 0)].sections[0]
    assert bytes(section.data) == STATE
    assert (restored.reads.locally - before, restored.reads.remotely) == (len(STATE), 0)
    restored = copied.restore(copied.store)[0]
    (section,) = restored.tasks[TaskId(RECEIVER, 0)].sections[0]
    for path in copied.paths:
        (copied.folder / "1" / path).unlink()
    assert bytes(section.data) == STATE
    assert restored.reads.remotely == len(STATE)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_copy_is_counted_removed_and_read_from_the_store(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    copied = Copied(tmp_path)
    for path in copied.paths:
        damage(copied.folder / "1" / path)
    restored = copied.restore(copied.store)
    assert [recovered_values(restore) for restore in restored] == copied.values()
    assert sum(restore.reads.damaged_copies for restore in restored) == len(set(copied.paths))
    assert all(restore.reads.locally == 0 for restore in restored)
    assert restored[0].reads.remotely > 0
    assert kept(copied.folder) == []


def test_the_own_copy_comes_first_and_another_slots_will_do(tmp_path: Path) -> None:
    copies, other = copies_in(tmp_path), copies_in(tmp_path, slot=1)
    for owner in (other, copies):
        owner.keep("checkpoints/1-g1/0.state", [b"x"], length_bytes=1)
    assert [path.relative_to(tmp_path).parts[0] for path in copies.find("checkpoints/1-g1/0.state")] == ["0", "1"]
    assert [path.relative_to(tmp_path).parts[0] for path in other.find("checkpoints/1-g1/0.state")] == ["1", "0"]


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_copy_that_goes_or_shrinks_after_it_was_found_intact_is_read_from_the_store(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    copied = Copied(tmp_path)
    for path in copied.paths:
        reads = ReadBytes()
        files = LocalFirst(copied.store, copied.manifest, copied.copies, reads)
        whole = copied.store.read(path)
        assert files.size(path) == len(whole), "now it is known to be intact"
        damage(copied.folder / "1" / path)
        assert files.read_range(path, start=1, length=len(whole) - 1) == whole[1:]
        assert files.read(path) == whole
        assert files.size(path) == len(whole)
        assert (reads.locally, reads.damaged_copies) == (0, 1)
