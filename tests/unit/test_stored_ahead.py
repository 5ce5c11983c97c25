"""Files of state that are stored ahead of a checkpoint: who may refer to them, and what becomes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest

from tests.unit.test_channel_state import Slot
from tests.unit.test_state_files import Tables, files, files_of
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import CheckpointId
from tidegate.state.contract import LocalFile, Section
from tidegate.storage import layout
from tidegate.storage.store import Data, LocalFiles
from tidegate.worker import stored_ahead

__all__ = ["tables"]


@dataclass(frozen=True)
class Store(LocalFiles):
    """Notes what is put, and fails while it is down."""

    put_paths: list[str] = field(default_factory=list)
    down: Event = field(default_factory=Event)

    def put(self, path: str, data: Data) -> None:
        if self.down.is_set():
            raise DidNotHappen("The store is down.")
        self.put_paths.append(path)
        super().put(path, data)

    def shared(self) -> list[str]:
        return [path for path in self.put_paths if path.startswith(layout.SHARED)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "chk")


@pytest.fixture
def slot(store: Store) -> Slot:
    return Slot(store)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "tables")


def file_of(checkpoint: int, number: int) -> str:
    return f"shared/{checkpoint}-g1-s0.ab-{number:06}.sst"


def store_changes(slot: Slot, section: Section) -> None:
    for file in files_of(section):
        slot.ahead.store_changes(file)
    slot.work()


def started(slot: Slot) -> None:
    slot.take(1)
    slot.done(1)


def test_what_is_there_when_the_generation_runs_is_stored_for_its_first_checkpoint(
    slot: Slot, store: Store, tables: Tables
) -> None:
    section = tables.section(1)
    store_changes(slot, section)
    assert store.shared() == [], "which checkpoint that will be is not known yet"
    slot.ahead.on_run(CheckpointId(7))
    slot.work()
    assert store.shared() == [file_of(7, 1)]
    assert files(slot.take(7, sections=[section])) == [file_of(7, 1)]
    assert store.shared() == [file_of(7, 1)]


def test_the_next_checkpoint_refers_to_what_is_stored_and_stores_the_rest(
    slot: Slot, store: Store, tables: Tables
) -> None:
    started(slot)
    section = tables.section(1, 2)
    slot.ahead.store_changes(files_of(section)[0])
    slot.work()
    assert store.shared() == [file_of(2, 1)]
    ack = slot.take(2, sections=[section])
    assert sorted(files(ack)) == [file_of(2, 1), file_of(2, 2)]
    assert store.shared() == [file_of(2, 1), file_of(2, 2)]
    slot.done(2)
    assert sorted(files(slot.take(3, sections=[section]))) == [file_of(2, 1), file_of(2, 2)]


@pytest.mark.parametrize("end", ["aborted", "a savepoint", "without it", "left out"])
def test_no_other_checkpoint_refers_to_it_once_its_own_is_settled_and_it_is_stored_again(
    slot: Slot, store: Store, tables: Tables, tmp_path: Path, end: str
) -> None:
    started(slot)
    section = tables.section(1)
    store_changes(slot, section)
    match end:
        case "aborted":
            slot.begin(2)
            slot.snapshots.on_abort(CheckpointId(2))
        case "a savepoint":
            slot.take(2, sections=[section], savepoint=str(tmp_path / "saved"))
            slot.done(2)
        case "without it":
            slot.take(2)
            slot.done(2)
        case _:
            slot.begin(3)
            slot.snapshots.on_abort(CheckpointId(3))
    slot.work()
    next = 4 if end == "left out" else 3
    assert store.shared() == [file_of(2, 1), file_of(next, 1)]
    assert files(slot.take(next, sections=[section])) == [file_of(next, 1)]


def test_a_checkpoint_does_not_refer_to_what_was_stored_for_the_next_one(
    slot: Slot, store: Store, tables: Tables
) -> None:
    started(slot)
    section = tables.section(1)
    slot.begin(2, sections=[section])
    store_changes(slot, section)
    assert store.shared() == [file_of(3, 1)]
    slot.snapshots.encode_some(float("inf"))
    slot.work()
    assert files(slot.said[-1]) == [file_of(2, 1)]


def test_what_a_checkpoint_stores_waits_for_few_files_however_many_there_are(
    slot: Slot, store: Store, tables: Tables
) -> None:
    started(slot)
    for file in files_of(tables.section(*range(1, 41))):
        slot.ahead.store_changes(file)
    stored = [0]
    while slot.background.work_once() or slot.background.note_once():
        stored.append(len(store.shared()))
    assert stored[-1] == 40
    assert max(later - earlier for earlier, later in pairwise(stored)) == 16


def test_what_was_let_go_of_before_it_was_stored_is_not_stored(slot: Slot, store: Store, tables: Tables) -> None:
    kept, gone = tables.section(1), tables.section(2)
    store_changes(slot, kept)
    store_changes(slot, gone)
    del gone
    started(slot)
    slot.work()
    assert store.shared() == [file_of(2, 1)]


def test_what_nobody_needs_any_more_is_not_stored_again(slot: Slot, store: Store, tables: Tables) -> None:
    started(slot)
    section = tables.section(1)
    store_changes(slot, section)
    del section
    slot.begin(2)
    slot.snapshots.on_abort(CheckpointId(2))
    slot.work()
    assert store.shared() == [file_of(2, 1)]


def test_what_was_being_stored_when_its_checkpoint_was_settled_is_stored_again(
    slot: Slot, store: Store, tables: Tables
) -> None:
    started(slot)
    section = tables.section(1)
    slot.ahead.store_changes(files_of(section)[0])
    slot.begin(2)
    slot.snapshots.on_abort(CheckpointId(2))
    slot.work()
    assert store.shared() == [file_of(2, 1), file_of(3, 1)]


def test_a_savepoint_holds_its_own_files_alone(slot: Slot, tables: Tables, tmp_path: Path) -> None:
    started(slot)
    section = tables.section(1)
    store_changes(slot, section)
    slot.take(2, sections=[section], savepoint=str(tmp_path / "saved"))
    assert list((tmp_path / "saved" / "shared").iterdir())


def test_what_could_not_be_stored_is_tried_again_and_tasks_wait_when_it_is_too_much(
    slot: Slot, store: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 250)
    started(slot)
    store.down.set()
    section = tables.section(1, 2, 3)
    for number, has_room in enumerate([True, True, False]):
        slot.ahead.store_changes(files_of(section)[number])
        slot.work()
        assert slot.ahead.has_room() is has_room
    retry_at_ms = slot.ahead.next_deadline_ms()
    assert retry_at_ms is not None
    store.down.clear()
    slot.ahead.on_time(retry_at_ms - 1)
    slot.work()
    assert not slot.ahead.has_room()
    slot.ahead.on_time(retry_at_ms)
    slot.work()
    assert slot.ahead.has_room()
    assert (slot.ahead.unstored_bytes(), slot.ahead.next_deadline_ms()) == (0, None)
    assert store.shared() == [file_of(2, number) for number in (1, 2, 3)]


def test_tasks_do_not_wait_before_the_generation_runs(
    slot: Slot, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 0)
    store_changes(slot, tables.section(1))
    assert slot.ahead.has_room()


class Images:
    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.said: list[BaseException | None] = []

    def store(self, section: Section) -> None:
        def found() -> Sequence[LocalFile]:
            return files_of(section)

        self._slot.ahead.store_image(found, self.said.append)


def test_an_image_is_there_when_all_its_files_are_and_those_that_are_known_are_not_stored_again(
    slot: Slot, store: Store, tables: Tables
) -> None:
    started(slot)
    section = tables.section(1, 2)
    slot.take(2, sections=[tables.section(1)])
    slot.done(2)
    images = Images(slot)
    images.store(section)
    assert images.said == []
    slot.work()
    assert images.said == [None]
    assert store.shared() == [file_of(2, 1), file_of(3, 2)]


def test_the_files_of_an_image_that_is_not_whole_are_held_by_the_checkpoints_meanwhile(
    slot: Slot, store: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "_MOST_AT_ONCE_BYTES", 1)
    started(slot)
    section = tables.section(1, 2)
    images = Images(slot)
    images.store(section)
    for _ in range(2):
        slot.background.work_once()
        slot.background.note_once()
    assert store.shared() == [file_of(2, 1)]
    store.down.set()
    slot.work()
    store.down.clear()
    assert files(slot.take(2)) == [file_of(2, 1)]
    slot.done(2)
    assert files(slot.take(3)) == [file_of(2, 1)]
    slot.done(3)
    retry_at_ms = slot.ahead.next_deadline_ms()
    assert retry_at_ms is not None
    slot.ahead.on_time(retry_at_ms)
    slot.work()
    assert images.said == [None]
    assert sorted(files(slot.take(4, sections=[section]))) == [file_of(2, 1), file_of(4, 2)]
    assert store.shared() == [file_of(2, 1), file_of(4, 2)]


def test_files_of_an_image_that_only_an_older_checkpoint_came_to_hold_are_stored_again(
    slot: Slot, store: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoint 3 was encoded before 2, which holds the first file, was complete: so 3 does not hold it."""
    monkeypatch.setattr(stored_ahead, "_MOST_AT_ONCE_BYTES", 1)
    started(slot)
    section, images = tables.section(1, 2), Images(slot)
    images.store(section)
    for _ in range(2):
        slot.background.work_once()
        slot.background.note_once()
    store.down.set()
    slot.work()
    store.down.clear()
    assert files(slot.take(2)) == [file_of(2, 1)]
    assert files(slot.take(3)) == []
    slot.done(2)
    slot.done(3)
    retry_at_ms = slot.ahead.next_deadline_ms()
    assert retry_at_ms is not None
    slot.ahead.on_time(retry_at_ms)
    slot.work()
    assert images.said == [None]
    assert sorted(files(slot.take(4, sections=[section]))) == [file_of(4, 1), file_of(4, 2)]


