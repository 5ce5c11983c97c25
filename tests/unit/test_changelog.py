"""State whose changes are stored all along: when batches are, when images are, and what a snapshot refers to."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.ahead_by_hand import AheadByHand
from tidegate.model.errors import DidNotHappen, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange
from tidegate.state import changelog, rocksdb_instance
from tidegate.state.changelog import BATCH_MS, ChangelogBackend
from tidegate.state.contract import RestoredSection, Section, StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.stored_ahead import StoredAhead

ALL = KeyGroupRange(0, 128)
MEMORY = RocksMemory(memory_bytes=8 << 20)


_opened: list[ChangelogBackend] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """RocksDB waits for seconds if its folder is gone first."""
    yield
    while _opened:
        _opened.pop().close()


class Subtask:
    """`kind`: what the log is over."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        key_groups: KeyGroupRange = ALL,
        restored: Iterable[RestoredSection] = (),
        ahead: StoredAhead | None = None,
    ) -> None:
        self.clock, self.ahead = ManualClock(), AheadByHand()
        slot = Folder(folder)
        under: StateBackend = HeapBackend(key_groups)
        if kind == "rocksdb":
            under = RocksBackend(key_groups, folder=slot, memory=MEMORY)
        self.backend = ChangelogBackend(
            under,
            key_groups,
            folder=slot,
            ahead=self.ahead if ahead is None else ahead,
            clock=self.clock,
            interval_ms=10_000,
            first_image_at_ms=self.clock.monotonic_ms() + 5_000,
        )
        _opened.append(self.backend)
        self.backend.restore(restored)

    def put(self, key: bytes, value: bytes) -> None:
        self.backend.keyed("count").put(3, key, value)

    def pass_time(self, ms: float) -> None:
        self.clock.advance(ms)
        self.backend.on_time(self.clock.monotonic_ms())

    def store_batch(self) -> None:
        """Of what has changed: written part by part, and closed."""
        self.pass_time(0)
        self.pass_time(BATCH_MS)
        while self.backend._to_write:
            self.pass_time(0)

    def work_off(self) -> None:
        """All that is to be written, at once, and what is handed over is stored."""
        self.pass_time(0)
        while self._is_due() or not self.ahead.stored.issuperset(self.ahead.changes):
            self.ahead.stored.update(self.ahead.changes)
            self.pass_time(0)

    def _is_due(self) -> bool:
        due_ms = self.backend.next_deadline_ms()
        return due_ms is not None and due_ms <= self.clock.monotonic_ms()

    def make_image(self) -> None:
        """From its begin until it is to be stored."""
        self.pass_time(10_000)
        while not self.ahead.images or self.backend._to_write:
            self.pass_time(0)

    def taken(self) -> list[Section]:
        """A snapshot that was written."""
        sections = self.backend.snapshot()
        for section in sections:
            if section.steps is not None:
                deque(section.steps(), maxlen=0)
        return sections

    def entries(self) -> dict[bytes, bytes]:
        return dict(self.backend.keyed("count").scan(3))


