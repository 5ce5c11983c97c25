"""What the incremental heap adds to the conformance suite: files that are stored once, images when they are due."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.model.errors import Damaged, DidNotHappen, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange
from tidegate.protocol.kinds import CheckpointStorage
from tidegate.state import entry_files, logged
from tidegate.state.contract import ENTRIES_SECTION, LocalFile, RestoredSection, Section, StateBackend
from tidegate.state.entry_files import changes_in
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import IncrementalHeapBackend
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.testing.state_suite import restored_from
from tidegate.worker.settings import HeapSnapshots, SlotSettings

ALL = KeyGroupRange(0, 128)
HALVES = (KeyGroupRange(0, 64), KeyGroupRange(64, 128))


class Backends:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slot = Folder(folder)

    def new(
        self,
        key_groups: KeyGroupRange = ALL,
        *,
        restored: Iterable[RestoredSection] = (),
        whole_up_to_bytes: int = 0,
    ) -> IncrementalHeapBackend:
        backend = IncrementalHeapBackend(key_groups, folder=self._slot, whole_up_to_bytes=whole_up_to_bytes)
        backend.restore(restored)
        return backend


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    return Backends(tmp_path / "slot")


def fill(backend: StateBackend, count: int = 2_000, *, value: bytes = b"") -> None:
    state = backend.keyed("count")
    for number in range(count):
        state.put(number % 128, b"key-%d" % number, value or b"%d" % number)


def entries_of(backend: StateBackend) -> dict[tuple[str, int, bytes], bytes]:
    return {
        (name, group, key): value
        for name in backend.state_names()
        for group in range(128)
        for key, value in backend.keyed(name).scan(group)
    }


def files_of(sections: Sequence[Section]) -> Sequence[LocalFile]:
    """Of a snapshot that was written."""
    (section,) = sections
    assert section.steps is not None and section.files is not None
    deque(section.steps(), maxlen=0)
    return section.files()


def names_of(sections: Sequence[Section]) -> list[str]:
    return [file.name for file in files_of(sections)]


def test_a_second_snapshot_has_the_first_ones_files_and_a_small_one_for_what_changed(backends: Backends) -> None:
    backend = backends.new()
    fill(backend, 20_000)
    first = files_of(backend.snapshot())
    backend.keyed("count").put(3, b"another", b"1")
    backend.keyed("count").delete(3, b"key-3")
    *same, new = files_of(backend.snapshot())
    assert [file.name for file in same] == [file.name for file in first]
    assert new.length_bytes < 100 < 200_000 < sum(file.length_bytes for file in first)


def test_a_snapshot_of_what_did_not_change_has_no_new_file(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    first = names_of(backend.snapshot())
    backend.keyed("count").delete(3, b"was never there")
    assert names_of(backend.snapshot()) == first


def test_taking_a_snapshot_writes_and_encodes_nothing(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    sections = backend.snapshot()
    assert list(backends.folder.rglob("*.entries")) == []
    assert len(files_of(sections)) == 1


def test_small_state_is_stored_whole_until_it_has_grown(backends: Backends) -> None:
    backend = backends.new(whole_up_to_bytes=1_000)
    backend.keyed("count").put(3, b"k", bytes(999))
    (section,) = backend.snapshot()
    assert (section.name, section.files) == ("keyed/count", None)
    assert not backends.folder.exists()
    backend.keyed("count").put(3, b"l", b"")
    assert len(names_of(backend.snapshot())) == 1


def test_state_that_has_become_small_is_stored_whole_when_an_image_is_due(backends: Backends) -> None:
    backend = backends.new(whole_up_to_bytes=1_000)
    state = backend.keyed("count")
    state.put(3, b"k", bytes(2_000))
    files_of(backend.snapshot())
    state.delete(3, b"k")
    state.put(4, b"l", b"1")
    assert len(files_of(backend.snapshot())) == 2, "the log is the shorter way as yet"
    for number in range(300):
        state.put(5, b"%d" % number, bytes(10))
    files_of(backend.snapshot())
    for number in range(300):
        state.delete(5, b"%d" % number)
    (section,) = backend.snapshot()
    assert section.files is None
    state.put(4, b"l", b"2")
    assert entries_of(backends.new(restored=restored_from(backend.snapshot()))) == {("count", 4, b"l"): b"2"}


def test_a_new_image_is_written_once_so_much_has_changed_so_for_each_change_about_one_other_is_written(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_files, "MERGED_FILES", 1_000)
    backend = backends.new()
    fill(backend, 1_000, value=bytes(100))
    image = files_of(backend.snapshot())
    stored_bytes = {file.name: file.length_bytes for file in image}
    image_bytes = sum(stored_bytes.values())
    for number in range(200):
        for each in range(50):
            key = (number * 50 + each) % 1_000
            for _ in range(3):
                backend.keyed("count").put(key % 128, b"key-%d" % key, bytes(100))
        files = files_of(backend.snapshot())
        assert sum(file.length_bytes for file in files) < 2.2 * image_bytes
        stored_bytes.update({file.name: file.length_bytes for file in files})
    changed_bytes = 200 * 50 * (image_bytes / 1_000)
    assert 1.5 * changed_bytes < sum(stored_bytes.values()) - image_bytes < 2.2 * changed_bytes


def test_files_of_changes_stay_few_however_many_snapshots_there_are(backends: Backends) -> None:
    backend = backends.new()
    fill(backend, 20_000, value=bytes(100))
    for number in range(600):
        backend.keyed("count").put(3, b"k", b"%d" % number)
        files = files_of(backend.snapshot())
    assert len(files) <= 1 + 4 * (entry_files.MERGED_FILES - 1)
    assert backends.new(restored=restored_from(backend.snapshot())).keyed("count").get(3, b"k") == b"599"


def test_files_are_joined_in_their_order_however_many_at_a_time(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_files, "MERGED_FILES", 2)
    backend = backends.new()
    fill(backend)
    for number in range(20):
        backend.keyed("count").put(3, b"%d" % (number % 2), b"%d" % number)
        restored = backends.new(restored=restored_from(backend.snapshot()))
        assert entries_of(restored) == entries_of(backend)


def test_files_that_are_not_small_are_not_written_anew(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_files, "SMALL_FILE_BYTES", 50)
    backend = backends.new()
    fill(backend, 10_000)
    for number in range(20):
        backend.keyed("count").put(3, b"k%d" % number, bytes(1_000))
        files = files_of(backend.snapshot())
    assert len(files) == 20


def test_an_image_is_in_files_of_bounded_size_and_others_read_only_those_with_their_key_groups(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "IMAGE_FILE_BYTES", 10_000)
    backend = backends.new()
    fill(backend, 5_000)
    (section,) = backend.snapshot()
    assert max(file.length_bytes for file in files_of([section])) < 20_000 < len(files_of([section])) * 10_000
    (stored,) = restored_from([section])
    fetched: list[str] = []

    def noting(name: str, path: Path) -> None:
        fetched.append(name)
        stored.files[name](path)

    noted = {name: (lambda path, name=name: noting(name, path)) for name in stored.files}
    half = backends.new(HALVES[1], restored=[RestoredSection(stored.name, ALL, stored.data, noted)])
    assert 0 < len(fetched) < 0.7 * len(noted)
    assert {group for _, group, _ in entries_of(half)} == set(range(64, 128))


def test_a_frame_ends_within_a_large_key_group(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_files, "FRAME_BYTES", 1_000)
    backend = backends.new()
    for number in range(500):
        backend.keyed("count").put(number % 2, b"%d" % number, b"v")
    (section,) = backend.snapshot()
    assert section.steps is not None
    assert len(list(section.steps())) > 10
    assert files_of([section])[0].length_bytes < 500 * 10, "no entry is written twice"
    assert entries_of(backends.new(restored=restored_from([section]))) == entries_of(backend)


def test_a_restored_backend_calls_files_by_their_old_names_and_new_ones_by_new_names(backends: Backends) -> None:
    first = backends.new()
    fill(first)
    files_of(first.snapshot())
    first.keyed("count").put(3, b"k", b"1")
    stored = first.snapshot()
    restored = backends.new(restored=restored_from(stored))
    assert names_of(restored.snapshot()) == names_of(stored)
    for backend in (first, restored):
        backend.keyed("count").put(3, b"k", b"of each its own")
    new = [set(names_of(backend.snapshot())) - set(names_of(stored)) for backend in (first, restored)]
    assert [len(names) for names in new] == [1, 1]
    assert len(set.union(*new)) == 2


def test_after_a_rescale_an_image_is_written_by_names_of_its_own(backends: Backends) -> None:
    first = backends.new()
    fill(first)
    stored = first.snapshot()
    half = backends.new(HALVES[0], restored=restored_from(stored))
    assert set(names_of(half.snapshot())).isdisjoint(names_of(stored))


def test_changes_of_an_aborted_checkpoint_are_in_the_next_one(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    backend.snapshot()  # aborted before the image is written
    backend.keyed("count").put(3, b"k", b"1")
    backend.snapshot()  # and so is this one
    backend.keyed("count").put(3, b"l", b"2")
    restored = backends.new(restored=restored_from(backend.snapshot()))
    assert entries_of(restored) == entries_of(backend)


def test_small_files_that_were_never_written_are_written_with_the_next_one(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    for number in range(entry_files.MERGED_FILES + 1):
        backend.snapshot()
        backend.keyed("count").put(3, b"k%d" % number, b"1")
    restored = backends.new(restored=restored_from(backend.snapshot()))
    assert entries_of(restored) == entries_of(backend)


def test_changes_that_wait_in_memory_are_bounded(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "MOST_UNWRITTEN_CHANGES", 100)
    backend = backends.new()
    fill(backend)
    files_of(backend.snapshot())
    on_disk = []
    for number in range(6):
        for each in range(40):
            backend.keyed("count").put(3, b"%d-%d" % (number, each), b"1")
        backend.snapshot()  # all of them are aborted
        on_disk.append(len(list(backends.folder.rglob("*.entries"))) - 1)
    assert on_disk == [0, 0, 2, 2, 2, 5]


def test_a_file_goes_when_neither_the_backend_nor_a_snapshot_has_it(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    sections = backend.snapshot()
    (file,) = files_of(sections)
    path = file.path
    backend.close()
    assert path.exists()
    del sections, file
    assert not path.exists()


def test_an_image_that_was_replaced_goes(backends: Backends) -> None:
    backend = backends.new()
    fill(backend, 100)
    for _ in range(3):
        fill(backend, 100, value=bytes(100))
        names = names_of(backend.snapshot())
    assert {path.name for path in backends.folder.rglob("*.entries")} == set(names)


def test_what_could_not_be_written_is_never_stored_and_state_is_stored_whole_from_then_on(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    sections = backend.snapshot()
    (folder,) = backends.folder.iterdir()
    folder.rmdir()
    for _ in range(2):
        with pytest.raises(DidNotHappen, match="could not be written"):
            files_of(sections)
    folder.mkdir()
    backend.keyed("count").put(3, b"k", b"1")
    for _ in range(2):
        whole = backend.snapshot()
        assert {section.files for section in whole} == {None}
        assert entries_of(backends.new(restored=restored_from(whole))) == entries_of(backend)


def test_without_a_folder_state_is_stored_whole(backends: Backends) -> None:
    backends.folder.write_bytes(b"no folder can be made here")
    backend = backends.new()
    fill(backend)
    plain = HeapBackend(ALL)
    plain.restore(restored_from(backend.snapshot()))
    assert entries_of(plain) == entries_of(backend)


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksBackend]:
    backend = RocksBackend(ALL, folder=Folder(tmp_path / "rocks"), memory=RocksMemory(memory_bytes=8 << 20))
    yield backend
    backend.close()


def logged_changes(backends: Backends) -> IncrementalHeapBackend:
    """With an image, and puts and deletes behind it."""
    backend = backends.new()
    fill(backend)
    files_of(backend.snapshot())
    for number in range(50):
        backend.keyed("count").delete(number % 128, b"key-%d" % number)
        backend.keyed("other").put(number % 128, b"key-%d" % number, b"new")
    return backend


def test_the_plain_heap_goes_on_with_it_and_back(backends: Backends) -> None:
    backend = logged_changes(backends)
    plain = HeapBackend(ALL)
    plain.restore(restored_from(backend.snapshot()))
    assert entries_of(plain) == entries_of(backend)
    assert entries_of(backends.new(restored=restored_from(plain.snapshot()))) == entries_of(backend)


def test_rocksdb_goes_on_with_it(backends: Backends, rocks: RocksBackend) -> None:
    backend = logged_changes(backends)
    rocks.restore(restored_from(backend.snapshot()))
    assert entries_of(rocks) == entries_of(backend)


def test_state_of_rocksdb_is_refused(backends: Backends, rocks: RocksBackend) -> None:
    fill(rocks)
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        backends.new(restored=restored_from(rocks.snapshot()))


def test_changes_count_more_than_the_files_of_rocksdb_in_whatever_order_they_are_given(
    backends: Backends, rocks: RocksBackend
) -> None:
    rocks.keyed("count").put(3, b"k", b"old")
    rocks.keyed("count").put(3, b"gone", b"old")
    backend = backends.new()
    backend.keyed("count").put(3, b"gone", b"old")
    files_of(backend.snapshot())
    backend.keyed("count").put(3, b"k", b"new")
    backend.keyed("count").delete(3, b"gone")
    again = RocksBackend(ALL, folder=Folder(backends.folder.parent / "again"), memory=RocksMemory(memory_bytes=8 << 20))
    again.restore([*restored_from(backend.snapshot()), *restored_from(rocks.snapshot())])
    assert entries_of(again) == {("count", 3, b"k"): b"new"}
    again.close()


def described(version: int, names: Sequence[str]) -> memoryview:
    return memoryview(msgspec.msgpack.encode([version, [[name, 0, 128, 0] for name in names], []]))


def write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (described(1, ["gone.entries"]), Damaged, "lacks its file gone.entries"),
        (described(1, ["cut.entries"]), Damaged, "cannot be read"),
        (described(1, ["short.entries"]), Damaged, "cannot be read"),
        (described(2, []), IncompatibleCheckpoint, "format 2"),
        (memoryview(b"\xc1"), Damaged, "cannot be read"),
    ],
)
@pytest.mark.parametrize("key_groups", [ALL, HALVES[0]])
def test_a_log_that_cannot_be_read_is_refused(
    backends: Backends, data: memoryview, error: type[Exception], message: str, key_groups: KeyGroupRange
) -> None:
    files = {
        "cut.entries": lambda path: write(b"\x09\x00\x00\x00\x92\xa1", path),
        "short.entries": lambda path: write(b"\x09", path),
    }
    section = RestoredSection(ENTRIES_SECTION, ALL, data, files)
    with pytest.raises(error, match=message):
        backends.new(key_groups, restored=[section])
    with pytest.raises(error, match=message):
        list(changes_in(section, key_groups, folder=None))


def test_without_files_of_checkpoints_state_is_stored_whole() -> None:
    plan: Any = None  # nobody looks at it
    settings = SlotSettings(plan=plan, checkpoint_location="", window_bytes=1, state_backend="heap")
    assert settings.heap_whole_up_to_bytes() == settings.inline_below_bytes
    assert replace(settings, checkpoint_storage=CheckpointStorage.DRIVER).heap_whole_up_to_bytes() is None
    assert replace(settings, heap_snapshots=HeapSnapshots.WHOLE).heap_whole_up_to_bytes() is None