def test_a_file_of_two_images_is_stored_again_for_the_newer_one(
    slot: Slot, store: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "_MOST_AT_ONCE_BYTES", 1)
    started(slot)
    older, newer, images = tables.section(1), tables.section(1, 2), Images(slot)
    images.store(older)
    slot.work()
    images.store(newer)
    slot.background.work_once()
    store.down.set()
    slot.work()
    assert images.said == [None]
    del older
    slot.begin(2)
    slot.snapshots.on_abort(CheckpointId(2))
    store.down.clear()
    retry_at_ms = slot.ahead.next_deadline_ms()
    assert retry_at_ms is not None
    slot.ahead.on_time(retry_at_ms)
    slot.work()
    assert images.said == [None, None]
    assert sorted(files(slot.take(3, sections=[newer]))) == [file_of(3, 1), file_of(3, 2)]


def test_a_whole_image_that_is_stored_again_keeps_no_task_waiting(
    slot: Slot, store: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 0)
    started(slot)
    section, images = tables.section(1), Images(slot)
    images.store(section)
    slot.work()
    assert images.said == [None]
    slot.begin(2)
    slot.snapshots.on_abort(CheckpointId(2))
    assert slot.ahead.has_room()
    slot.work()
    assert store.shared() == [file_of(2, 1), file_of(3, 1)]


def test_changes_are_stored_before_images(slot: Slot, store: Store, tables: Tables) -> None:
    image, changes = tables.section(1), tables.section(2)
    Images(slot).store(image)
    store_changes(slot, changes)
    started(slot)
    slot.work()
    assert store.shared() == [file_of(2, 2), file_of(2, 1)]


def test_an_image_whose_files_cannot_be_made_is_told_of(slot: Slot) -> None:
    def failing() -> Sequence[LocalFile]:
        raise DidNotHappen("no files")

    images = Images(slot)
    slot.ahead.store_image(failing, images.said.append)
    slot.work()
    assert [str(error) for error in images.said] == ["no files"]


def test_nothing_is_stored_for_a_generation_that_is_over(slot: Slot, store: Store, tables: Tables) -> None:
    started(slot)
    section = tables.section(1)
    slot.ahead.store_changes(files_of(section)[0])
    slot.ahead.close()
    slot.work()
    assert store.shared() == []
