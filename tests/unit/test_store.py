"""Opening stores, and what local files promise beyond the conformance suite: kills, leftovers, durability."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from tidegate.model.errors import Damaged, DidNotHappen, MayHaveHappened, OptionError
from tidegate.storage import store as store_module
from tidegate.storage.object_store import ObjectStore
from tidegate.storage.store import AlreadyThere, Created, LocalFiles, delete_all, local_path, open_store


def test_a_local_folder_is_made(tmp_path: Path) -> None:
    open_store(str(tmp_path / "new" / "folder")).put("a", b"1")
    assert (tmp_path / "new" / "folder" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}"])
def test_all_ways_to_write_a_local_path_open_the_same_folder(tmp_path: Path, form: str) -> None:
    open_store(form.format(tmp_path / "chk")).put("a", b"1")
    assert (tmp_path / "chk" / "a").exists()


def test_a_local_path_is_taken_as_written_as_hadoop_does() -> None:
    assert local_path("file:///tmp/a%20b#c?d") == Path("/tmp/a%20b#c?d")
    assert local_path("/tmp/a%20b") == Path("/tmp/a%20b")
    assert local_path("s3://bucket/x") is None


def test_a_file_url_with_a_host_is_refused() -> None:
    with pytest.raises(OptionError, match="write file:///"):
        local_path("file://tmp/x")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    for location in ("ftp://host/x", "ftp:/x"):
        with pytest.raises(OptionError, match=r"'ftp'.*s3://"):
            open_store(location)


def test_a_remote_store_is_opened_without_touching_the_network() -> None:
    assert isinstance(open_store("s3://some-bucket/some/prefix"), ObjectStore)


def test_a_location_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionError, match="is a file"):
        open_store(str(tmp_path / "file"))


def test_what_a_killed_writer_left_confuses_nobody(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for leftover in ["log/000000000000#1", "log/000000000000#7777", "log/000000000001#1"]:
        (tmp_path / leftover).parent.mkdir(exist_ok=True)
        (tmp_path / leftover).write_bytes(b"half")
    assert store.list("log") == []
    assert store.create("log/000000000000", b"whole") == Created()
    assert store.list("log") == ["log/000000000000"]
    assert store.read("log/000000000000") == b"whole"


def test_no_unfinished_file_is_left_after_writing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create("a", b"1")
    assert store.create("a", b"2") == AlreadyThere()
    store.put("a", b"3")
    assert os.listdir(tmp_path) == ["a"]


def test_deleting_the_last_file_removes_its_folders_but_not_the_store(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "chk"))
    store.put("checkpoints/1-g1/0.state", b"x")
    store.delete("checkpoints/1-g1/0.state")
    assert list((tmp_path / "chk").iterdir()) == []


def test_a_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def note_sync(descriptor: int) -> None:
        steps.append("sync folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "sync file")
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        steps.append("publish")
        link(source, target)

    def note_replace(source: Path, target: Path) -> None:
        steps.append("publish")
        replace(source, target)

    monkeypatch.setattr(store_module.os, "fsync", note_sync)
    monkeypatch.setattr(store_module.os, "link", note_link)
    monkeypatch.setattr(store_module.os, "replace", note_replace)
    store = LocalFiles(tmp_path)
    store.create("a", b"1")
    store.put("a", b"2")
    assert steps == ["sync file", "publish", "sync folder"] * 2


def test_a_full_disk_surely_wrote_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", no_space)
    with pytest.raises(DidNotHappen, match="No space left"):
        LocalFiles(tmp_path).create("a", b"1")
    assert os.listdir(tmp_path) == []


def test_a_failing_sync_of_the_folder_leaves_the_outcome_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store_module, "sync_folder", broken)
    with pytest.raises(MayHaveHappened, match="Input/output error"):
        LocalFiles(tmp_path).create("a", b"1")


def test_a_remote_failure_of_unknown_outcome_may_have_happened() -> None:
    class Failing(MemoryStore):
        def put(self, *_: object, **__: object) -> None:  # type: ignore[override]
            raise GenericError("connection reset\n\nDebug source: …")

    with pytest.raises(MayHaveHappened, match=r"s3://b/a may or may not be written: connection reset\.$"):
        ObjectStore("s3://b", Failing()).create("a", b"1")


class Living(Sequence[bytes]):
    """Pieces that are made when they are asked for; counts how many there are at a time. The last may be missing."""

    def __init__(self, count: int, *, lacks_last: bool = False) -> None:
        self.count, self.most, self._lacks_last = count, 0, lacks_last
        self._alive = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: Any) -> Any:
        if at >= self.count:
            raise IndexError(at)
        if self._lacks_last and at == self.count - 1:
            raise DidNotHappen("nobody waits for it.")
        piece = np.full(1 << 20, at, np.uint8)
        self._alive += 1
        weakref.finalize(piece, self._ended)
        self.most = max(self.most, self._alive)
        return memoryview(piece)

    def _ended(self) -> None:
        self._alive -= 1


class Reading(MemoryStore):
    """Takes piece by piece and keeps none."""

    def put(self, path: str, file: Any, **_: Any) -> Any:
        self.__class__.length = 0
        for piece in file:
            self.__class__.length += len(piece)

    length = 0


def test_a_large_file_is_in_memory_bit_by_bit_while_it_is_sent_to_a_remote_store() -> None:
    pieces = Living(40)
    ObjectStore("s3://b", Reading()).put("a", pieces)
    assert Reading.length == 40 << 20
    assert pieces.most <= 8


def test_a_file_that_nobody_waits_for_any_more_ends_in_its_midst_as_it_says() -> None:
    with pytest.raises(DidNotHappen, match=r"^nobody waits for it\.$"):
        ObjectStore("s3://b", Reading()).put("a", Living(40, lacks_last=True))
    with pytest.raises(DidNotHappen, match=r"^nobody waits for it\.$"):
        ObjectStore("s3://b", MemoryStore()).put("a", Living(40, lacks_last=True))


def test_a_large_file_arrives_whole() -> None:
    store = ObjectStore("s3://b", MemoryStore())
    store.put("a", Living(12))
    assert store.read("a") == b"".join(bytes([at]) * (1 << 20) for at in range(12))


def test_a_remote_refusal_did_not_happen() -> None:
    class Refusing(MemoryStore):
        def put(self, *_: object, **__: object) -> None:  # type: ignore[override]
            raise PermissionError("403")

    with pytest.raises(DidNotHappen, match="s3://b/a was refused"):
        ObjectStore("s3://b", Refusing()).create("a", b"1")


def test_an_unreadable_folder_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store_module.os, "scandir", denied)
    with pytest.raises(DidNotHappen, match="Permission denied"):
        LocalFiles(tmp_path).list("log")


def test_a_writer_killed_at_any_moment_shows_no_half_file(tmp_path: Path) -> None:
    size_bytes = 8 << 20
    program = (
        "import sys, itertools\n"
        "from tidegate.storage.store import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        f"content = b'x' * {size_bytes}\n"
        "for n in itertools.count(): store.create(f'files/{n}', content); store.put('same', content)\n"
    )
    for pause_ms in (5, 23, 47, 81):
        folder = tmp_path / str(pause_ms)
        writer = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(pause_ms / 1000)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        store = open_store(str(folder))
        assert {store.size(path) for path in store.list()} <= {size_bytes}


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"checkpoints/1-g1/0\.state is missing: restore it from a backup"):
        open_store(str(tmp_path)).read("checkpoints/1-g1/0.state")


@pytest.mark.parametrize("location", ["s3://bucket/a#b", "s3://bucket/jobs?x=1", "hdfs://cluster/a#b"])
def test_a_remote_location_that_a_url_would_cut_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="choose a name without it"):
        open_store(location)


def test_many_objects_are_deleted_in_one_request() -> None:
    """One for each would keep the commits of a job behind them that retires a thousand small files at a time."""
    requests: list[Any] = []

    class Deleting(MemoryStore):
        def delete(self, paths: Any) -> None:
            requests.append(paths)

    delete_all(ObjectStore("s3://b", Deleting()), (f"shared/{number}" for number in range(3)))
    assert requests == [["shared/0", "shared/1", "shared/2"]]


def test_a_service_that_takes_no_list_is_asked_file_by_file() -> None:
    class OneByOne(MemoryStore):
        def delete(self, paths: Any) -> None:
            if not isinstance(paths, str):
                raise GenericError("501 Not Implemented")
            super().delete(paths)

    store = ObjectStore("s3://b", OneByOne())
    for name in ("a", "b", "c"):
        store.put(name, b"x")
    delete_all(store, ["a", "b", "never/there"])
    assert store.list() == ["c"]
