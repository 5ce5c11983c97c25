"""Files of state beside a state file: stored once, referred to later, let go of at once, read back by anybody."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.test_channel_state import Slot, element
from tests.unit.test_restoring import MANIFEST, MAX_PARALLELISM, RECEIVER, Job, plan_of
from tidegate.coordinator.history import Underway, _new_state_bytes
from tidegate.model.errors import Damaged
from tidegate.model.ids import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    KeyGroupRange,
    SlotIndex,
    TaskId,
    range_of,
)
from tidegate.network.messages import Acknowledge, Deploy, StoredChannel, StoredElement
from tidegate.state.contract import LocalFile, Section
from tidegate.storage import layout
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import restore_slot
from tidegate.worker.session import restore_for


class Keeper:
    """What a snapshot's files are on disk for."""


class Tables:
    """Makes sections of files, each file named after its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def section(self, *numbers: int, key_groups: KeyGroupRange = KeyGroupRange(0, 4)) -> Section:  # noqa: B008
        keeper = Keeper()
        files = [self._file(number, keeper) for number in numbers]
        return Section("sst", key_groups, lambda: b"what they make up", files=lambda: files)

    def _file(self, number: int, keeper: Keeper) -> LocalFile:
        path = self._folder / f"{number}"
        path.write_bytes(b"%d" % number * 100)
        return LocalFile(f"ab-{number:06}.sst", path, path.stat().st_size, keeper)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "tables")


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(LocalFiles(tmp_path / "chk"))


def files_of(section: Section) -> Sequence[LocalFile]:
    assert section.files is not None
    return section.files()


def file_of(checkpoint: int, number: int) -> str:
    return f"shared/{checkpoint}-g1-s0.ab-{number:06}.sst"


def files(ack: Acknowledge) -> list[str]:
    return [file.path for file in ack.shared]


def test_a_file_is_stored_once_and_referred_to_later(slot: Slot, tables: Tables) -> None:
    first = slot.take(1, sections=[tables.section(1, 2)])
    assert files(first) == [file_of(1, 1), file_of(1, 2)]
    slot.done(1)
    second = slot.take(2, sections=[tables.section(2, 3)])
    assert sorted(files(second)) == [file_of(1, 2), file_of(2, 3)]
    assert second.shared[files(second).index(file_of(1, 2))] == first.shared[1]
    slot.done(2)
    third = slot.take(3, sections=[tables.section(1, 2)])
    assert sorted(files(third)) == [file_of(1, 2), file_of(3, 1)], "what the newest does not hold may be deleted"


def test_nothing_refers_to_a_checkpoint_that_is_not_known_to_be_complete(slot: Slot, tables: Tables) -> None:
    slot.take(1, sections=[tables.section(1)])
    assert files(slot.take(2, sections=[tables.section(1)])) == [file_of(2, 1)]
    slot.snapshots.on_abort(CheckpointId(2))
    assert files(slot.take(3, sections=[tables.section(1)])) == [file_of(3, 1)]


def test_a_savepoint_neither_refers_nor_is_referred_to(slot: Slot, tables: Tables, tmp_path: Path) -> None:
    slot.take(1, sections=[tables.section(1)])
    slot.done(1)
    savepoint = slot.take(2, sections=[tables.section(1)], savepoint=str(tmp_path / "savepoint"))
    assert files(savepoint) == [file_of(2, 1)]
    assert LocalFiles(tmp_path / "savepoint").read(file_of(2, 1)) == b"1" * 100
    slot.done(2)
    assert files(slot.take(3, sections=[tables.section(1)])) == [file_of(1, 1)]


def test_small_new_files_lie_in_the_state_file_up_to_a_bound_and_are_stored_again(
    tmp_path: Path, tables: Tables
) -> None:
    slot = Slot(LocalFiles(tmp_path / "chk"), inline_below_bytes=250)
    first = slot.take(1, sections=[tables.section(1, 2, 3)])
    assert files(first) == [file_of(1, 3)]
    slot.done(1)
    second = slot.take(2, sections=[tables.section(2, 3)])
    assert files(second) == [file_of(1, 3)]
    assert 200 < second.length < first.length


def test_captured_data_keeps_its_numbers_beside_files_of_state(slot: Slot, tables: Tables) -> None:
    slot.take(1, element(1), sections=[tables.section(1)])
    slot.done(1)
    second = slot.take(2, element(1), element(2), held=[7], sections=[tables.section(1, 2)])
    assert files(second)[:2] == ["shared/1-g1-s0.channels", "shared/2-g1-s0.channels"]
    (held,) = second.held_elements
    assert [stored.file for stored in held.elements] == [1]


def test_receivers_elsewhere_are_told_of_captured_data_alone(slot: Slot, tables: Tables) -> None:
    ack = slot.take(1, element(1), held=[7], sections=[tables.section(1, 2)])
    there = StoredChannel(ChannelId(EdgeId(1), 0, 3), [StoredElement(element(7).sequence, 0, 0, 0, 10)])
    underway = Underway(CheckpointId(1), 0.0, 0)
    underway.acknowledged[SlotIndex(0)] = msgspec.structs.replace(ack, held_elements=[there])
    underway.acknowledged[SlotIndex(1)] = msgspec.structs.replace(ack, held_elements=[there])
    told = underway.held_by_receiver()[SlotIndex(3)]
    assert [file.path for file in told.files] == ["shared/1-g1-s0.channels"] * 2
    assert [stored.elements[0].file for stored in told.channels] == [0, 1]


@pytest.mark.parametrize("captured", [[], [element(1)]])
def test_new_files_count_as_new_state_and_old_ones_do_not(slot: Slot, tables: Tables, captured: list[object]) -> None:
    first = slot.take(1, *captured, sections=[tables.section(1, 2)])  # type: ignore[arg-type]
    assert _new_state_bytes(first) == first.length + 200
    slot.done(1)
    second = slot.take(2, *captured, sections=[tables.section(2, 3)])  # type: ignore[arg-type]
    assert _new_state_bytes(second) == second.length + 100


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_garbage_collection")
def test_a_snapshot_is_let_go_of_with_its_checkpoint_done_or_not(slot: Slot, tables: Tables) -> None:
    stored, aborted, open_one = (tables.section(number) for number in (1, 2, 3))
    keepers = [weakref.ref(files_of(section)[0].keeper) for section in (stored, aborted, open_one)]
    slot.take(1, sections=[stored])
    slot.begin(2, sections=[aborted])
    slot.snapshots.on_abort(CheckpointId(2))
    slot.begin(3, sections=[open_one])
    del stored, aborted, open_one
    assert [keeper() is None for keeper in keepers] == [True, True, False]
    slot.snapshots.close()
    assert keepers[2]() is None


def test_memory_does_not_grow_with_the_number_of_checkpoints(slot: Slot, tables: Tables) -> None:
    for checkpoint in range(1, 30):
        slot.take(checkpoint, sections=[tables.section(checkpoint, checkpoint + 1)])
        if checkpoint % 3:
            slot.done(checkpoint)
        else:
            slot.snapshots.on_abort(CheckpointId(checkpoint))
    slot.take(30, sections=[tables.section(30)])
    slot.snapshots.on_abort(CheckpointId(30))
    assert len(slot.snapshots.known_files) == 2
    assert len(slot.snapshots._acknowledged_files) == 0


# -- read back


def own_range(task: TaskId, parallelism: int) -> KeyGroupRange:
    return range_of(task.subtask, parallelism=parallelism, max_parallelism=MAX_PARALLELISM)


@pytest.mark.parametrize(("old", "new"), [(2, 2), (1, 3), (3, 1), (2, 3)])
def test_files_go_with_their_section_to_the_owners_of_its_key_groups(
    tmp_path: Path, tables: Tables, old: int, new: int
) -> None:
    def sections(task: TaskId) -> list[Section]:
        if task.vertex != RECEIVER:
            return []
        return [tables.section(2 * task.subtask + 1, 2 * task.subtask + 2, key_groups=own_range(task, old))]

    store = LocalFiles(tmp_path / "chk")
    job = Job(store, plan_of(old), sections=sections, inline_below_bytes=100)
    manifest = job.write()
    written = {file.path: file for slot in manifest.slots for file in slot.shared}
    for slot, restore in enumerate(job.restore(plan_of(new))):
        own = own_range(TaskId(RECEIVER, slot), new)
        restored = restore.tasks[TaskId(RECEIVER, slot)].sections[0]
        covered = {group for each in restored for group in range(*each.key_groups or ())}
        assert covered >= set(range(*own))
        for section in restored:
            assert (section.name, bytes(section.data)) == ("sst", b"what they make up")
            for name, fetch in section.files.items():
                fetch(tmp_path / "fetched")
                number = int(name.removeprefix("ab-").removesuffix(".sst"))
                assert (tmp_path / "fetched").read_bytes() == b"%d" % number * 100
                if name in restore.known_files:
                    assert restore.known_files[name] == written[restore.known_files[name].path]
            # The smaller one of its two files lies in the state file, and cannot be referred to.
            assert len(section.files) == 2
            assert len(section.files.keys() & restore.known_files) == 1


def test_a_file_that_the_manifest_lacks_is_damage_and_named(tmp_path: Path, tables: Tables) -> None:
    store = LocalFiles(tmp_path / "chk")
    only_there = lambda task: [tables.section(1)] if task.vertex == RECEIVER else []  # noqa: E731
    job = Job(store, plan_of(1), sections=only_there, inline_below_bytes=0)
    manifest = job.write()
    (slot,) = manifest.slots
    poorer = msgspec.structs.replace(manifest, slots=[msgspec.structs.replace(slot, shared=[])])
    store.put(MANIFEST, encode_manifest(poorer))
    with pytest.raises(Damaged, match=file_of(1, 1)):
        restore_slot(store, MANIFEST, plan_of(1), SlotIndex(0))


def test_files_that_lie_elsewhere_are_restored_and_not_referred_to(tmp_path: Path, tables: Tables) -> None:
    elsewhere, here = LocalFiles(tmp_path / "elsewhere"), LocalFiles(tmp_path / "here")
    only_there = lambda task: [tables.section(1)] if task.vertex == RECEIVER else []  # noqa: E731
    plan = plan_of(1)
    Job(elsewhere, plan, sections=only_there, inline_below_bytes=0).write()
    for location, store in ((None, elsewhere), (str(elsewhere.root), here)):
        deploy = Deploy(Generation(2), {}, MANIFEST, location)
        restore = restore_for(deploy, store, lambda place: LocalFiles(Path(place)), plan, SlotIndex(0))
        (section,) = restore.tasks[TaskId(RECEIVER, 0)].sections[0]
        section.files["ab-000001.sst"](tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == b"1" * 100
        assert set(restore.known_files) == ({"ab-000001.sst"} if location is None else set())


def test_the_name_of_a_stored_file_tells_which_checkpoint_wrote_it() -> None:
    folder = layout.CheckpointFolder(CheckpointId(7), Generation(3))
    path = layout.state_table_file(folder, SlotIndex(2), "0123456789abcdef-000012.sst")
    assert path == "shared/7-g3-s2.0123456789abcdef-000012.sst"
    assert layout.parse_shared_file(path) == folder
    assert layout.parse_channel_file(path) is None
    assert layout.parse_shared_file(layout.channel_file(folder, SlotIndex(2))) == folder
