"""What RocksDB adds to the conformance suite: files that are stored once, folders that go, state of the heap."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from tidegate.model.errors import Damaged, DidNotHappen, IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.state import sst_files
from tidegate.state.contract import KeyedState, LocalFile, RestoredSection, Section
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import LoggedOrderedState
from tidegate.state.rocksdb import MOST_HELD_BYTES, RocksBackend, RocksState
from tidegate.state.rocksdb_instance import RocksInstance, entries_of, prefix_of
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Chunks, Folder, StoredFile
from tidegate.state.subkeys import OrderedSubkeys
from tidegate.state.ttl import TtlState
from tidegate.storage.manifests import SharedFile
from tidegate.storage.state_file import sum_of
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)
HALVES = (KeyGroupRange(0, 64), KeyGroupRange(64, 128))


@pytest.fixture(scope="module")
def memory() -> RocksMemory:
    return RocksMemory(memory_bytes=8 << 20)


class Backends:
    """Makes backends in one folder and closes them."""

    def __init__(self, folder: Path, memory: RocksMemory) -> None:
        self.folder = folder
        self._slot = Folder(folder)
        self._memory = memory
        self._made: list[RocksBackend] = []

    def new(self, key_groups: KeyGroupRange = ALL, *, restored: Iterable[RestoredSection] = ()) -> RocksBackend:
        backend = RocksBackend(key_groups, folder=self._slot, memory=self._memory)
        self._made.append(backend)
        backend.restore(restored)
        return backend

    def close(self) -> None:
        for backend in self._made:
            backend.close()


@pytest.fixture
def backends(tmp_path: Path, memory: RocksMemory) -> Iterator[Backends]:
    made = Backends(tmp_path / "slot", memory)
    yield made
    made.close()


def test_large_values_are_taken_over_a_few_at_a_time(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in one batch is in memory, and counted nowhere."""
    sizes: list[int] = []
    write = RocksInstance._write

    def noted(self: RocksInstance, batch: WriteBatch) -> None:
        sizes.append(batch.size_in_bytes())
        write(self, batch)

    monkeypatch.setattr(RocksInstance, "_write", noted)
    value = bytes(1 << 20)
    instance = backends.new()._instance
    instance.write("keyed/large", ((prefix_of(1) + b"%d" % number, value) for number in range(10)))
    assert len(sizes) == 3 and max(sizes) < 5 << 20
    assert [len(found) for _, found in entries_of(instance.family("keyed/large"), 0, 127)] == [len(value)] * 10


def fill(backend: RocksBackend, count: int = 2_000) -> None:
    state = backend.keyed("count")
    for number in range(count):
        state.put(number % 128, b"key-%d" % number, b"%d" % number)


def files_of(section: Section) -> Sequence[LocalFile]:
    assert section.files is not None
    return section.files()


def names_of(sections: Iterable[Section]) -> set[str]:
    return {file.name for section in sections for file in files_of(section)}


def test_a_second_snapshot_has_the_first_ones_files_and_a_small_one_for_what_changed(backends: Backends) -> None:
    backend = backends.new()
    fill(backend, 20_000)
    first = backend.snapshot()
    backend.keyed("count").put(3, b"another", b"1")
    (second,) = backend.snapshot()
    assert names_of(first) < names_of([second])
    (new,) = [file for file in files_of(second) if file.name not in names_of(first)]
    assert new.length_bytes < 4_096 < sum(file.length_bytes for file in files_of(first[0]))


