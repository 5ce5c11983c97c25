"""What a store on HDFS does beyond the conformance suite: leftovers, renames of unknown outcome, its own layout."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import PyFileSystem

from tests.hdfs_rules import HdfsRules, hdfs_in
from tidegate.model.errors import DidNotHappen, MayHaveHappened
from tidegate.storage.hadoop_files import HadoopFiles
from tidegate.storage.store import AlreadyThere, Created

LOCATION = "hdfs://name-node:8020/chk"


class SilentNameNode(HdfsRules):
    """Renames are not answered."""

    def move(self, src: str, dest: str) -> None:
        raise OSError(110, "Connection timed out")


class FullDisk(HdfsRules):
    def create_dir(self, path: str, recursive: bool) -> None:
        raise OSError(28, "No space left")


def test_what_a_killed_writer_left_is_hidden_and_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "chk" / "log" / "1#77").mkdir(parents=True)
    (tmp_path / "chk" / "log" / "1#77" / "#content-77").write_bytes(b"half")
    (tmp_path / "chk" / "log" / "2#78").write_bytes(b"half")
    store = HadoopFiles(LOCATION, hdfs_in(tmp_path), "/chk")
    assert store.list() == []
    assert store.create("log/1", b"whole") == Created()
    assert store.list() == ["log/1"]


def test_a_loser_that_was_killed_inside_the_winners_folder_changes_nothing(tmp_path: Path) -> None:
    store = HadoopFiles(LOCATION, hdfs_in(tmp_path), "/chk")
    store.create("log/1", b"winner")
    (tmp_path / "chk" / "log" / "1" / "1#77").mkdir()
    (tmp_path / "chk" / "log" / "1" / "1#77" / "#content-77").write_bytes(b"loser")
    assert (store.read("log/1"), store.list()) == (b"winner", ["log/1"])
    store.delete("log/1")
    assert store.list() == []
    assert store.create("log/1", b"next") == Created()


class Pieces(list[bytes]):
    """The second one cannot be had any more."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"first"
        raise ValueError("nobody waits for it")


def test_an_upload_that_ends_in_its_midst_leaves_nothing(tmp_path: Path) -> None:
    store = HadoopFiles(LOCATION, hdfs_in(tmp_path), "/chk")
    with pytest.raises(ValueError, match="nobody waits"):
        store.put("shared/1.sst", Pieces())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_created_file_can_be_replaced_and_a_replaced_one_not_created(tmp_path: Path) -> None:
    store = HadoopFiles(LOCATION, hdfs_in(tmp_path), "/chk")
    store.create("a", b"first")
    store.put("a", b"second")
    store.put("b", b"put")
    assert (store.read("a"), store.size("a")) == (b"second", 6)
    assert store.create("a", b"third") == store.create("b", b"third") == AlreadyThere()
    assert (store.read("a"), store.read("b"), store.list()) == (b"second", b"put", ["a", "b"])


def test_a_rename_that_nobody_answers_may_have_happened(tmp_path: Path) -> None:
    store = HadoopFiles(LOCATION, PyFileSystem(SilentNameNode(tmp_path)), "/chk")
    with pytest.raises(MayHaveHappened, match="hdfs://name-node:8020/chk/log/1 may or may not be written"):
        store.create("log/1", b"1")
    with pytest.raises(MayHaveHappened, match="Connection timed out"):
        store.put("a", b"1")


def test_what_could_not_be_written_did_not_happen(tmp_path: Path) -> None:
    store = HadoopFiles(LOCATION, PyFileSystem(FullDisk(tmp_path)), "/chk")
    with pytest.raises(DidNotHappen, match="No space left"):
        store.create("log/1", b"1")


@pytest.mark.parametrize(
    ("location", "connected"),
    [
        ("hdfs://MyCluster/chk", ("hdfs://MyCluster", 0, None)),
        ("hdfs://ann@Node:8020/chk", ("hdfs://Node", 8020, "ann")),
        ("hdfs:///chk", ("default", 0, None)),
    ],
)
def test_a_cluster_is_called_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, location: str, connected: tuple[str, int, str | None]
) -> None:
    """Names of nameservices and mount tables know upper and lower case."""
    seen: list[tuple[str, int, str | None]] = []

    def connect(host: str, port: int, *, user: str | None, extra_conf: object) -> object:
        seen.append((host, port, user))
        return object()

    monkeypatch.setattr("pyarrow.fs.HadoopFileSystem", connect, raising=False)
    HadoopFiles.connect(location)
    assert seen == [connected]


def test_the_folder_of_a_checkpoint_goes_with_its_last_file_and_others_stay(tmp_path: Path) -> None:
    """A listing asks for every folder, and a job makes one for each checkpoint."""
    store = HadoopFiles("hdfs://test/chk", hdfs_in(tmp_path), "/chk")
    for path in ("checkpoints/1-g1/0.state", "checkpoints/1-g1/manifest.json", "shared/1-g1-s0.channels"):
        store.put(path, b"x")
    store.delete("checkpoints/1-g1/0.state")
    assert store.list() == ["checkpoints/1-g1/manifest.json", "shared/1-g1-s0.channels"]
    store.delete("checkpoints/1-g1/manifest.json")
    store.delete("shared/1-g1-s0.channels")
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert "1-g1" not in left and "shared" in left, left
    store.put("checkpoints/1-g1/0.state", b"again")
    assert store.read("checkpoints/1-g1/0.state") == b"again"