@pytest.fixture(params=["heap", "rocksdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subtask(kind: str, tmp_path: Path) -> Subtask:
    return Subtask(kind, tmp_path / "slot")


def names_of(sections: Iterable[Section]) -> list[str]:
    return [file.name for section in sections if section.files is not None for file in section.files()]


def test_changes_are_stored_when_the_first_has_waited_for_a_while_and_the_snapshot_refers_to_them(
    subtask: Subtask,
) -> None:
    subtask.put(b"k", b"1")
    subtask.pass_time(0)
    assert subtask.backend.next_deadline_ms() == subtask.clock.monotonic_ms() + BATCH_MS
    subtask.pass_time(BATCH_MS - 1)
    assert subtask.ahead.changes == []
    subtask.pass_time(1)
    subtask.pass_time(0)
    (stored,) = subtask.ahead.changes
    assert names_of(subtask.taken()) == [stored]
    subtask.pass_time(1_000)
    assert subtask.ahead.changes == [stored], "nothing changed"


def test_many_changes_are_stored_at_once(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "BATCH_BYTES", 100)
    subtask.put(b"k", bytes(98))
    subtask.pass_time(0)
    assert subtask.ahead.changes == []
    subtask.put(b"k", b"")
    subtask.pass_time(0)
    subtask.pass_time(0)
    assert len(subtask.ahead.changes) == 1


def test_changes_count_as_unstored_from_when_they_are_noted_until_they_are_stored(subtask: Subtask) -> None:
    assert subtask.backend.unstored_bytes() == 0
    subtask.put(b"k", b"12345")
    assert subtask.backend.unstored_bytes() == 6
    subtask.pass_time(0)
    for _ in range(2):
        subtask.pass_time(BATCH_MS)
        assert subtask.backend.unstored_bytes() >= 6
    subtask.ahead.stored.update(subtask.ahead.changes)
    assert subtask.backend.unstored_bytes() == 0


def test_a_snapshot_adds_the_last_changes_alone(subtask: Subtask) -> None:
    for number in range(7):
        subtask.put(b"k%d" % number, b"1")
        subtask.store_batch()
    subtask.put(b"last", b"1")
    before = subtask.ahead.changes
    assert len(before) == 7
    *same, last = names_of(subtask.taken())
    assert same == before and last not in before


def test_an_image_takes_the_place_of_the_changes_before_it_once_it_is_stored(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.put(b"before", b"1")
    subtask.make_image()
    subtask.put(b"after", b"2")
    (image,) = subtask.ahead.images
    (before,) = subtask.ahead.changes
    meanwhile = subtask.taken()
    assert before in names_of(meanwhile) and not set(image) & set(names_of(meanwhile))
    subtask.ahead.finish_images()
    sections = subtask.taken()
    assert set(image) < set(names_of(sections)) and before not in names_of(sections)
    for number, taken in enumerate((meanwhile, sections)):
        again = Subtask(kind, tmp_path / f"again-{number}", restored=restored_from(taken))
        assert again.entries() == {b"before": b"1", b"after": b"2"}


def test_an_image_is_of_the_moment_it_was_begun_whatever_is_written_while_it_is_made(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.put(b"kept", b"old")
    subtask.put(b"gone", b"old")
    subtask.pass_time(10_000)
    subtask.backend.keyed("count").delete(3, b"gone")
    subtask.put(b"kept", b"new")
    while not subtask.ahead.images:
        subtask.pass_time(0)
    subtask.ahead.finish_images()
    again = Subtask(kind, tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == {b"kept": b"new"}


def test_files_that_are_joined_across_the_begin_of_an_image_change_nothing(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    for number in range(5):
        subtask.put(b"k", b"%d" % number)
        subtask.put(b"%d" % number, b"1")
        subtask.store_batch()
    subtask.make_image()
    subtask.backend.keyed("count").delete(3, b"0")
    for number in range(5, 9):
        subtask.put(b"k", b"%d" % number)
        subtask.store_batch()
    subtask.work_off()
    subtask.ahead.finish_images()
    assert [file.level for file in subtask.backend._files.changes] == [1, 0], "the first eight are one"
    again = Subtask(kind, tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == subtask.entries() == {b"k": b"8", b"1": b"1", b"2": b"1", b"3": b"1", b"4": b"1"}


def test_while_an_image_is_stored_for_longer_than_the_interval_nothing_is_due(subtask: Subtask) -> None:
    """A deadline that has passed would keep the loop busy with nothing."""
    subtask.put(b"k", b"1")
    subtask.make_image()
    subtask.pass_time(25_000)
    assert subtask.backend.next_deadline_ms() is None
    subtask.ahead.finish_images()
    assert subtask.backend.next_deadline_ms() is not None


def test_an_image_that_could_not_be_stored_is_given_up_and_the_next_one_comes_in_due_time(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.put(b"k", b"1")
    subtask.make_image()
    subtask.ahead.finish_images(OSError("full"))
    again = Subtask(kind, tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == {b"k": b"1"}
    subtask.ahead.images.clear()
    subtask.pass_time(9_000)
    assert subtask.ahead.images == []
    subtask.make_image()
    assert subtask.ahead.images


def test_no_image_is_made_of_what_did_not_change(subtask: Subtask) -> None:
    subtask.put(b"k", b"1")
    subtask.make_image()
    subtask.ahead.finish_images()
    subtask.ahead.images.clear()
    for _ in range(10):
        subtask.pass_time(10_000)
    assert subtask.ahead.images == []


def test_a_restored_log_goes_on_by_its_names_on_the_heap_and_begins_with_an_image_in_rocksdb(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.put(b"k", b"1")
    stored = subtask.taken()
    again = Subtask(kind, tmp_path / "again", restored=restored_from(stored))
    assert (names_of(again.taken()) == names_of(stored)) is (kind == "heap")
    again.put(b"l", b"2")
    third = Subtask(kind, tmp_path / "third", restored=restored_from(again.taken()))
    assert third.entries() == {b"k": b"1", b"l": b"2"}


def test_other_key_groups_begin_with_an_image_and_log_what_comes_behind_it(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.put(b"k", b"1")
    subtask.backend.keyed("count").put(100, b"of another", b"1")
    half = KeyGroupRange(0, 64)
    again = Subtask(kind, tmp_path / "again", key_groups=half, restored=restored_from(subtask.taken()))
    again.put(b"l", b"2")
    again.store_batch()
    assert again.ahead.changes == [], "there is no image yet that they could be changes of"
    again.taken()
    again.put(b"m", b"3")
    third = Subtask(kind, tmp_path / "third", restored=restored_from(again.taken()))
    assert third.entries() == {b"k": b"1", b"l": b"2", b"m": b"3"}
    assert list(third.backend.keyed("count").scan(100)) == []


class FullDisk:
    """Stands in for RocksDB's maker of checkpoints."""

    def __init__(self, db: object) -> None:
        pass

    def create_checkpoint(self, path: str) -> None:
        raise Exception("IO error: No space left on device")


def restored_without_first_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subtask:
    """In RocksDB, where an image is made beside the loop: a snapshot has referred to it before it fails."""
    before = Subtask("rocksdb", tmp_path / "before")
    before.put(b"k", b"1")
    subtask = Subtask("rocksdb", tmp_path / "slot", restored=restored_from(before.taken()))
    with monkeypatch.context() as disk:
        disk.setattr(rocksdb_instance, "Checkpoint", FullDisk)
        failed = subtask.taken()
        with pytest.raises(DidNotHappen, match="No space left"):
            names_of(failed)
    return subtask


def test_a_first_image_that_could_not_be_made_counts_as_none_so_that_the_next_snapshot_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subtask = restored_without_first_image(tmp_path, monkeypatch)
    subtask.put(b"l", b"2")
    again = Subtask("rocksdb", tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == {b"k": b"1", b"l": b"2"}
    subtask.put(b"m", b"3")
    sections = subtask.taken()
    assert {section.name for section in sections} == {"sst", "entries"}, "later changes are logged again"
    again = Subtask("rocksdb", tmp_path / "once-more", restored=restored_from(sections))
    assert again.entries() == {b"k": b"1", b"l": b"2", b"m": b"3"}


def test_an_image_begun_before_the_one_that_takes_the_place_of_a_failed_one_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subtask = restored_without_first_image(tmp_path, monkeypatch)
    subtask.put(b"before", b"2")
    subtask.make_image()
    subtask.put(b"between", b"3")
    subtask.taken()
    subtask.ahead.finish_images()
    subtask.put(b"after", b"4")
    again = Subtask("rocksdb", tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == {b"k": b"1", b"before": b"2", b"between": b"3", b"after": b"4"}


def test_without_its_folder_state_is_stored_as_without_a_log_after_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "no-folder").write_text("")
    subtask = Subtask("heap", tmp_path / "no-folder" / "slot")
    subtask.put(b"k", b"1")
    for _ in range(3):
        subtask.pass_time(0)
        subtask.pass_time(10_000)
        sections = subtask.taken()
    (warning,) = caplog.messages
    assert "no-folder" in warning and "spark.local.dir" in warning
    assert subtask.backend.next_deadline_ms() is None
    again = Subtask("heap", tmp_path / "again", restored=restored_from(sections))
    assert again.entries() == {b"k": b"1"}


def test_a_batch_that_cannot_be_written_is_stored_whole_with_the_next_checkpoint(tmp_path: Path) -> None:
    subtask = Subtask("heap", tmp_path / "slot")
    subtask.put(b"k", b"1")
    subtask.pass_time(0)
    subtask.taken()
    subtask.put(b"l", b"2")
    (folder,) = (tmp_path / "slot").iterdir()
    moved = folder.rename(tmp_path / "elsewhere")
    subtask.store_batch()
    moved.rename(folder)
    again = Subtask("heap", tmp_path / "again", restored=restored_from(subtask.taken()))
    assert again.entries() == {b"k": b"1", b"l": b"2"}


def test_the_heap_refuses_a_log_over_files_of_rocksdb(tmp_path: Path) -> None:
    subtask = Subtask("rocksdb", tmp_path / "slot")
    subtask.put(b"k", b"1")
    subtask.make_image()
    subtask.ahead.finish_images()
    subtask.put(b"l", b"2")
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        Subtask("heap", tmp_path / "again", restored=restored_from(subtask.taken()))


def test_nothing_is_left_on_disk_when_it_is_closed(kind: str, tmp_path: Path) -> None:
    subtask = Subtask(kind, tmp_path / "slot")
    subtask.put(b"k", b"1")
    subtask.make_image()
    subtask.ahead.finish_images()
    subtask.taken()
    subtask.backend.close()
    subtask.ahead.finish_images()
    del subtask
    _opened.clear()
    assert not (tmp_path / "slot").exists()