def test_a_snapshot_of_what_did_not_change_has_no_new_file(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    assert names_of(backend.snapshot()) == names_of(backend.snapshot())


def test_a_restored_instance_calls_files_by_their_old_names_and_new_ones_by_new_names(backends: Backends) -> None:
    first, second = backends.new(), backends.new()
    fill(first)
    stored = first.snapshot()
    restored = backends.new(restored=restored_from(stored))
    assert names_of(restored.snapshot()) == names_of(stored)
    for backend in (first, restored, second):
        backend.keyed("count").put(3, b"k", b"of each its own")
    new = [names_of(backend.snapshot()) - names_of(stored) for backend in (first, restored, second)]
    assert [len(names) for names in new] == [1, 1, 1]
    assert len(set.union(*new)) == 3


def test_a_snapshot_is_on_disk_until_nobody_refers_to_it_also_behind_the_end_of_its_backend(
    backends: Backends,
) -> None:
    backend = backends.new()
    fill(backend)
    sections = backend.snapshot()
    backend.close()
    (file,) = files_of(sections[0])
    assert file.path.read_bytes()
    assert len(list(backends.folder.iterdir())) == 1
    path = file.path
    del sections
    assert path.exists()
    del file
    assert list(backends.folder.iterdir()) == []


def test_states_that_stay_empty_open_nothing(backends: Backends) -> None:
    backend = backends.new()
    state = backend.keyed("count")
    assert (state.get(3, b"k"), list(state.scan(3))) == (None, [])
    state.delete(3, b"k")
    assert (backend.snapshot(), backend.size_bytes()) == ([], 0)
    assert not backends.folder.exists()


@pytest.mark.parametrize("name", ["default", "count?ttl", "timers/event", "größe %41", "with\0zero", ""])
def test_any_name_makes_a_state_of_its_own(backends: Backends, name: str) -> None:
    backend = backends.new()
    backend.keyed(name).put(3, b"k", b"v")
    backend.keyed(name + "'").put(3, b"k", b"other")
    restored = backends.new(restored=restored_from(backend.snapshot()))
    assert restored.keyed(name).get(3, b"k") == b"v"


def test_key_groups_that_were_given_away_do_not_come_back(backends: Backends) -> None:
    whole = backends.new()
    fill(whole)
    halves = [backends.new(half, restored=restored_from(whole.snapshot())) for half in HALVES]
    halves[0].keyed("count").delete(3, b"key-3")
    sections = [section for half in halves for section in half.snapshot()]
    again = backends.new(restored=restored_from(sections)).keyed("count")
    found = {key for group in range(128) for key, _ in again.scan(group)}
    assert found == {b"key-%d" % number for number in range(2_000) if number != 3}
    lower = backends.new(restored=restored_from(halves[0].snapshot())).keyed("count")
    assert [group for group in range(128) if list(lower.scan(group))] == list(range(64))


def test_more_key_groups_than_a_byte_counts_lie_in_order_too(backends: Backends) -> None:
    groups = (0, 1, 255, 256, 257, 511, 512, 1023, 32_767)
    whole = backends.new(KeyGroupRange(0, 32_768))
    for key_group in groups:
        whole.keyed("count").put(key_group, b"k", b"v")
    middle = backends.new(KeyGroupRange(256, 512), restored=restored_from(whole.snapshot())).keyed("count")
    assert [key_group for key_group in groups if list(middle.scan(key_group))] == [256, 257, 511]
    assert list(whole.keyed("count").scan(32_767)) == [(b"k", b"v")]


def test_a_snapshot_without_any_table_is_restored_as_empty_state(backends: Backends) -> None:
    backend = backends.new()
    backend._instance.family("keyed/count")
    (section,) = backend.snapshot()
    assert files_of(section) == ()
    restored = backends.new(restored=restored_from([section]))
    assert list(restored.keyed("count").scan(3)) == []
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        HeapBackend(ALL).restore(restored_from([section]))


def test_a_key_group_of_another_subtask_is_refused(backends: Backends) -> None:
    state = backends.new(HALVES[0]).keyed("s")
    with pytest.raises(ProtocolViolation, match="key group 64"):
        state.put(64, b"k", b"v")


def test_what_the_heap_backend_stored_can_be_restored(backends: Backends) -> None:
    heap = HeapBackend(ALL)
    for key_group in range(128):
        heap.keyed("count").put(key_group, b"k", b"%d" % key_group)
    restored = backends.new(HALVES[1], restored=restored_from(heap.snapshot())).keyed("count")
    assert [group for group in range(128) if restored.get(group, b"k") is not None] == list(range(64, 128))


def test_the_heap_backend_says_that_it_cannot_read_what_rocksdb_stored(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        HeapBackend(ALL).restore(restored_from(backend.snapshot()))


def test_a_description_that_cannot_be_read_is_damage(backends: Backends) -> None:
    with pytest.raises(Damaged, match="RocksDB state cannot be read"):
        backends.new(restored=[RestoredSection("sst", ALL, memoryview(b"\xff"))])


def test_a_file_that_the_checkpoint_does_not_have_is_damage_and_named(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    (section,) = backend.snapshot()
    with pytest.raises(Damaged, match=files_of(section)[0].name):
        backends.new(restored=[RestoredSection("sst", ALL, memoryview(section.encode()))])


# -- keys that begin alike


@pytest.mark.parametrize("is_held", [False, True])
def test_keys_that_begin_alike_are_found_in_order_and_no_others(backends: Backends, is_held: bool) -> None:
    state = backends.new().keyed("s")
    assert (state.keys_from(3, b"a"), state.last_key_from(3, b"a")) == ([], None)
    others = [(3, b"`\xff"), (3, b"b"), (2, b"ax"), (4, b"ax"), (3, b"")]
    alike = [b"a", b"a\x00", b"a1", b"a2", b"a\xff", b"a\xff\xff"]
    for key_group, key in [*others, *((3, key) for key in alike), (3, b"a3")]:
        state.put(key_group, key, b"v")
    if is_held:
        as_if_in_the_making(state._backend)
        state.delete(3, b"a2")
        state.put(3, b"a2", b"again")
        state.put(3, b"a4", b"v")
        state.put(4, b"a5", b"v")
        alike = [*alike[:4], b"a4", *alike[4:]]
    state.delete(3, b"a3")
    assert (state._backend._making is not None) is is_held
    assert state.keys_from(3, b"a") == alike
    assert state.last_key_from(3, b"a") == b"a\xff\xff"
    assert state.last_key_from(3, b"a\xff") == b"a\xff\xff"
    assert state.last_key_from(3, b"a2") == b"a2"
    assert (state.last_key_from(3, b"a3"), state.keys_from(3, b"a3")) == (None, [])
    assert state.keys_from(5, b"") == []


@pytest.mark.parametrize("is_held", [False, True])
def test_the_first_keys_are_in_order_whether_they_are_held_or_not(backends: Backends, is_held: bool) -> None:
    state = backends.new().keyed("s")
    assert state.first_keys(3, b"", 9) == []
    for key_group, key in [(2, b"c"), (3, b"a"), (3, b"b"), (3, b"c"), (3, b"d"), (4, b"c")]:
        state.put(key_group, key, b"v")
    if is_held:
        as_if_in_the_making(state._backend)
    for key_group, key in [(2, b"cc"), (3, b"cc"), (3, b"bb"), (4, b"cc")]:
        state.put(key_group, key, b"v")
    state.put(3, b"c", b"again")
    state.delete(3, b"b")
    assert state.first_keys(3, b"", 9) == [b"a", b"bb", b"c", b"cc", b"d"]
    assert state.first_keys(3, b"b", 2) == [b"bb", b"c"]
    assert state.first_keys(3, b"c\x00", 1) == [b"cc"]
    assert state.first_keys(3, b"e", 1) == []
    assert (state._backend._making is not None) is is_held, "it did not wait"


# -- while the files of a snapshot are being made


def as_if_in_the_making(backend: RocksBackend) -> list[Section]:
    """A snapshot whose files are there, but whose backend has not heard of it."""
    sections = backend.snapshot()
    names_of(sections)
    assert backend._making is not None
    backend._making.is_made = False
    return sections


def test_what_is_written_while_files_are_made_is_read_back_and_not_in_them(backends: Backends) -> None:
    backend = backends.new()
    count, other = backend.keyed("count"), backend.keyed("other")
    count.put(3, b"kept", b"old")
    count.put(3, b"removed", b"old")
    sections = as_if_in_the_making(backend)
    count.put(3, b"kept", b"new")
    count.delete(3, b"removed")
    other.put(4, b"k", b"new")
    backend.keyed("third").put(5, b"k", b"new")
    assert backend._making is not None, "still held"
    assert (count.get(3, b"kept"), count.get(3, b"removed"), count.get(3, b"absent")) == (b"new", None, None)
    assert (other.get(4, b"k"), backend.keyed("third").get(5, b"k")) == (b"new", b"new")
    assert dict(count.scan(3)) == {b"kept": b"new"}
    assert backend._making is None, "a scan has waited"
    assert (count.get(3, b"removed"), other.get(4, b"k")) == (None, b"new")
    restored = backends.new(restored=restored_from(sections))
    assert dict(restored.keyed("count").scan(3)) == {b"kept": b"old", b"removed": b"old"}
    assert restored.keyed("other").get(4, b"k") is None
    again = backends.new(restored=restored_from(backend.snapshot()))
    assert (again.keyed("count").get(3, b"kept"), again.keyed("third").get(5, b"k")) == (b"new", b"new")


def test_who_writes_too_much_meanwhile_waits_for_the_files(backends: Backends) -> None:
    backend = backends.new()
    fill(backend)
    sections = as_if_in_the_making(backend)
    state = backend.keyed("count")
    for number in range(10):
        state.put(3, b"%d" % number, bytes(MOST_HELD_BYTES // 4))
        assert backend.held_bytes <= MOST_HELD_BYTES * 5 // 4
    assert backend._making is None
    assert all(state.get(3, b"%d" % number) is not None for number in range(10))
    assert len(sections) == 1


@pytest.mark.parametrize("handed_on", [lambda state: state, LoggedOrderedState, OrderedSubkeys])
def test_expiry_does_not_wait_for_the_files_and_goes_on_once_they_are_made(
    backends: Backends, handed_on: Callable[[RocksState], KeyedState]
) -> None:
    backend, clock = backends.new(), ManualClock()
    state = handed_on(backend.keyed("seen?ttl"))
    expiring = TtlState(state, ttl_ms=10, clock=clock, key_groups=KeyGroupRange(3, 5))
    for key_group in (3, 4):
        expiring.put(key_group, b"k", b"v")
    clock.advance(10)
    assert expiring.expire_some(1) == 1, "and stands amid the entries"
    sections = as_if_in_the_making(backend)
    assert expiring.expire_some(1) == 0
    assert backend._making is not None, "it did not wait"
    backend._making.is_made = True
    assert expiring.expire_some(1) == 1
    assert dict(backends.new(restored=restored_from(sections)).keyed("seen?ttl").scan(4)).keys() == {b"k"}


def test_files_that_could_not_be_made_are_an_error_of_the_snapshot_and_not_of_the_state(
    backends: Backends, tmp_path: Path
) -> None:
    backend = backends.new()
    fill(backend)
    (tmp_path / "a file").touch()
    backend._instance._folder = Folder(tmp_path / "a file" / "no folder")
    (section,) = backend.snapshot()
    with pytest.raises(Exception, match="a file"):
        files_of(section)
    backend.keyed("count").put(3, b"k", b"v")
    assert backend.keyed("count").get(3, b"k") == b"v"


def test_state_that_cannot_be_read_is_an_error_of_storage_and_never_looks_shorter(backends: Backends) -> None:
    backend = backends.new()
    fill(backend, 20_000)
    state = backend.keyed("count")
    names_of(backend.snapshot())
    backend.settle()
    for table in backends.folder.glob("*-db-*/*.sst"):
        table.write_bytes(bytes(table.stat().st_size))
    with pytest.raises(DidNotHappen, match="'count' in RocksDB could not be read"):
        list(state.scan(3))
    with pytest.raises(DidNotHappen, match="'count' in RocksDB could not be read"):
        state.get(3, b"key-3")
    with pytest.raises(DidNotHappen, match="'count' in RocksDB could not be read"):
        state.keys_from(3, b"key")
    with pytest.raises(DidNotHappen, match="'count' in RocksDB could not be read"):
        state.first_keys(3, b"", 1_000)


# -- in a store


def stored_in(store: LocalFiles, file: LocalFile) -> SharedFile:
    pieces = Chunks(file)
    path = f"shared/{file.name}"
    store.put(path, pieces)
    found = sum_of(pieces)
    return SharedFile(path, found.length_bytes, found.crc32)


def test_a_file_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sst_files, "_CHUNK_BYTES", 4)
    path = tmp_path / "table"
    path.write_bytes(b"0123456789")
    chunks = Chunks(LocalFile("table", path, 10, None))
    assert list(chunks) == [b"0123", b"4567", b"89"]
    path.write_bytes(b"0123456")
    with pytest.raises(DidNotHappen, match="is shorter than when it was written"):
        chunks[1]


@pytest.mark.parametrize("content", [b"", b"0123", b"0123456789"])
def test_a_stored_file_is_copied_piece_by_piece(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sst_files, "_CHUNK_BYTES", 4)
    one, other = LocalFiles(tmp_path / "one"), LocalFiles(tmp_path / "other")
    one.put("shared/a.sst", content)
    stored = StoredFile(one, SharedFile("shared/a.sst", len(content), zlib.crc32(content)))
    stored.copy_to(other)
    assert other.read("shared/a.sst") == content
    one.put("shared/a.sst", content + b"more")
    other.delete("shared/a.sst")
    with pytest.raises(Damaged, match=r"a\.sst is not the file that the manifest speaks of"):
        stored.copy_to(other)
    assert other.list() == []


def test_state_comes_back_from_a_store(backends: Backends, tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    backend = backends.new()
    fill(backend)
    (section,) = backend.snapshot()
    files = {file.name: StoredFile(store, stored_in(store, file)) for file in files_of(section)}
    backend.close()
    restored = backends.new(restored=[RestoredSection("sst", ALL, memoryview(section.encode()), files)])
    assert restored.keyed("count").get(1_999 % 128, b"key-1999") == b"1999"


@contextmanager
def damaged(store: LocalFiles, file: SharedFile, content: bytes) -> Iterator[None]:
    original = store.read(file.path)
    store.put(file.path, content)
    yield
    store.put(file.path, original)


def test_a_stored_file_that_is_not_the_one_in_the_manifest_is_named(backends: Backends, tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    backend = backends.new()
    fill(backend)
    file = stored_in(store, files_of(backend.snapshot()[0])[0])
    content = store.read(file.path)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for wrong in (bytes(flipped), content[:-1], content + b"x"):
        with damaged(store, file, wrong), pytest.raises(Damaged, match=file.path):
            StoredFile(store, file)(tmp_path / "fetched")
    StoredFile(store, file)(tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == content
    store.delete(file.path)
    with pytest.raises(Damaged, match=file.path):
        StoredFile(store, file)(tmp_path / "fetched")
