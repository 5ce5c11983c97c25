"""What goes wrong on this machine while state is restored or stored: it must not be taken for damage of a checkpoint,
which would be skipped for good, nor for success."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from rocksdict import Rdict

from tidegate.model.errors import Damaged, DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.log_format import LogFormat
from tidegate.operators.numbered_format import LogReader, numbered
from tidegate.operators.stored_rows import RowFormat, stream_of, with_key_group
from tidegate.state import rocksdb_instance, sst_files
from tidegate.state.contract import RestoredSection
from tidegate.state.rocksdb import RocksBackend
from tidegate.state.rocksdb_options import RocksMemory
from tidegate.state.sst_files import Folder
from tidegate.storage.store import LocalFiles, open_shared
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 128)
MEMORY = RocksMemory(memory_bytes=8 << 20)


def backend_in(folder: Path) -> RocksBackend:
    return RocksBackend(ALL, folder=Folder(folder), memory=MEMORY)


def stored_in_rocksdb(folder: Path) -> list[RestoredSection]:
    backend = backend_in(folder)
    for number in range(1_000):
        backend.keyed("count").put(number % 128, b"key-%d" % number, b"%d" % number)
    sections = restored_from(backend.snapshot())
    backend.close()
    return sections


def change_what_is_laid_out(
    monkeypatch: pytest.MonkeyPatch, pattern: str, change: Callable[[Path], object]
) -> list[Path]:
    """The one file of that name, once it is on this machine; the folders that it was changed in."""
    lay_out, folders = sst_files.lay_out, list[Path]()

    def then_change(section: RestoredSection, folder: Path) -> dict[str, str]:
        names = lay_out(section, folder)
        (file,) = folder.glob(pattern)
        change(file)
        folders.append(folder)
        return names

    monkeypatch.setattr(sst_files, "lay_out", then_change)
    return folders


def make_unreadable(file: Path) -> None:
    """By a call of the system that fails, for root as well."""
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_rocksdb_that_this_machine_cannot_open_is_no_damage_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    sections = stored_in_rocksdb(tmp_path / "before")
    folders = change_what_is_laid_out(monkeypatch, pattern, make_unreadable)
    backend = backend_in(tmp_path / "after")
    with pytest.raises(DidNotHappen, match="IO error") as raised:
        backend.restore(sections)
    assert str(folders[0]) in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "content"), [("*.sst", b"too short"), ("MANIFEST-*", b"nonsense" * 30), ("CURRENT", b"nonsense\n")]
)
def test_corrupt_files_of_rocksdb_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, content: bytes
) -> None:
    sections = stored_in_rocksdb(tmp_path / "before")
    folders = change_what_is_laid_out(monkeypatch, pattern, lambda file: file.write_bytes(content))
    with pytest.raises(Damaged, match="Corruption") as raised:
        backend_in(tmp_path / "after").restore(sections)
    assert str(folders[0]) in str(raised.value)


# -- logs of rows


ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])


def read_log(path: Path) -> None:
    list(LogFormat.of(RowFormat("rows", "a deduplication", ROWS), key_count=1).read(path, ALL))


def read_numbered_log(path: Path) -> None:
    formats = {"number": RowFormat("rows", "a join", numbered(ROWS, "number"))}
    list(LogReader(formats, ALL).read(path))


@pytest.mark.parametrize("read", [read_log, read_numbered_log])
def test_a_fetched_log_that_this_machine_cannot_read_is_no_damage_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], None]
) -> None:
    path = tmp_path / "1.rows"

    def open_one_too_many(path: str) -> pa.NativeFile:
        raise OSError(errno.EMFILE, f"Failed to open local file '{path}': {os.strerror(errno.EMFILE)}")

    with pytest.raises(DidNotHappen, match=r"1\.rows.*No such file"):
        read(path)
    monkeypatch.setattr(pa, "OSFile", open_one_too_many)
    with pytest.raises(DidNotHappen, match="Too many open files") as raised:
        read(path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("read", [read_log, read_numbered_log])
@pytest.mark.parametrize("left_bytes", [-1_000, 100, 5])
def test_a_log_that_ends_in_its_midst_is_damage(tmp_path: Path, read: Callable[[Path], None], left_bytes: int) -> None:
    """Arrow calls some of that an OSError, too: one without the number of a call of the system."""
    schema = ROWS if read is read_log else numbered(ROWS, "number")
    columns = [[f"k{at}" for at in range(1_000)], *[list(range(1_000))] * (len(schema) - 1)]
    rows = pa.RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema=schema)
    path = tmp_path / "1.rows"
    path.write_bytes(b"".join(stream_of(with_key_group(rows, 1, 128))))
    read(path)
    path.write_bytes(path.read_bytes()[:left_bytes])
    with pytest.raises(Damaged, match="cannot be read"):
        read(path)


# -- checkpoints of RocksDB


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, which nobody can import."""


class PanickingCheckpoint:
    def __init__(self, db: Rdict) -> None:
        pass

    def create_checkpoint(self, path: str) -> None:
        Path(path).mkdir()
        raise Panic("called `Result::unwrap()` on an `Err` value")


def test_a_panic_while_a_checkpoint_of_rocksdb_is_made_is_a_failure_and_not_an_empty_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_in(tmp_path / "slot")
    backend.keyed("count").put(3, b"k", b"1")
    with monkeypatch.context() as broken:
        broken.setattr(rocksdb_instance, "Checkpoint", PanickingCheckpoint)
        (section,) = backend.snapshot()
        assert section.files is not None
        for ask in (section.files, section.encode):
            with pytest.raises(DidNotHappen, match="unwrap") as raised:
                ask()
            assert str(tmp_path / "slot") in str(raised.value)
    backend.keyed("count").put(3, b"l", b"2")
    restored = backend_in(tmp_path / "restored")
    restored.restore(restored_from(backend.snapshot()))
    assert list(restored.keyed("count").scan(3)) == [(b"k", b"1"), (b"l", b"2")]


def test_a_slot_whose_machine_lacks_the_location_says_so_and_does_not_make_it(tmp_path: Path) -> None:
    with pytest.raises(DidNotHappen, match="is not there on the machine .*that the driver and all executors share"):
        open_shared(str(tmp_path / "chk"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "chk").mkdir()
    assert open_shared(f"file:{tmp_path}/chk") == LocalFiles(tmp_path / "chk")
